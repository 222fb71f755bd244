"""
Replay of the kubelet's admission of one pod on a hypothesis: every possible decision, as one hypothesis per
distinguishable outcome.

``arrive`` runs the dry runs for all variants, orders of CPU reuse and CPU shares, and merges results whose difference
is only in loose CPUs. ``advance`` adds the pods that were leaving: pods reach the kubelet in the order of their
binds, and a departure is seen later than it happens. Only orders in which the kubelet decides differently on the
arriving pod are followed: if the decision is the same with the leaving pod still present, a later departure stands
for both.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, dropwhile, islice
from typing import Final, TypeVar

from koord_numa.core.cpus.kubelet_assignment import assign
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet, lowest, members
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.bounds import STRICT, splits_unknown
from koord_numa.core.kubelet.cpu_manager import CpuReuse, CpuStock
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import (
    Hypothesis,
    Signature,
    cpus_by_numa,
    free_memory,
    held_by_init,
    may_lie_otherwise,
    pins_init_cpus,
    places_of,
    reached,
    released,
    signature,
    variant_of,
)
from koord_numa.core.kubelet.state import (
    EVENT,
    Budget,
    KubeletNode,
    KubeletState,
    OverBudget,
    TooManyWays,
    limited,
    within,
)
from koord_numa.core.kubelet.variants import (
    Departed,
    Owners,
    departing,
    device_layouts,
    distinct,
    holding,
    may_share,
    one_of_each_kind,
    owners_of,
    standing_for,
    variants,
    without,
)
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT, ContainerKind, KubeletScope
from koord_numa.core.value_objects import ValueObject, replace

T = TypeVar("T")

MOST_SHARES: Final = 64
"""Maximum ways to distribute the CPUs of one pod's containers over NUMA nodes that are tried."""

Counts = tuple[int, ...]
"""CPUs per NUMA node, in the order of the machine's NUMA nodes."""

Shares = tuple[Counts, ...]
"""
CPUs per NUMA node of every container with CPUs of several NUMA nodes, without the last container. Missing entries are the dry run's choice.
"""


def shares_of(state: KubeletState, request: PodRequest, trust: Trust, reuse: CpuReuse) -> Iterator[Shares]:
    """
    Yield the shares of the pod's containers other than the shares that a dry run chooses.

    Raises ``TooManyWays`` at the end if there are more than ``MOST_SHARES``.
    """
    demand = pod_demand(request)
    if not _may_matter(demand, state.node):
        return
    waiting: list[Shares] = [()]
    tried = 0
    while waiting and tried < MOST_SHARES:
        shares = waiting.pop()
        if shares:
            yield shares
        tried += 1
        dealt = Dealt(demand, shares)
        dry_run(state, request, trust, reuse, dealt)
        for at in range(len(shares), len(dealt.taken)):
            waiting += [(*dealt.taken[:at], other) for other in dealt.others[at]]
    if waiting:
        raise TooManyWays


def answer(
    state: KubeletState, request: PodRequest, trust: Trust, reuse: CpuReuse, shares: Shares
) -> DryRunAdmitted | NotAdmitted:
    """Return the result of a dry run with these shares."""
    dealt = Dealt(pod_demand(request), shares) if shares else None
    return dry_run(state, request, trust, reuse, dealt)


def _may_matter(demand: PodDemand, node: KubeletNode) -> bool:
    """
    Return whether other shares may leave less of a NUMA node to a container after the first one, so that it is rejected.

    Only strict policies with container scope reject such a container.
    """
    config = node.config
    if len(demand.counts) < 2 or len(node.machine.numa_ids) < 2:
        return False
    if config.topology_policy not in STRICT or config.topology_scope is not KubeletScope.CONTAINER or node.ids_are_real:
        return False
    taking = [part.cpus for _, part in demand.containers if part.cpus]
    largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
    return node.static_options.align_by_socket or max(taking[:-1]) > largest


