"""
The scheduler's view of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

``kubelet_view`` and ``inferred_view`` derive a view from amounts, ``followed_view`` from replayed hypotheses. Facts are
gathered once per change of the
node, and ``admission.py`` decides on them. Unpublished facts are assumed conservatively and reported (``known_of``).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Final, Protocol

from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.budget import SLICE
from koord_numa.core.kubelet.demand import is_memory, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
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
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletState, free_on
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
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeQos
from koord_numa.core.pod_resources import has_pod_level, kube_qos
from koord_numa.core.resources import NOTHING, PODS, ResourceList, total
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field, value_object

PROBLEM, CORES = "problem", "cores"
"""Keys of the values that are cached with a frame."""

MOST_NUMA: Final = 16
"""Maximum NUMA nodes that are modeled. A kubelet tries every set of NUMA nodes, and none starts with 131,072 sets."""


class Unfinished(Protocol):
    """An evaluation of the states of a view. ``answer`` is ``None`` until it is finished."""

    answer: KubeletAdmission | Rejection | None

    def advance(self, steps: int) -> None:
        """Continue for about this number of steps."""


class Explorations(MutableObject):
    """
    The evaluations of one view that need more than one slice of steps, so that no decision blocks the scheduler.

    A decision runs the first slice. The caller runs the others between decisions, and repeats the decision when all are finished.
    ``steps`` are the steps of a slice. ``of`` are the evaluations by request class. ``began`` is called for each of
    them. Without ``hypotheses``, and in a copy of the view with other hypotheses, a decision has a single slice.
    """

    hypotheses: Sequence[Hypothesis] | None = None
    began: Callable[[], None] | None = None
    steps: int = SLICE
    of: dict[Hashable, Unfinished] = value_field(default_factory=dict)

    def add(self, request: PodRequest, evaluation: Unfinished) -> None:
        """Keep an evaluation."""
        self.of[request.class_key] = evaluation
        if self.began is not None:
            self.began()

    def advance(self) -> bool:
        """Run one slice. Return whether all evaluations are finished."""
        for evaluation in self.of.values():
            if evaluation.answer is None:
                evaluation.advance(self.steps)
                break
        return all(evaluation.answer is not None for evaluation in self.of.values())


ONE_SLICE: Final = Explorations()
"""For views whose evaluations are not continued."""


@value_object
class KubeletView:
    """
    The state of knowledge about one node, ready for decisions.

    A pod is admitted only if every state of ``hypotheses`` admits it; the first is the most likely. ``most`` are
    the facts with the most room, set if
    the hypotheses have the least possible room. ``cores`` is the whole-core rule that the kubelet has or may have.
    While ``problem`` is not empty,
    no pod that the kubelet would align is placed. ``frame`` is the node's configuration, and ``zones`` are the
    published zones less what is known
    to be used in addition. ``followed``: the hypotheses are replayed and not derived from amounts. ``unfollowed``:
    they are derived from amounts, on a
    node whose pods may leave before that is seen.

    ``explored``: the verdict on a pod in flight will show whether an unpublished option is on. ``found_on`` are
    options for which the kubelet
    rejected such a pod. ``rooms`` has one hypothesis per distinct room, where known: hypotheses that differ only in
    the holders give the same
    answer while no pod leaves. ``in_flight`` are the pods without a verdict that may be elsewhere if another pod
    has left unseen, or ``None``. ``explorations`` are evaluations that take several slices, or ``None`` where every
    evaluation is finished at once.
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
    explorations: Explorations | None = field(default=None, repr=False, compare=False)
    newer: str = ""  # the kubelet's version, if it is newer than the modeled managers
    overlooked: Overlooked = NONE_OVERLOOKED  # use of running pods that is not published, charged to every NUMA node
    is_settled: bool = False  # whether there is one state without unknowns, as for nodes that are not followed
    state: KubeletState = field(init=False, repr=False, compare=False)  # the most likely state

    def __post_init__(self) -> None:
        # Stored, because every decision reads it many times.
        object.__setattr__(self, "state", self.hypotheses[0].state)

    def evaluate_in_slices(self, explorations: Explorations) -> None:
        """Set ``explorations`` of a new view. A copy would take a tenth of the time of a decision."""
        object.__setattr__(self, "explorations", explorations)

    def problem_with(self, request: PodRequest) -> str:
        """Return why the kubelet's decision on the pod cannot be predicted, or an empty string."""
        if self.problem and any(part.cpus or part.memory or part.devices for _, part in pod_demand(request).containers):
            return self.problem
        node = self.state.node
        # PodLevelResourceManagers (KEP-5526) is alpha in 1.36: off by default, and probably on by default in later
        # versions.
        manages = bool(self.newer) and (node.pins_cpus or node.pins_memory)
        if manages and has_pod_level(request) and kube_qos(request) is KubeQos.GUARANTEED:
            return f"kubelet {self.newer} may give pods with pod-level resources CPUs and memory of their own"
        return ""

    @property
    def upper(self) -> Hypothesis | None:
        """A state with the most possible room, or ``None`` if ``hypotheses`` show it. Computed on demand, because few pods need it."""
        return None if self.most is None else Hypothesis(infer_state(self.most).state, trust=Trust.INFERRED)

    @property
    def topology(self) -> NodeResourceTopology | None:
        """The published topology with the zones of this view, or ``None`` if none is published."""
        if self.frame is None:
            return None
        published = self.frame.topology
        zones = tuple(_left(zone, self.state) for zone in published.zones) if self.followed else self.zones
        return replace(published, zones=zones)


