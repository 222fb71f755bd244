"""
A scheduler's conclusion: would this kubelet admit this pod now, and what would the pod then hold?

Asks the kubelet's own procedure on the state that a view supposes, after the careful rules for what is not published. A "yes" must
hold; a "no" may be wrong, and says which assumption decided.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, product
from operator import attrgetter, or_
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.explain import cpus_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.bounds import (
    Sight,
    binds_freely,
    everything,
    has_room,
    has_room_in_all_ways,
    has_room_whoever_leaves,
    hides_memory,
    is_confined,
    takes_turns,
    unclear_devices,
)
from koord_numa.core.kubelet.budget import DECISION, TooManyWays, limited
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.departures import with_one_away, without, without_leaving
from koord_numa.core.kubelet.hypothesis import Hypothesis, Signature, pins_init_cpus
from koord_numa.core.kubelet.in_flight import PodsInFlight
from koord_numa.core.kubelet.node_config import packs_sockets
from koord_numa.core.kubelet.options import THREADS
from koord_numa.core.kubelet.refusals import (
    CANNOT_ALIGN,
    CANNOT_ALLOCATE,
    NO_WHOLE_CORES,
    lost_to_sockets,
    rejection_of,
)
from koord_numa.core.kubelet.replay import Shares, answer, orders, shares_of
from koord_numa.core.kubelet.state import (
    Charge,
    Grant,
    KubeletAdmission,
    KubeletNode,
    KubeletState,
    ManagerState,
    free_on,
)
from koord_numa.core.kubelet.variants import device_layouts, variants
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, UnknownKubeletOptions
from koord_numa.core.resources import CPU, MILLI, total
from koord_numa.core.value_objects import ValueObject, replace


def lower_places(demand: PodDemand, grant: Grant, state: KubeletState) -> list[int]:
    """
    The NUMA nodes on which the first init container of this grant might be, and the rest not beside it, if pods have left.

    They are those below its own that could hold it if they were empty. Its own is one of them where later containers are foreseen
    elsewhere: with more room there they may take CPUs that it did not have, and those that it keeps tie the next container to it. None
    under best-effort, which admits what it cannot align.
    """
    node = state.node
    # As best-effort admits whatever hint wins, an init container elsewhere costs alignment and not the pod.
    if node.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        return []
    whole = KubeletState.empty(node)
    for at, ((container, part), given) in enumerate(zip(demand.containers, grant.containers, strict=True)):
        if container.kind is not ContainerKind.INIT or not (given.cpus or given.devices):
            # The first init container with something of its own ties the rest.
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
    Do the containers after this init container need no more CPUs than it leaves them, and no devices?

    Then they fit wherever it is: a container that takes others than those leaves these to the next one.
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
    """Is the memory of all containers surely free there? Groups of NUMA nodes are not looked into."""
    memory = state.managers.memory
    if memory is None:
        return True
    if state.node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    wanted = total(part.memory for _, part in demand.containers if part.memory)
    return all(memory.free[numa].get(kind, 0) >= amount for kind, amount in wanted.items())


FEW: Final = 16
"""Number of states after which amounts are compared first, which is cheaper and tells less about the place of the pod."""


class Probe(ValueObject):
    """A state to be asked, in one order of taking over init containers' CPUs, and in these shares. ``options`` is assumed in it."""

    state: KubeletState
    trust: Trust
    reuse: CpuReuse
    options: tuple[str, ...] = ()
    shares: Shares = ()