@dataclass(slots=True)
class Dealt:
    """
    The distribution of CPUs over NUMA nodes in one dry run.

    ``taken`` has the share that each container got, ``others`` the other possible shares of that container.
    """

    demand: PodDemand
    shares: Shares
    taken: list[Counts] = field(default_factory=list)
    others: list[Sequence[Counts]] = field(default_factory=list)
    _after: int = field(init=False)

    def __post_init__(self) -> None:
        self._after = sum(1 for _, part in self.demand.containers if part.cpus)

    def __call__(self, stock: CpuStock, bits: int, mask: int | None) -> int:
        """Return the CPUs of the next container. The dry run chose ``bits`` by a hint of this mask."""
        self._after -= 1
        node, near = stock.node, stock.near(mask)
        # If the container takes all CPUs near the hint, the rest comes from any NUMA nodes.
        fixed = bits & near if bits & ~near else 0
        pool = (stock.free | stock.reusable) & ~near if fixed else near
        room, usual = cpus_by_numa(pool, node), cpus_by_numa(bits & ~fixed, node)
        if not self._after or sum(1 for count in room if count) < 2:
            return bits
        place = len(self.taken)
        chosen = self.shares[place] if place < len(self.shares) else usual
        self.taken.append(chosen)
        possible = islice(_possible(node, pool, room, usual), MOST_SHARES + 2)
        self.others.append([each for each in possible if each != chosen])
        return bits if chosen == usual else fixed | _pick(stock, pool, bits, chosen)


def _pick(stock: CpuStock, pool: int, usual: int, chosen: Counts) -> int:
    """Return the chosen number of CPUs of every NUMA node in the pool, CPUs of ``usual`` first."""
    found = 0
    for here, count in zip(stock.node.machine.numa_bits.values(), chosen, strict=True):
        own = lowest(usual & here & pool, min(count, (usual & here & pool).bit_count()))
        found |= own | lowest(pool & here & ~own, count - own.bit_count())
    return found


def _possible(node: KubeletNode, pool: int, room: Counts, usual: Counts) -> Iterator[Counts]:
    if splits_unknown(node):
        yield from _every(room, sum(usual))
        return
    if node.distributes_across_numa or not node.is_published:
        yield from _even(node, pool, sum(usual))
    if not (node.distributes_across_numa or node.takes_whole_cores):
        yield from _with_cores_in_use(usual, room)


def _every(room: Sequence[int], needed: int) -> Iterator[Counts]:
    """Yield all shares of the NUMA nodes, of which each has so much room."""
    if not room:
        if not needed:
            yield ()
        return
    first, *rest = room
    for count in range(max(0, needed - sum(rest)), min(first, needed) + 1):
        yield from ((count, *others) for others in _every(rest, needed - count))


def _even(node: KubeletNode, pool: int, needed: int) -> Iterator[Counts]:
    """Yield even shares of the NUMA nodes. The kubelet may put any of the NUMA nodes with equally many free CPUs first."""
    chosen = assign(node.machine, CpuSet(pool), needed, StaticOptions(distribute_across_numa=True))
    if not isinstance(chosen, CpuSet):
        return
    counts, room = cpus_by_numa(chosen.bits, node), cpus_by_numa(pool, node)
    yield counts
    for one in range(len(room)):
        for other in range(one):
            if room[one] == room[other] and counts[one] != counts[other]:
                swapped = list(counts)
                swapped[one], swapped[other] = counts[other], counts[one]
                yield tuple(swapped)


def _with_cores_in_use(packed: Counts, room: Counts) -> Iterator[Counts]:
    """
    Yield shares with one CPU less from a NUMA node that is used up, and one CPU more from another one.

    With two threads per core, an odd number of free CPUs includes a core that is partly in use. Whole cores of the
    next NUMA node precede it.
    """
    for less in range(len(room)):
        for more in range(len(room)):
            odd = packed[less] % 2 and packed[more] % 2
            if less != more and odd and packed[less] == room[less] and packed[more] < room[more]:
                yield tuple(count - (at == less) + (at == more) for at, count in enumerate(packed))


def still_held(before: Hypothesis, given: int, after: Hypothesis, uid: str) -> Hypothesis:
    """
    Return the hypothesis ``after`` the arrival of this pod, in which the CPUs of ``given`` that no container needed are loose again.

    ``given`` are the loose CPUs that were assumed free for this variant.
    """
    if not given:
        return after
    more: dict[str, int] = {}
    for place in _joined(after, uid):
        if not given & place:
            continue
        owners, free = _instead(owners_of(before, given & place), after, place)
        own = after.loose.get(uid, 0) & place
        everyone = frozenset[str]().union(*owners)
        if len(owners) > len(free) and may_share(after, everyone | {uid} if own else everyone):
            # Any of them may be held, also instead of CPUs that the pod's own init containers may hold.
            pool = sum(1 << cpu for cpu in free) | lowest(own, min(own.bit_count(), len(owners) - len(free)))
            owners, free = [everyone] * pool.bit_count(), [*members(pool)]
        for each, cpu in zip(owners, free, strict=False):
            for owner in sorted(each):
                more[owner] = more.get(owner, 0) | 1 << cpu
    return holding(after, more)


