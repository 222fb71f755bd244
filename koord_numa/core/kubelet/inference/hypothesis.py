"""
One state that a kubelet may be in: where it put every pod that was bound to its node, replayed in the order of the binds.

Theory. A kubelet decides by its state and its configuration alone, so its state follows from what reached it, in order. What nobody tells
leaves a choice, and each choice is a hypothesis of its own: the moment at which a pod left, the CPUs that a container took over from an
init container, how CPUs were dealt out over NUMA nodes. Every hypothesis is a state that the kubelet can really be in; a pod's fate or a
published topology that contradicts it rules it out.

Example: NUMA node 0 has 4 CPUs free, node 1 has 16. Pod a (8 CPUs) is bound and goes to node 1. Then pod b, which held 8 CPUs of node 0, is
seen gone. It may have left before a came: then a is on node 0. Both hypotheses stand until a topology shows a's CPUs on one of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.managers.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.managers.cpus import CpuReuse
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState, ManagerState
from koord_numa.core.kubelet.managers.results import ContainerGrant, Grant
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy

MOST_VARIANTS: Final = 6
"""So many ways in which one hypothesis may be slightly otherwise are looked at."""

Signature = tuple[object, ...]
"""Where a pod sits: equal for grants that no topology could tell apart."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that reached the kubelet lately. ``when`` is the time of its bind, ``before`` the hypothesis without it."""

    uid: str
    request: PodRequest
    when: float
    before: "Hypothesis"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """
    ``state`` is what the kubelet's managers hold. ``loose`` are, by pod, CPU bits that its finished init containers hold here and may have
    been taken over by its later containers in truth. ``spread`` are pods whose CPUs may be dealt out over NUMA nodes otherwise.

    ``gone`` has the grants of pods that left and that a late topology may still show, ``None`` where their place was not known.
    ``strangers`` are pods whose place is not known, whose use is only in the sums. ``recent`` are the latest arrivals, oldest first.
    ``unexplained`` are pods whose fate is another one than this state had foreseen: something has happened that nobody has seen yet.
    ``options`` names what is assumed of the configuration although it is unlikely and nobody published it.
    """

    state: KubeletState
    loose: Mapping[str, int] = field(default_factory=dict)
    spread: frozenset[str] = frozenset()
    gone: Mapping[str, Grant | None] = field(default_factory=dict)
    strangers: frozenset[str] = frozenset()
    recent: tuple[Arrival, ...] = ()
    unexplained: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    trust: Trust = Trust.EXACT

    def has(self, uid: str) -> bool:
        """Did the kubelet admit this pod, and is it still there?"""
        return uid in self.state.pods or uid in self.strangers

    @property
    def signature(self) -> Signature:
        """Equal for hypotheses that differ in nothing that matters."""
        pods = tuple(sorted((uid, signature(pod.grant, self.state.node)) for uid, pod in self.state.pods.items()))
        memory = self.state.managers.memory
        groups = () if memory is None else tuple(sorted(memory.groups.items()))
        return (
            pods,
            groups,
            tuple(sorted(self.strangers)),
            tuple(sorted(self.unexplained)),
            self.options,
            id(self.state.node),
        )


def signature(grant: Grant, node: KubeletNode) -> Signature:
    """Which NUMA nodes every container uses, and how much of each."""
    return tuple(
        (
            one.name,
            _place(one, node),
            tuple((block.resource, block.mask) for block in one.memory if block.amount),
            tuple((name, tuple(sorted(_near(node, name, ids)))) for name, ids in sorted(one.devices.items())),
        )
        for one in grant.containers
    )


def _place(one: ContainerGrant, node: KubeletNode) -> tuple[int, ...]:
    """How many CPUs an init container still holds no topology shows: only where they are counts."""
    counts = cpus_by_numa(one.cpus.bits, node)
    return tuple(min(count, 1) for count in counts) if one.kind is ContainerKind.INIT else counts


def cpus_by_numa(bits: int, node: KubeletNode) -> tuple[int, ...]:
    """How many of these CPUs are on each NUMA node, in the order of the machine's."""
    return tuple((bits & here).bit_count() for here in node.machine.numa_bits.values())


def _near(node: KubeletNode, resource: str, ids: Iterable[str]) -> Iterator[int]:
    wanted = set(ids)
    return (device.near for device in node.devices[resource].devices if device.id in wanted)


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
    return _with_grant(after, uid, tuple(containers))


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
    if any(_may_lie_otherwise(one, before.state.node) for one in answer.grant.containers):
        spread = spread | {uid}
    return replace(
        before,
        state=before.state.with_pod(uid, request, answer.grant, answer.managers),
        loose={**before.loose, uid: loose} if loose else before.loose,
        spread=spread,
    )