class Question:
    """
    One pod asked about on one node.

    Once all probes are through: ``elsewhere`` are the NUMA nodes, as a mask, on which the pod may be in states that were not asked, as
    amounts told that the kubelet admits it there.
    """

    def __init__(self, request: PodRequest, view: KubeletView) -> None:
        self.elsewhere = 0
        self._request, self._view = request, view
        self._demand = pod_demand(request)
        # In these orders CPUs of init containers may be taken over.
        self._orders = orders(request, view.state.node)
        self._first: Hypothesis | None = None
        self._seen: Sight | None = None
        self._number = 0
        self._known: set[Signature] = set()
        self._dealt_many = False

    def probes(self) -> Iterator[Probe]:
        """Yield the states to be asked, each once, the likeliest first. Raise ``TooManyWays`` where there are too many."""
        for probe in self._all():
            self._number += 1
            yield probe

    def _all(self) -> Iterator[Probe]:
        """Raises ``TooManyWays``."""
        request, view, node = self._request, self._view, self._view.state.node
        confined = is_confined(self._demand, node)
        for one in self._likely():
            yield from self._each_way(one)
        if node.ids_are_real:
            return  # so is the state
        if view.in_flight is not None and view.in_flight.matters_to(request):
            raise PodsInFlight
        turns = view.unfollowed and not confined and takes_turns(self._demand, node)
        # Pods that are not known may have left unseen, with any amount of room.
        if turns and not all(_fits_one_numa(one, request) for one in view.rooms or view.hypotheses):
            raise TooManyWays
        for one in self._with_pods_away(view.hypotheses, confined=confined):
            yield from self._each_way(one)
        if confined and view.upper is not None:
            yield from [Probe(view.upper.state, Trust.INFERRED, order) for order in self._orders]

    def _likely(self) -> Iterator[Hypothesis]:
        # ``rooms`` has one state for each way in which room is left: the others answer alike.
        for one in self._view.rooms or self._view.hypotheses:
            for after in self._surely_gone(one) if one.leaving else (one,):
                yield from self._however_dealt(after)

    def _however_dealt(self, one: Hypothesis) -> Iterator[Hypothesis]:
        """The hypothesis and its variants, without those that CPUs are dealt out in where these are too many and amounts tell of all."""
        # Where one has had too many others mostly have: the bound costs less than to count them again.
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

    def _surely_gone(self, one: Hypothesis) -> list[Hypothesis]:
        """
        For a state in which pods are gone whose places are not known.

        What they held is counted there, which is less room than there is: where that is too little, the pod is asked with them gone from
        each place where they may have been.
        """
        ways = variants(one, self._request)
        try:
            if all(map(self._admits, ways)):
                return [one]
            gone = without(one, one.leaving)
            return [replace(after, state=replace(after.state, requested=one.state.requested)) for after in gone]
        except TooManyWays:
            return [one]

    def _admits(self, one: Hypothesis) -> bool:
        answers = (dry_run(one.state, self._request, one.trust, order) for order in self._orders)
        return all(isinstance(answer, DryRunAdmitted) for answer in answers)

    def _each_way(self, one: Hypothesis) -> Iterator[Probe]:
        """Of the hypothesis all states that the pod can tell apart from those that it was asked about."""
        if self._first is None:
            self._first = one
        elif not self._is_new(self._sight.of(one.state), one):
            return
        if self._told(one, has_room_in_all_ways):
            return
        for laid, order in product(device_layouts(one, self._request), self._orders):
            yield Probe(laid.state, one.trust, order, one.options)
            for shares in self._shares(laid, order):
                yield Probe(laid.state, one.trust, order, one.options, shares)

    def _shares(self, laid: Hypothesis, order: CpuReuse) -> Iterator[Shares]:
        """Of options that are unlikely only the likeliest way is looked at: what they refuse is explored."""
        return iter(()) if laid.options else shares_of(laid.state, self._request, laid.trust, order)

    @property
    def _sight(self) -> Sight:
        """Made for the second state: most pods are asked about one, which there is nothing to compare with."""
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
        """Do amounts tell of this state? Asked where many states were: they do not say where the pod comes to."""
        if self._number < FEW or not told(self._request, one):
            return False
        self.elsewhere |= self._view.state.node.machine.numa_mask
        return True

    def _with_pods_away(self, states: Iterable[Hypothesis], *, confined: bool) -> Iterator[Hypothesis]:
        """What is left where pods may have gone, for a pod to which that matters: whichever pods left, equal room answers alike."""
        request, demand, node = self._request, self._demand, self._view.state.node
        states = [one for one in states if one.leaving or one.unlocated or one.state.pods]
        if not states:
            return  # no pod of any is known, so none can go
        by_turns, hidden = takes_turns(demand, node), hides_memory(demand, node)
        for one in sorted(states, key=lambda one: bool(one.options)):
            if self._told(one, has_room_whoever_leaves):
                continue
            # What fits one NUMA node as a whole needs nothing of any other.
            matters = confined or hidden or (by_turns and not _fits_one_numa(one, request))
            # Memory groups come and go with pods, so that more room may be a refusal.
            matters = matters or (binds_freely(demand, node) and not has_room_whoever_leaves(request, one))
            more = with_one_away(one) if matters else without_leaving(one, demand)
            # What is left where a pod is gone may be where others are otherwise.
            more = chain.from_iterable(map(variants, more)) if one.spread and packs_sockets(node) else more
            for after in more:
                yield replace(after, state=replace(after.state, requested=one.state.requested))