def stands_for(one: Hypothesis, given: int, after: Hypothesis, uid: str) -> bool:
    """
    Return whether everything that is unknown ``after`` the arrival is also covered by hypothesis ``one``, which has the same outcome.

    This holds if all CPUs of ``given``, which were assumed free, may be held again, and the pod's init containers
    hold no more than in ``one``.
    """
    mine, theirs = one.loose.get(uid, 0), after.loose.get(uid, 0)
    free = after.state.managers.cpus
    return all(
        (theirs & place).bit_count() <= (mine & place).bit_count()
        and (given & place).bit_count() <= (free & place).bit_count()
        for place in places_of(one.state.node)
    )


def equally_sure(one: Hypothesis, other: Hypothesis, uid: str) -> tuple[Hypothesis, Hypothesis]:
    """
    Return both hypotheses with equally many CPUs surely held by the init containers of this pod: the minimum of both.
    The rest becomes loose.

    The outcome of the pod is the same in both, and only one hypothesis is followed. If more CPUs were free before the
    pod came, its app container may have reused an init container's CPU. If fewer were free, it may have got a CPU of
    another NUMA node beyond its hint. No topology shows which. A loose CPU is held or free, so both hypotheses still
    cover all their states.
    """
    mine, theirs = _surely_held(one, uid), _surely_held(other, uid)
    if mine == theirs:
        return one, other
    places = _joined(one, uid)
    return _with_less(one, mine, theirs, uid, places), _with_less(other, theirs, mine, uid, places)


def _surely_held(one: Hypothesis, uid: str) -> int:
    pod = one.state.pods.get(uid)
    return held_by_init(pod.grant) & ~one.loose.get(uid, 0) if pod is not None else 0


def _with_less(one: Hypothesis, held: int, most: int, uid: str, places: Sequence[int]) -> Hypothesis:
    """Return the hypothesis with at most as many surely held CPUs of ``held`` per place as ``most`` has there."""
    loose = 0
    for place in places:
        loose |= lowest(held & place, max(0, (held & place).bit_count() - (most & place).bit_count()))
    return replace(one, loose={**one.loose, uid: one.loose.get(uid, 0) | loose}) if loose else one


def _joined(after: Hypothesis, uid: str) -> Sequence[int]:
    """Return the places as CPU bits, with those joined over which the pod's CPUs may be distributed differently."""
    node, pod = after.state.node, after.state.pods.get(uid)
    places = places_of(node)
    for one in pod.grant.containers if pod is not None and len(places) > 1 else ():
        if may_lie_otherwise(one, node):
            near = sum(bits for numa, bits in node.machine.numa_bits.items() if reached(one, node) >> numa & 1)
            together = sum(place for place in places if place & near)
            places = (together, *(place for place in places if not place & near))
    return places


def _instead(loose: Mapping[int, Owners], after: Hypothesis, place: int) -> tuple[list[Owners], list[int]]:
    """Return the owners of these loose CPUs, and a free CPU for as many of them as possible, on the same NUMA node where possible."""
    owners, free, rest = list[Owners](), list[int](), list[Owners]()
    room = after.state.managers.cpus & place
    for here in after.state.node.machine.numa_bits.values():
        near = [each for cpu, each in loose.items() if here >> cpu & 1]
        taken = lowest(room & here, len(near))
        room &= ~taken
        owners += near[: taken.bit_count()]
        free += members(taken)
        rest += near[taken.bit_count() :]
    return owners + rest, [*free, *members(lowest(room, len(rest)))]


Outcome = Signature | None
"""Distinguishes the kubelet's decisions on one pod. ``None`` is a rejection."""

MOST_WAYS: Final = 2
"""Maximum hypotheses per predecessor after the admission of a pod that is not bound yet."""

HELD: Final = 1.0
"""
Uncertainty of the rare case that an init container's CPUs are held in addition to the CPUs of later containers, in seconds of late updates.
"""


