"""
What a scheduler can see of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

Gathers facts once per change of the node; ``admission.py`` decides on them. What is not published is assumed here, carefully, and said.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.demand import is_memory, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis, Signature, cpus_by_numa
from koord_numa.core.kubelet.in_flight import InFlightPods
from koord_numa.core.kubelet.inferred_state import Published, infer_state, parted_cpus, without_leftovers
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.options import (
    ARCHITECTURE,
    CPU_OPTIONS,
    NO_RULE,
    TOPOLOGY_OPTIONS,
    CoreEvidence,
    CoreRule,
    FreeCpus,
    WholeCores,
    core_rule,
    newer_version,
    surely_whole,
    unknown_options,
)
from koord_numa.core.kubelet.state import KubeletState, free_on
from koord_numa.core.kubelet.unreported_pods import (
    NONE_OVERLOOKED,
    Overlooked,
    hidden_use,
    holdings_by_uid,
    known_demands,
    without_hidden,
    without_overlooked,
)
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeQos
from koord_numa.core.pod_resources import has_pod_level, kube_qos
from koord_numa.core.resources import NOTHING, PODS, ResourceList, total
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import ValueObject, replace, value_object

PROBLEM, CORES = "problem", "cores"
"""What is remembered with a frame."""

MOST_NUMA: Final = 16
"""A kubelet looks at every set of NUMA nodes; no kubelet starts that has 131,072 sets to look at."""


@value_object
class KubeletView:
    """
    One node, ready for decisions: the states that its kubelet may be in, and what is known of whole cores.

    A yes must hold in every state of ``hypotheses``; the first is the likeliest. ``most`` is present where these show the least room that
    there may be: the facts with all of it. ``cores`` says which rule about whole cores the kubelet keeps or may keep. ``problem`` is
    non-empty when nothing may be placed that the kubelet would align. ``frame`` is what the objects say, and ``zones`` what is
    published less what is known to be gone from it. ``followed``: the hypotheses were replayed, not derived from amounts.
    ``unfollowed``: they were not, on a node whose pods may leave before that is seen.
    ``explored``: a pod is on its way whose fate will tell about an option that is not known;
    ``found_on`` are options for which such a pod was refused. ``rooms`` is one hypothesis for each way in which room is left, where
    that is known: those that differ only in who holds what answer alike as long as no pod leaves. ``in_flight`` are pods whose
    verdict is not known and that may be elsewhere if another has left unseen, ``None`` where there are none.
    """

    node: str
    hypotheses: tuple[Hypothesis, ...]
    cores: WholeCores = NO_RULE
    groups_known: bool = True
    problem: str = ""
    frame: NodeConfig | None = None
    zones: tuple[Zone, ...] = ()
    most: Published | None = None
    followed: bool = False
    unfollowed: bool = False
    explored: bool = False
    found_on: frozenset[str] = frozenset()
    rooms: tuple[Hypothesis, ...] = ()
    in_flight: InFlightPods | None = field(default=None, repr=False, compare=False)
    newer: str = ""  # the kubelet's version, where its managers may be others than those that are modelled
    overlooked: Overlooked = NONE_OVERLOOKED  # use of running pods that is not published, charged to every NUMA node
    is_settled: bool = (
        False  # is there one state, of which nothing is open? As of nodes whose kubelets are not followed
    )
    state: KubeletState = field(init=False, repr=False, compare=False)  # the likeliest

    def __post_init__(self) -> None:
        # Kept, as each decision asks for it a dozen times.
        object.__setattr__(self, "state", self.hypotheses[0].state)

    def problem_with(self, request: PodRequest) -> str:
        """Why it is not known what this kubelet would do with the pod; empty where that is known."""
        if self.problem and any(part.cpus or part.memory or part.devices for _, part in pod_demand(request).containers):
            return self.problem
        node = self.state.node
        # PodLevelResourceManagers (KEP-5526) is alpha in 1.36: off, unless an administrator turns it on, and likely on by default later.
        manages = bool(self.newer) and (node.pins_cpus or node.pins_memory)
        if manages and has_pod_level(request) and kube_qos(request) is KubeQos.GUARANTEED:
            return f"kubelet {self.newer} may give pods with pod-level resources CPUs and memory of their own"
        return ""

    @property
    def upper(self) -> Hypothesis | None:
        """A state with all the room that there may be; ``None`` where ``hypotheses`` show it. Few pods ask, so it is not kept."""
        return None if self.most is None else Hypothesis(infer_state(self.most).state, trust=Trust.INFERRED)

    @property
    def topology(self) -> NodeResourceTopology | None:
        """The published topology, with the zones of this view; ``None`` where none is published."""
        return None if self.frame is None else replace(self.frame.topology, zones=self.zones)


def kubelet_view(
    node: Node,
    topology: NodeResourceTopology,
    holdings: Iterable[Holding],
    unpublished: Collection[str] = (),
    previous: KubeletView | None = None,
) -> KubeletView:
    """
    Gather what is known of one kubelet-owned node from what exporters publish.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: placed by us, or seen bound, since it was made. What they hold
    is missing on every NUMA node where they may be. The other pods' use is in the zones' available amounts already. A ledger, which has
    added everything up, and ``previous`` save work only.
    """
    # A ledger keeps its sums, which a list of holdings would have to add up again.
    there = holdings if isinstance(holdings, Ledger) else list(holdings)
    shown = (held for held in there if held.pod.uid not in unpublished and held.request is not None)
    counts = {count for held in shown if held.request is not None for count in pod_demand(held.request).counts}
    frame = frame_of(node, topology, None if previous is None else previous.frame)
    return inferred_view(frame, node, PodsThere(there, unpublished), CoreEvidence(counts))


class PodsThere(ValueObject):
    """Who holds what on a node. ``unpublished`` are the uids of those that its topology does not show, ``unfollowed``: may some be gone?"""

    holdings: Ledger | list[Holding]
    unpublished: Collection[str] = ()
    unfollowed: bool = False
    overlooked: Overlooked = NONE_OVERLOOKED


def inferred_view(frame: NodeConfig, node: Node, pods: PodsThere, evidence: CoreEvidence) -> KubeletView:
    """As ``kubelet_view``, with all that is known of the kubelet's options."""
    topology, holdings, unpublished = frame.topology, pods.holdings, pods.unpublished
    there, demands = holdings_by_uid(holdings), known_demands(holdings)
    known, shown = tuple(demands.pods.values()), demands.shown_leftovers(unpublished)
    # First what init containers still hold, then pods that are not shown yet: both are missing from what exporters publish.
    parted = parted_cpus(shown, frame.node, frame.devices) if shown and pods.unfollowed else NOTHING
    zones = without_leftovers(topology.zones, shown, parted) if shown else topology.zones
    zones = without_hidden(zones, there, topology, hidden_use(holdings, frame.node), unpublished)
    zones = without_overlooked(zones, pods.overlooked, topology.zones)
    # Only devices near several NUMA nodes are missing on other ones than their pod's.
    in_flight = [demand for uid, demand in demands.pods.items() if uid in unpublished] if frame.devices else ()
    facts = Published(frame, zones, _requested(holdings), known, in_flight)
    guess = infer_state(facts)
    return KubeletView(
        node=node.name,
        newer=newer_version(node.kubelet),
        hypotheses=(Hypothesis(guess.state, trust=Trust.INFERRED),),
        cores=cores_of(node, frame, zones, evidence) if guess.state.node.pins_cpus else NO_RULE,
        groups_known=guess.groups_known,
        problem=_problem_in(frame),
        frame=frame,
        zones=zones,
        # Only where something was subtracted is there a difference between the least and the most room.
        most=None if zones == topology.zones else Published(frame, topology.zones, facts.requested, known),
        unfollowed=pods.unfollowed,
        overlooked=pods.overlooked,
        is_settled=True,
    )


