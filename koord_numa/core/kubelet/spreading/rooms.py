"""
What may be free on every NUMA node where CPUs of pods are dealt out over several of them.

Theory. How many CPUs a container has of each NUMA node of its hint depends on options, on which cores are free and on CPU ids
(``takeByTopology`` in the kubelet's cpu_assignment.go): packed, one NUMA node is used up first, but for cores with a thread in use;
with ``distribute-cpus-across-numa`` each gives an even share of what is free there. So every share is possible that has room. A decision
looks only at how many CPUs are free on each NUMA node, and of these numbers only at what the pod can tell apart.

Example: two NUMA nodes of 8 CPUs, a pod of 10. Packed, 0 and 6 are free; dealt evenly, 3 and 3, where a pod of 4 has no room.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise, reached
from koord_numa.core.kubelet.state import ContainerGrant, ManagerState
from koord_numa.core.value_objects import replace

MOST_LOOKED_AT: Final = 400
"""So many numbers of free CPUs are compared at most."""

MOST_ROOMS: Final = 64
"""In so many ways may spread CPUs leave room that a pod can tell apart."""

Counts = tuple[int, ...]
"""CPUs of every NUMA node, in the order of the machine's."""


@dataclass(frozen=True, slots=True)
class _Part:
    """CPUs of one pod that may be on any of the same NUMA nodes, as bits; ``reach`` are the places of these in the machine's order."""

    uid: str
    bits: int
    reach: Sequence[int]


def spread_rooms(one: Hypothesis, seen: Callable[[Counts], Hashable]) -> Generator[Hypothesis, None, bool]:
    """
    The hypothesis with spread CPUs on other NUMA nodes, once for each way that ``seen`` tells from the others.

    Returns whether these are all. Pods that are equally far from how the hypothesis has them come in the order of their uids.
    """
    node = one.state.node
    parts = [part for uid in sorted(one.spread) for part in _parts(one, uid)]
    free = cpus_by_numa(one.state.managers.cpus, node)
    start = tuple(cpus_by_numa(part.bits, node) for part in parts)
    known, told = {free}, {seen(free)}
    # Breadth first: the fewest CPUs are elsewhere in what comes first.
    queue = [(free, start)]
    for free, held in queue:
        spend()
        for moved in _moves(free, held, parts):
            if moved[0] in known:
                continue
            if len(known) >= MOST_LOOKED_AT or len(told) > MOST_ROOMS:
                return False
            known.add(moved[0])
            queue.append(moved)
            if (key := seen(moved[0])) not in told:
                spend()
                told.add(key)
                yield _with_shares(one, parts, moved[1])
    return True


def _moves(
    free: Counts, held: tuple[Counts, ...], parts: Sequence[_Part]
) -> Iterator[tuple[Counts, tuple[Counts, ...]]]:
    """One CPU of a part on another NUMA node."""
    for at, part in enumerate(parts):
        for here in part.reach:
            if not held[at][here]:
                continue
            for there in part.reach:
                if there != here and free[there]:
                    shares = _shifted(held[at], here, there)
                    yield _shifted(free, there, here), (*held[:at], shares, *held[at + 1 :])


def _shifted(counts: Counts, here: int, there: int) -> Counts:
    return tuple(count - (at == here) + (at == there) for at, count in enumerate(counts))


def _parts(one: Hypothesis, uid: str) -> Iterator[_Part]:
    """The pod's CPUs by the NUMA nodes on which they may be: where containers have one in common, those that all of them reach."""
    node, containers = one.state.node, one.state.pods[uid].grant.containers
    found: dict[int, int] = {}
    for bit in (1 << cpu for cpu in members(_held(containers))):
        reach = node.machine.numa_mask
        for each in containers:
            if each.cpus.bits & bit:
                reach &= reached(each, node) if may_lie_otherwise(each, node) else 0
        found[reach] = found.get(reach, 0) | bit
    places = list(node.machine.numa_bits)
    for reach, bits in found.items():
        if reach.bit_count() > 1:
            yield _Part(uid, bits, [at for at, numa in enumerate(places) if reach >> numa & 1])


def _held(containers: Sequence[ContainerGrant]) -> int:
    bits = 0
    for each in containers:
        bits |= each.cpus.bits
    return bits


def _with_shares(one: Hypothesis, parts: Sequence[_Part], shares: Sequence[Counts]) -> Hypothesis:
    """With so many CPUs of every part on each NUMA node."""
    numa_bits, managers = list(one.state.node.machine.numa_bits.values()), one.state.managers
    given = []
    free = managers.cpus
    for part, counts in zip(parts, shares, strict=True):
        left = 0
        for here, count in zip(numa_bits, counts, strict=True):
            left |= lowest(part.bits & here, max(0, (part.bits & here).bit_count() - count))
        given.append(left)
        free |= left
    place_of: dict[tuple[str, int], int] = {}
    for part, counts, left in zip(parts, shares, given, strict=True):
        taken = 0
        for here, count in zip(numa_bits, counts, strict=True):
            taken |= lowest(free & here, max(0, count - (part.bits & here).bit_count()))
        free &= ~taken
        place_of.update(((part.uid, old), new) for old, new in zip(members(left), members(taken), strict=True))
    pods = dict(one.state.pods)
    for uid in {uid for uid, _ in place_of}:
        containers = tuple(
            replace(each, cpus=CpuSet(sum(1 << place_of.get((uid, cpu), cpu) for cpu in members(each.cpus.bits))))
            for each in pods[uid].grant.containers
        )
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=containers))
    changed = ManagerState(free, managers.devices, managers.memory)
    return replace(one, state=replace(one.state, managers=changed, pods=pods))