def arrive(before: Hypothesis, uid: str, request: PodRequest) -> dict[Outcome, Hypothesis]:
    """
    Return the possible states after the kubelet received this pod: one hypothesis per outcome, the most likely first.

    A rejected pod leaves the hypothesis unchanged.
    """
    if not (before.loose or before.spread or before.sharing):
        # One variant, in which no CPU is loose: nothing has to be merged.
        outcomes = [*_outcomes(before, uid, request)]
        if len(outcomes) == 1:
            [(outcome, after)] = outcomes
            return {outcome if outcome is None or before.state.node.aligns else (outcome, after.surely_held): after}
    found: dict[Outcome, Hypothesis] = {}
    for variant in chain.from_iterable(device_layouts(one, request) for one in variants(before, request)):
        still = _loose(variant)
        freed = _loose(before) & ~still
        # Each pod whose init CPUs are assumed held makes the variant less likely. A CPU is held by one of its owners.
        holders = sum(1 for uid in before.loose if variant.loose.get(uid))
        uncertainty = variant.uncertainty + HELD * min(holders, still.bit_count())
        for outcome, after in _outcomes(variant, uid, request):
            # Without alignment, outcomes do not contain what init containers surely hold.
            key = outcome if outcome is None or before.state.node.aligns else (outcome, after.surely_held)
            # Variants are in order of likelihood, so the first hypothesis with an outcome stays.
            if before.sharing:
                after = replace(after, state=replace(after.state, node=before.state.node))
            if key not in found:
                after = still_held(before, freed, after, uid)
                if after.uncertainty != uncertainty:
                    after = replace(after, uncertainty=uncertainty)
                found[key] = after
                continue
            one, after = equally_sure(found[key], after, uid)
            if freed and one.surely_held == after.surely_held and not stands_for(one, freed, after, uid):
                one = standing_for(one, still_held(before, freed, after, uid))
            found[key] = replace(one, uncertainty=uncertainty) if uncertainty < one.uncertainty else one
    return found


def _loose(one: Hypothesis) -> int:
    bits = 0
    for each in one.loose.values():
        bits |= each
    return bits


def admitted(before: Iterable[Hypothesis], uid: str, request: PodRequest) -> list[Hypothesis]:
    """
    Return the hypotheses after the kubelet admitted this pod, without the hypotheses in which it rejects the pod.

    At most ``MOST_WAYS`` per predecessor, because every pod multiplies the hypotheses. Where there are too many to
    try, the pod is unplaced.
    """
    found: list[Hypothesis] = []
    for one in before:
        try:
            found += [after for after in [*arrive(one, uid, request).values()][:MOST_WAYS] if after.has(uid)]
        except TooManyWays:
            found.append(replace(one, unplaced=one.unplaced | {uid}))
    return found


def _outcomes(before: Hypothesis, uid: str, request: PodRequest) -> Iterator[tuple[Outcome, Hypothesis]]:
    node = before.state.node
    ways = orders(request, node)
    answers = [dry_run(before.state, request, before.trust, order) for order in ways]
    admitted = [each for each in answers if isinstance(each, DryRunAdmitted)]
    keys = [_outcome(before, each) for each in admitted]
    # Both extremes have the same outcome: one hypothesis covers them, and the CPUs between them are loose.
    if len(admitted) == 2 and keys[0] == keys[1]:
        yield keys[0], _placed(before, uid, request, admitted[0], _left_over(before, admitted))
    else:
        for key, each in zip(keys, admitted, strict=True):
            after = _placed(before, uid, request, each, 0)
            # Rejected at one extreme only: the pod is there because its containers took over many CPUs.
            yield key, after if len(admitted) == len(answers) else _with_more_left(after, uid)
    if len(admitted) < len(answers):
        yield None, before
    open_ = (node.distributes_across_numa or not node.is_published or splits_unknown(node)) and not before.options
    for order in ways if open_ else ():
        yield from _in_other_shares(before, uid, request, order)


def _in_other_shares(
    before: Hypothesis, uid: str, request: PodRequest, order: CpuReuse
) -> Iterator[tuple[Outcome, Hypothesis]]:
    """Yield outcomes where containers get other shares of several NUMA nodes and later containers have another result."""
    for shares in shares_of(before.state, request, before.trust, order):
        other = answer(before.state, request, before.trust, order, shares)
        if isinstance(other, DryRunAdmitted):
            yield _outcome(before, other), _placed(before, uid, request, other, 0)
        else:
            yield None, before


def orders(request: PodRequest, node: KubeletNode) -> tuple[CpuReuse, ...]:
    """Return the orders of CPU reuse that must be tried."""
    ends = pins_init_cpus(pod_demand(request), node)
    return (CpuReuse.LEAST, CpuReuse.MOST) if ends else (CpuReuse.BY_ID,)


def _with_more_left(after: Hypothesis, uid: str) -> Hypothesis:
    """
    Return the hypothesis with more loose CPUs, for a pod that is admitted only if its containers take over many CPUs of init containers.

    It may not have taken over all of them, so as many CPUs as are free may be held in addition.
    """
    state, numa_bits = after.state, after.state.node.machine.numa_bits.values()
    pod = state.pods[uid]
    init = lasting = 0
    for one in pod.grant.containers:
        if one.kind is ContainerKind.INIT:
            init |= one.cpus.bits
        else:
            lasting |= one.cpus.bits
    held = 0
    for here in numa_bits:
        free = state.managers.cpus & here
        held |= lowest(free, min((init & lasting & here).bit_count(), free.bit_count()))
    return holding(after, {uid: held}) if held else after