def kubelet_view(
    node: Node,
    topology: NodeResourceTopology,
    holdings: Iterable[Holding],
    unpublished: Collection[str] = (),
    previous: KubeletView | None = None,
) -> KubeletView:
    """
    Return the view of one kubelet-owned node from the data of exporters.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: assumed by this scheduler or seen
    bound since it was made. Their amounts
    are subtracted on every NUMA node that they may be on. The available amounts of zones contain the use of all other pods. A ledger, which
    has the sums already, and ``previous`` only save time.
    """
    # A ledger has its sums already. A list of holdings must be summed.
    there = holdings if isinstance(holdings, Ledger) else list(holdings)
    shown = (held for held in there if held.pod.uid not in unpublished and held.request is not None)
    counts = {count for held in shown if held.request is not None for count in pod_demand(held.request).counts}
    frame = frame_of(node, topology, None if previous is None else previous.frame)
    return inferred_view(frame, node, PodsThere(there, unpublished), CoreEvidence(counts))


class PodsThere(ValueObject):
    """
    The pods of a node. ``unpublished`` are the uids of pods that its topology does not show; ``unfollowed``: some
    pods may have left unseen.
    """

    holdings: Ledger | list[Holding]
    unpublished: Collection[str] = ()
    unfollowed: bool = False
    overlooked: Overlooked = NONE_OVERLOOKED


def inferred_view(frame: NodeConfig, node: Node, pods: PodsThere, evidence: CoreEvidence) -> KubeletView:
    """Return ``kubelet_view`` with evidence about the kubelet's options."""
    topology, holdings, unpublished = frame.topology, pods.holdings, pods.unpublished
    there, demands = holdings_by_uid(holdings), known_demands(holdings)
    known, shown = tuple(demands.pods.values()), demands.shown_leftovers(unpublished)
    # First the CPUs that init containers still hold, then the pods that are not shown yet. Exporters publish neither.
    parted = parted_cpus(shown, frame.node, frame.devices) if shown and pods.unfollowed else NOTHING
    zones = without_leftovers(topology.zones, shown, parted) if shown else topology.zones
    zones = without_hidden(zones, there, topology, hidden_use(holdings, frame.node), unpublished)
    zones = without_overlooked(zones, pods.overlooked, topology.zones)
    # Only devices near several NUMA nodes are missing on NUMA nodes other than the pod's.
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
        # The least and the most room differ only if something was subtracted.
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
    """Return the view of a node whose kubelet is followed pod by pod."""
    requested = _requested(ledger)
    seen = tuple(replace(one, state=replace(one.state, requested=requested)) for one in hypotheses)
    # The followed pods are more recent than the published amounts.
    free = (
        FreeCpus(cpus_by_numa(one.state.managers.cpus, one.state.node), located=evidence.settled and not one.spread)
        for one in hypotheses
    )
    cores = cores_of(node, frame, frame.topology.zones, evidence, free)
    rooms = seen
    if len(seen) > 1:  # the first hypothesis with a room wins, because they are in order of likelihood
        rooms = tuple({one.room: one for one in reversed(seen)}.values())[::-1]
    return KubeletView(
        node=node.name,
        newer=newer_version(node.kubelet),
        hypotheses=seen,
        cores=cores if seen[0].state.node.pins_cpus else NO_RULE,
        problem=_problem_in(frame),
        frame=frame,
        followed=True,
        rooms=rooms,
    )


def _left(zone: Zone, state: KubeletState) -> Zone:
    free = free_on(state.node, state.managers, zone.numa)
    available = {name: free.get(name, amount) for name, amount in zone.available.items()}
    return Zone(zone.numa, zone.capacity, zone.allocatable, available)


