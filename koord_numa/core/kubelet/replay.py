"""Replay the kubelet's admission of one pod on a hypothesis: every decision that is possible there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import CpuSet
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
"""So many ways are tried in which the containers of one pod may share out CPUs."""

Counts = tuple[int, ...]
"""CPUs of every NUMA node, in the order of the machine's."""

Shares = tuple[Counts, ...]
"""For each container that gets CPUs of several NUMA nodes before the last one, in order; what is missing is as it comes."""


def shares_of(state: KubeletState, request: PodRequest, trust: Trust, reuse: CpuReuse) -> Iterator[Shares]:
    """
    The other shares in which containers of the pod may get their CPUs than a dry run deals them out. Raises ``TooManyWays`` at the end
    where there are more than ``MOST_SHARES``.
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
    """A dry run with these shares."""
    dealt = Dealt(pod_demand(request), shares) if shares else None
    return dry_run(state, request, trust, reuse, dealt)


def _may_matter(demand: PodDemand, node: KubeletNode) -> bool:
    """May a container after the first one find less on a NUMA node because of such a share? Other policies admit it all the same."""
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
    """What one dry run gives to the containers of a pod: ``taken`` of the shares it deals out, and beside each the ``others``."""

    demand: PodDemand
    shares: Shares
    taken: list[Counts] = field(default_factory=list)
    others: list[Sequence[Counts]] = field(default_factory=list)
    _after: int = field(init=False)

    def __post_init__(self) -> None:
        self._after = sum(1 for _, part in self.demand.containers if part.cpus)

    def __call__(self, stock: CpuStock, bits: int, mask: int | None) -> int:
        """The CPUs of the next container, which a dry run gives ``bits`` by a hint of this mask."""
        self._after -= 1
        node, near = stock.node, stock.near(mask)
        # Where all near are taken, the rest comes from any NUMA nodes.
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
    """So many of the pool on every NUMA node, first those that are taken anyway."""
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
    """An even share of each; of NUMA nodes with equal room the kubelet may put any first."""
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
    One CPU less of a NUMA node that is used up, and one more of the next one.

    With two threads a core an odd number of free CPUs has one whose core is in use, and whole cores of the next NUMA node come before it.
    """
    for less in range(len(room)):
        for more in range(len(room)):
            odd = packed[less] % 2 and packed[more] % 2
            if less != more and odd and packed[less] == room[less] and packed[more] < room[more]:
                yield tuple(count - (at == less) + (at == more) for at, count in enumerate(packed))


def still_held(before: Hypothesis, given: int, after: Hypothesis, uid: str) -> Hypothesis:
    """The hypothesis ``after`` this pod came, with those loose again that were taken to be free, ``given``, and that it did not need."""
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
            # Any of them are held, in the place of what the pod's own init containers may hold, too.
            pool = sum(1 << cpu for cpu in free) | lowest(own, min(own.bit_count(), len(owners) - len(free)))
            owners, free = [everyone] * pool.bit_count(), [*members(pool)]
        for each, cpu in zip(owners, free, strict=False):
            for owner in sorted(each):
                more[owner] = more.get(owner, 0) | 1 << cpu
    return holding(after, more)


def stands_for(one: Hypothesis, given: int, after: Hypothesis, uid: str) -> bool:
    """
    Is what is open ``after`` the pod came open in the hypothesis, too, which has the same outcome?

    So it is where all that was taken to be free, ``given``, may be held again, and the pod's own init containers hold no more than there.
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
    Both with no more surely held by the init containers of this pod, which has the same outcome in both, than in either: the rest is loose.

    Of the two only one is followed. Where more was free before the pod came its app may have got an init container's CPU again, and where
    less was, one of another NUMA node beyond its hint: no topology tells which. What is loose is held or free, so that each still stands
    for all that it stood for, and with the most that is held in either for what the other has surely held.
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
    """With no more of the CPUs ``held`` surely so than there are of ``most`` in the same place."""
    loose = 0
    for place in places:
        loose |= lowest(held & place, max(0, (held & place).bit_count() - (most & place).bit_count()))
    return replace(one, loose={**one.loose, uid: one.loose.get(uid, 0) | loose}) if loose else one


def _joined(after: Hypothesis, uid: str) -> Sequence[int]:
    """The places, as bits of their CPUs, with those joined of which the pod has CPUs that may lie otherwise."""
    node, pod = after.state.node, after.state.pods.get(uid)
    places = places_of(node)
    for one in pod.grant.containers if pod is not None and len(places) > 1 else ():
        if may_lie_otherwise(one, node):
            near = sum(bits for numa, bits in node.machine.numa_bits.items() if reached(one, node) >> numa & 1)
            together = sum(place for place in places if place & near)
            places = (together, *(place for place in places if not place & near))
    return places


def _instead(loose: Mapping[int, Owners], after: Hypothesis, place: int) -> tuple[list[Owners], list[int]]:
    """The owners of these CPUs, and for as many of them as there are one that is free, of the same NUMA node where it can be."""
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
"""What tells a kubelet's decisions on one pod apart; ``None``: it refuses the pod."""