def _left_over(before: Hypothesis, ends: Sequence[DryRunAdmitted]) -> int:
    """Return the CPU bits of init containers that are held at one extreme and free at the other."""
    least, most = ends
    loose = 0
    held = kept = 0
    for one in least.grant.containers:
        if one.kind is ContainerKind.INIT:
            held |= one.cpus.bits
        else:
            kept |= one.cpus.bits
    own = held & ~kept
    for here in before.state.node.machine.numa_bits.values():
        more = (most.managers.cpus & here).bit_count() - (least.managers.cpus & here).bit_count()
        loose |= lowest(own & here, min(max(0, more), (own & here).bit_count()))
    # A container on several NUMA nodes takes over CPUs of any of them, and beyond its hint CPUs of any NUMA node.
    if any(may_lie_otherwise(one, before.state.node) for one in least.grant.containers):
        # CPUs taken over on one NUMA node may save CPUs of another, so only the sum is comparable.
        more = most.managers.cpus.bit_count() - least.managers.cpus.bit_count() - loose.bit_count()
        loose |= lowest(own & ~loose, min(max(0, more), (own & ~loose).bit_count()))
    return loose


def _placed(before: Hypothesis, uid: str, request: PodRequest, answer: DryRunAdmitted, loose: int) -> Hypothesis:
    spread = before.spread
    if any(may_lie_otherwise(one, before.state.node) for one in answer.grant.containers):
        spread = spread | {uid}
    return replace(
        before,
        state=before.state.with_pod(uid, request, answer.grant, answer.managers),
        loose={**before.loose, uid: loose} if loose else before.loose,
        spread=spread,
    )


def _outcome(before: Hypothesis, answer: DryRunAdmitted) -> Signature:
    """Return the place of the pod, and for memory of several NUMA nodes the amount from every NUMA node."""
    place = signature(answer.grant, before.state.node)
    held, left = before.state.managers.memory, answer.managers.memory
    if (
        held is None
        or left is None
        or not any(b.mask & (b.mask - 1) for one in answer.grant.containers for b in one.memory)
    ):
        return place
    taken = zip(free_memory(held), free_memory(left), strict=True)
    return (place, *(before - after for before, after in taken))


LAG: Final = 30.0
"""Maximum delay, in seconds, of events about the end of a pod or the verdict on a pod."""

OLD: Final = 180.0
"""Seconds after an arrival from which every delivered topology shows the arrival."""

MOST_ARRIVALS: Final = 40
"""Maximum number of arrivals that are replayed, the latest ones."""

MOST_LEAVING: Final = 4
"""
Maximum number of leaving pods of which every subset is tried. Of more pods, departures are tried in the order in which they were seen.
"""

BEYOND: Final = 1_200
"""Steps that are added for an arrival while no state explains its verdict."""

MOST_HYPOTHESES: Final = 96
"""Maximum number of hypotheses. With more, a belief is incomplete until a topology rules some out."""

MOST_STATES: Final = 800
"""Maximum number of states that are compared."""


SHORTEST: Final = 1.0
"""Seconds that a pod needs at least from its bind to its end: its containers start and end, and the kubelet notices each."""


@dataclass(slots=True)
class Arrival:
    """
    A pod that reached the kubelet.

    ``when`` is the time of its bind in seconds, infinite for a nominated pod. ``known`` is the time at which its verdict was seen.
    ``listed``: its bind may have been long before ``when``. ``before`` are the possible states before its arrival. ``unseen`` caches the
    input and the output of ``with_one_unseen``.
    """

    uid: str
    request: PodRequest
    when: float
    known: float | None = None
    before: list[Hypothesis] = field(default_factory=list)
    listed: bool = False
    unseen: tuple[Sequence[Hypothesis], bool | None, list[Hypothesis]] | None = field(
        default=None, repr=False, compare=False
    )

    def copy(self) -> "Arrival":
        """Return a copy of the arrival."""
        return Arrival(self.uid, self.request, self.when, self.known, self.before, self.listed)

    def may_follow(self, left: float) -> bool:
        """Return whether a pod that was seen gone at ``left`` may have left before this pod arrived."""
        # Without a verdict, the pod may still wait at the kubelet, so any departure may come first.
        return self.known is None or left - LAG <= self.known