def fits_in_every_state(request: PodRequest, view: KubeletView) -> bool:
    """Sufficient condition: amounts tell that the pod fits in every candidate state, whichever pods have left."""
    if view.in_flight is not None and view.in_flight.matters_to(request):
        return False
    return all(has_room_whoever_leaves(request, one) for one in view.hypotheses)


def _fits_one_numa(one: Hypothesis, request: PodRequest) -> bool:
    if one.spread or one.sharing.keys() & everything(request).devices.keys():
        return False  # where CPUs or shared devices are is not known
    return has_room(request, one.state.node, one.state.managers)


UNEXPLAINED: Final = "the known pods of the node do not explain where memory is in use"
TOO_MANY: Final = (
    "too many states of this kubelet are possible to check all of them, until its next topology or verdict"
)
IN_FLIGHT: Final = "pods bound to this node may be on other NUMA nodes than foreseen, until their kubelet has admitted or rejected them"
NOTHING_KNOWN: Final = "node(s) without usable NUMA topology"

_BOUND_TO: Final = attrgetter("mask")


def would_admit(request: PodRequest, view: KubeletView) -> KubeletAdmission | Rejection:
    """
    Whether the kubelet of this node would admit the pod, as far as a scheduler can tell.

    A yes holds in every state that the view says is possible. The reasons are those of the kubelet's ``status.reason``:
    alignment (TopologyAffinityError), whole cores (SMTAlignmentError), allocation (UnexpectedAdmissionError), and node-wide amounts
    (OutOf…). Where only an option that is unlikely, or that is not published, speaks against the pod, the admission names it in
    ``explores``: its answer would tell.
    """
    demand = pod_demand(request)
    if problem := view.problem_with(request):
        return Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, problem, resolvable=False)
    doubts: _Doubts | None = None
    if (spoiled := split_cores(demand, view)) is not None:
        # The unlikely option, or the count of free cores, speaks against it: both are assumptions that the answer would settle.
        if not view.cores.option or (view.cores.option == THREADS and spoiled.resolvable):
            return spoiled
        doubts = _Doubts([view.cores.option], [spoiled])
    if (unclear := _unclear_places(request, demand, view)) is not None:
        return unclear
    if view.is_settled and len(demand.containers) == 1:  # nothing is taken over, and no pod could go
        return _in_one_state(request, view, doubts)
    try:
        with limited(DECISION):
            return _in_all_states(request, view, doubts)
    except PodsInFlight:
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, IN_FLIGHT)
    except TooManyWays:
        return _by_bound(request, view, doubts)


def _in_one_state(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    state, demand = view.state, pod_demand(request)
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted):
        return rejection_of(request, verdict, view, state)
    places = _places(verdict.grant, state.node)
    return _admission(demand, verdict, view, _Places([reduce(or_, places, 0)], places, state), doubts)


