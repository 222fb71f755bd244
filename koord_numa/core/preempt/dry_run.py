"""Dry run of a pod on a node without some of its pods, by the rules of a real decision."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from koord_numa.core.fit.node_filters import has_room
from koord_numa.core.fit.pod_placement import (
    Namespaces,
    PodAffinityCounts,
    SpreadCounts,
    pod_affinity_counts,
    spread_counts,
)
from koord_numa.core.fit.volumes import storage_with, storage_without
from koord_numa.core.kubelet import KubeletView, PodDemand, pod_demand, view_after_eviction
from koord_numa.core.objects.claims import Allocation
from koord_numa.core.objects.constraints import DisruptionBudget, HostPort
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList, total, without_zeros
from koord_numa.core.scheduling.filters import ScoredPlacement, evaluate, refuse_everywhere
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, amounts_of_node, on_node
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.state.ledger import Holding, Ledger, holding_of
from koord_numa.core.value_objects import ValueObject, replace, value_field

ClaimId = tuple[str, str, str]
"""Namespace, name and UID of a ResourceClaim."""


Unit = tuple[Pod, ...]
"""Pods that are disrupted together: one pod, or the bound members of a gang with ``disruptionMode: all``."""


class Nominee(ValueObject):
    """
    Pod for which a node is being freed, with its holding there.

    ``counted``: the pod counts for affinity and spreading, like a placed pod.
    """

    pod: Pod
    holding: Holding
    counted: bool = False


class PreemptionNode(ValueObject):
    """
    Node with all its pods. ``seen`` counts the pods there and the ``nominees``.

    ``pods`` and ``nominees`` are by UID. ``unpublished`` are UIDs that the node's topology does not show yet, including nominees.
    ``assumed`` are UIDs of pods that cannot be evicted because their bind, or that of a pod of their unit, is not confirmed. ``units`` has,
    by UID, the pods of all nodes that are disrupted together with a pod of this node.
    """

    seen: NodeSnapshot
    pods: Mapping[str, Pod]
    topology: NodeResourceTopology | None = None
    nominees: Mapping[str, Nominee] = value_field(default_factory=dict)
    unpublished: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()
    units: Mapping[str, Unit] = value_field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """True if pods may be evicted from the node: it is not barred, malformed or unusable."""
        return (
            self.seen.barred is None
            and not isinstance(self.seen.offer, Rejection)
            and not self.seen.node.problem
            and not (self.topology is not None and self.topology.problem)
        )


PodsOnNodes = Sequence[tuple[Node, Pod]]


def request_after(
    ask: SchedulingRequest, gone: PodsOnNodes, namespaces: Namespaces, come: PodsOnNodes = ()
) -> SchedulingRequest:
    """
    Return the request as if the pods ``gone`` had left their nodes and the pods ``come`` had been placed.

    Preferences are unchanged: only requirements are recounted.
    """
    near, even, storage = ask.neighbours, ask.spread, ask.storage
    # Pods that do not depend on others have nothing to recount.
    if not (gone or come) or (near is None and even is None and storage is None):
        return ask
    if near is not None:
        near = _fewer(near, pod_affinity_counts(ask.request, gone, namespaces))
        near = _more(near, pod_affinity_counts(ask.request, come, namespaces))
    if even is not None:
        even = _recounted(even, spread_counts(ask.request, (), gone), -1)
        even = _recounted(even, spread_counts(ask.request, (), come), 1)
    if storage is not None:
        for node, pod in gone:
            storage = storage_without(storage, node.name, [pod])
        for node, pod in come:
            storage = storage_with(storage, node.name, [pod])
    return replace(ask, neighbours=near, spread=even, storage=storage)


def _fewer(view: PodAffinityCounts, part: PodAffinityCounts) -> PodAffinityCounts:
    # A difference of Counters drops zeros: a domain without pods must not count as a domain with pods.
    return replace(
        view,
        affine=view.affine - part.affine,
        repelled=view.repelled - part.repelled,
        forbidden=view.forbidden - part.forbidden,
    )


def _more(view: PodAffinityCounts, part: PodAffinityCounts) -> PodAffinityCounts:
    return replace(
        view,
        affine=view.affine + part.affine,
        repelled=view.repelled + part.repelled,
        forbidden=view.forbidden + part.forbidden,
    )


def _recounted(view: SpreadCounts, part: SpreadCounts, sign: int) -> SpreadCounts:
    """Add (1) or subtract (-1) the counts. Domains without pods are kept; no domain is added."""
    counts = {}
    for index, counted in view.counts.items():
        changed = part.counts[index]
        counts[index] = Counter({value: count + sign * changed[value] for value, count in counted.items()})
    return SpreadCounts(counts)


Place = Mapping[int, ResourceList]
"""Amounts of a pod by NUMA node. Empty for a pod that is not bound to NUMA nodes."""


def locate(holding: Holding, topology: NodeResourceTopology, followed: int | None = None) -> Place | None:
    """
    Return the amounts by NUMA node of a pod that the topology shows; ``None`` when they are not certain.

    Known from ``followed``, the certain NUMA node in the tracked state of the kubelet; else from the prediction at placement if it is
    unambiguous; else if the policy requires a single NUMA node and only one has that amount in use. The NUMA nodes of amounts that init
    containers left are unknown.
    """
    # A pod that is known by name only has no amounts to return.
    if holding.request is None:
        return None
    demand = pod_demand(holding.request)
    tied = _tied(demand, topology.zones)
    if not tied:
        return {}
    # CPUs and devices of init containers remain held on some of the pod's NUMA nodes.
    if any(
        container.kind is ContainerKind.INIT and (part.cpus or any(part.devices.values()))
        for container, part in demand.containers
    ):
        return None
    foreseen = {numa: _only(amounts, tied) for numa, amounts in holding.numa}
    if followed is not None:
        foreseen = {followed: tied}
    if foreseen:
        # If charged on several NUMA nodes, the sum exceeds the pod's amounts: the place is ambiguous.
        certain = without_zeros(total(foreseen.values())) == tied
        shown = all(_uses(zone, foreseen.get(zone.numa, {})) for zone in topology.zones)
        return foreseen if certain and shown else None
    zones = topology.zones
    if len(zones) > 1 and not _one_numa_only(demand, topology):
        return None
    possible = [zone.numa for zone in zones if _uses(zone, tied)]
    return {possible[0]: tied} if len(possible) == 1 else None


def credited(topology: NodeResourceTopology, places: Iterable[Place]) -> NodeResourceTopology | None:
    """
    Return the topology as it will be published when the pods of these places are gone.

    ``None`` if the amounts exceed the amounts in use: then the places or the published amounts are wrong.
    """
    back: dict[int, list[ResourceList]] = {}
    for place in places:
        for numa, amounts in place.items():
            back.setdefault(numa, []).append(amounts)
    if not back:
        return topology
    zones = []
    for zone in topology.zones:
        # ``pop``: remaining keys are NUMA nodes that the topology does not have.
        more = total(back.pop(zone.numa, []))
        if not _uses(zone, more):
            return None
        zones.append(replace(zone, available={name: left + more.get(name, 0) for name, left in zone.available.items()}))
    return None if back else replace(topology, zones=tuple(zones))


def _tied(demand: PodDemand, zones: Sequence[Zone]) -> dict[str, int]:
    """Return the requested amounts of resources that any zone lists. Exporters list the resources that a kubelet binds to NUMA nodes."""
    wanted = {CPU: demand.pod.cpus * MILLI, **demand.pod.devices, **(demand.pod.memory or {})}
    # Only listed resources; others are not bound to NUMA nodes.
    return {name: amount for name, amount in wanted.items() if amount and any(z.allocatable.get(name) for z in zones)}


def _only(amounts: ResourceList, names: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def _uses(zone: Zone, amounts: ResourceList) -> bool:
    return all(zone.allocatable.get(n, 0) - zone.available.get(n, 0) >= amount for n, amount in amounts.items())


def _one_numa_only(demand: PodDemand, topology: NodeResourceTopology) -> bool:
    """Return whether the kubelet requires all amounts of the pod on a single NUMA node."""
    kubelet = topology.kubelet
    if kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    units = sum(1 for _, part in demand.containers if part.cpus or part.memory or any(part.devices.values()))
    return kubelet.topology_scope is KubeletScope.POD or units == 1


class FreedDevices(Protocol):
    """Devices for the claims of the preemptor, with the claims of removed pods freed."""

    def place(
        self,
        node: PreemptionNode,
        seen: NodeSnapshot,
        placement: Placement,
        gone: Collection[str],
        taken: Sequence[Allocation] = (),
    ) -> Placement | Rejection:
        """
        Return the placement with devices when the pods ``gone``, by uid, have left, or why there are none.

        The devices ``taken`` are in use.
        """

    def may_suffice(self, node: PreemptionNode, gone: Collection[str]) -> bool:
        """Necessary condition: the node has enough devices when these pods have left."""

    def awaited(self, node: PreemptionNode, gone: Collection[str]) -> frozenset[ClaimId]:
        """Return the claims that lose their devices when these pods have left."""


class EvictionTerms(ValueObject):
    """
    Rules for an eviction: the profile of the pod, the budgets, and the labels of all namespaces.

    ``devices`` is ``None`` for a pod without claims.
    """

    rules: Profile
    budgets: Sequence[DisruptionBudget] = ()
    namespaces: Namespaces = value_field(default_factory=dict)
    devices: FreedDevices | None = None


def answer_of(ask: SchedulingRequest, candidate: NodeSnapshot, rules: Profile) -> ScoredPlacement | Rejection:
    """Return the result of all rules: pre-filters, then the node."""
    return refuse_everywhere(ask) or evaluate(ask, candidate, rules)


class AssumedThere(ValueObject):
    """Pod that takes the place of removed pods."""

    pod: Pod
    placement: Placement
    holding: Holding


class NodeTrial:
    """
    Node without some of its pods and with other pods in their place, to evaluate further pods there.

    ``gone`` are the UIDs of the removed pods, ``assumed`` the pods in their place, in the order in which they are bound.
    """

    def __init__(self, node: PreemptionNode) -> None:
        self.node = node
        self._holdings: Mapping[str, Holding] = dict(node.seen.ledger.holdings)
        # A separate ledger, because it is changed by every attempt.
        self._ledger = Ledger.of(self._holdings.values())
        self._places: dict[str, Place | None] = {}
        # A dict preserves the order: pods are credited in the order of their removal.
        self.gone: dict[str, None] = {}
        self.assumed: dict[str, AssumedThere] = {}

    def pods_gone(self) -> list[Pod]:
        """Return the removed pods, without nominees."""
        return [self.node.pods[uid] for uid in self.gone if uid in self.node.pods]

    def is_movable(self, uid: str) -> bool:
        """Return whether the amounts that this pod would release are certain. Always true where the scheduler allocates CPUs."""
        return self._place(uid) is not None

    def send_away(self, uids: Iterable[str]) -> None:
        """Remove these pods."""
        for uid in uids:
            self._ledger.release(uid)
            self.gone[uid] = None

    def let_back(self, uids: Iterable[str]) -> None:
        """Restore removed pods."""
        for uid in uids:
            self._ledger.hold(self._holdings[uid])
            del self.gone[uid]

    def assume(self, pod: Pod, placement: Placement) -> None:
        """Count a pod at this placement after the pods assumed before."""
        holding = holding_of(placed_at(pod, placement), placement.assignment)
        self.assumed[pod.key.uid] = AssumedThere(pod, placement, holding)

    def undo(self, uid: str) -> None:
        """Stop counting an assumed pod."""
        del self.assumed[uid]

    def lacks(self, amounts: ResourceList, back: Iterable[str] = ()) -> bool:
        """Return whether the amounts of the whole node are insufficient for another pod when the pods ``back`` are restored."""
        return self._exceeds(amounts, [self._holdings[uid].amounts for uid in back] + self._assumed_amounts(), 1)

    def overfull(self, back: Iterable[str]) -> bool:
        """Return whether the amounts of the whole node are insufficient for the assumed pods when the pods ``back`` are restored."""
        assumed = self._assumed_amounts()
        return self._exceeds(total(assumed), [self._holdings[uid].amounts for uid in back], len(assumed))

    def _assumed_amounts(self) -> list[ResourceList]:
        return [it.holding.amounts for it in self.assumed.values()]

    def _exceeds(self, amounts: ResourceList, others: Sequence[ResourceList], pods: int) -> bool:
        ledger = self._ledger
        amounts = amounts_of_node(amounts, self.node.seen)
        held = {name: ledger.amounts.get(name, 0) + sum(it.get(name, 0) for it in others) for name in amounts}
        return not has_room(amounts, self.node.seen.allocatable, held, len(ledger) + len(others) + pods - 1)

    def place(
        self,
        ask: SchedulingRequest,
        terms: EvictionTerms,
        away: Collection[str] | None = None,
        taken: Sequence[Allocation] = (),
    ) -> Placement | None:
        """
        Return the placement of a further pod; ``None`` when it does not fit or that is not certain.

        ``away`` are the removed pods of all nodes, by default those of this node; ``taken`` are devices of assumed pods.
        """
        base = self._candidate(ask, self._ledger, ())
        if base is None:
            return None
        candidate = base if not self.assumed else self._candidate(ask, self._with_assumed(), self.assumed)
        if candidate is None:
            return None
        verdict = answer_of(ask, candidate, terms.rules)
        if isinstance(verdict, Rejection):
            return None
        followed = self._followed(base, candidate)
        if followed is not None and isinstance(answer_of(ask, followed, terms.rules), Rejection):
            return None
        if terms.devices is None:
            return verdict.placement
        placed = terms.devices.place(
            self.node, candidate, verdict.placement, self.gone if away is None else away, taken
        )
        return placed if isinstance(placed, Placement) else None

    def _with_assumed(self) -> Ledger:
        return Ledger.of([*self._ledger, *(it.holding for it in self.assumed.values())])

    def _candidate(self, ask: SchedulingRequest, ledger: Ledger, assumed: Collection[str]) -> NodeSnapshot | None:
        seen = replace(self.node.seen, ledger=ledger, ports=self._ports(ask))
        # Where the scheduler allocates CPUs, releasing a holding is sufficient; a kubelet's state has to be inferred
        # again.
        if not isinstance(seen.offer, KubeletView):
            return seen
        topology = self.node.topology
        if topology is None:
            return None
        after = credited(topology, [place for uid in self.gone if (place := self._place(uid)) is not None])
        if after is None:
            return None
        unpublished = self.node.unpublished
        hidden = [held for uid, held in ledger.holdings.items() if uid in unpublished or uid in assumed]
        return replace(seen, offer=view_after_eviction(seen.node, after, ledger, hidden, seen.offer))

    def _followed(self, base: NodeSnapshot, candidate: NodeSnapshot) -> NodeSnapshot | None:
        """Return the node with the tracked states of its kubelet, as the decision after the evictions will evaluate it."""
        now = self.node.seen.offer
        if not isinstance(now, KubeletView) or not now.followed or not isinstance(base.offer, KubeletView):
            return None
        after = now.without_pods(self.gone, base.offer).with_pods(
            {uid: it.pod.request for uid, it in self.assumed.items()}
        )
        refused = Rejection(Reason.UNTRUSTED, "node(s) had a kubelet that rejects the pods before")
        return replace(candidate, offer=refused if after is None else after)

    def _ports(self, ask: SchedulingRequest) -> tuple[HostPort, ...]:
        node = self.node
        # Without host ports in the request they are not evaluated.
        if not ask.request.constraints.host_ports:
            return node.seen.ports
        there = [
            *node.pods.items(),
            *((uid, it.pod) for uid, it in node.nominees.items()),
            *((uid, it.pod) for uid, it in self.assumed.items()),
        ]
        return tuple(port for uid, pod in there if uid not in self.gone for port in pod.request.constraints.host_ports)

    def _place(self, uid: str) -> Place | None:
        """Return the amounts per NUMA node that a pod releases, if the topology shows the pod."""
        node, offer = self.node, self.node.seen.offer
        # Amounts of pods that no topology shows are not included in it, so that nothing is returned.
        if not isinstance(offer, KubeletView) or uid in node.unpublished:
            return {}
        if uid not in self._places:
            topology, holding = node.topology, self._holdings[uid]
            numa = offer.numa_of(uid, [numa for numa, _ in holding.numa]) if offer.followed else None
            self._places[uid] = None if topology is None else locate(holding, topology, numa)
        return self._places[uid]


def placed_at(pod: Pod, placement: Placement) -> Pod:
    """Return the pod as counted at this placement."""
    if placement.counted is not None:
        pod = replace(pod, request=replace(pod.request, counted=placement.counted))
    return pod.placed(placement.node, placement.assignment, placement.devices)


class DryRun(NodeTrial):
    """Dry run of one pending pod on a node."""

    def __init__(self, ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms) -> None:
        super().__init__(node)
        self._ask = ask
        self._terms = terms
        self._amounts = on_node(ask, node.seen.node).amounts
        self._known: tuple[Placement | None] | None = None  # the last result, until a pod is removed or restored

    def send_away(self, uids: Iterable[str]) -> None:
        """Remove these pods."""
        self._known = None
        super().send_away(uids)

    def let_back(self, uids: Iterable[str]) -> None:
        """Restore removed pods."""
        self._known = None
        super().let_back(uids)

    def lacks_amounts_with(self, uids: Iterable[str]) -> bool:
        """
        Return whether the amounts of the whole node are insufficient for the preemptor if these pods are restored.

        One of them then has to be removed, whatever other pods are restored, because NodeResourcesFit rejects the preemptor.
        """
        return self.lacks(self._amounts, uids)

    def answer(self) -> Placement | None:
        """Return the placement of the preemptor; ``None`` when it does not fit or that is not certain."""
        if self._known is None:
            node = self.node
            gone = [(node.seen.node, node.pods[uid]) for uid in self.gone if uid in node.pods]
            self._known = (self.place(request_after(self._ask, gone, self._terms.namespaces), self._terms),)
        return self._known[0]