def surely_after(arrivals: Sequence[Arrival], place: int, must_show: Callable[[str], bool]) -> int:
    """
    Return the index of the first arrival after a topology that shows no pod from index ``place`` on, or the number of arrivals.

    ``must_show`` returns whether every newer topology shows a pod. Topologies do not show rejected pods and pods that
    have left since.
    """
    return next((at for at in range(place, len(arrivals)) if must_show(arrivals[at].uid)), len(arrivals))


def still_open(arrivals: Iterable[Arrival], when: float, explains: Callable[[Hypothesis], bool]) -> list[Arrival]:
    """
    Return the arrivals at time ``when`` whose outcome later events can still change.

    The states before these arrivals are reduced to those that explain the published topology. Pods that are about to be
    seen gone may have left before these arrivals, also if the time of a topology is not known.
    """
    found = [*dropwhile(lambda each: not each.may_follow(when), arrivals)]
    for each in found:
        # If no state explains it, the topology belongs to another history: keep all states.
        each.before = list(filter(explains, each.before)) or each.before
    return found


def not_shown(states: Iterable[Hypothesis], shown: Collection[str], counts: Callable[[str], bool]) -> set[str]:
    """Return the pods of these states that the topology counts (``counts``) and that are not in ``shown``."""
    return {
        uid
        for one in states
        for uid in (*one.state.pods, *one.unplaced, *one.unlocated)
        if uid not in shown and counts(uid)
    }


def advance(
    states: Sequence[Hypothesis], arrival: Arrival, left: Mapping[str, float], admitted: bool | None, steps: int
) -> Generator[int, None, tuple[list[Hypothesis], bool, int]]:
    """
    Return the states after this pod reached the kubelet, whether states were given up, and the remaining steps.

    ``admitted`` is the verdict, or ``None`` if it is not known. ``left`` maps the uids of pods that are gone by now to
    the time at which that was seen. If no state explains the verdict, or if too many states are possible, all states
    are kept and marked as unexplained. If ``steps`` are spent, the states with the highest uncertainty are given up.
    Yield the number of steps of each piece of work.
    """
    found: list[Hypothesis] = []
    others: list[Hypothesis] = []
    given_up = False
    budget = limited(steps + BEYOND)
    likely_first = sorted(states, key=lambda one: one.uncertainty)
    outcomes = chain.from_iterable(_outcomes_of_orders(state, arrival, left) for state in likely_first)
    try:
        for after, taken in within(budget, outcomes):
            if after is not None:
                (found if admitted in (None, after.has(arrival.uid)) else others).append(after)
                if found and budget.left < BEYOND:
                    raise OverBudget
            yield taken
    except TooManyWays:
        given_up = True
    afterwards = _explained(found, others, arrival, admitted)
    if not afterwards:
        afterwards = [unexplained(one, arrival.uid, admitted=admitted is not False) for one in states]
    return afterwards, given_up, budget.left - BEYOND


def _explained(
    found: list[Hypothesis], others: list[Hypothesis], arrival: Arrival, admitted: bool | None
) -> list[Hypothesis]:
    return found or [unexplained(one, arrival.uid, admitted=bool(admitted)) for one in others]


def unexplained(one: Hypothesis, uid: str, *, admitted: bool) -> Hypothesis:
    """Return the hypothesis with the pod added or removed against the prediction, marked as unexplained."""
    marked = one.unexplained | {uid}
    if admitted:
        return replace(one, unplaced=one.unplaced | {uid}, unexplained=marked)
    gone = released(one, uid)
    return replace(gone, gone={other: grant for other, grant in gone.gone.items() if other != uid}, unexplained=marked)


def never_there(one: Hypothesis, uid: str) -> Iterator[Hypothesis]:
    """
    Yield the states without a pod that the kubelet has rejected. No topology shows the pod, and it never held its predicted allocation.
    """
    try:
        with limited(EVENT):
            states = list(without(one, [uid]))
    except TooManyWays:
        # The predicted allocation stays counted until a topology shows it free.
        states = [replace(one, unlocated={other: it for other, it in one.unlocated.items() if other != uid})]
    for after in states:
        yield replace(after, gone={other: grant for other, grant in after.gone.items() if other != uid})