def _may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Are its CPUs taken from several NUMA nodes, in numbers that depend on CPU ids?"""
    if not one.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    mask = one.hint.mask if one.hint is not None else None
    return mask is None or mask.bit_count() > 1 or node.static_options.align_by_socket


def pins_init_cpus(demand: PodDemand, node: KubeletNode) -> bool:
    """Is it open which of an init container's CPUs later containers get again?"""
    return (
        node.pins_cpus
        and not node.ids_are_real
        and any(part.cpus and container.kind is ContainerKind.INIT for container, part in demand.containers)
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


def released(before: Hypothesis, uid: str) -> Hypothesis:
    """The hypothesis without this pod. What a stranger held stays counted until a topology shows it free."""
    if uid in before.unexplained:
        before = replace(before, unexplained=before.unexplained - {uid})
    if uid in before.strangers:
        return replace(before, strangers=before.strangers - {uid}, gone={**before.gone, uid: None})
    pod = before.state.pods.get(uid)
    if pod is None:
        return before
    return replace(
        before,
        state=before.state.without(uid),
        loose={other: bits for other, bits in before.loose.items() if other != uid},
        spread=before.spread - {uid},
        gone={**before.gone, uid: pod.grant},
    )


def distinct(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Each once, in order; of equal ones that with most CPUs loose, whose variants are the others."""
    found: dict[Signature, Hypothesis] = {}
    for one in hypotheses:
        key = one.signature
        if key not in found or _loose_cpus(one) > _loose_cpus(found[key]):
            found[key] = one
    return list(found.values())


def _loose_cpus(one: Hypothesis) -> int:
    return sum(bits.bit_count() for bits in one.loose.values())


def variants(one: Hypothesis) -> Iterator[Hypothesis]:
    """The hypothesis, then every state beside it that differs in what is loose or spread: each of them is possible as well."""
    yield one
    left = MOST_VARIANTS
    for other in _variants(one):
        if not left:
            return
        left -= 1
        yield other


def _variants(one: Hypothesis) -> Iterator[Hypothesis]:
    if one.loose:
        bits = 0
        for each in one.loose.values():
            bits |= each
        yield _free(one, bits)
        parts = [bits & here for here in one.state.node.machine.numa_bits.values() if bits & here]
        if len(parts) > 1:
            for part in parts:
                yield _free(one, part)
    if one.state.node.config.topology_policy is not KubeletPolicy.NONE:
        for uid in sorted(one.spread):
            for here in one.state.node.machine.numa_bits.values():
                if (moved := _moved(one, uid, here)) is not None:
                    yield moved


def _free(one: Hypothesis, bits: int) -> Hypothesis:
    """With these loose CPUs free."""
    managers = one.state.managers
    state = replace(one.state, managers=ManagerState(managers.cpus | bits, managers.devices, managers.memory))
    loose = {uid: each & ~bits for uid, each in one.loose.items() if each & ~bits}
    return replace(one, state=_shrunk(state, bits), loose=loose)


def _shrunk(state: KubeletState, bits: int) -> KubeletState:
    """CPUs that turned out to be free belong to no init container any more."""
    pods = dict(state.pods)
    for uid, pod in state.pods.items():
        if any(one.cpus.bits & bits and one.kind is ContainerKind.INIT for one in pod.grant.containers):
            containers = tuple(
                replace(one, cpus=CpuSet(one.cpus.bits & ~bits)) if one.kind is ContainerKind.INIT else one
                for one in pod.grant.containers
            )
            pods[uid] = replace(pod, grant=replace(pod.grant, containers=containers))
    return replace(state, pods=pods)


def _moved(one: Hypothesis, uid: str, here: int) -> Hypothesis | None:
    """With as many of the pod's spread CPUs on one NUMA node as there may be."""
    node, managers = one.state.node, one.state.managers
    free = managers.cpus & here
    containers = []
    moved = False
    for container in one.state.pods[uid].grant.containers:
        bits = container.cpus.bits
        if free and bits & ~here and _may_lie_otherwise(container, node) and _reaches(container, here, node):
            count = min(free.bit_count(), (bits & ~here).bit_count())
            taken, left = lowest(free, count), lowest(bits & ~here, count)
            free &= ~taken
            managers = ManagerState(managers.cpus & ~taken | left, managers.devices, managers.memory)
            container = replace(container, cpus=CpuSet(bits & ~left | taken))
            moved = True
        containers.append(container)
    if not moved:
        return None
    return _with_grant(replace(one, state=replace(one.state, managers=managers)), uid, tuple(containers))


def _reaches(container: ContainerGrant, here: int, node: KubeletNode) -> bool:
    mask = container.hint.mask if container.hint is not None else None
    if mask is None or node.static_options.align_by_socket:
        return True
    return any(here == node.machine.numa_bits.get(numa, 0) for numa in members(mask))


def _with_grant(one: Hypothesis, uid: str, containers: tuple[ContainerGrant, ...]) -> Hypothesis:
    pod = one.state.pods[uid]
    pods = {**one.state.pods, uid: replace(pod, grant=replace(pod.grant, containers=containers))}
    return replace(one, state=replace(one.state, pods=pods))
