"""
The scheduler's view of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

``kubelet_view`` and ``inferred_view`` derive a view from amounts, ``followed_view`` from replayed hypotheses.
``prediction.py`` decides on a view. Unpublished facts are assumed conservatively and reported (``known_of``). The last
part explains rejections, and rejects pods that require what the kubelet's configuration does not guarantee.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, Protocol

from koord_numa.core.cpus.kubelet_options import (
    ARCHITECTURE,
    CPU_OPTIONS,
    NO_RULE,
    ORDER_OPTIONS,
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
from koord_numa.core.explain import amounts_text, largest_that_fits, needs_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.belief import InFlightPods, expecting, mask_of
from koord_numa.core.kubelet.bounds import has_room
from koord_numa.core.kubelet.demand import (
    OUT_OF,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    ContainerDemand,
    PodDemand,
    check_node_fit,
    is_memory,
    pod_demand,
)
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.inferred_state import (
    NONE_OVERLOOKED,
    Overlooked,
    Published,
    hidden_use,
    holdings_by_uid,
    infer_state,
    known_demands,
    parted_cpus,
    shown_where_foreseen,
    without_hidden,
    without_leftovers,
    without_overlooked,
)
from koord_numa.core.kubelet.node_config import ALIGN_BY_SOCKET, NodeConfig
from koord_numa.core.kubelet.replay import without_left
from koord_numa.core.kubelet.state import SLICE, KubeletAdmission, KubeletNode, KubeletState, free_on
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    INIT,
    NO_BIND_POLICY,
    NO_NUMA_POLICY,
    NUMA_REQUIRED,
    SINGLE_NUMA_NODE,
    CpuBindPolicy,
    KubeletPolicy,
    KubeletScope,
    KubeQos,
    NumaPolicy,
)
from koord_numa.core.pod_resources import (
    effective_requests,
    has_pod_level,
    is_pinned_by_static_kubelet,
    kube_qos,
    may_use_cpuset,
)
from koord_numa.core.resources import CPU, MILLI, NOTHING, PODS, ResourceList, total
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
    Evaluations of one view that need more than one slice of steps.

    A decision runs the first slice. The caller runs the other slices between decisions, and then repeats the decision.

    ``steps`` is the size of a slice. ``of`` are the evaluations by request class; ``began`` is called when one is added. Without
    ``hypotheses``, and in a copy of the view with other hypotheses, a decision has a single slice.
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


ONE_SLICE: Final = Explorations(steps=16 * SLICE)
"""
For views whose evaluations are not continued, as for the members of a group.

