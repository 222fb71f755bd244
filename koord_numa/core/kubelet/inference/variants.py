"""States beside a hypothesis that are possible as well: what is loose may be free, and what is spread may lie on other NUMA nodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature, signature, with_grant
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState, ManagerState
from koord_numa.core.kubelet.managers.results import ContainerGrant
from koord_numa.core.kubelet.sharing.socket_cpus import is_dealt, may_lie_otherwise, offers_sockets
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy

MOST_VARIANTS: Final = 6
"""So many ways in which one hypothesis may be slightly otherwise are looked at."""

MOST_ASKED: Final = 16
"""So many of them are asked for a pod that is not bound yet."""

FEW_NUMA: Final = 4
"""Of so many NUMA nodes every set may have least at once."""


def variants(one: Hypothesis, most: int = MOST_VARIANTS) -> Iterator[Hypothesis]:
    """The hypothesis, then states beside it that differ in what is loose or spread: each of them is possible as well."""
    yield one
    left = most
    for other in _variants(one):
        if not left:
            return
        left -= 1
        yield other


def _variants(one: Hypothesis) -> Iterator[Hypothesis]:
    yield from _with_loose_free(one)
    # Policy none never deals CPUs by NUMA node, so that nothing can lie otherwise.
    if one.state.node.config.topology_policy is KubeletPolicy.NONE:
        return
    numas = one.state.node.machine.numa_bits.values()
    if one.freed or (one.spread and offers_sockets(one.state.node)):
        # Any CPUs may be elsewhere, so that any NUMA nodes together may have least.
        crowded = (_crowded(one, here) for here in _together(tuple(numas)))
        yield from (other for other in crowded if other is not one)
        return
    # Sorted: a set has no order, and the first variants win when there are more than the limit.
    moved = (_moved(one, uid, here) for uid in sorted(one.spread) for here in numas)
    yield from filter(None, moved)


def _together(numas: Sequence[int]) -> Iterator[int]:
    """NUMA nodes that may have least at once, as CPU bits: every set of a few, of more each alone and all but one."""
    most = len(numas) - 1
    sizes = range(1, most + 1) if len(numas) <= FEW_NUMA else sorted({1, most})
    for size in sizes:
        for chosen in combinations(numas, size):
            yield sum(chosen)


def _crowded(one: Hypothesis, here: int) -> Hypothesis:
    """With as many CPUs of all spread and mixed pods on these NUMA nodes as there may be."""
    one = _freed_elsewhere(one, here)
    for uid in sorted(one.spread):
        one = _moved(one, uid, here) or one
    return one


def _roomiest(one: Hypothesis, among: int, count: int) -> int:
    """So many of these CPUs, each from where most are free: no other choice leaves less room on the one NUMA node that has most."""
    free, found = one.state.managers.cpus, 0
    for _ in range(count):
        numas = [here for here in one.state.node.machine.numa_bits.values() if here & among & ~found]
        widest = max(numas, key=lambda here: (here & free & ~found).bit_count())
        found |= lowest(widest & among & ~found, 1)
    return found


def _with_loose_free(one: Hypothesis) -> Iterator[Hypothesis]:
    bits = 0
    for each in one.loose.values():
        bits |= each
    if bits:
        # All loose CPUs free first: the state that differs most decides most.
        yield freed(one, bits)
        parts = [bits & here for here in one.state.node.machine.numa_bits.values() if bits & here]
        if len(parts) > 1:
            for part in parts:
                yield freed(one, part)


def freed(one: Hypothesis, bits: int) -> Hypothesis:
    """With these loose CPUs free."""
    if not bits:
        return one
    managers = one.state.managers
    state = replace(one.state, managers=ManagerState(managers.cpus | bits, managers.devices, managers.memory))
    loose = {uid: each & ~bits for uid, each in one.loose.items() if each & ~bits}
    return replace(one, state=_shrunk(state, bits), loose=loose)


def known_loose(one: Hypothesis) -> int:
    """The loose CPUs that are held on no other NUMA node if they are held."""
    found = 0
    for uid, bits in one.loose.items():
        pod = one.state.pods.get(uid)
        holders = [each for each in pod.grant.containers if each.cpus.bits & bits] if pod is not None else []
        if holders and not any(may_lie_otherwise(each, one.state.node) for each in holders):
            found |= bits
    return found


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
    containers = one.state.pods[uid].grant.containers
    movable = [may_lie_otherwise(each, node) and _reaches(each, here, node) for each in containers]
    # Init containers and later ones share CPUs: each is held once, and moves with all that have it.
    there = _held(containers, movable) & ~_held(containers, [not each for each in movable]) & ~here
    count = min((managers.cpus & here).bit_count(), there.bit_count())
    if not count:
        return None
    taken, left = _roomiest(one, managers.cpus & here, count), lowest(there, count)
    place_of = dict(zip(members(left), members(taken), strict=True))
    changed = ManagerState(managers.cpus & ~taken | left, managers.devices, managers.memory)
    state = replace(one.state, managers=changed)
    return with_grant(replace(one, state=state), uid, tuple(_elsewhere(each, left, place_of) for each in containers))


def _held(containers: Sequence[ContainerGrant], chosen: Sequence[bool]) -> int:
    bits = 0
    for each, counts in zip(containers, chosen, strict=True):
        bits |= each.cpus.bits if counts else 0
    return bits


def _elsewhere(container: ContainerGrant, left: int, place_of: Mapping[int, int]) -> ContainerGrant:
    """With other CPUs for those of ``left`` that the container has."""
    bits = container.cpus.bits
    if not bits & left:
        return container
    moved = sum(1 << place_of[cpu] for cpu in members(bits & left))
    return replace(container, cpus=CpuSet(bits & ~left | moved))


def _freed_elsewhere(one: Hypothesis, here: int) -> Hypothesis:
    """With as few as may be of the CPUs that mixed pods have left among these: they have those instead, and others are free."""
    free = one.freed & one.state.managers.cpus & here
    held = 0
    for uid in one.mixed if free else ():
        for container in filter(is_dealt, one.state.pods[uid].grant.containers):
            held |= container.cpus.bits & ~here
    count = min(free.bit_count(), held.bit_count())
    if not count:
        return one
    taken, left = _roomiest(one, free, count), lowest(held, count)
    swapped = dict(zip(members(left), members(taken), strict=True))
    pods = dict(one.state.pods)
    for uid in one.mixed:
        grant = pods[uid].grant
        containers = tuple(_elsewhere(each, left, swapped) for each in grant.containers)
        pods[uid] = replace(pods[uid], grant=replace(grant, containers=containers))
    managers = one.state.managers
    managers = ManagerState(managers.cpus & ~taken | left, managers.devices, managers.memory)
    return replace(one, state=replace(one.state, pods=pods, managers=managers), freed=one.freed & ~taken | left)


def _reaches(container: ContainerGrant, here: int, node: KubeletNode) -> bool:
    mask = container.hint.mask if container.hint is not None else None
    if mask is None:
        return True
    near = [node.machine.numa_bits.get(numa, 0) for numa in members(mask)]
    # Sockets aligned: the CPUs may come from any of their NUMA nodes, and under best-effort from elsewhere.
    if node.static_options.align_by_socket:
        sockets = node.machine.socket_bits.values()
        return not offers_sockets(node) or any(bits & here and bits & sum(near) for bits in sockets)
    # What the hint's NUMA nodes do not have comes from any.
    return any(here & each for each in near) or bool(container.cpus.bits & ~sum(near))


def one_of_each_kind(one: Hypothesis, uids: Iterable[str]) -> Iterator[str]:
    """Of these pods those that would leave different room behind: of several with equal requests and places, the first."""
    known: set[Signature] = set()
    for uid in uids:
        pod = one.state.pods[uid]
        # The uid stands for itself where it is open what the pod holds.
        own = uid if uid in one.spread or uid in one.loose or uid in one.reach else ""
        kind = (signature(pod.grant, one.state.node), *sorted(pod.requests.items()), own)
        if kind not in known:
            known.add(kind)
            yield uid


def most_cpus(hypotheses: Iterable[Hypothesis]) -> dict[int, int]:
    """The most exclusive CPUs that each NUMA node may have free in any of these states, by NUMA id."""
    most: dict[int, int] = {}
    for one in hypotheses:
        bits = one.state.managers.cpus
        # Loose CPUs may be free: the most counts them.
        for each in one.loose.values():
            bits |= each
        for uid in one.spread | one.mixed if one.freed else one.spread:
            for container in one.state.pods[uid].grant.containers:
                bits |= container.cpus.bits
        for numa, here in one.state.node.machine.numa_bits.items():
            most[numa] = max(most.get(numa, 0), (bits & here).bit_count())
    return most