def _in_all_states(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    demand = pod_demand(request)
    first: tuple[DryRunAdmitted, KubeletState, list[int]] | None = None
    masks: list[int] = []
    question = Question(request, view)
    for probe in question.probes():
        verdict = answer(probe.state, request, probe.trust, probe.reuse, probe.shares)
        if isinstance(verdict, NotAdmitted):
            # A refusal in a state without unlikely options is final; one under such options only makes the pod explore them.
            if not probe.options or first is None:
                return rejection_of(request, verdict, view, probe.state)
            doubts = doubts or _Doubts()
            doubts.add(probe.options, rejection_of(request, verdict, view, probe.state))
            continue
        places = _places(verdict.grant, probe.state.node)
        first = first or (verdict, probe.state, places)
        masks.append(reduce(or_, places, 0))
    if first is None:
        raise AssertionError("a view has at least one state")
    masks.append(question.elsewhere or masks[0])
    verdict, before, places = first
    unsure = refuse_confined_below(demand, verdict.grant, view)
    return unsure or _admission(demand, verdict, view, _Places(masks, places, before), doubts)


def _by_bound(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    """Answer where not every state could be tried: the pod is admitted if amounts tell that it fits in each; else it waits."""
    state = view.state
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted) or not (view.followed and fits_in_every_state(request, view)):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, TOO_MANY)
    places = _places(verdict.grant, state.node)
    masks = [reduce(or_, places, 0), state.node.machine.numa_mask]
    return _admission(pod_demand(request), verdict, view, _Places(masks, places, state), doubts)


@dataclass(slots=True)
class _Doubts:
    """``options`` are those on which the admission depends, ``refusals`` what the kubelet says if they are on."""

    options: list[str] = field(default_factory=list)
    refusals: list[Rejection] = field(default_factory=list)

    def add(self, options: Sequence[str], refusal: Rejection) -> None:
        """The kubelet refuses the pod under these options, if there are any."""
        self.options += [option for option in options if option not in self.options]
        self.refusals += [refusal] if options else []

    @property
    def lacks(self) -> Rejection | None:
        """The first refusal, if evictions may help against each."""
        if not all(refusal.resolvable for refusal in self.refusals):
            return None
        return self.refusals[0] if self.refusals else None


def split_cores(demand: PodDemand, view: KubeletView) -> Rejection | None:
    """Why the pod breaks the most careful rule about whole cores; ``None`` when it keeps it, or where none has to be kept."""
    counts, rule = demand.counts, view.cores
    if rule.free is None:
        return None
    odd = [count for count in counts if count % rule.threads]
    if odd:
        verb = "is" if odd[0] == 1 else "are"
        detail = f"{cpus_text(odd[0])} {verb} not a multiple of {rule.threads}; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail, resolvable=False)
    # Without threads to spoil, the sum says more than the count of free CPUs only where CPUs are used twice.
    if sum(counts) > rule.free and (rule.threads > 1 or pins_init_cpus(demand, view.state.node)):
        detail = f"{cpus_text(sum(counts))} needed, {rule.free} surely free on whole cores; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail)
    return None


def _unclear_places(request: PodRequest, demand: PodDemand, view: KubeletView) -> Rejection | None:
    """
    What is not published: where memory is in use, and what later containers must stay near (sockets, an init container's device).

    A device near several NUMA nodes ties them: which one it gets is not known (generateDeviceTopologyHints in topology_hints.go).
    """
    node = view.state.node
    # Unexplained use may be a group of NUMA nodes, which a new block would join or be refused for.
    if demand.pod.memory and view.state.managers.memory is not None and not view.groups_known:
        return Rejection(Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE, UNEXPLAINED)
    if detail := lost_to_sockets(demand, view):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail)
    if node.ids_are_real:
        return None
    detail = unclear_devices(request, view.rooms) if view.followed else _unknown_init_devices(demand, node)
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail) if detail else None


def _unknown_init_devices(demand: PodDemand, node: KubeletNode) -> str:
    """Of which shared devices init containers get some on a node of which only amounts are known, in words; empty where there are none."""
    for container, part in demand.containers if is_confined(demand, node) else ():
        for name, count in part.devices.items() if container.kind is ContainerKind.INIT else ():
            pool = node.devices.get(name)
            if count and pool is not None and any(device.near.bit_count() > 1 for device in pool.devices):
                return f"container {container.name}: which {name} it gets, and near which NUMA nodes that is, is not published"
    return ""


