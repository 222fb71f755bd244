"""
Predict whether the kubelet of a node would admit a pod, and which NUMA nodes, amounts and CPUs the pod would get.

``AdmissionQuestion`` lists the kubelet states to dry-run, ``would_admit`` combines the answers, and ``refuse_exploration``
applies the rule for unknown kubelet options. An admission holds in every state that the view considers possible. A
rejection may be wrong and names the assumption that caused it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, product
from operator import attrgetter, or_
from typing import Final

from koord_numa.core.cpus.kubelet_options import ORDER_OPTIONS, THREADS
from koord_numa.core.cpuset import EMPTY, CpuSet, members
from koord_numa.core.explain import cpus_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.belief import InFlightPods, PodsInFlight
from koord_numa.core.kubelet.bounds import (
    STRICT,
    Sight,
    asks_for_one_device,
    binds_freely,
    everything,
    has_room,
    has_room_in_all_ways,
    has_room_whoever_leaves,
    hides_memory,
    is_confined,
    may_be_near,
    takes_turns,
    unclear_devices,
)
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis, Signature, pins_init_cpus
from koord_numa.core.kubelet.node_config import packs_sockets
from koord_numa.core.kubelet.replay import Shares, answer, orders, shares_of
from koord_numa.core.kubelet.state import (
    DECISION,
    Charge,
    Grant,
    KubeletAdmission,
    KubeletNode,
    KubeletState,
    ManagerState,
    TooManyWays,
    free_on,
    limited,
    spend,
)
from koord_numa.core.kubelet.variants import departing, layouts_to_decide, variants, with_one_away, without_leaving
from koord_numa.core.kubelet.view import (
    CANNOT_ALIGN,
    CANNOT_ALLOCATE,
    NO_WHOLE_CORES,
    Explorations,
    KubeletView,
    asks_kubelet,
    lost_to_sockets,
    rejection_of,
    takes_from_unknown_socket,
)
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, UnknownKubeletOptions
from koord_numa.core.resources import CPU, MILLI, total
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field


def lower_places(demand: PodDemand, grant: Grant, state: KubeletState) -> list[int]:
    """
    Return the NUMA nodes on which the first init container may be without room for the later containers, if pods have left.

    Candidates are the NUMA nodes below the predicted one that could hold the init container if they were empty. The
    result is the predicted NUMA node itself if later containers with CPUs are predicted elsewhere: with more room, they
    may take CPUs that this NUMA node did not have, and the CPUs that they reuse tie the next container to it. The
    result is empty under best-effort, which admits pods that it cannot align.
    """
    node = state.node
    # Best-effort admits the pod with any hint: an init container on another NUMA node costs alignment only.
    if node.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        return []
    whole = KubeletState.empty(node)
    for at, ((container, part), given) in enumerate(zip(demand.containers, grant.containers, strict=True)):
        if container.kind is not ContainerKind.INIT or not (given.cpus or given.devices):
            # Only an init container with exclusive CPUs or devices ties later containers to a NUMA node.
            continue
        if given.hint is None or given.hint.mask is None:
            return []
        wanted = {
            CPU: part.cpus * MILLI,
            **{name: count for name, count in part.devices.items() if name in node.devices},
        }
        makes_do, own = _makes_do(demand, at, node), members(given.hint.mask)[0]
        if not makes_do and any(one.cpus and one.hint != given.hint for one in grant.containers[at:]):
            return [own]
        below = [numa for numa in node.machine.numa_ids if numa < own]
        rooms = {numa: free_on(node, whole.managers, numa) for numa in below}
        return [
            numa
            for numa, room in rooms.items()
            if all(room.get(name, 0) >= amount for name, amount in wanted.items())
            and not (makes_do and _has_memory(demand, state, numa))
        ]
    return []


def _makes_do(demand: PodDemand, at: int, node: KubeletNode) -> bool:
    """
    Return whether the later containers need no more CPUs than this init container leaves to them, and no container needs devices.

    Such containers fit wherever the init container is. A container that takes other CPUs leaves the init container's
    CPUs to the next container.
    """
    left = demand.containers[at][1].cpus
    for container, part in demand.containers[at + 1 :]:
        if part.cpus > left:
            return False
        left -= part.cpus if container.kind is not ContainerKind.INIT else 0
    return not any(
        name in node.devices for _, part in demand.containers for name, count in part.devices.items() if count
    )


def _has_memory(demand: PodDemand, state: KubeletState, numa: int) -> bool:
    """Return whether the memory of all containers is certainly free on this NUMA node. Groups of NUMA nodes are not evaluated."""
    memory = state.managers.memory
    if memory is None:
        return True
    if state.node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    wanted = total(part.memory for _, part in demand.containers if part.memory)
    return all(memory.free[numa].get(kind, 0) >= amount for kind, amount in wanted.items())


FEW: Final = 16
"""Number of dry-run states after which sums are compared first. Sums cost less, but do not show on which NUMA node the pod is placed."""


class StateProbe(ValueObject):
    """
    A state to dry-run, with an order in which CPUs of init containers are reused, and with CPU shares.

    ``options`` are kubelet options that are assumed in the state.
    """

    state: KubeletState
    trust: Trust
    reuse: CpuReuse
    options: tuple[str, ...] = ()
    shares: Shares = ()


class AdmissionQuestion:
    """
    The admission of one pod on one node, as a sequence of states to dry-run.

    After the last probe, ``elsewhere`` is the mask of NUMA nodes on which the pod may be in states without a dry run,
    because sums show that the kubelet admits the pod there.
    """

    def __init__(self, request: PodRequest, view: KubeletView) -> None:
        self.elsewhere = 0
        self._request, self._view = request, view
        self._demand = pod_demand(request)
        # Orders in which later containers may reuse CPUs of init containers.
        self._orders = orders(request, view.state.node)
        self._first: Hypothesis | None = None
        self._seen: Sight | None = None
        self._number = 0
        self._known: set[Signature] = set()
        self._dealt_many = False

    def probes(self) -> Iterator[StateProbe | None]:
        """
        Yield every state to dry-run once, the likeliest first, and ``None`` for states that need no dry run.

        Raise ``TooManyWays`` if there are too many states, and ``PodsInFlight`` if pods in flight matter.
        """
        for probe in self._all():
            self._number += probe is not None
            yield probe

    def _all(self) -> Iterator[StateProbe | None]:
        request, view, node = self._request, self._view, self._view.state.node
        confined = is_confined(self._demand, node)
        for one in self._likely():
            yield from self._each_way(one) if one is not None else (None,)
        if node.ids_are_real and not view.followed:
            return  # The state is exact, too.
        states: Sequence[Hypothesis] = view.hypotheses
        if view.in_flight is not None and view.in_flight.matters_to(request):
            states = [*states, *(yield from self._unseen(view.in_flight))]
        turns = view.unfollowed and not confined and takes_turns(self._demand, node)
        # Unknown pods may have left unseen and may have freed any amount.
        if turns and not all(_fits_one_numa(one, request) for one in view.rooms or view.hypotheses):
            raise TooManyWays
        for after in self._with_pods_away(states, confined=confined):
            yield from self._each_way(after) if after is not None else (None,)
        if confined and view.upper is not None:
            yield from [StateProbe(view.upper.state, Trust.INFERRED, order) for order in self._orders]

    def _unseen(self, in_flight: InFlightPods) -> Generator[StateProbe | None, None, list[Hypothesis]]:
        """Return the states in which a pod has left unseen before one of the pods in flight arrived. Yield their probes."""
        work = in_flight.with_one_unseen()
        try:
            while True:
                spend(next(work))
                yield None
        except StopIteration as end:
            states: list[Hypothesis] = end.value
        except TooManyWays:
            raise PodsInFlight from None
        for one in states:
            for after in self._however_dealt(one):
                yield from self._each_way(after)
        return states

    def _likely(self) -> Generator[Hypothesis | None, None, None]:
        """Yield the likely states, and ``None`` after a piece of work without a state."""
        # ``rooms`` has one state per distribution of free resources. The other hypotheses give the same answers.
        for one in self._view.rooms or self._view.hypotheses:
            for after in (yield from self._surely_gone(one)) if one.leaving else (one,):
                yield from self._however_dealt(after)

    def _however_dealt(self, one: Hypothesis) -> Iterator[Hypothesis]:
        """
        Yield the hypothesis and its variants.

        Variants of CPUs that are spread over NUMA nodes are left out if there are too many and sums show that the pod
        fits in all of them.
        """
        # If one hypothesis has too many variants, most others do, too. The bound costs less than counting them again.
        if self._dealt_many and one.spread and has_room_whoever_leaves(self._request, one):
            self.elsewhere |= self._view.state.node.machine.numa_mask
            return
        try:
            yield from variants(one, self._request, all_ways=True)
        except TooManyWays:
            if not has_room_whoever_leaves(self._request, one):
                raise
            self._dealt_many = True
            self.elsewhere |= self._view.state.node.machine.numa_mask

    def _surely_gone(self, one: Hypothesis) -> Generator[None, None, list[Hypothesis]]:
        """
        Return the states after the departure of pods whose placement is not known. Yield after each piece of work.

        The hypothesis counts the use of these pods, so it has less room than the node. If the pod does not fit with
        that room, the result has a state without these pods for each of their possible placements.
        """
        ways = variants(one, self._request)
        try:
            if all(map(self._admits, ways)):
                return [one]
            gone = yield from departing(one, one.leaving, {})
            return [replace(after, state=replace(after.state, requested=one.state.requested)) for after in gone]
        except TooManyWays:
            return [one]

    def _admits(self, one: Hypothesis) -> bool:
        answers = (dry_run(one.state, self._request, one.trust, order) for order in self._orders)
        return all(isinstance(answer, DryRunAdmitted) for answer in answers)

    def _each_way(self, one: Hypothesis) -> Iterator[StateProbe | None]:
        """Yield the probes of the hypothesis, or ``None`` if the kubelet treats the pod alike in a state that was yielded before."""
        if self._first is None:
            self._first = one
        elif not self._is_new(self._sight.of(one.state), one):
            yield None
            return
        if self._told(one, has_room_in_all_ways):
            yield None
            return
        for laid, order in product(layouts_to_decide(one, self._request), self._orders):
            yield StateProbe(laid.state, one.trust, order, one.options)
            for shares in self._shares(laid, order):
                yield StateProbe(laid.state, one.trust, order, one.options, shares)

    def _shares(self, laid: Hypothesis, order: CpuReuse) -> Iterator[Shares]:
        """
        Return further CPU shares to try. A state with unlikely options has none: a rejection under such options only causes exploration.
        """
        return iter(()) if laid.options else shares_of(laid.state, self._request, laid.trust, order)

    @property
    def _sight(self) -> Sight:
        """The cached comparison of states. It is created for the second state, because most pods are evaluated on a single state."""
        if self._seen is None:
            self._seen = Sight(self._request, self._view.state.node)
            if self._first is not None:
                self._is_new(self._seen.of(self._first.state), self._first)
        return self._seen

    def _is_new(self, seen: Signature, one: Hypothesis) -> bool:
        key = (seen, one.trust, one.options)
        if key in self._known:
            return False
        self._known.add(key)
        return True

    def _told(self, one: Hypothesis, told: Callable[[PodRequest, Hypothesis], bool]) -> bool:
        """
        Return whether sums show that the pod fits in this state. Used only after ``FEW`` states, because sums do not show the placement.
        """
        if self._number < FEW or not told(self._request, one):
            return False
        self.elsewhere |= self._view.state.node.machine.numa_mask
        return True

    def _with_pods_away(self, states: Iterable[Hypothesis], *, confined: bool) -> Iterator[Hypothesis | None]:
        """
        Yield the states after possible departures if these matter to the pod, and ``None`` for states where they do not.

        States with equal room are yielded once, whichever pods left.
        """
        request, demand, node = self._request, self._demand, self._view.state.node
        states = [one for one in states if one.leaving or one.unlocated or one.state.pods]
        if not states:
            return  # No known pods, so no departures.
        by_turns, hidden = takes_turns(demand, node), hides_memory(demand, node)
        for one in sorted(states, key=lambda one: bool(one.options)):
            if self._told(one, has_room_whoever_leaves):
                yield None
                continue
            # A pod that fits one NUMA node as a whole does not depend on the other NUMA nodes.
            matters = confined or hidden or (by_turns and not _fits_one_numa(one, request))
            # Memory groups are formed and dissolved with pods, so more free memory may cause a rejection.
            matters = matters or (binds_freely(demand, node) and not has_room_whoever_leaves(request, one))
            more = with_one_away(one) if matters else without_leaving(one, demand)
            # After a departure, CPUs of the remaining pods may still be spread differently, and CPUs of init containers free.
            if (one.spread and packs_sockets(node)) or (
                one.loose and confined and node.config.topology_policy in STRICT
            ):
                more = chain.from_iterable(map(variants, more))
            for after in more:
                yield replace(after, state=replace(after.state, requested=one.state.requested))


def fits_in_every_state(request: PodRequest, view: KubeletView) -> bool:
    """Return whether sums show that the pod fits in every candidate state, whichever pods have left (sufficient condition)."""
    if view.in_flight is not None and view.in_flight.matters_to(request):
        return False
    return all(has_room_whoever_leaves(request, one) for one in view.hypotheses)


def _fits_one_numa(one: Hypothesis, request: PodRequest) -> bool:
    if one.spread or one.sharing.keys() & everything(request).devices.keys():
        return False  # The NUMA nodes of the CPUs or shared devices are not known.
    return has_room(request, one.state.node, one.state.managers)


UNEXPLAINED: Final = "the known pods of the node do not explain where memory is in use"
TOO_MANY: Final = (
    "too many states of this kubelet are possible to check all of them, until its next topology or verdict"
)
NOT_YET: Final = "the possible states of this kubelet are still being evaluated for this pod"
IN_FLIGHT: Final = "pods bound to this node may be on other NUMA nodes than foreseen, until their kubelet has admitted or rejected them"
ORDER_UNKNOWN: Final = f"no NUMA node is sure to have room, as {' and '.join(sorted(ORDER_OPTIONS))} of its kubelet choose among NUMA nodes"
NOTHING_KNOWN: Final = "node(s) without usable NUMA topology"

_BOUND_TO: Final = attrgetter("mask")


def would_admit(request: PodRequest, view: KubeletView) -> KubeletAdmission | Rejection:
    """
    Return whether the kubelet of this node would admit the pod, as far as a scheduler can determine.

    An admission holds in every state that the view considers possible. The reasons of a rejection are those of the
    kubelet's ``status.reason``: alignment (TopologyAffinityError), whole cores (SMTAlignmentError), allocation
    (UnexpectedAdmissionError), and node-wide amounts (OutOf…). If only an unlikely or unpublished option would cause a
    rejection, the result is an admission that names the option in ``explores``: the kubelet's verdict on the pod would
    settle it.
    """
    demand = pod_demand(request)
    if (closed := _refuse_without_states(request, view)) is not None:
        return closed
    doubts: _Doubts | None = None
    if (spoiled := split_cores(demand, view)) is not None:
        # The rejection rests on an assumption that a verdict would settle: an unlikely option or the free cores.
        if not view.cores.option or (view.cores.option == THREADS and spoiled.resolvable):
            return spoiled
        doubts = _Doubts([view.cores.option], [spoiled])
    if (unclear := _unclear_places(request, demand, view)) is not None:
        return unclear
    if not view.state.node.numa_order_known and asks_kubelet(request):
        return _by_bound(request, view, doubts, ORDER_UNKNOWN)
    if view.is_settled and len(demand.containers) == 1:  # No CPU reuse, and no possible departures.
        return _in_one_state(request, view, doubts)
    later = view.explorations or Explorations(steps=DECISION)
    continues = later.hypotheses is view.hypotheses
    if continues and (known := later.of.get(request.class_key)) is not None:
        return known.answer or Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, NOT_YET)
    exploration = Exploration(request, view, doubts)
    exploration.advance(later.steps)
    if exploration.answer is not None:
        return exploration.answer
    if not continues:
        return _by_bound(request, view, doubts)
    later.add(request, exploration)
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, NOT_YET)


def _refuse_without_states(request: PodRequest, view: KubeletView) -> Rejection | None:
    """Return a rejection if the topology cannot be used, or if events are not replayed yet, else ``None``."""
    if problem := view.problem_with(request):
        return Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, problem, resolvable=False)
    if view.is_behind and asks_kubelet(request):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, NOT_YET, resolvable=False)
    return None


class Exploration:
    """
    The evaluation of all states for one pod, in slices of counted steps.

    The result does not depend on the slices. All slices together take ``DECISION`` steps at most.
    """

    def __init__(self, request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> None:
        self._request, self._view, self._doubts = request, view, doubts
        self._states = _in_all_states(request, view, doubts)
        self._left = DECISION
        self.answer: KubeletAdmission | Rejection | None = None

    def advance(self, steps: int) -> None:
        """Continue for about ``steps`` steps. Afterwards ``answer`` is set, or more steps are needed."""
        before, budget = self._left, limited(self._left)
        try:
            with budget:
                while before - budget.left < steps:
                    next(self._states)
        except StopIteration as end:
            self.answer = end.value
        except PodsInFlight:
            self.answer = Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, IN_FLIGHT)
        except TooManyWays:
            self.answer = _by_bound(self._request, self._view, self._doubts)
        self._left = budget.left


def _in_one_state(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    state, demand = view.state, pod_demand(request)
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted):
        return rejection_of(request, verdict, view, state)
    if (unclear := _unclear_set(request, verdict.grant, state.node)) is not None:
        return unclear
    places = _places(verdict.grant, state.node)
    masks = [reduce(or_, places, 0)]
    if _may_be_anywhere(demand, view):
        masks.append(state.node.machine.numa_mask)
    return _admission(demand, verdict, view, _Places(masks, places, state), doubts)


def _in_all_states(
    request: PodRequest, view: KubeletView, doubts: "_Doubts | None"
) -> Generator[None, None, KubeletAdmission | Rejection]:
    """Return the answer of all states. Yield before every state."""
    demand = pod_demand(request)
    first: tuple[DryRunAdmitted, KubeletState, list[int]] | None = None
    masks: list[int] = []
    question = AdmissionQuestion(request, view)
    for probe in question.probes():
        yield
        if probe is None:
            continue
        verdict = answer(probe.state, request, probe.trust, probe.reuse, probe.shares)
        if isinstance(verdict, NotAdmitted):
            # A rejection without unlikely options is final. A rejection under such options only causes exploration.
            if not probe.options or first is None:
                return rejection_of(request, verdict, view, probe.state)
            doubts = doubts or _Doubts()
            doubts.add(probe.options, rejection_of(request, verdict, view, probe.state))
            continue
        if (unclear := _unclear_set(request, verdict.grant, probe.state.node)) is not None:
            return unclear
        places = _places(verdict.grant, probe.state.node)
        first = first or (verdict, probe.state, places)
        masks.append(reduce(or_, places, 0))
    if first is None:
        raise AssertionError("a view has at least one state")
    verdict, before, places = first
    masks.append(before.node.machine.numa_mask if _may_be_anywhere(demand, view) else question.elsewhere or masks[0])
    unsure = refuse_confined_below(demand, verdict.grant, view)
    return unsure or _admission(demand, verdict, view, _Places(masks, places, before), doubts)


def _unclear_set(request: PodRequest, grant: Grant, node: KubeletNode) -> Rejection | None:
    """
    Return a rejection if a container is on several NUMA nodes with devices that may be near several, else ``None``.

    For one device, the states contain each set of NUMA nodes that it may be near. For several devices they contain each single NUMA node
    only, so the devices may not be near this set, and the policy restricted then rejects the pod.
    """
    if node.config.topology_policy is not KubeletPolicy.RESTRICTED:
        return None
    for given in grant.containers:
        mask = given.hint.mask if given.hint is not None else None
        if mask is None or mask.bit_count() == 1 or mask == node.machine.numa_mask:
            continue
        names = [name for name, ids in given.devices.items() if ids and node.devices[name].assumed]
        if names and not asks_for_one_device(request, names, node):
            return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, may_be_near(names))
    return None


def _by_bound(
    request: PodRequest, view: KubeletView, doubts: "_Doubts | None", why: str = TOO_MANY
) -> KubeletAdmission | Rejection:
    """
    Return an admission if sums show that the pod fits in every state, else a rejection with the detail ``why``.

    Used if there are too many states for dry runs, or if the states are not known.
    """
    state = view.state
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted):
        refused = rejection_of(request, verdict, view, state)
        return replace(refused, detail=f"{refused.detail}; {why}") if why == ORDER_UNKNOWN else refused
    if not ((view.followed or why == ORDER_UNKNOWN) and fits_in_every_state(request, view)):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, why)
    places = _places(verdict.grant, state.node)
    masks = [reduce(or_, places, 0), state.node.machine.numa_mask]
    return _admission(pod_demand(request), verdict, view, _Places(masks, places, state), doubts)


class _Doubts(MutableObject):
    """Kubelet options on which the admission depends (``options``), and the rejections if they are enabled (``refusals``)."""

    options: list[str] = value_field(default_factory=list)
    refusals: list[Rejection] = value_field(default_factory=list)

    def add(self, options: Sequence[str], refusal: Rejection) -> None:
        """Add a rejection under these options. Without options, nothing is added."""
        self.options += [option for option in options if option not in self.options]
        self.refusals += [refusal] if options else []

    @property
    def lacks(self) -> Rejection | None:
        """The first rejection if evictions may resolve all of them, else ``None``."""
        if not all(refusal.resolvable for refusal in self.refusals):
            return None
        return self.refusals[0] if self.refusals else None


def split_cores(demand: PodDemand, view: KubeletView) -> Rejection | None:
    """Return a rejection if the pod breaks the strictest possible rule for whole cores, else ``None``."""
    counts, rule = demand.counts, view.cores
    if rule.free is None:
        return None
    odd = [count for count in counts if count % rule.threads]
    if odd:
        verb = "is" if odd[0] == 1 else "are"
        detail = f"{cpus_text(odd[0])} {verb} not a multiple of {rule.threads}; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail, resolvable=False)
    # With one thread per core, the sum is stricter than the number of free CPUs only if CPUs are reused.
    if sum(counts) > rule.free and (rule.threads > 1 or pins_init_cpus(demand, view.state.node)):
        detail = f"{cpus_text(sum(counts))} needed, {rule.free} surely free on whole cores; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail)
    return None


def _may_meet_groups(demand: PodDemand, view: KubeletView) -> bool:
    """Return whether the pod gets memory on a node where the known pods do not explain which NUMA nodes have memory in use."""
    return bool(demand.pod.memory) and view.state.managers.memory is not None and not view.groups_known


def _may_be_anywhere(demand: PodDemand, view: KubeletView) -> bool:
    """Return whether the pod may hold memory or CPUs on other NUMA nodes than those of the dry runs."""
    return _may_meet_groups(demand, view) or (bool(demand.counts) and takes_from_unknown_socket(view))


def _unclear_places(request: PodRequest, demand: PodDemand, view: KubeletView) -> Rejection | None:
    """
    Return a rejection if the verdict depends on facts that are not published.

    Such facts are the NUMA nodes of memory in use, and the sockets or init container devices near which later
    containers must stay. A device near several NUMA nodes ties later containers to them, and which device a container
    gets is not known (generateDeviceTopologyHints in topology_hints.go).
    """
    node = view.state.node
    # Unexplained use may be a group of NUMA nodes, which may change or reject a new memory block. The states have no room there.
    if _may_meet_groups(demand, view) and not all(has_room_whoever_leaves(request, one) for one in view.hypotheses):
        return Rejection(Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE, UNEXPLAINED)
    if detail := lost_to_sockets(demand, view):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail)
    if node.ids_are_real:
        return None
    detail = unclear_devices(request, view.rooms) if view.followed else _unknown_init_devices(demand, node)
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail) if detail else None


def _unknown_init_devices(demand: PodDemand, node: KubeletNode) -> str:
    """Return a message if an init container gets shared devices on a node of which only amounts are known, else an empty text."""
    for container, part in demand.containers if is_confined(demand, node) else ():
        for name, count in part.devices.items() if container.kind is ContainerKind.INIT else ():
            pool = node.devices.get(name)
            if count and pool is not None and any(device.near.bit_count() > 1 for device in pool.devices):
                return f"container {container.name}: which {name} it gets, and near which NUMA nodes that is, is not published"
    return ""


def refuse_confined_below(demand: PodDemand, grant: Grant, view: KubeletView) -> Rejection | None:
    """
    Return a rejection if an unseen departure may leave the later containers without room, else ``None``.

    On a node whose pods are not followed, any pod may have left unseen from any NUMA node. Its room may move the init
    container to a lower NUMA node than predicted, where containers that are tied to that NUMA node do not fit.
    """
    if not view.unfollowed or len(demand.containers) < 2 or not is_confined(demand, view.state.node):
        return None
    below = lower_places(demand, grant, view.state)
    if not below:
        return None
    detail = f"an init container might go to NUMA node {below[0]}, if a pod has left there unseen, without room for the others"
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail)


class _Places(ValueObject):
    """
    NUMA nodes of the pod as masks.

    ``masks`` has one mask per possible state, the first of which is ``before``. ``first`` has one mask per allocated
    resource in ``before``.
    """

    masks: Sequence[int]
    first: Sequence[int]
    before: KubeletState

    @property
    def is_certain(self) -> bool:
        """True if ``masks`` are equal, and every resource is on at most one NUMA node."""
        return self.masks.count(self.masks[0]) == len(self.masks) and {*map(int.bit_count, self.first)} <= {1}

    @property
    def union(self) -> int:
        """All NUMA nodes on which the pod may be."""
        return reduce(or_, self.masks, 0)


def _admission(
    demand: PodDemand, verdict: DryRunAdmitted, view: KubeletView, places: _Places, doubts: _Doubts | None
) -> KubeletAdmission:
    node, exact = view.state.node, view.state.node.ids_are_real
    # The difference must be taken to the state of the dry run. It may have more free than the likeliest state.
    before = places.before
    holds = [
        (numa, amounts)
        for numa in node.machine.numa_ids
        if (amounts := _taken(before.node, before.managers, verdict.managers, numa))
    ]
    certain = places.is_certain
    mask = places.masks[0] if certain else places.union
    if not certain and not exact:
        # The NUMA node is not known. An admission must hold in all states, so each NUMA node is charged in full.
        whole = total(amounts for _, amounts in holds)
        holds = [(numa, whole) for numa in node.machine.numa_ids if mask >> numa & 1 and whole]
    return KubeletAdmission(
        numa=tuple(holds),
        charge=Charge.PREDICTED if certain or exact else Charge.EVERYWHERE,
        mask=mask if holds else None,
        cpus=_cpus(verdict.grant) if exact else EMPTY,
        note="" if exact else _note(demand, view, certain=certain),
        explores=() if doubts is None else tuple(doubts.options),
        lacks=None if doubts is None else doubts.lacks,
    )


def _taken(node: KubeletNode, before: ManagerState, after: ManagerState, numa: int) -> dict[str, int]:
    """
    Return the amounts that a NUMA node has free in ``before`` and not in ``after``: CPUs in milli, memory in bytes, devices in pieces.
    """
    less = {}
    for name, pool in node.devices.items() if node.devices else ():
        if before.devices[name] != after.devices[name]:
            here = pool.near(1 << numa) & pool.healthy
            less[name] = (here & ~before.devices[name]).bit_count() - (here & ~after.devices[name]).bit_count()
    if node.pins_cpus and (before.cpus ^ after.cpus) & (here := node.machine.numa_bits[numa]):
        less[CPU] = MILLI * ((before.cpus & here).bit_count() - (after.cpus & here).bit_count())
    if before.memory is not None and after.memory is not None:
        had, left = before.memory.free[numa], after.memory.free[numa]
        # By identity: the tables share the amounts of NUMA nodes whose memory did not change.
        if had is not left:
            for kind, amount in had.items():
                less[kind] = amount - left[kind]
    return {name: amount for name, amount in less.items() if amount} if less else less


def _cpus(grant: Grant) -> CpuSet:
    cpus = EMPTY
    for container in grant.containers:
        cpus |= container.cpus
    return cpus


def _places(grant: Grant, node: KubeletNode) -> list[int]:
    """Return the mask of possible NUMA nodes for each allocated resource that is tied to NUMA nodes."""
    everywhere, found = node.machine.numa_mask, []
    for container in grant.containers:
        hint = container.hint.mask if container.hint is not None and container.hint.preferred else None
        # A hint that is not preferred may be too narrow. The rest then comes from any NUMA node.
        aligned = everywhere if hint is None else hint
        if container.cpus:
            found.append(aligned)
        found += map(_BOUND_TO, container.memory)
        for resource, ids in container.devices.items() if container.devices else ():
            pool = node.devices[resource]
            near = [device.near for device in pool.devices if device.id in ids and device.near]
            found += [aligned | mask if mask.bit_count() > 1 else aligned for mask in near]
    return found


def _note(demand: PodDemand, view: KubeletView, *, certain: bool) -> str:
    """Return the assumptions that the admission rests on, as text."""
    notes = []
    if demand.counts and view.cores.threads > 1:
        notes.append(view.cores.why)
    policy = view.state.node.config.topology_policy
    if demand.pod.memory and view.state.managers.memory is not None and policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        notes.append("memory is taken to be grouped as the pods on the node suggest")
    if not certain:
        notes.append("several NUMA nodes are possible, so the pod is counted on each")
    return "; ".join(notes)


UNKNOWN_OPTIONS: Final = "node(s) whose kubelet options are not known"


def refuse_exploration(
    request: PodRequest, view: KubeletView, admission: KubeletAdmission, rule: UnknownKubeletOptions
) -> Rejection | None:
    """Return a rejection if the admission explores options and the pod may not do so on this node, else ``None``."""
    if not admission.explores:
        return None
    options = f"{_shape(request, view, admission)}{', '.join(admission.explores)}"
    if detail := _forbidden(request, view, admission, rule):
        # Evictions may free what the pod lacks if the options are enabled. The admission then depends on no option.
        if admission.lacks is not None:
            return replace(admission.lacks, detail=f"{admission.lacks.detail}; {options}{detail}")
        return Rejection(Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}{detail}", resolvable=False)
    # One exploring pod at a time: with two, a rejection could not be attributed to an option.
    if view.explored:
        return Rejection(
            Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}: another pod is finding out", resolvable=False
        )
    return None


def _forbidden(request: PodRequest, view: KubeletView, admission: KubeletAdmission, rule: UnknownKubeletOptions) -> str:
    """Return why the pod may never explore these options, as text that follows their names; empty if exploration is allowed."""
    if rule is not UnknownKubeletOptions.EXPLORE:
        return " is not known, and the pod might be refused for it"
    # A rejection proves that the option is enabled. Another attempt would lose a pod without new information.
    if view.found_on.intersection(admission.explores):
        return ": its kubelet refused a pod that found out"
    if not request.replaceable:
        return " is not known, and only pods that a controller replaces find out, as a refused pod is lost"
    return ""


def _shape(request: PodRequest, view: KubeletView, admission: KubeletAdmission) -> str:
    """
    Return why the pod depends on the option if the reason is its number of CPUs, else an empty text.

    Example: ``3 CPUs are not a multiple of 2; …; ``.
    """
    if view.cores.option not in admission.explores:
        return ""
    spoiled = split_cores(pod_demand(request), view)
    return "" if spoiled is None else f"{spoiled.detail}; "
