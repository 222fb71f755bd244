"""Try a node without some of its pods: would the pending pod fit by the rules of a real decision?"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from koord_numa.core.fit.node_filters import has_room
from koord_numa.core.fit.pod_affinity import Namespaces, PodAffinityCounts, pod_affinity_counts
from koord_numa.core.fit.spread import SpreadCounts, spread_counts
from koord_numa.core.fit.volumes import storage_without
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.inference.arrivals import without_left
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.unreported_pods import shown_where_foreseen
from koord_numa.core.kubelet.unseen_departures import mask_of
from koord_numa.core.kubelet.view import KubeletView, kubelet_view
from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.objects.workloads import DisruptionBudget
from koord_numa.core.resources import CPU, MILLI, ResourceList, total, without_zeros
from koord_numa.core.scheduling.evaluate import ScoredPlacement, evaluate, refuse_everywhere
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, on_node
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.value_objects import replace

ClaimId = tuple[str, str, str]
"""Namespace, name and uid of a ResourceClaim."""


@dataclass(frozen=True, slots=True)
class Nominee:
    """
    A pod for which a node is being freed, and what it is to hold there.

    ``counted``: the pod counts for affinity and spreading, as one that is there.
    """

    pod: Pod
    holding: Holding
    counted: bool = False


@dataclass(frozen=True, slots=True)
class PreemptionNode:
    """
    A node with all its pods. ``seen`` counts the pods there and the ``nominees``.

    ``pods`` and ``nominees`` are by uid. ``unpublished`` are uids of which the node's topology shows nothing yet, nominees among them;
    ``assumed`` are uids of pods whose bind is not confirmed: they are not there to be evicted.
    """

    seen: NodeSnapshot
    pods: Mapping[str, Pod]
    topology: NodeResourceTopology | None = None
    nominees: Mapping[str, Nominee] = field(default_factory=dict)
    unpublished: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()

    @property
    def trusted(self) -> bool:
        """Is what is known of the node good enough to evict pods for? Nothing barred, malformed or unusable is."""
        return (
            self.seen.barred is None
            and not isinstance(self.seen.offer, Rejection)
            and not self.seen.node.problem
            and not (self.topology is not None and self.topology.problem)
        )


def without_pods(followed: KubeletView, uids: Collection[str], published: KubeletView) -> KubeletView:
    """
    The view of a followed node without these pods; others stay where they are foreseen. ``published`` is what its amounts say without them,
    which counts requests and whole cores.
    """
    requested = published.state.requested
    states = (after for one in followed.hypotheses for after in without_left(one, uids))
    return replace(
        followed,
        hypotheses=tuple([replace(one, state=replace(one.state, requested=requested)) for one in states]),
        rooms=(),  # as many as there are states: which of them leave the same room is found out where they are asked about
        on_their_way=None,
        cores=published.cores,
    )


def numa_of(followed: KubeletView, uid: str, foreseen: Collection[int]) -> int | None:
    """
    The NUMA node on which all that the pod holds is, as its kubelet is followed; ``None`` where that is not one, or not certain.

    ``foreseen`` are those on which it was to be when it was placed: wrong where a pod that was decided on before it came later, or never.
    """
    masks = (_mask_in(one, uid) for one in followed.hypotheses)
    first = next(masks)
    if first.bit_count() != 1:
        return None
    numa = first.bit_length() - 1
    # The likeliest state says what was foreseen, as of nearly every pod: the others are not worth a look.
    if {*foreseen} == {numa}:
        return numa
    return numa if all(mask == first for mask in masks) else None


def _mask_in(one: Hypothesis, uid: str) -> int:
    pod = one.state.pods.get(uid)
    return 0 if pod is None or uid in one.spread or uid in one.mixed else mask_of(pod.grant, one.state.node)


def request_without(
    ask: SchedulingRequest, node: Node, gone: Sequence[Pod], namespaces: Namespaces
) -> SchedulingRequest:
    """The ask as it will be when these pods have left this node. Preferences stay as they are: only what must hold is recounted."""
    near, even, storage = ask.neighbours, ask.spread, ask.storage
    # Pods that do not depend on others have nothing to recount.
    if not gone or (near is None and even is None and storage is None):
        return ask
    here = [(node, pod) for pod in gone]
    if near is not None:
        near = _fewer(near, pod_affinity_counts(ask.request, here, namespaces))
    if even is not None:
        even = _less_crowded(even, spread_counts(ask.request, (), here))
    if storage is not None:
        storage = storage_without(storage, node.name, gone)
    return replace(ask, neighbours=near, spread=even, storage=storage)


def _fewer(view: PodAffinityCounts, part: PodAffinityCounts) -> PodAffinityCounts:
    # A difference of Counters drops what is zero; a domain without pods must not look like one with pods.
    return replace(
        view,
        affine=view.affine - part.affine,
        repelled=view.repelled - part.repelled,
        forbidden=view.forbidden - part.forbidden,
    )


def _less_crowded(view: SpreadCounts, part: SpreadCounts) -> SpreadCounts:
    """A domain stays a domain, even when no pod is left in it."""
    counts = {}
    for index, counted in view.counts.items():
        left = Counter(counted)
        left.subtract(part.counts[index])
        counts[index] = left
    return SpreadCounts(counts)


Place = Mapping[int, ResourceList]
"""What a pod uses, by NUMA node. Empty for a pod that is tied to none."""


def locate(holding: Holding, topology: NodeResourceTopology, followed: int | None = None) -> Place | None:
    """
    Where a pod that the topology shows sits, by NUMA node; ``None`` when that is not certain.

    Known from ``followed``, the one NUMA node on which its kubelet is known to have it, if that is known; else from what was foreseen when
    it was placed, if that says one thing only; else where one NUMA node alone has that much in use and the policy allows one only. What
    init containers have left behind lies no pod knows where.
    """
    # A pod that is only known by name has no amounts to give back.
    if holding.request is None:
        return None
    demand = pod_demand(holding.request)
    tied = _tied(demand, topology.zones)
    if not tied:
        return {}
    # CPUs and devices of init containers stay held somewhere in the pod's NUMA nodes.
    if _leaves_something_behind(demand):
        return None
    foreseen = {numa: _only(amounts, tied) for numa, amounts in holding.numa}
    if followed is not None:
        foreseen = {followed: tied}
    if foreseen:
        # Charged on several NUMA nodes, the sum is more than the pod has: no single place follows.
        certain = without_zeros(total(foreseen.values())) == tied
        shown = all(_uses(zone, foreseen.get(zone.numa, {})) for zone in topology.zones)
        return foreseen if certain and shown else None
    return _deduced(demand, tied, topology)


def credited(topology: NodeResourceTopology, places: Iterable[Place]) -> NodeResourceTopology | None:
    """
    The topology as it will be published when the pods of these places are gone.

    ``None`` when that is more than is in use anywhere: then the places, or what is published, cannot be right.
    """
    back: dict[int, list[ResourceList]] = {}
    for place in places:
        for numa, amounts in place.items():
            back.setdefault(numa, []).append(amounts)
    if not back:
        return topology
    zones = []
    for zone in topology.zones:
        # ``pop``: what is left at the end names NUMA nodes that the topology does not have.
        more = total(back.pop(zone.numa, []))
        if not _uses(zone, more):
            return None
        zones.append(replace(zone, available={name: left + more.get(name, 0) for name, left in zone.available.items()}))
    return None if back else replace(topology, zones=tuple(zones))


def _tied(demand: PodDemand, zones: Sequence[Zone]) -> dict[str, int]:
    """What the pod asks for of resources that some zone lists; exporters list exactly what a kubelet ties to NUMA nodes."""
    wanted = {CPU: demand.pod.cpus * MILLI, **demand.pod.devices, **(demand.pod.memory or {})}
    # Only what some zone lists; the rest is not bound to NUMA nodes.
    return {name: amount for name, amount in wanted.items() if amount and any(z.allocatable.get(name) for z in zones)}


def _only(amounts: ResourceList, names: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def _uses(zone: Zone, amounts: ResourceList) -> bool:
    return all(zone.allocatable.get(n, 0) - zone.available.get(n, 0) >= amount for n, amount in amounts.items())


def _leaves_something_behind(demand: PodDemand) -> bool:
    return any(
        container.kind is ContainerKind.INIT and (part.cpus or any(part.devices.values()))
        for container, part in demand.containers
    )


def _deduced(demand: PodDemand, tied: ResourceList, topology: NodeResourceTopology) -> Place | None:
    zones = topology.zones
    if len(zones) > 1 and not _one_numa_only(demand, topology):
        return None
    possible = [zone.numa for zone in zones if _uses(zone, tied)]
    return {possible[0]: tied} if len(possible) == 1 else None


def _one_numa_only(demand: PodDemand, topology: NodeResourceTopology) -> bool:
    """Must everything that the pod holds be on one NUMA node, whichever it is?"""
    kubelet = topology.kubelet
    if kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    units = sum(1 for _, part in demand.containers if part.cpus or part.memory or any(part.devices.values()))
    return kubelet.topology_scope is KubeletScope.POD or units == 1


class FreedDevices(Protocol):
    """Devices for the claims of the newcomer, where the claims of pods that are away are free."""

    def place(
        self, node: PreemptionNode, seen: NodeSnapshot, placement: Placement, gone: Collection[str]
    ) -> Placement | Rejection:
        """Return the placement with devices when the pods ``gone``, by uid, have left, or why there are none."""

    def may_suffice(self, node: PreemptionNode, gone: Collection[str]) -> bool:
        """Necessary condition: the node has enough devices when these pods have left."""

    def awaited(self, node: PreemptionNode, gone: Collection[str]) -> frozenset[ClaimId]:
        """Return the claims that lose their devices when these pods have left."""


@dataclass(frozen=True, slots=True)
class EvictionTerms:
    """
    By what rules a pod is placed, which budgets are to be spared, and the labels of all namespaces.

    ``devices`` is ``None`` for a pod without claims.
    """

    rules: Profile
    budgets: Sequence[DisruptionBudget] = ()
    namespaces: Namespaces = field(default_factory=dict)
    devices: FreedDevices | None = None


def answer_of(ask: SchedulingRequest, candidate: NodeSnapshot, rules: Profile) -> ScoredPlacement | Rejection:
    """The whole rule: what stands against the pod everywhere, and what this node says."""
    return refuse_everywhere(ask) or evaluate(ask, candidate, rules)


class DryRun:
    """One pending pod on one node. ``gone`` are the uids of those who are away at the moment."""

    def __init__(self, ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms) -> None:
        self._ask = ask
        self._node = node
        self._terms = terms
        self._holdings: Mapping[str, Holding] = dict(node.seen.ledger.holdings)
        # A ledger of its own: it is changed for every try.
        self._ledger = Ledger.of(self._holdings.values())
        self._places: dict[str, Place | None] = {}
        # A dict for its order: pods are credited in the order in which they were sent away.
        self.gone: dict[str, None] = {}
        self._amounts = on_node(ask, node.seen.node).amounts
        self._known: tuple[Placement | None] | None = None  # the last answer, until a pod goes or comes back

    def is_movable(self, uid: str) -> bool:
        """Is it certain what this pod gives back when it goes? Always, where CPUs are ours to give."""
        return self._place(uid) is not None

    def send_away(self, uids: Iterable[str]) -> None:
        """As if these were not there."""
        self._known = None
        for uid in uids:
            self._ledger.release(uid)
            self.gone[uid] = None

    def let_back(self, uid: str) -> None:
        """As if this one had stayed."""
        self._known = None
        self._ledger.hold(self._holdings[uid])
        del self.gone[uid]

    def lacks_amounts_with(self, uid: str) -> bool:
        """
        Would amounts of the whole node not suffice for the newcomer if this one were back? Then it has to stay away, whatever other pods
        come back beside it: a filter that looks at nothing else (NodeResourcesFit) refuses the newcomer.
        """
        ledger, back = self._ledger, self._holdings[uid].amounts
        held = {name: ledger.amounts.get(name, 0) + back.get(name, 0) for name in self._amounts}
        return not has_room(self._amounts, self._node.seen.allocatable, held, len(ledger) + 1)

    def answer(self) -> Placement | None:
        """What the newcomer gets now; ``None`` when it does not fit, or when it cannot be known."""
        if self._known is None:
            self._known = (self._answer(),)
        return self._known[0]

    def _answer(self) -> Placement | None:
        candidate = self._candidate()
        if candidate is None:
            return None
        node, gone = self._node, [self._node.pods[uid] for uid in self.gone if uid in self._node.pods]
        ask = request_without(self._ask, node.seen.node, gone, self._terms.namespaces)
        verdict = answer_of(ask, candidate, self._terms.rules)
        if isinstance(verdict, Rejection):
            return None
        followed = self._followed(candidate)
        if followed is not None and isinstance(answer_of(ask, followed, self._terms.rules), Rejection):
            return None
        devices = self._terms.devices
        if devices is None:
            return verdict.placement
        placed = devices.place(node, candidate, verdict.placement, self.gone)
        return placed if isinstance(placed, Placement) else None

    def _candidate(self) -> NodeSnapshot | None:
        seen = replace(self._node.seen, ledger=self._ledger, ports=self._ports())
        # Where the scheduler chooses CPUs, releasing a holding says all; a kubelet's node has to be inferred again.
        if not isinstance(seen.offer, KubeletView):
            return seen
        topology = self._node.topology
        if topology is None:
            return None
        after = credited(topology, [place for uid in self.gone if (place := self._place(uid)) is not None])
        if after is None:
            return None
        # Not ``without_hidden``: the worst case would let a pod look unplaceable and its victims be evicted for nothing.
        hidden = [held for uid, held in self._ledger.holdings.items() if uid in self._node.unpublished]
        after = replace(after, zones=shown_where_foreseen(after.zones, hidden))
        return replace(seen, offer=kubelet_view(seen.node, after, self._ledger, (), seen.offer))

    def _followed(self, candidate: NodeSnapshot) -> NodeSnapshot | None:
        """As the decision after the evictions will see the node: by the states that its kubelet is followed into, where it is."""
        now = self._node.seen.offer
        if not isinstance(now, KubeletView) or not now.followed or not isinstance(candidate.offer, KubeletView):
            return None
        return replace(candidate, offer=without_pods(now, self.gone, candidate.offer))

    def _ports(self) -> tuple[HostPort, ...]:
        node = self._node
        # Without host ports in the request nothing asks for them.
        if not self._ask.request.constraints.host_ports:
            return node.seen.ports
        there = [*node.pods.items(), *((uid, nominee.pod) for uid, nominee in node.nominees.items())]
        return tuple(port for uid, pod in there if uid not in self.gone for port in pod.request.constraints.host_ports)

    def _place(self, uid: str) -> Place | None:
        """What NUMA nodes get back from a pod, in so far as the topology shows the pod at all."""
        node, offer = self._node, self._node.seen.offer
        # Pods that no topology shows are not in its amounts, so that nothing comes back from them.
        if not isinstance(offer, KubeletView) or uid in node.unpublished:
            return {}
        if uid not in self._places:
            topology, holding = node.topology, self._holdings[uid]
            numa = numa_of(offer, uid, [numa for numa, _ in holding.numa]) if offer.followed else None
            self._places[uid] = None if topology is None else locate(holding, topology, numa)
        return self._places[uid]