def followed_view(
    node: Node,
    frame: NodeConfig,
    hypotheses: Sequence[Hypothesis],
    ledger: Ledger,
    evidence: CoreEvidence,
) -> KubeletView:
    """The view of a node whose kubelet is followed pod by pod."""
    requested = _requested(ledger)
    seen = tuple(replace(one, state=replace(one.state, requested=requested)) for one in hypotheses)
    # What is published is older than the pods that are followed.
    free = (
        FreeCpus(cpus_by_numa(one.state.managers.cpus, one.state.node), located=evidence.settled and not one.spread)
        for one in hypotheses
    )
    cores = cores_of(node, frame, frame.topology.zones, evidence, free)
    # First wins: hypotheses are in the order of likelihood. Most often there is one, which there is nothing to compare with.
    rooms: dict[Signature, Hypothesis] = {}
    for one in seen:
        rooms.setdefault(one.room if len(seen) > 1 else (), one)
    return KubeletView(
        node=node.name,
        newer=newer_version(node.kubelet),
        hypotheses=seen,
        cores=cores if seen[0].state.node.pins_cpus else NO_RULE,
        problem=_problem_in(frame),
        frame=frame,
        zones=tuple(_left(zone, seen[0].state) for zone in frame.topology.zones),
        followed=True,
        rooms=tuple(rooms.values()),
    )