MOST_WAYS: Final = 2
"""In so many ways may a pod be admitted that is not bound yet."""

HELD: Final = 1.0
"""The uncertainty, in seconds of late news, that an init container's CPUs are held beside those of later containers: rarely they are."""


def arrive(before: Hypothesis, uid: str, request: PodRequest) -> dict[Outcome, Hypothesis]:
    """
    What may be after the kubelet was given this pod: one hypothesis for each way in which it may have decided.

    The first is the likeliest. A pod that the kubelet would refuse leaves the hypothesis as it was.
    """
    found: dict[Outcome, Hypothesis] = {}
    for variant in chain.from_iterable(device_layouts(one, request) for one in variants(before, request)):
        still = _loose(variant)
        freed = _loose(before) & ~still
        # Each pod whose init CPUs the variant takes to be held makes it less likely; one CPU is held by one of its owners.
        holders = sum(1 for uid in before.loose if variant.loose.get(uid))
        uncertainty = variant.uncertainty + HELD * min(holders, still.bit_count())
        for outcome, after in _outcomes(variant, uid, request):
            # Where nothing is aligned outcomes say nothing of what init containers surely hold.
            key = outcome if outcome is None or before.state.node.aligns else (outcome, after.surely_held)
            # Variants come likeliest first, so that the first hypothesis with an outcome stays.
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
    The hypotheses after the kubelet has admitted this pod, without those in which it would not.

    At most ``MOST_WAYS`` each, as every pod multiplies the hypotheses. Where there are too many to try, its place is not known.
    """
    found: list[Hypothesis] = []
    for one in before:
        try:
            found += [after for after in [*arrive(one, uid, request).values()][:MOST_WAYS] if after.has(uid)]
        except TooManyWays:
            found.append(replace(one, unplaced=one.unplaced | {uid}))
    return found


def _outcomes(before: Hypothesis, uid: str, request: PodRequest) -> Iterator[tuple[Outcome, Hypothesis]]:
    ways = orders(request, before.state.node)
    answers = [_answer(before, request, order) for order in ways]
    admitted = [each for each in answers if isinstance(each, DryRunAdmitted)]
    keys = [_outcome(before, each) for each in admitted]
    # Both extremes decide alike: one hypothesis stands for them, and the CPUs between them are loose.
    if len(admitted) == 2 and keys[0] == keys[1]:
        yield keys[0], _placed(before, uid, request, admitted[0], _left_over(before, admitted))
    else:
        for key, each in zip(keys, admitted, strict=True):
            after = _placed(before, uid, request, each, 0)
            # Refused at one extreme only: the pod is there because its containers took over much.
            yield key, after if len(admitted) == len(answers) else _with_more_left(after, uid)
    if len(admitted) < len(answers):
        yield None, before
    node = before.state.node
    open_ = (node.distributes_across_numa or not node.is_published) and not before.options
    for order in ways if open_ else ():
        yield from _in_other_shares(before, uid, request, order)


def _in_other_shares(
    before: Hypothesis, uid: str, request: PodRequest, order: CpuReuse
) -> Iterator[tuple[Outcome, Hypothesis]]:
    """Where containers may get CPUs of several NUMA nodes in other shares, and those after them are treated otherwise."""
    for shares in shares_of(before.state, request, before.trust, order):
        other = answer(before.state, request, before.trust, order, shares)
        if isinstance(other, DryRunAdmitted):
            yield _outcome(before, other), _placed(before, uid, request, other, 0)
        else:
            yield None, before


def foreseen(before: Hypothesis, request: PodRequest) -> tuple[Outcome, Grant | None]:
    """What the kubelet most likely decides on this pod, and gives it; one dry run tells."""
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
    """The orders of taking over init containers' CPUs that have to be tried."""
    ends = pins_init_cpus(pod_demand(request), node)
    return (CpuReuse.LEAST, CpuReuse.MOST) if ends else (CpuReuse.BY_ID,)


def _with_more_left(after: Hypothesis, uid: str) -> Hypothesis:
    """
    The pod is admitted only if its containers take over much of what init containers leave, perhaps not all of it: as much as has room
    may be held besides.
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
    """CPU bits of init containers that are held at one end of what may be and free at the other."""
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
    # A container on several NUMA nodes takes over CPUs of any of them, and beyond its hint of any there are.
    if any(may_lie_otherwise(one, before.state.node) for one in least.grant.containers):
        # What is taken over of one NUMA node may save CPUs of another, so that only the sum tells.
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
    """Where the pod is put, and for memory of several NUMA nodes how much comes from each."""
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
