"""
From which NUMA nodes of its socket a container's CPUs may be, where ``align-by-socket`` offers those of the whole socket.

Theory. The kubelet packs (``cpu_assignment.py``): of the CPUs on offer it takes NUMA nodes that are free as a whole and no larger
than the need, then whole cores, then single CPUs, both from the NUMA node with the fewest free CPUs on, equal ones in the order of their
ids. So a NUMA node is left out that may not be taken as a whole, if those that surely come before it have enough for each of the later
steps: of cores of ``t`` threads as many as the need has, where a CPU that is in use spoils the other ``t - 1`` of its core, and of CPUs
all that are needed. What is taken of any NUMA node before them only makes the need smaller.

Of every NUMA node the least and the most that may be free decide, as pods may be otherwise than the hypothesis says. CPUs that init
containers leave are offered beside the free ones, so that to a later container those are missing that sidecars and app containers have.

Example: NUMA nodes 0 to 3 of 8 CPUs in one socket; 6, 8, 8 and 8 are free. A container of 2 gets them from NUMA node 0: its two used CPUs
spoil at most two others, and a core is left. One of 5 may need a CPU of NUMA node 1, and none of 2, before which NUMA node 1 comes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.options import FULL_CORES
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode
from koord_numa.core.numa.hints import mask_of
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.value_objects import ValueObject, replace

ANY_THREADS: Final = tuple(range(1, 9))
"""Of a core of an architecture that is not known."""


class Room(ValueObject, gc=False):
    """How many CPUs of a NUMA node are free: at least, and at most."""

    least: int
    most: int


def packs_sockets(node: KubeletNode) -> bool:
    """Are CPUs packed into sockets, and is a pod refused that asks for more than these have?"""
    return node.static_options.align_by_socket and bool(node.core_threads) and node.config.topology_policy in STRICT


def is_located(one: ContainerGrant) -> bool:
    """Are the container's CPUs of one NUMA node for certain?"""
    return one.numas != 0 and one.numas & (one.numas - 1) == 0


def located(grant: Grant, demand: PodDemand, rooms: Mapping[int, Room], node: KubeletNode) -> Grant:
    """The grant, with the NUMA nodes that each container's CPUs may be of, where ``rooms`` were free by NUMA node before the pod came."""
    whole = demand.pod.cpus if node.config.topology_scope is KubeletScope.POD else 0
    return replace(grant, containers=tuple(_located(grant.containers, whole, dict(rooms), node)))


def _located(
    containers: Sequence[ContainerGrant], whole: int, rooms: dict[int, Room], node: KubeletNode
) -> Iterator[ContainerGrant]:
    """``whole`` is what the hint of all of them has room for, 0 where each has a hint of its own."""
    known, before = True, dict(rooms)
    for one in containers:
        if one.cpus:
            # Where a container is decides on the hints of those after it.
            offered = _offered(one, whole or len(one.cpus), before if whole else rooms, node) if known else []
            one = replace(one, numas=_numas(one, offered, rooms, node))
            known = bool(whole) or is_located(one)
            # An init container's CPUs are offered to the containers after it again.
            if one.kind is not ContainerKind.INIT:
                _take(one, rooms)
        yield one


def _take(one: ContainerGrant, rooms: dict[int, Room]) -> None:
    count = len(one.cpus)
    within = members(one.numas) if one.numas else rooms
    for numa in within:
        room = rooms[numa]
        surely = count if len(within) == 1 else 0
        rooms[numa] = Room(max(0, room.least - count), max(0, room.most - surely))


def _offered(one: ContainerGrant, needed: int, rooms: Mapping[int, Room], node: KubeletNode) -> list[int]:
    """
    The sockets, as CPU bits, one of which the container's CPUs are of, whatever is free between the bounds; empty where that is not known.

    Of hints of one NUMA node the lowest wins. A lower one with room was passed over for its memory or devices, which are known.
    """
    machine, mask = node.machine, one.hint.mask if one.hint is not None else None
    near = sum(machine.numa_bits.get(numa, 0) for numa in members(mask or 0))
    found = [bits for bits in machine.socket_bits.values() if bits & near]
    if not mask or len(found) != 1 or one.cpus.bits & ~found[0]:
        return []
    numa = mask.bit_length() - 1
    if mask & (mask - 1) or needed > machine.numa_bits[numa].bit_count():
        return found if all(room.least == room.most for room in rooms.values()) else []
    for each, room in rooms.items():
        passed = rooms[numa].least >= needed if each > numa else room.least >= needed
        if room.most >= needed and not passed:
            found += [bits for bits in machine.socket_bits.values() if bits & machine.numa_bits[each]]
    return found


def _numas(one: ContainerGrant, offered: Iterable[int], rooms: Mapping[int, Room], node: KubeletNode) -> int:
    """The NUMA nodes of which the container's CPUs may be that is offered one of these sockets, as a mask; 0 for any."""
    found = 0
    for socket in offered:
        there = {numa: rooms[numa] for numa, bits in node.machine.numa_bits.items() if bits & socket}
        found |= mask_of(numa for numa in there if not _is_left_out(numa, len(one.cpus), there, node))
        # What a dry run takes that tries the worst order is in it as well.
        found |= mask_of(numa for numa in there if one.cpus.bits & node.machine.numa_bits[numa])
    return found


def _is_left_out(numa: int, needed: int, rooms: Mapping[int, Room], node: KubeletNode) -> bool:
    sizes = {each: node.machine.numa_bits[each].bit_count() for each in rooms}
    here = rooms[numa]
    if here.most >= sizes[numa] and needed >= sizes[numa]:
        return False  # it may be taken as a whole
    first = [each for each, room in rooms.items() if (room.most, each) < (here.least, numa)]
    if sum(rooms[each].least for each in first) < needed:
        return False
    for threads in node.core_threads:
        if node.config.cpu_options.get(FULL_CORES) and needed % threads:
            continue  # the kubelet would have refused
        whole = sum(_on_whole_cores(each, rooms[each], sizes[each], threads, node) for each in first)
        if whole < needed - needed % threads:
            return False
    return True


def _on_whole_cores(numa: int, room: Room, size: int, threads: int, node: KubeletNode) -> int:
    """How many free CPUs of a NUMA node are at least on cores that are free as a whole."""
    # With full-pcpus-only containers hold whole cores, and only reserved CPUs spoil others.
    whole = node.config.cpu_options.get(FULL_CORES)
    used = (node.machine.numa_bits[numa] & node.reserved).bit_count() if whole else size - room.least
    left = max(0, room.least - used * (threads - 1))
    return left - left % threads