def _left(zone: Zone, state: KubeletState) -> Zone:
    free = free_on(state.node, state.managers, zone.numa)
    available = {name: free.get(name, amount) for name, amount in zone.available.items()}
    return Zone(zone.numa, zone.capacity, zone.allocatable, available)


def _requested(holdings: Ledger | list[Holding]) -> dict[str, int]:
    # Pods count as a resource of their own, as in the kubelet's fit predicate.
    amounts = holdings.amounts if isinstance(holdings, Ledger) else total(held.amounts for held in holdings)
    return {**amounts, PODS: len(holdings)}


def frame_of(node: Node, topology: NodeResourceTopology, known: NodeConfig | None) -> NodeConfig:
    # The frame is the costly part (machine, device pools) and the same as long as only available amounts change.
    """What the objects say of the node, from what was ``known`` where they say the same."""
    if known is not None and known.topology is topology and known.allocatable is node.allocatable:
        return known
    if known is None or not known.holds_for(topology, node.allocatable):
        return NodeConfig.of(topology, node.allocatable, node.labels.get(ARCHITECTURE, ""))
    return known if known.topology is topology else replace(known, topology=topology)


def cores_of(
    node: Node,
    frame: NodeConfig,
    zones: Sequence[Zone],
    evidence: CoreEvidence,
    states: Iterable[FreeCpus] = (),
) -> WholeCores:
    """The rule about whole cores, by what pods that run or were refused prove."""
    architecture = node.labels.get(ARCHITECTURE, "")
    return surely_whole(core_rule_of(frame, architecture, evidence), zones, states)


def core_rule_of(frame: NodeConfig, architecture: str, evidence: CoreEvidence) -> CoreRule | None:
    """As ``core_rule``, kept while it follows from the same."""
    known: tuple[tuple[str, bool], Collection[int], CoreRule | None] | None = frame.derived.get(CORES)
    asked = architecture, evidence.kept
    if known is not None and known[0] == asked and known[1] == evidence.counts:
        return known[2]
    rule = core_rule(frame.topology.kubelet, frame.topology.zones, architecture, evidence)
    frame.derived[CORES] = asked, evidence.counts, rule
    return rule


def _problem_in(frame: NodeConfig) -> str:
    """As ``problem_of`` its topology, which stays the same until another one is published."""
    problem: str | None = frame.derived.get(PROBLEM)
    if problem is None:
        problem = frame.derived[PROBLEM] = problem_of(frame.topology)
    return problem