With one slice of 400 steps, 190 instead of 87 of 1,973 admitted pods would wait in 27 of the long recorded sequences, with 1,600
steps 112, and with 6,400 steps 99.
"""


@value_object
class KubeletView:
    """
    The state of knowledge about one node, ready for decisions.

    A pod is admitted only if every state of ``hypotheses`` admits it; the first is the most likely. ``most`` are the
    facts with the most room, set if the hypotheses have the least possible room. ``cores`` is the whole-core rule that
    the kubelet has or may have. While ``problem`` is not empty, no pod that the kubelet would align is placed.
    ``frame`` is the node's configuration, and ``zones`` are the published zones less what is known to be used in
    addition. ``followed``: the hypotheses are replayed and not derived from amounts. ``unfollowed``: they are derived
    from amounts, on a node whose pods may leave before that is seen.

    ``explored``: the verdict on a pod in flight will show whether an unpublished option is on. ``found_on`` are options
    for which the kubelet rejected such a pod. ``rooms`` has one hypothesis per distinct room, where known: hypotheses
    that differ only in the holders give the same answer while no pod leaves. ``in_flight`` are the pods without a
    verdict that may be elsewhere if another pod has left unseen, or ``None``. ``explorations`` are evaluations that
    take several slices, or ``None`` where every evaluation is finished at once.
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
    is_behind: bool = (
        False  # whether events are not replayed yet, so that no pod that the kubelet would align is placed
    )
    is_settled: bool = False  # whether there is one state without unknowns, as for nodes that are not followed
    state: KubeletState = field(init=False, repr=False, compare=False)  # the most likely state

    def __post_init__(self) -> None:
        # Stored, because every decision reads it many times.
        object.__setattr__(self, "state", self.hypotheses[0].state)

    def evaluate_in_slices(self, began: Callable[[], None] | None) -> None:
        """
        Limit decisions on this new view to slices of steps.

        ``began`` is called if a decision must be continued; ``None``: no decision is continued.
        """
        explorations = ONE_SLICE if began is None else Explorations(self.hypotheses, began)
        # A copy would take a tenth of the time of a decision.
        object.__setattr__(self, "explorations", explorations)

    def problem_with(self, request: PodRequest) -> str:
        """Return why the kubelet's decision on the pod cannot be predicted, or an empty string."""
        if self.problem and asks_kubelet(request):
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

    def without_pods(self, uids: Collection[str], published: "KubeletView") -> "KubeletView":
        """
        Return the view of a tracked node without these pods. Other pods keep their predicted NUMA nodes.

        ``published`` is the view from published amounts without the pods; its requests and whole-core rule are used.
        """
        requested = published.state.requested
        states = (after for one in self.hypotheses for after in without_left(one, uids))
        return replace(
            self,
            hypotheses=tuple([replace(one, state=replace(one.state, requested=requested)) for one in states]),
            rooms=(),  # one per state; equal rooms are determined on demand
            in_flight=None,
            cores=published.cores,
        )

    def with_pods(self, coming: Mapping[str, PodRequest]) -> "KubeletView | None":
        """Return the view of a tracked node after these pods are placed, ``None`` if the kubelet rejects one of them in every state."""
        hypotheses, _ = expecting(None, list(self.hypotheses), coming)
        return replace(self, hypotheses=tuple(hypotheses)) if hypotheses else None

    def numa_of(self, uid: str, foreseen: Collection[int]) -> int | None:
        """
        Return the NUMA node that certainly has all amounts of the pod in the tracked states; ``None`` otherwise.

        ``foreseen`` are the NUMA nodes predicted at placement. The prediction is wrong if a pod decided earlier arrived later or not at
        all.
        """
        masks = (_mask_in(one, uid) for one in self.hypotheses)
        first = next(masks)
        if first.bit_count() != 1:
            return None
        numa = first.bit_length() - 1
        # The most likely state matches the prediction, as for nearly all pods: the other states are not evaluated.
        if {*foreseen} == {numa}:
            return numa
        return numa if all(mask == first for mask in masks) else None


def _mask_in(one: Hypothesis, uid: str) -> int:
    pod = one.state.pods.get(uid)
    return 0 if pod is None or uid in one.spread or uid in one.mixed else mask_of(pod.grant, one.state.node)


def asks_kubelet(request: PodRequest) -> bool:
    """Return whether a resource manager of a kubelet may allocate anything to the pod."""
    return any(part.cpus or part.memory or part.devices for _, part in pod_demand(request).containers)


def kubelet_view(
    node: Node,
    topology: NodeResourceTopology,
    holdings: Iterable[Holding],
    unpublished: Collection[str] = (),
    previous: KubeletView | None = None,
) -> KubeletView:
    """
    Return the view of one kubelet-owned node from the data of exporters.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: assumed by this scheduler or seen bound
    since it was made. Their amounts are subtracted on every NUMA node that they may be on. The available amounts of
    zones contain the use of all other pods. A ledger, which has the sums already, and ``previous`` only save time.
    """
    # A ledger has its sums already. A list of holdings must be summed.
    there = holdings if isinstance(holdings, Ledger) else list(holdings)
    shown = (held for held in there if held.pod.uid not in unpublished and held.request is not None)
    counts = {count for held in shown if held.request is not None for count in pod_demand(held.request).counts}
    frame = frame_of(node, topology, None if previous is None else previous.frame)
    return inferred_view(frame, node, PodsThere(there, unpublished), CoreEvidence(counts))


