"""
Replay of the kubelet's admission of one pod on a hypothesis: every possible decision, as one hypothesis per distinguishable outcome.

``arrive`` runs the dry runs for all variants, orders of CPU reuse and CPU shares. The rest of the module keeps the
number of hypotheses small:
it merges results whose difference is only in CPUs that finished init containers may or may not hold (loose CPUs).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from koord_numa.core.cpuset import CpuSet, lowest, members
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.budget import TooManyWays
from koord_numa.core.kubelet.cpu_assignment import assign
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
    signature,
)
from koord_numa.core.kubelet.node_config import located, packs_sockets
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.kubelet.state import Grant, KubeletNode, KubeletState
from koord_numa.core.kubelet.variants import (
    Owners,
    device_layouts,
    free_rooms,
    holding,
    may_share,
    owners_of,
    standing_for,
    variants,
)
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.value_objects import replace

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
    """The CPU choice of one dry run: ``taken`` are the shares that it uses, ``others`` the alternatives to each of them."""

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
        self.others.append([each for each in _possible(node, pool, room, usual) if each != chosen])
        return bits if chosen == usual else fixed | _pick(stock, pool, bits, chosen)


def _pick(stock: CpuStock, pool: int, usual: int, chosen: Counts) -> int:
    """Return the chosen number of CPUs of every NUMA node in the pool, CPUs of ``usual`` first."""
    found = 0
    for here, count in zip(stock.node.machine.numa_bits.values(), chosen, strict=True):
        own = lowest(usual & here & pool, min(count, (usual & here & pool).bit_count()))
        found |= own | lowest(pool & here & ~own, count - own.bit_count())
    return found


def _possible(node: KubeletNode, pool: int, room: Counts, usual: Counts) -> Iterator[Counts]:
    if node.distributes_across_numa or not node.is_published:
        yield from _even(node, pool, sum(usual))
    if not (node.distributes_across_numa or node.takes_whole_cores):
        yield from _with_cores_in_use(usual, room)


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
    Return hypothesis ``after`` the arrival of this pod, with unneeded CPUs of ``given`` loose again.

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
    Return both hypotheses with equally many CPUs surely held by the init containers of this pod: the minimum of
    both. The rest becomes loose.

    The outcome of the pod is the same in both, and only one hypothesis is followed. If more CPUs were free before
    the pod came, its app container
    may have reused an init container's CPU. If fewer were free, it may have got a CPU of another NUMA node beyond
    its hint. No topology shows
    which. A loose CPU is held or free, so both hypotheses still cover all their states.
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
    answers = [_answer(before, request, order) for order in ways]
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
    open_ = (node.distributes_across_numa or not node.is_published) and not before.options
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


def foreseen(before: Hypothesis, request: PodRequest) -> tuple[Outcome, Grant | None]:
    """Return the kubelet's most likely decision on this pod and its grant, from one dry run."""
    answer = _answer(before, request, orders(request, before.state.node)[0])
    return (_outcome(before, answer), answer.grant) if isinstance(answer, DryRunAdmitted) else (None, None)


def _answer(before: Hypothesis, request: PodRequest, order: CpuReuse) -> DryRunAdmitted | NotAdmitted:
    answer = dry_run(before.state, request, before.trust, order)
    if isinstance(answer, NotAdmitted) or not packs_sockets(before.state.node):
        return answer
    rooms = free_rooms(before)
    if rooms is None:
        return answer
    return replace(answer, grant=located(answer.grant, pod_demand(request), rooms, before.state.node))


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