def _requested(holdings: Ledger | list[Holding]) -> dict[str, int]:
    # Pods are a resource, as in the kubelet's fit predicate.
    amounts = holdings.amounts if isinstance(holdings, Ledger) else total(held.amounts for held in holdings)
    return {**amounts, PODS: len(holdings)}


def frame_of(node: Node, topology: NodeResourceTopology, known: NodeConfig | None) -> NodeConfig:
    """Return the configuration of the node: ``known`` if the objects have not changed it, because it is expensive to build."""
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
    """Return the whole-core rule according to the evidence of running and rejected pods."""
    architecture = node.labels.get(ARCHITECTURE, "")
    return surely_whole(core_rule_of(frame, architecture, evidence), zones, states)


def core_rule_of(frame: NodeConfig, architecture: str, evidence: CoreEvidence) -> CoreRule | None:
    """Return ``core_rule``, cached while its inputs stay the same."""
    known: tuple[tuple[str, bool], Collection[int], CoreRule | None] | None = frame.derived.get(CORES)
    asked = architecture, evidence.kept
    if known is not None and known[0] == asked and known[1] == evidence.counts:
        return known[2]
    rule = core_rule(frame.topology.kubelet, frame.topology.zones, architecture, evidence)
    frame.derived[CORES] = asked, evidence.counts, rule
    return rule


def _problem_in(frame: NodeConfig) -> str:
    """Return ``problem_of`` the topology, cached with the frame."""
    problem: str | None = frame.derived.get(PROBLEM)
    if problem is None:
        problem = frame.derived[PROBLEM] = problem_of(frame.topology)
    return problem


def problem_of(topology: NodeResourceTopology) -> str:
    """Return why no pod may be placed that this kubelet would align, or an empty string."""
    if topology.problem:
        return topology.problem
    if not topology.zones:
        return "no NUMA nodes are published"
    # Above 8 NUMA nodes the topology manager needs max-allowable-numa-nodes, which may be set.
    if len(topology.zones) > MOST_NUMA and _looks_at_sets(topology):
        return f"{len(topology.zones)} NUMA nodes are published, more than a kubelet can align"
    if topology.kubelet.topology_policy is None:
        return "the topology manager policy is not published"
    return unknown_words(topology.kubelet)


def _looks_at_sets(topology: NodeResourceTopology) -> bool:
    """
    Return whether the kubelet tries sets of NUMA nodes. Under policy none only its memory manager does (getDefaultHint, policy_static.go).
    """
    config = topology.kubelet
    binds_memory = config.memory_policy != "None" and any(
        is_memory(name) for zone in topology.zones for name in zone.allocatable
    )
    return config.topology_policy is not KubeletPolicy.NONE or binds_memory


def unknown_words(config: KubeletConfig) -> str:
    """Return a text about published options whose effect on the kubelet's decisions is unknown, or an empty string."""
    found: tuple[str, ...] = ()
    if config.topology_policy is not KubeletPolicy.NONE:
        found += unknown_options(config.topology_options, TOPOLOGY_OPTIONS)
    # Policy ``none`` ignores its options. The kubelet validates them only for the static policy.
    if config.cpu_policy != "none":
        found += unknown_options(config.cpu_options, CPU_OPTIONS)
    return f"what the kubelet option {', '.join(found)} does is not known" if found else ""


class FreeRange(ValueObject):
    """The minimum and maximum free amounts of one NUMA node over all possible states, in this project's units."""

    numa: int
    lower: ResourceList
    upper: ResourceList

    def __str__(self) -> str:
        """Return a text such as ``NUMA 0: 4 CPUs, 8Gi memory``, or ``NUMA 0: 4 CPUs .. 8 CPUs`` if the states differ."""
        low, high = amounts_text(self.lower), amounts_text(self.upper)
        return f"NUMA {self.numa}: {low or 'nothing'}" + ("" if low == high else f" .. {high}")


class KubeletKnowledge(ValueObject):
    """The number of possible states, sentences about the source of the knowledge, and the free amounts per NUMA node."""

    states: int
    evidence: tuple[str, ...]
    free: tuple[FreeRange, ...]

    @property
    def is_certain(self) -> bool:
        """Whether there is only one possible state."""
        return self.states == 1 and all(one.lower == one.upper for one in self.free)


def known_of(view: KubeletView) -> KubeletKnowledge:
    """Return the knowledge that decisions on this node use."""
    states = [one.state for one in view.hypotheses]
    # ``upper`` has the most possible room, so the range includes it.
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
        yield "a pod that explores an option is in flight"
    for option in sorted(view.found_on):
        yield f"the kubelet refused a pod that found out about {option}"