def view_after_eviction(
    node: Node, topology: NodeResourceTopology, ledger: Ledger, hidden: Sequence[Holding], previous: KubeletView
) -> KubeletView:
    """
    Return ``kubelet_view`` of ``topology``, which has the amounts after an eviction. ``hidden`` pods are on their predicted NUMA nodes.

    With the worst case for hidden pods, a pod could seem unplaceable and its victims be evicted without benefit.
    """
    after = replace(topology, zones=shown_where_foreseen(topology.zones, hidden))
    return kubelet_view(node, after, ledger, (), previous)


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
    seen = zones
    zones = without_hidden(zones, there, topology, hidden_use(holdings, frame.node), unpublished)
    zones = without_overlooked(zones, pods.overlooked, topology.zones)
    # Only devices near several NUMA nodes are missing on NUMA nodes other than the pod's.
    in_flight = [demand for uid, demand in demands.pods.items() if uid in unpublished] if frame.devices else ()
    facts = Published(frame, zones, _requested(holdings), known, in_flight)
    guess = infer_state(facts)
    # The kubelet may take the CPUs of a pod in flight on other NUMA nodes than predicted.
    # Where whole cores are only assumed, an error costs an exploration.
    flying = unpublished if evidence.kept else ()
    coming = sum([demands.pods[uid].pod.cpus for uid in flying if uid in demands.pods])
    free = (
        FreeCpus.of(without_overlooked(seen, pods.overlooked, topology.zones), coming) if coming else FreeCpus.of(zones)
    )
    return KubeletView(
        node=node.name,
        newer=newer_version(node.kubelet),
        hypotheses=(Hypothesis(guess.state, trust=Trust.INFERRED),),
        cores=cores_of(node, frame, evidence, [free]) if guess.state.node.pins_cpus else NO_RULE,
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
    cores = cores_of(node, frame, evidence, free)
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
    evidence: CoreEvidence,
    states: Iterable[FreeCpus],
) -> WholeCores:
    """Return the whole-core rule according to the evidence of running and rejected pods."""
    architecture = node.labels.get(ARCHITECTURE, "")
    return surely_whole(core_rule_of(frame, architecture, evidence), states)


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
        found += unknown_options(config.topology_options, TOPOLOGY_OPTIONS | ORDER_OPTIONS)
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
        """True if there is one possible state, and its free amounts are known exactly."""
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


def fits_empty_node(request: PodRequest, node: KubeletNode) -> bool:
    """
    Return whether the kubelet of this node admits the pod on the empty node. Called for every rejection, so amounts are compared first.
    """
    if check_node_fit(effective_requests(request), {}, node.allocatable) is not None:
        return False
    empty = KubeletState.empty(node)
    return has_room(request, node, empty.managers) or isinstance(dry_run(empty, request), DryRunAdmitted)


def never_fits(request: PodRequest, node: KubeletNode, *, keeps_cores: bool) -> bool:
    """
    Return whether the kubelet rejects the pod in every state. ``False`` means not known.

    ``keeps_cores``: the kubelet allocates whole cores only, and cores have several threads. Thread counts are powers of
    two, so odd counts are rejected (``Allocate`` in policy_static.go of the cpumanager). Under single-numa-node, one
    NUMA node must have all that a unit requests. The memory manager returns no hints for a whole pod for which no set
    of NUMA nodes has enough, and may still find memory for its containers. So in scope pod only CPUs are compared.
    Devices may become healthy, so their numbers are not compared.
    """
    demand = pod_demand(request)
    if keeps_cores and node.pins_cpus and [count for count in demand.counts if count % 2]:
        return True
    if node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if node.config.topology_scope is KubeletScope.POD:
        return _exceeds_each(ContainerDemand(cpus=demand.pod.cpus, memory=None, devices={}), node)
    for _, unit in demand.containers:
        if _exceeds_each(unit, node):
            break
    else:
        return False
    return True


