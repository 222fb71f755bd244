"""What follows from a hypothesis when a pod reaches the kubelet or is gone: every decision that it may have taken, replayed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.inference.hypothesis import (
    Arrival,
    Hypothesis,
    Signature,
    distinct,
    may_lie_otherwise,
    pins_init_cpus,
    released,
    signature,
    with_grant,
)
from koord_numa.core.kubelet.inference.variants import variants
from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.managers.aggregates import pod_demand
from koord_numa.core.kubelet.managers.cpus import CpuReuse
from koord_numa.core.kubelet.managers.manager_state import ManagerState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind


def arrive(before: Hypothesis, uid: str, request: PodRequest, when: float) -> list[Hypothesis]:
    """
    What may be after the kubelet was given this pod: one hypothesis for each way in which it may have decided.

    The first is the likeliest. A pod that the kubelet would refuse leaves the hypothesis as it was.
    """
    found: dict[Signature | None, Hypothesis] = {}
    arrival = Arrival(uid, request, when, replace(before, recent=()))
    for variant in variants(before):
        for key, after in _outcomes(variant, uid, request):
            if key not in found:
                found[key] = replace(after, recent=(*before.recent, arrival))
    return list(found.values())


def _outcomes(before: Hypothesis, uid: str, request: PodRequest) -> Iterator[tuple[Signature | None, Hypothesis]]:
    demand = pod_demand(request)
    orders = (CpuReuse.LEAST, CpuReuse.MOST) if pins_init_cpus(demand, before.state.node) else (CpuReuse.BY_ID,)
    answers = [dry_run(before.state, request, before.trust, order) for order in orders]
    admitted = [answer for answer in answers if isinstance(answer, DryRunAdmitted)]
    keys = [signature(answer.grant, before.state.node) for answer in admitted]
    if len(admitted) == 2 and keys[0] == keys[1]:
        yield keys[0], _placed(before, uid, request, admitted[0], _left_over(before, admitted))
    else:
        for key, answer in zip(keys, admitted, strict=True):
            after = _placed(before, uid, request, answer, 0)
            yield key, after if len(admitted) == len(answers) else _with_more_left(after, uid)
    if len(admitted) < len(answers):
        yield None, before


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
    if not held:
        return after
    containers = list(pod.grant.containers)
    at = next(at for at, one in enumerate(containers) if one.kind is ContainerKind.INIT and one.cpus)
    containers[at] = replace(containers[at], cpus=CpuSet(containers[at].cpus.bits | held))
    managers = ManagerState(state.managers.cpus & ~held, state.managers.devices, state.managers.memory)
    after = replace(after, state=replace(state, managers=managers), loose={**after.loose, uid: held})
    return with_grant(after, uid, tuple(containers))


def _left_over(before: Hypothesis, ends: Sequence[DryRunAdmitted]) -> int:
    """CPU bits of init containers that are held at one end of what may be and free at the other."""
    least, most = ends
    loose = 0
    held = [one.cpus.bits for one in least.grant.containers if one.kind is ContainerKind.INIT]
    kept = 0
    for one in least.grant.containers:
        kept |= one.cpus.bits if one.kind is not ContainerKind.INIT else 0
    for here in before.state.node.machine.numa_bits.values():
        more = (most.managers.cpus & here).bit_count() - (least.managers.cpus & here).bit_count()
        own = 0
        for bits in held:
            own |= bits & here & ~kept
        loose |= lowest(own, min(max(0, more), own.bit_count()))
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


def depart(before: Hypothesis, uid: str, since: float, fates: Mapping[str, bool]) -> list[Hypothesis]:
    """
    What may be after the pod is gone. It may have left before any of the pods arrived that were bound at ``since`` or later.

    ``fates`` are the known verdicts of arrivals: a replay that decides otherwise did not happen.
    """
    found = [released(before, uid)]
    for at, arrival in enumerate(before.recent):
        if arrival.when < since or arrival.uid == uid or not arrival.before.has(uid):
            continue
        starts = [replace(released(arrival.before, uid), recent=before.recent[:at])]
        for later in before.recent[at:]:
            if later.uid == uid:
                continue
            starts = [
                after
                for start in starts[:4]
                for after in arrive(start, later.uid, later.request, later.when)
                if fates.get(later.uid, after.has(later.uid)) == after.has(later.uid)
                or (later.uid not in fates and later.uid not in before.state.pods)
            ]
        still = {*before.state.pods, *(each.uid for each in before.recent if each.uid not in before.gone)} - {uid}
        found += [_only(after, still) for after in starts]
    return distinct(found)


def _only(after: Hypothesis, still: Collection[str]) -> Hypothesis:
    """A replay brings back pods that were seen gone since: they go again."""
    for uid in [uid for uid in after.state.pods if uid not in still]:
        after = released(after, uid)
    return after
