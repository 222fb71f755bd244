"""
The states in which a pod may be refused although it is admitted with every pod in its place: any number of those may have left unseen.

Theory. Under a strict policy containers that are aligned one by one take, each in turn, the first set of NUMA nodes that fits, among those
that hold what init containers before them have left. With more room more sets fit, and none less. Let some pods have left. The first
container that goes elsewhere because of that goes to a set that has come to fit, and it goes there already when only those of the pods have
left that held anything of this set: sets before it do not fit even with all of them gone. From that state on the same holds for the next
container that goes elsewhere. So it is enough to follow departures from one set of NUMA nodes after the other, in every amount of room that
they can leave there, and to go on from states in which containers go elsewhere. Where a NUMA node has room for the whole pod, more room
there harms none of it.

Example: three NUMA nodes. ``init 2, sidecar 2, init 2, app 3`` is on NUMA node 2; one pod has left NUMA node 0, where the first init
container and the sidecar fit then, and another NUMA node 1, where the second init container fits, without a third CPU for the app. Neither
departure alone has the pod refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import add, sub
from typing import Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.kubelet.admit import foreseen
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis, Signature, released
from koord_numa.core.kubelet.inference.unlocated import without
from koord_numa.core.kubelet.inference.variants import freed
from koord_numa.core.kubelet.inference.wanted_room import Wanted, kinds_of
from koord_numa.core.kubelet.room import fits_on
from koord_numa.core.kubelet.spreading.owners import has_shared
from koord_numa.core.kubelet.spreading.places import TooManyWays
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode, ManagerState, free_on
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import CPU, MILLI, ResourceList

MOST_ROOMS: Final = 64
"""In so many ways may pods have left room on a set of NUMA nodes, about 5 ms for one state. Where there are more, the pod waits."""

EFFORT: Final = 700
"""So many containers may be tried for one pod, about 40 ms: all decisions wait for it. Where it takes more, the pod waits."""

MOST_SUMS: Final = 2_000
"""So many amounts of room are compared at most, about 5 ms."""

Gone = tuple[str, int]
"""The uid of a pod, and which of its loose CPUs are free, as bits; 0 where the pod is gone."""

Hints = Sequence[int]
"""
The masks by which the containers of a pod are aligned, in their order; 0 where nothing of one is tied to NUMA nodes, and -1 where init
containers before it leave it no choice but theirs.
"""


@dataclass(slots=True)
class MoreRoom:
    """
    What ``request`` comes to where pods of a hypothesis may have left, with init containers' CPUs taken over as each of ``orders`` says.

    ``left`` is how many containers may still be tried.
    """

    request: PodRequest
    orders: Sequence[CpuReuse]
    left: int = EFFORT

    def states(self, one: Hypothesis) -> Iterator[Hypothesis]:
        """
        The states that have to be asked: those without pods that are known to be gone, and those in which the managers refuse the pod.

        Where devices may be near several NUMA nodes, all in which its containers go elsewhere. Raises ``TooManyWays``.
        """
        for each in without(one, one.leaving):
            yield each
            for order in self.orders:
                yield from self._followed(each, order)

    def _followed(self, start: Hypothesis, order: CpuReuse) -> Iterator[Hypothesis]:
        hints = self._hints(start, order)
        known: set[Signature] = {start.room}
        states = [(start, hints, 0, 0)] if hints is not None else []
        while states:
            before, hints, first, done = states.pop()
            for mask, after in self._departed(before, hints[first:], done):
                if (room := after.room) in known:
                    continue
                known.add(room)
                later = self._hints(after, order)
                if later is None or (after.sharing and later != hints):
                    yield after
                # By socket too many sets are preferred to follow more than one.
                if later is not None and later != hints and not start.state.node.static_options.align_by_socket:
                    # Containers up to the one that moves stay where they are, and so does the room on these NUMA nodes.
                    moved = next(at for at, pair in enumerate(zip(hints, later, strict=True)) if pair[0] != pair[1])
                    states.append((after, later, moved + 1, done | mask))

    def _hints(self, one: Hypothesis, order: CpuReuse) -> Hints | None:
        """``None`` where the managers refuse the pod."""
        demand = pod_demand(self.request)
        self.left -= len(demand.containers)
        if self.left < 0:
            raise TooManyWays
        grants = foreseen(one.state, demand, one.trust, order)
        if grants is None:
            return None
        return [*_hints(grants, demand, one.state.node)]

    def _departed(self, before: Hypothesis, hints: Hints, done: int) -> Iterator[tuple[int, Hypothesis]]:
        """After departures from each set of NUMA nodes, not all in ``done``, to which one of the last containers may go for them."""
        node = before.state.node
        parts = [part for _, part in pod_demand(self.request).containers]
        wanted = Wanted.of(parts, node, one_numa=all(hint.bit_count() < 2 for hint in hints if hint > 0))
        for mask in sets_before(hints, node):
            if mask & ~done:
                self.left -= 1
                for after in emptied(before, mask, wanted):
                    if after is not before and _may_move(after, mask, parts[-len(hints) :], hints):
                        yield mask, after


def _hints(grants: Sequence[ContainerGrant], demand: PodDemand, node: KubeletNode) -> Iterator[int]:
    cpus, devices = 0, set[tuple[str, str]]()
    for given, (_, part) in zip(grants, demand.containers, strict=True):
        mask = given.hint.mask or 0 if given.hint is not None and kinds_of(part, node) else 0
        tied = (part.cpus and cpus) or any(name in part.devices for name, _ in devices)
        # On several NUMA nodes more may be taken beside theirs.
        yield -1 if tied and mask.bit_count() == 1 else mask
        own = {(name, device) for name, ids in given.devices.items() for device in ids}
        if given.kind is ContainerKind.INIT:
            cpus, devices = cpus | given.cpus.bits, devices | own
        else:
            cpus, devices = cpus & ~given.cpus.bits, devices - own


def sets_before(hints: Hints, node: KubeletNode) -> Iterator[int]:
    """The sets of NUMA nodes that the kubelet may prefer to those of some of these hints, as masks."""
    free = [hint for hint in hints if hint > 0]
    numas = node.machine.numa_ids
    if node.static_options.align_by_socket:
        # Sets of a socket are preferred beside single NUMA nodes; there only these are followed.
        yield from (1 << numa for numa in numas if free)
        return
    highest = max((members(hint)[0] for hint in free if hint.bit_count() == 1), default=0)
    # A single NUMA node is preferred to those above it, as distances do not matter between single ones.
    yield from (1 << numa for numa in numas if numa < highest)
    for size in sorted({hint.bit_count() for hint in free} - {1}):
        last = max(hint for hint in free if hint.bit_count() == size)
        sets = (sum(1 << numa for numa in chosen) for chosen in combinations(numas, size))
        yield from (mask for mask in sets if mask < last or node.prefers_closest)


def _may_move(after: Hypothesis, mask: int, parts: Sequence[ContainerDemand], hints: Hints) -> bool:
    """May a container that is elsewhere go to this set? A dry run tells; this spares most of them."""
    if mask.bit_count() > 1:
        return any(hint > 0 and hint.bit_count() == mask.bit_count() and hint != mask for hint in hints)
    node = after.state.node
    free = free_on(node, after.state.managers, members(mask)[0])
    return any(
        hint > 0 and (hint.bit_count() > 1 or hint > mask) and _covers(free, part, node)
        for part, hint in zip(parts, hints, strict=True)
    )


def covers(one: Hypothesis, numa: int, part: ContainerDemand) -> bool:
    """Is all free on one NUMA node that the container wants of it?"""
    return _covers(free_on(one.state.node, one.state.managers, numa), part, one.state.node)


def _covers(free: ResourceList, part: ContainerDemand, node: KubeletNode) -> bool:
    wanted = {**part.devices, **(part.memory or {}), CPU: part.cpus * MILLI}
    return all(free.get(name, 0) >= wanted[name] for name in kinds_of(part, node))


def emptied(one: Hypothesis, mask: int, wanted: Wanted) -> list[Hypothesis]:
    """What pods that leave these NUMA nodes leave of the state, up to the room for all that is wanted. Raises ``TooManyWays``."""
    if not wanted.names:
        return [one]  # all room is alike
    node, memory = one.state.node, one.state.managers.memory
    reaches = {uid: mask_of(pod.grant, node) for uid, pod in one.state.pods.items()}
    holders = [uid for uid, reach in reaches.items() if uid in one.spread or reach & mask]
    # Those first that hold nothing elsewhere: of equal departures the first counts, which then leaves no more room there.
    holders.sort(key=lambda uid: bool(uid in one.spread or reaches[uid] & ~mask))
    grouped = memory is not None and any(group.bit_count() > 1 for group in memory.groups.values())
    shared = one.sharing.keys() & wanted.whole.devices.keys()
    if one.unlocated or one.spread or grouped or shared or SOMEONE in one.loose or has_shared(one):
        return _one_by_one(one, mask, [*holders, *one.unlocated, *one.loose], wanted)
    near = sum(node.machine.numa_bits.get(numa, 0) for numa in members(mask))
    return [_all_gone(one, gone) for gone in _by_amounts(one, mask, _ways(one, holders, near), wanted)]


def _ways(one: Hypothesis, holders: Iterable[str], near: int) -> Iterator[list[Gone]]:
    """For each of these pods what of it may be gone: all, or any number of its loose CPUs."""
    for uid in holders:
        loose = one.loose.get(uid, 0) & near
        yield [(uid, 0), *((uid, lowest(loose, count)) for count in range(1, loose.bit_count() + 1))]


def _by_amounts(
    one: Hypothesis, mask: int, ways: Iterable[Sequence[Gone]], wanted: Wanted
) -> Iterable[tuple[Gone, ...]]:
    """What to take away for each way in which it matters what is left: of equal ones the first."""
    told = members(mask)
    free = _free(one.state.node, one.state.managers, told, wanted)
    missing = [max(0, amount - had) for amount, had in zip(wanted.amounts * len(told), free, strict=True)]
    enough = tuple(missing) if len(told) == 1 else None
    sums: dict[tuple[int, ...], tuple[Gone, ...]] = {(0,) * len(missing): ()}
    for choice in ways:
        afters = [(each, _free(one.state.node, _managers_after(one, each), told, wanted)) for each in choice]
        gains = [(each, [*map(sub, after, free)]) for each, after in afters]
        for known, gone in list(sums.items()):
            # Where all that the pod wants has room, more room harms none of it.
            if known != enough:
                for each, gain in gains:
                    sums.setdefault(tuple(map(min, missing, map(add, known, gain))), (*gone, each))
        if len(sums) > MOST_SUMS:
            raise TooManyWays
    found: dict[Signature, tuple[Gone, ...]] = {}
    for gained, gone in sums.items():
        left = list(map(add, free, gained))
        width = len(left) // len(told)
        found.setdefault(tuple(wanted.fitting(left[at : at + width]) for at in range(0, len(left), width)), gone)
    if len(found) > MOST_ROOMS:
        raise TooManyWays
    return found.values()


def _free(node: KubeletNode, managers: ManagerState, numas: Iterable[int], wanted: Wanted) -> list[int]:
    return [amount for numa in numas for amount in wanted.free_in(node, managers, numa)]


def _managers_after(one: Hypothesis, gone: Gone) -> ManagerState:
    # Where nothing is loose the managers alone cost a fraction of the state.
    return _all_gone(one, [gone]).state.managers if one.loose else one.state.managers_without(one.state.pods[gone[0]])


def _all_gone(one: Hypothesis, gone: Iterable[Gone]) -> Hypothesis:
    for uid, bits in gone:
        one = freed(one, bits) if bits else released(one, uid)
    return one


def _one_by_one(one: Hypothesis, mask: int, holders: Sequence[str], wanted: Wanted) -> list[Hypothesis]:
    """As ``_by_amounts`` where amounts do not tell what a departure leaves."""
    told = members(mask)
    found, known = [one], {_room_on(one, told, wanted)}
    for uid in holders:
        for before in list(found):
            managers = before.state.managers
            if mask.bit_count() == 1 and fits_on(one.state.node, managers, members(mask)[0], wanted.whole):
                continue
            for after in _without(before, uid, mask, loose=uid in one.loose):
                if (room := _room_on(after, told, wanted)) not in known:
                    known.add(room)
                    found.append(after)
            if len(found) > MOST_ROOMS:
                raise TooManyWays
    return found


def _without(one: Hypothesis, uid: str, mask: int, *, loose: bool) -> Iterator[Hypothesis]:
    """Without the pod, or with any number of its loose CPUs free."""
    if one.has(uid):
        yield from without(one, [uid])
    if loose:
        here = 0
        for numa in members(mask):
            here |= one.state.node.machine.numa_bits.get(numa, 0)
        bits = one.loose.get(uid, 0) & here
        yield from (freed(one, lowest(bits, count)) for count in range(1, bits.bit_count() + 1))


def _room_on(one: Hypothesis, numas: Sequence[int], wanted: Wanted) -> Signature:
    """Equal where as much is free there of all that is wanted; more than is wanted makes no difference."""
    if one.sharing.keys() & wanted.whole.devices.keys():
        return one.room
    memory = one.state.managers.memory
    groups = memory.groups.values() if memory is not None else ()
    return (
        *[min(pair) for numa in numas for pair in zip(wanted.free(one, numa), wanted.amounts, strict=True)],
        *groups,
    )


def mask_of(grant: Grant, node: KubeletNode) -> int:
    """The NUMA nodes of which a pod holds anything."""
    mask = 0
    for given in grant.containers:
        for numa, bits in node.machine.numa_bits.items():
            mask |= bool(given.cpus.bits & bits) << numa
        for block in given.memory:
            mask |= block.mask
        for resource, ids in given.devices.items():
            for device in node.devices[resource].devices:
                mask |= device.near if device.id in ids else 0
    return mask