def _exceeds_each(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Return whether the unit requests more than every single NUMA node has when it is empty."""
    for numa in node.machine.numa_ids:
        if not _exceeds(unit, node, numa):
            break
    else:
        return True
    return False


def _exceeds(unit: ContainerDemand, node: KubeletNode, numa: int) -> bool:
    """Return whether the unit requests more than the NUMA node has when it is empty."""
    if node.pins_cpus and unit.cpus > (node.machine.numa_bits[numa] & ~node.reserved).bit_count():
        return True
    if not unit.memory or not node.pins_memory:
        return False
    there = node.memory.get(numa, NOTHING)
    for kind, amount in unit.memory.items():
        if amount > there.get(kind, amount):
            break
    else:
        return False
    return True


CANNOT_ALIGN: Final = "node(s) whose kubelet cannot align the pod to NUMA nodes"
NO_WHOLE_CORES: Final = "node(s) whose kubelet cannot give whole cores"
CANNOT_ALLOCATE: Final = "node(s) whose kubelet lacks exclusive CPUs, memory or devices"


def rejection_of(request: PodRequest, refused: NotAdmitted, view: KubeletView, state: KubeletState) -> Rejection:
    """Return the rejection of the pod for a kubelet's rejection in this state: reason, numbers, and whether evicting pods may help."""
    reason, detail = refused.refusal.reason, refused.refusal.detail
    # Evicting pods cannot help if the empty node rejects the pod.
    resolvable = fits_empty_node(request, state.node)
    if reason.startswith(OUT_OF):
        resource = reason.removeprefix(OUT_OF)
        message = "Too many pods" if resource == PODS else f"Insufficient {resource}"
        return Rejection(Reason.RESOURCES, message, detail, resolvable=resolvable)
    kind, message = {
        TOPOLOGY_AFFINITY: (Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN),
        SMT_ALIGNMENT: (Reason.KUBELET_SMT, NO_WHOLE_CORES),
    }.get(reason, (Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE))
    # The numbers are those of the rejected unit, a container or the pod, and not the sum of the pod.
    wanted = _wanted(refused.unit, state.node)
    rooms = {numa: free_on(state.node, state.managers, numa) for numa in state.node.machine.numa_ids}
    numbers = tuple(_numbers(wanted, rooms, KubeletState.empty(state.node)))
    if kind is Reason.KUBELET_ALIGNMENT and view.state.node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        numbers = _decisive(numbers)
        unit, colon, _ = detail.rpartition(": ")  # in container scope, the container
        detail = f"{unit}{colon}needs {needs_text(wanted)} in one NUMA node"
        # The device manager's hints for 0 devices are the NUMA nodes with such devices (devicemanager/topology_hints.go).
        if tied := [name for name, amount in wanted.items() if not amount and name in state.node.devices]:
            detail += f", which must have {', '.join(tied)} (a request of 0 is aligned too)"
    if view.overlooked:
        detail += f"; {needs_text(view.overlooked.amounts)} of running pods that the exporter overlooks may be on any NUMA node"
    core = view.cores.threads if view.cores.free is not None else 1
    largest = largest_that_fits(wanted, rooms.values(), {CPU: MILLI * core})
    return Rejection(kind, message, detail, resolvable=resolvable, numbers=numbers, largest=largest)


def _decisive(numbers: tuple[NumaNumbers, ...]) -> tuple[NumaNumbers, ...]:
    """Return the numbers of resources that alone exclude some NUMA node, or all numbers if no resource does."""
    scarce = {number.resource for number in numbers if number.free < number.needed}
    return tuple(number for number in numbers if number.resource in scarce) or numbers


def _wanted(unit: ContainerDemand | None, node: KubeletNode) -> dict[str, int]:
    """Return the amounts of a unit that are bound to NUMA nodes, in this project's units."""
    if unit is None:
        return {}
    wanted = {
        name: amount for name, amount in unit.devices.items() if name in node.devices and node.devices[name].hosts
    }
    if unit.cpus and node.pins_cpus:
        wanted[CPU] = unit.cpus * MILLI
    if unit.memory and node.pins_memory:
        wanted.update(unit.memory)
    return dict(sorted(wanted.items()))


def _numbers(wanted: ResourceList, rooms: Mapping[int, ResourceList], empty: KubeletState) -> Iterator[NumaNumbers]:
    """Yield, by resource and NUMA node, the amount on the empty node and the free amount in ``rooms``."""
    if not wanted:
        return
    whole = {numa: free_on(empty.node, empty.managers, numa) for numa in rooms}
    for resource, needed in wanted.items():
        for numa, room in rooms.items():
            yield NumaNumbers(numa, resource, whole[numa].get(resource, 0), room.get(resource, 0), needed)


_TOGETHER: Final = 2
"""Minimum containers with exclusive CPUs that may take CPUs from each other."""

_WHOLE_CORES: Final = "full-pcpus-only"
_KEEPS: Final[Mapping[NumaPolicy, KubeletPolicy]] = {
    NumaPolicy.BEST_EFFORT: KubeletPolicy.BEST_EFFORT,
    NumaPolicy.RESTRICTED: KubeletPolicy.RESTRICTED,
    SINGLE_NUMA_NODE: KubeletPolicy.SINGLE_NUMA_NODE,
}


def refuse_promises(request: PodRequest, config: KubeletConfig, *, may_claim_cpus: bool = False) -> Rejection | None:
    """
    Return a rejection if the pod requires something that this kubelet's configuration does not guarantee.

    ``may_claim_cpus``: the pod has resource claims, whose devices may be its exclusive CPUs. Then the caller calls
    ``refuse_unpinned`` once that is known.
    """
    return (
        _refuse_numa_policy(request, config)
        or _refuse_numa_exclusive(request)
        or _refuse_numa_spread(request)
        or _refuse_bind_policy(request, config)
        or (None if may_claim_cpus else refuse_unpinned(request, config))
    )


def refuse_unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """Reject an LSE or LSR pod, which needs exclusive CPUs, if the kubelet does not allocate any to it."""
    return _unpinned(request, config) if may_use_cpuset(request) else None


def _unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    if config.cpu_policy != "none" and is_pinned_by_static_kubelet(request):
        return None
    detail = f"its kubelet gives this pod no CPUs of its own (CPU manager {config.cpu_policy or 'unknown'})"
    return _unkept("node(s) had a kubelet that pins no CPUs for the pod", detail)


def _refuse_numa_exclusive(request: PodRequest) -> Rejection | None:
    """Reject required NUMA exclusiveness: kubelets put aligned pods and pods that span NUMA nodes on the same NUMA nodes."""
    # Only ``Required`` must be met. ``Preferred`` and a default that the pod does not set need not.
    if request.numa.exclusive is not NUMA_REQUIRED:
        return None
    detail = "the pod requires singleNUMANodeExclusive, and a kubelet keeps no NUMA node to pods of one kind"
    return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)