def _outcomes_of_orders(
    state: Hypothesis, arrival: Arrival, left: Mapping[str, float]
) -> Generator[Hypothesis | None, None, None]:
    """Yield the states after the arrival, for every order of departures, and ``None`` after a piece of work without a state."""
    leaving = sorted((when, uid) for uid, when in left.items() if uid != arrival.uid and state.has(uid))
    # Pods seen gone before the bind are gone in any order. Unlocated pods leave only if that matters to the arrival.
    gone = [uid for when, uid in leaving if when <= arrival.when and uid not in state.unlocated]
    open_ = [uid for when, uid in leaving if uid not in gone and (when <= arrival.when or arrival.may_follow(when))]
    for there in (yield from departing(state, gone, {})):
        seen: list[tuple[frozenset[str], Outcome, HeldByInit]] = []
        departed: Departed = {}  # Subsets with the same first pods share these states.
        for away in _subsets(open_):
            uncertainty = sum(_uncertainty(arrival, left[uid], away=uid in away) for uid in open_)
            for before in (yield from departing(there, away, departed)):
                for outcome, after in arrive(before, arrival.uid, arrival.request).items():
                    held = _held_by_init(after, arrival.uid)
                    # An outcome with fewer pods gone stands for the same outcome with more: they leave later.
                    if not any(
                        outcome == other and less < away and kept.covers(held, away) for less, other, kept in seen
                    ):
                        # Each possible placement of unlocated pods is a separate state.
                        if not away & there.unlocated.keys():
                            seen.append((away, outcome, held))
                        yield replace(after, uncertainty=after.uncertainty + uncertainty) if uncertainty else after
                yield None


def with_one_unseen(
    arrivals: Sequence[Arrival], left: Mapping[str, float], verdicts: Mapping[str, bool], budget: Budget
) -> Generator[int, None, list[Hypothesis]]:
    """
    Return the states after these arrivals in which one other pod has left without an event before one of them.

    Yield the number of steps of each piece of work. Raise ``TooManyWays`` if there are too many states.
    """
    others: Sequence[Hypothesis] = ()
    for at, arrival in enumerate(arrivals):
        admitted = verdicts.get(arrival.uid)
        if arrival.unseen is None or arrival.unseen[0] is not others or arrival.unseen[1] is not admitted:
            # Pods that were bound at nearly the same time have not ended yet.
            near = (it.uid for it in arrivals[:at] if not (it.listed or arrival.when - it.when >= SHORTEST))
            found = yield from _one_unseen(arrival, others, left, {*left, *near}, budget)
            left_unseen = distinct(one for one in found if admitted in (None, one.has(arrival.uid)))
            arrival.unseen = others, admitted, left_unseen
        others = arrival.unseen[2]
        if len(others) > MOST_HYPOTHESES:
            raise TooManyWays
    return [*others]


def _one_unseen(
    arrival: Arrival, others: Iterable[Hypothesis], left: Mapping[str, float], excluded: Collection[str], budget: Budget
) -> Generator[int, None, list[Hypothesis]]:
    """
    Return the states after this arrival in which one pod that is not ``excluded`` has left.

    ``others`` are the states in which that pod left before an earlier arrival. A departure between the earlier arrival and this one
    counts only if it changes the kubelet's decision. Otherwise the state equals one with a later departure.
    """
    uid = arrival.uid
    found: list[Hypothesis] = []
    for one in others:
        found += yield from all_of(budget, _outcomes_of_orders(one, arrival, left))
    for one in arrival.before:
        expected = (after and _decision(after, uid) for after in _outcomes_of_orders(one, arrival, left))
        decisions = {*(yield from all_of(budget, expected))}
        kinds = one_of_each_kind(one, [it for it in one.state.pods if it not in excluded])
        more = chain.from_iterable(_outcomes_of_orders(released(one, away), arrival, left) for away in kinds)
        changed = (after for after in more if after is None or _decision(after, uid) not in decisions)
        found += yield from all_of(budget, changed)
    return found


def all_of(budget: Budget, items: Iterator[T | None]) -> Generator[int, None, list[T]]:
    """Return all items except ``None``. Yield the steps that each took from the budget."""
    found = []
    for item, taken in within(budget, items):
        if item is not None:
            found.append(item)
        yield taken
    return found


def _decision(after: Hypothesis, uid: str) -> Signature:
    """Return a key of the kubelet's decision on the pod and of what its containers hold, empty for a rejection."""
    pod, node = after.state.pods.get(uid), after.state.node
    if pod is None:
        return ()
    held = 0
    for one in pod.grant.containers:
        held |= one.cpus.bits
    memory = after.state.managers.memory
    is_wide = any(block.mask & (block.mask - 1) for one in pod.grant.containers for block in one.memory)
    # The share of each NUMA node in a block of several NUMA nodes depends on the free amounts.
    shares = free_memory(memory) if memory is not None and is_wide else ()
    return signature(pod.grant, node), cpus_by_numa(held, node), shares