def problem_of(topology: NodeResourceTopology) -> str:
    """Why nothing may be placed that this kubelet would align; empty when there is no reason."""
    if topology.problem:
        return topology.problem
    if not topology.zones:
        return "no NUMA nodes are published"
    # kubelet topologymanager: above 8 NUMA nodes it needs max-allowable-numa-nodes, which may be set.
    if len(topology.zones) > MOST_NUMA and _looks_at_sets(topology):
        return f"{len(topology.zones)} NUMA nodes are published, more than a kubelet can align"
    if topology.kubelet.topology_policy is None:
        return "the topology manager policy is not published"
    return unknown_words(topology.kubelet)


def _looks_at_sets(topology: NodeResourceTopology) -> bool:
    """Does the kubelet look at sets of NUMA nodes? Under policy none only its memory manager does (getDefaultHint, policy_static.go)."""
    config = topology.kubelet
    binds_memory = config.memory_policy != "None" and any(
        is_memory(name) for zone in topology.zones for name in zone.allocatable
    )
    return config.topology_policy is not KubeletPolicy.NONE or binds_memory


def unknown_words(config: KubeletConfig) -> str:
    """Which published option changes the kubelet's decisions in a way that is not known here; empty when none does."""
    found: tuple[str, ...] = ()
    if config.topology_policy is not KubeletPolicy.NONE:
        found += unknown_options(config.topology_options, TOPOLOGY_OPTIONS)
    # The policy ``none`` ignores its options; the kubelet validates them only for the static one.
    if config.cpu_policy != "none":
        found += unknown_options(config.cpu_options, CPU_OPTIONS)
    return f"what the kubelet option {', '.join(found)} does is not known" if found else ""


@dataclass(frozen=True, slots=True)
class FreeRange:
    """What one NUMA node has free at least and at most, in our units, over every state that is possible."""

    numa: int
    lower: ResourceList
    upper: ResourceList

    def __str__(self) -> str:
        """``NUMA 0: 4 CPUs, 8Gi memory``, or ``NUMA 0: 4 CPUs .. 8 CPUs`` where the states differ."""
        low, high = amounts_text(self.lower), amounts_text(self.upper)
        return f"NUMA {self.numa}: {low or 'nothing'}" + ("" if low == high else f" .. {high}")


@dataclass(frozen=True, slots=True)
class KubeletKnowledge:
    """``states`` is how many states are possible, ``evidence`` sentences about where that and the kubelet's options are known from."""

    states: int
    evidence: tuple[str, ...]
    free: tuple[FreeRange, ...]

    @property
    def is_certain(self) -> bool:
        """Is there one state?"""
        return self.states == 1 and all(one.lower == one.upper for one in self.free)


def known_of(view: KubeletView) -> KubeletKnowledge:
    """What decisions on this node rest on."""
    states = [one.state for one in view.hypotheses]
    # ``upper`` has the most room that there may be, so that the range covers it too.
    if view.upper is not None:
        states.append(view.upper.state)
    node = view.state.node
    free = []
    for numa in node.machine.numa_ids:
        found = [free_on(node, state.managers, numa) for state in states]
        # A resource may be absent from a state where none of it is free.
        names = sorted(set().union(*found))
        free.append(
            FreeRange(
                numa,
                {name: min(one.get(name, 0) for one in found) for name in names},
                {name: max(one.get(name, 0) for one in found) for name in names},
            )
        )
    return KubeletKnowledge(len(states), tuple(_evidence(view)), tuple(free))


def _evidence(view: KubeletView) -> Iterator[str]:
    if view.problem:
        yield view.problem
    if view.followed:
        yield "every pod since the node was empty is replayed; verdicts and topologies have ruled out all other states"
    else:
        yield "the published amounts, less what they may not show yet: not every pod of the node is known from its start"
    published = None if view.frame is None else view.frame.topology.kubelet
    if published is not None and published.cpu_policy is not None:
        on = ", ".join(name for name, value in published.cpu_options.items() if value)
        yield f"CPU manager options are published or stated: {on or 'none is on'}"
    if view.cores.free is not None and view.cores.why:
        yield view.cores.why
    if view.explored:
        yield "a pod is on its way that finds out about an option"
    for option in sorted(view.found_on):
        yield f"the kubelet refused a pod that found out about {option}"