def _refuse_numa_spread(request: PodRequest) -> Rejection | None:
    """Reject required NUMA spreading: kubelets choose NUMA nodes without regard to workloads. ``ScheduleAnyway`` need not be met."""
    if request.numa_spread is None or not request.numa_spread.required:
        return None
    detail = "the pod requires numa-spread (DoNotSchedule), and on this node the kubelet chooses the NUMA nodes"
    return Rejection(Reason.NUMA_SPREAD, "node(s) had a kubelet that spreads no workloads", detail, resolvable=False)


def _refuse_numa_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """
    Reject a pod whose NUMA policy the node's topology manager does not enforce (matrix of the pod-level NUMA policy proposal).

    A pod cannot make a kubelet without alignment align.
    """
    wanted = request.numa.policy
    has = config.topology_policy or KubeletPolicy.NONE
    # BestEffort admits every pod, so a kubelet without alignment satisfies it.
    if wanted is NO_NUMA_POLICY or (wanted is NumaPolicy.BEST_EFFORT and has is KubeletPolicy.NONE):
        return None
    # A stricter kubelet rejects pods that BestEffort admits. A less strict kubelet aligns less than requested.
    if has is not _KEEPS[wanted]:
        published = (
            f"the node's kubelet has {has}"
            if config.topology_policy
            else "the policy of the node's kubelet is not published"
        )
        detail = f"the pod wants {wanted}, {published}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    # The topology manager aligns Guaranteed pods only. Other pods run on any NUMA node.
    if wanted is not NumaPolicy.BEST_EFFORT and kube_qos(request) is not KubeQos.GUARANTEED:
        detail = f"the pod wants {wanted}, a kubelet aligns Guaranteed pods only, and the pod is {kube_qos(request)}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    if wanted is not NumaPolicy.BEST_EFFORT and not _has_own_cpus(request, config):
        detail = f"the pod wants {wanted}, and its kubelet gives no container CPUs of its own: they would come from all NUMA nodes"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    long_running = sum(container.kind is not INIT for container in request.containers)
    # Restricted and SingleNUMANode apply to the whole pod. Container scope may put two containers on different NUMA
    # nodes.
    if long_running > 1 and wanted is not NumaPolicy.BEST_EFFORT and config.topology_scope is KubeletScope.CONTAINER:
        detail = (
            f"the pod wants {wanted} as a whole, the node's kubelet aligns each of its {long_running} containers alone"
        )
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    return None