class HeldByInit(ValueObject):
    """
    CPU counts of init containers that outcomes do not distinguish.

    ``own`` are the CPUs per NUMA node that init containers of the arriving pod hold. ``perhaps`` are the CPUs per NUMA node that init
    containers of each pod may hold, by UID. ``alone`` is the number of CPUs that no later container reuses. It is set only if CPUs come
    from several NUMA nodes, and otherwise follows from the other fields.
    """

    own: Signature
    perhaps: Mapping[str, tuple[int, ...]]
    alone: int = 0

    def covers(self, other: "HeldByInit", gone: Collection[str]) -> bool:
        """
        Return whether both have equal counts for all pods that stay. CPUs of the pods in ``gone`` become free at any time of departure.
        """
        return (self.own, self.alone) == (other.own, other.alone) and all(
            self.perhaps.get(uid) == other.perhaps.get(uid)
            for uid in self.perhaps.keys() | other.perhaps.keys()
            if uid not in gone
        )


def _held_by_init(after: Hypothesis, uid: str) -> HeldByInit:
    pod = after.state.pods.get(uid)
    bits = 0
    for one in pod.grant.containers if pod is not None else ():
        bits |= one.cpus.bits if one.kind is INIT else 0
    node = after.state.node
    alone = held_by_init(pod.grant).bit_count() if pod is not None and uid in after.spread else 0
    return HeldByInit(
        cpus_by_numa(bits, node) if bits else (),
        {other: cpus_by_numa(loose, node) for other, loose in after.loose.items()},
        alone,
    )


def _uncertainty(arrival: Arrival, left: float, *, away: bool) -> float:
    """
    Return the delay of events, in seconds, that explains a pod that was gone at the arrival (``away``), or still there.

    ``left`` is the time at which the pod was seen gone.
    """
    # The kubelet decided at the latest when the verdict was seen.
    latest = left if arrival.known is None else arrival.known
    return max(0.0, left - latest) if away else max(0.0, latest - left)


def _subsets(uids: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(uids) + 1):
        # There are 2^n subsets. Above the limit, departures are taken in the order in which they were seen.
        if size and len(uids) > MOST_LEAVING:
            yield frozenset(uids[:size])
        else:
            yield from (frozenset(chosen) for chosen in combinations(uids, size))


def without_left(one: Hypothesis, left: Collection[str]) -> Iterator[Hypothesis]:
    """
    Yield the states after all of these pods have left. The use of unlocated pods stays counted, and these pods are named in ``leaving``.
    """
    leaving = frozenset(uid for uid in left if uid in one.unlocated)
    for after in without(one, [uid for uid in left if uid not in leaving]):
        yield replace(after, leaving=leaving) if leaving else after


def forgetting(states: list[Hypothesis], uids: Collection[str]) -> list[Hypothesis]:
    """Return the states without departed pods other than ``uids``, or the same list if nothing changes."""
    found = [_forgetting(one, uids) for one in states]
    # Keep the identity of the list: results are cached by it.
    return states if all(after is one for after, one in zip(found, states, strict=True)) else found


def _forgetting(one: Hypothesis, uids: Collection[str]) -> Hypothesis:
    old = [uid for uid, grant in one.gone.items() if grant is not None and uid not in uids]
    return replace(one, gone={uid: it for uid, it in one.gone.items() if uid not in old}) if old else one


def bounded(hypotheses: Iterable[Hypothesis]) -> tuple[list[Hypothesis], str]:
    """Return the distinct states that are followed, and why some were given up; empty if none were."""
    found = distinct(islice(hypotheses, MOST_STATES))
    # States that explain all verdicts replace all states that do not.
    if any(not one.unexplained for one in found):
        found = [one for one in found if not one.unexplained]
    if len(found) <= MOST_HYPOTHESES:
        return found, ""
    return _fair_share(found, MOST_HYPOTHESES), f"more than {MOST_HYPOTHESES} states of the kubelet are possible"


def _fair_share(found: Sequence[Hypothesis], most: int) -> list[Hypothesis]:
    """Return the states with the lowest uncertainty of each variant of the node, so that no variant is dropped because of another."""
    groups: dict[tuple[int, int], list[Hypothesis]] = {}
    for one in sorted(found, key=lambda one: one.uncertainty):
        groups.setdefault(variant_of(one.state.node), []).append(one)
    share = max(1, most // len(groups))
    return [one for group in groups.values() for one in group[:share]]
