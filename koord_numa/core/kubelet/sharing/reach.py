"""
Which NUMA nodes the devices of one resource may be near, when each zone counts the devices near it and the Node counts each device once.

Theory. Zones that count more devices in all than the Node share some of them. Which ones is published nowhere, but for a set of devices of
which none is told apart it needs no enumeration: ``count`` devices with so many near each NUMA node exist if and only if no NUMA node has
more than ``count`` of them and the numbers add up to at least ``count``, one for each device (dealing them out in turn makes such a set,
Gale and Ryser). So only devices that a pod holds are told apart, and of the free ones the number near each NUMA node is kept.

Example: zones count 2, 4, 3 and 2 devices, the Node 6. A device near NUMA nodes 0 and 1 is taken: five are free, and 1, 3, 3 and 2 of them
are near the four NUMA nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.state import Device, DevicePool
from koord_numa.core.value_objects import ValueObject

Place = tuple[str, int]
"""A device: its resource and its place in the pool."""

Counts = Mapping[int, int]
"""Numbers of devices by NUMA id."""


class SharedPool(ValueObject, gc=False):
    """
    What the objects say of one resource whose zones share devices: how many are near each NUMA node, and how many there are.

    ``in_full``: an exporter counts a device in use on every NUMA node near it (resource-topology-exporter); ``False``: as often, but on the
    one that the plugin names last (NFD); ``None``: it is not known which.
    """

    counts: Counts
    total: int
    in_full: bool | None = None

    @property
    def most(self) -> int:
        """So many devices are near the NUMA node with most of them."""
        return max(self.counts.values())


class Reach(ValueObject, gc=False):
    """
    The NUMA nodes that a device in use is near, as masks: those of ``must`` in any case, of ``may`` perhaps.

    ``width`` is their number, 0 where it is not known. ``last`` has the one that its plugin names last, 0 where that is not known.
    """

    must: int
    may: int = 0
    width: int = 0
    last: int = 0

    @property
    def exact(self) -> bool:
        """Is nothing open?"""
        return not self.may

    @property
    def key(self) -> tuple[int, int, int, int]:
        """For comparing and sorting."""
        return self.must, self.may, self.width, self.last


class Sums(ValueObject):
    """
    What a topology told of several devices in use together: ``more`` of them are near each NUMA node beside those that surely are.

    ``held`` are these devices, by the uid of the pod that held them then.
    """

    held: frozenset[tuple[str, int]]
    more: Counts


def possible(free: Counts, count: int) -> bool:
    """Are there ``count`` devices, each near some NUMA node, of which so many are near each one? See the theory."""
    return all(0 <= each <= count for each in free.values()) and sum(free.values()) >= count


def without(free: Counts, masks: Iterable[int]) -> dict[int, int]:
    """What is left of these counts when devices near these NUMA nodes are taken; below zero where there were not so many."""
    left = dict(free)
    for mask in masks:
        for numa in members(mask):
            left[numa] = left.get(numa, 0) - 1
    return left


class Wiring(Enum):
    """Ways in which devices may be shared: counts near single NUMA nodes are equal in all of them, those near several together are not."""

    OPEN = "open"  # any; dealt out in turn, so that they overlap as little as can be
    NESTED = "nested"  # as much as can be
    PAIRS = "pairs"  # NUMA nodes 0 and 1, 2 and 3 share devices
    RING = "ring"  # each with the next one


def deal(free: Counts, count: int, first: Sequence[int] = (), wiring: Wiring = Wiring.OPEN) -> list[int]:
    """
    Masks of ``count`` devices of which so many are near each NUMA node: those of ``first``, then others.

    Where no such devices exist, the counts of NUMA nodes come before the number of devices: some are near none.
    """
    left = without(free, first)
    rest = count - len(first)
    if rest <= 0:
        return list(first[:count])
    if wiring is Wiring.NESTED:
        return [*first, *_nested(left, rest)]
    if wiring is Wiring.OPEN:
        return [*first, *_in_turn(left, rest)]
    pairs = _neighbours(left, rest, ring=wiring is Wiring.RING)
    alone = without(left, pairs)
    return [*first, *pairs, *_in_turn(alone, rest - len(pairs))]


def left_of(shared: SharedPool, taken: Sequence[int], wiring: Wiring) -> list[int]:
    """The masks of the free devices when those of ``taken`` are in use: what the wiring leaves, if these masks are some of its."""
    if wiring is not Wiring.OPEN:
        rest = deal(shared.counts, shared.total, wiring=wiring)
        for mask in taken:
            if mask not in rest:
                break
            rest.remove(mask)
        else:
            return rest
    return deal(without(shared.counts, taken), shared.total - len(taken))


def _in_turn(free: Counts, count: int) -> list[int]:
    masks = [0] * count
    place = 0
    # No NUMA node has more than ``count``, so that none comes twice to one device.
    for numa, each in sorted(free.items(), key=lambda item: (-item[1], item[0])):
        for _ in range(min(max(0, each), count)):
            masks[place % count] |= 1 << numa
            place += 1
    return masks


def _nested(free: Counts, count: int) -> list[int]:
    masks = [sum(1 << numa for numa, each in free.items() if each > place) for place in range(count)]
    for place, mask in enumerate(masks):
        widest = max(masks, key=int.bit_count)
        if not mask and widest.bit_count() > 1:
            # Each device is near some NUMA node: the widest one gives one up.
            given = widest & -widest
            masks[masks.index(widest)] = widest ^ given
            masks[place] = given
    return masks


def _neighbours(free: Counts, count: int, *, ring: bool) -> list[int]:
    """Devices near two neighbours each, in turn, as long as what is left can be dealt out."""
    left = dict(free)
    ids = list(left)
    pairs = list(zip(ids, ids[1:] + ids[:1], strict=True)) if ring else list(zip(ids[::2], ids[1::2], strict=False))
    found: list[int] = []
    progress = True
    while progress:
        progress = False
        for one, other in pairs:
            after = without(left, [1 << one | 1 << other])
            if one != other and len(found) < count and possible(after, count - len(found) - 1):
                found.append(1 << one | 1 << other)
                left, progress = after, True
    return found


@lru_cache(maxsize=4096)
def assumed_pool(name: str, near: tuple[int, ...]) -> DevicePool:
    """A pool whose devices are taken to be near these NUMA nodes."""
    devices = tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near))
    return DevicePool(devices, assumed=True)