def _has_own_cpus(request: PodRequest, config: KubeletConfig) -> bool:
    """Return whether the static CPU manager gives some container exclusive CPUs, or the pod requests no CPUs."""
    asks = any(container.requests.get(CPU, 0) for container in request.containers) or bool(request.pod_requests)
    return not asks or (config.cpu_policy != "none" and bool(pod_demand(request).counts))


def _refuse_bind_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """Reject a required CPU bind policy, except whole cores on a kubelet with ``full-pcpus-only``."""
    required = request.bind.required
    if required is CpuBindPolicy.CONSTRAINED_BURST:
        detail = "the pod requires the shared pool of one NUMA node, and kubelets know no such pools"
        return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)
    if required in (NO_BIND_POLICY, CpuBindPolicy.DEFAULT):
        return None
    if refusal := _unpinned(request, config):
        return refusal
    # full-pcpus-only allocates whole cores or rejects. No option allocates a single CPU per core.
    if required is FULL_PCPUS and config.cpu_options.get(_WHOLE_CORES, False):
        return None
    detail = f"the pod requires {required}, and on this node the kubelet chooses the CPUs"
    return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)


def _unkept(message: str, detail: str) -> Rejection:
    return Rejection(Reason.BIND_POLICY, message, detail, resolvable=False)


def takes_from_unknown_socket(view: KubeletView) -> bool:
    """
    Return whether exclusive CPUs may come from any NUMA node of a socket, and sockets are not published.

    Source: getAlignedCPUs in cpumanager/policy_static.go.
    """
    node = view.state.node
    is_inferred = not (node.ids_are_real or view.followed)
    return is_inferred and node.pins_cpus and bool(node.config.cpu_options.get(ALIGN_BY_SOCKET))


def lost_to_sockets(demand: PodDemand, view: KubeletView) -> str:
    """
    Return why a container may take CPUs that the next container needs on its NUMA node, or an empty string.

    Source: getAlignedCPUs in cpumanager/policy_static.go. Only ``restricted`` rejects a pod for this: ``best-effort``
    admits what it cannot align, and ``single-numa-node`` excludes the option. Pod scope looks for the CPUs of all
    containers together.
    """
    config = view.state.node.config
    if config.topology_policy is not KubeletPolicy.RESTRICTED or config.topology_scope is not KubeletScope.CONTAINER:
        return ""
    if not takes_from_unknown_socket(view):
        return ""
    taking = [container.name for container, part in demand.containers if part.cpus]
    if len(taking) < _TOGETHER:
        return ""
    first, second = taking[:2]
    return f"container {first} may take CPUs of any NUMA node of its socket, of which {second} needs some, and sockets are not published"
