"""What follows from a hypothesis when a pod reaches the kubelet: every decision that it may have taken, replayed."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, dry_run
from koord_numa.core.kubelet.budget import TooManyWays
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.inference.hypothesis import (
    Hypothesis,
    Signature,
    free_memory,
    pins_init_cpus,
    signature,
)
from koord_numa.core.kubelet.inference.socket_cpus import located, packs_sockets
from koord_numa.core.kubelet.inference.variants import device_layouts, free_rooms, holding, standing_for, variants
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise
from koord_numa.core.kubelet.spreading.shares import answer, shares_of
from koord_numa.core.kubelet.spreading.still_held import equally_sure, stands_for, still_held
from koord_numa.core.kubelet.state import Grant, KubeletNode
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import replace

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