def refuse_confined_below(demand: PodDemand, grant: Grant, view: KubeletView) -> Rejection | None:
    """
    On a node that is not followed any pod may have left unseen, wherever it was: should its room take the init container to a lower NUMA
    node than foreseen, the containers that are tied to that one may not find room there.
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
    The ``masks`` that a pod has in all states that are possible, the first of which is ``before``; ``first`` is one for each thing that it
    is given there.
    """

    masks: Sequence[int]
    first: Sequence[int]
    before: KubeletState

    @property
    def is_certain(self) -> bool:
        """Is it the same NUMA node everywhere?"""
        return self.masks.count(self.masks[0]) == len(self.masks) and {*map(int.bit_count, self.first)} <= {1}

    @property
    def union(self) -> int:
        """Every NUMA node on which it may be."""
        return reduce(or_, self.masks, 0)


def _admission(
    demand: PodDemand, verdict: DryRunAdmitted, view: KubeletView, places: _Places, doubts: _Doubts | None
) -> KubeletAdmission:
    node, exact = view.state.node, view.state.node.ids_are_real
    # Of the state that was asked, which may have more free than the likeliest: the difference to any other is not the pod's.
    before = places.before
    holds = [
        (numa, amounts)
        for numa in node.machine.numa_ids
        if (amounts := _taken(before.node, before.managers, verdict.managers, numa))
    ]
    certain = places.is_certain
    mask = places.masks[0] if certain else places.union
    if not certain and not exact:
        # Which NUMA node it will be is open: the whole amount is charged on each, as a yes must hold in all cases.
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
    """What one NUMA node has free in the first managers and not in the second, in our units."""
    less = {}
    for name, pool in node.devices.items() if node.devices else ():
        if before.devices[name] != after.devices[name]:
            here = pool.near(1 << numa) & pool.healthy
            less[name] = (here & ~before.devices[name]).bit_count() - (here & ~after.devices[name]).bit_count()
    if node.pins_cpus and (before.cpus ^ after.cpus) & (here := node.machine.numa_bits[numa]):
        less[CPU] = MILLI * ((before.cpus & here).bit_count() - (after.cpus & here).bit_count())
    if before.memory is not None and after.memory is not None:
        had, left = before.memory.free[numa], after.memory.free[numa]
        # By identity: the table shares the amounts of NUMA nodes of which nothing was taken.
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
    """For everything that is tied to NUMA nodes, the mask it may be on."""
    everywhere, found = node.machine.numa_mask, []
    for container in grant.containers:
        hint = container.hint.mask if container.hint is not None and container.hint.preferred else None
        # A hint that is not preferred may be too narrow, and the rest then comes from anywhere.
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
    """The assumptions that this yes rests on."""
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
    """Why the pod may not explore these options on this node; ``None`` when it explores nothing, or may."""
    if not admission.explores:
        return None
    options = f"{_shape(request, view, admission)}{', '.join(admission.explores)}"
    if detail := _forbidden(request, view, admission, rule):
        # What it lacks if the options are on, evictions may free for it: then it depends on none of them.
        if admission.lacks is not None:
            return replace(admission.lacks, detail=f"{admission.lacks.detail}; {options}{detail}")
        return Rejection(Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}{detail}", resolvable=False)
    # One at a time: if two were on their way and one was refused, it would not be known for which option.
    if view.explored:
        return Rejection(
            Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}: another pod is finding out", resolvable=False
        )
    return None


def _forbidden(request: PodRequest, view: KubeletView, admission: KubeletAdmission, rule: UnknownKubeletOptions) -> str:
    """Why the pod may not explore these options at all, to be read after their names; empty where it may."""
    if rule is not UnknownKubeletOptions.EXPLORE:
        return " is not known, and the pod might be refused for it"
    # One refusal is proof that the option is on. Asking again would lose another pod to learn the same.
    if view.found_on.intersection(admission.explores):
        return ": its kubelet refused a pod that found out"
    if not request.replaceable:
        return " is not known, and only pods that a controller replaces find out, as a refused pod is lost"
    return ""


def _shape(request: PodRequest, view: KubeletView, admission: KubeletAdmission) -> str:
    """What about the pod makes it depend on the option, where that is a count of CPUs: ``3 CPUs are not a multiple of 2; …; ``."""
    if view.cores.option not in admission.explores:
        return ""
    spoiled = split_cores(pod_demand(request), view)
    return "" if spoiled is None else f"{spoiled.detail}; "
