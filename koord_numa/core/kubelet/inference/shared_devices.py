"""
Devices that are near several NUMA nodes.

Each zone counts the devices near it and the Node counts each device once, so zones that count more devices in all than the Node share some
of them. Nothing publishes which. So a device in use is charged to each NUMA node that it may be near: a pod is admitted only where amounts
tell that it fits whatever the devices in use are near. Of a pod on its way that takes such devices the place is not known until a topology
shows it, because its CPUs and its memory follow its devices.

Example: zones count 2, 4, 3 and 2 devices, the Node 6. With one device in use, at least 1, 3, 2 and 1 are free near the four NUMA nodes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.state import Device, DevicePool
from koord_numa.core.objects.node import Zone
from koord_numa.core.value_objects import ValueObject

Counts = Mapping[int, int]
"""Numbers of devices by NUMA id."""


class SharedPool(ValueObject, gc=False):
    """The devices of one resource: how many are near each NUMA node, and how many there are."""

    counts: Counts
    total: int


def deal(free: Counts, count: int) -> list[int]:
    """
    Return masks of NUMA nodes for ``count`` devices of which so many are near each NUMA node.

    They exist if no NUMA node has more than ``count`` and the numbers add up to at least ``count`` (Gale and Ryser). Where they do not
    exist, some devices are near no NUMA node.
    """
    masks = [0] * count
    place = 0
    # No NUMA node has more than ``count``, so that none comes twice to one device.
    for numa, each in sorted(free.items(), key=lambda item: (-item[1], item[0])):
        for _ in range(min(max(0, each), count)):
            masks[place % count] |= 1 << numa
            place += 1
    return masks


def fewest_free(shared: SharedPool, in_use: int) -> dict[int, int]:
    """Return how many devices are free near each NUMA node if all in use are near it."""
    return {numa: max(0, count - in_use) for numa, count in shared.counts.items()}


@lru_cache(maxsize=4096)
def assumed_pool(name: str, near: tuple[int, ...]) -> DevicePool:
    """Return a pool whose devices are taken to be near these NUMA nodes."""
    devices = tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near))
    return DevicePool(devices, assumed=True)


def most_used(name: str, zones: Sequence[Zone], there: int, *, in_full: bool | None) -> dict[int, int]:
    """
    By NUMA node how many of the devices in use are near it at most; ``there`` is how many devices there are.

    NFD counts a device that is near the NUMA nodes m and n on m alone, once for each NUMA node near it: at least for m, for n, and for
    each that all devices are near. ``in_full`` is None where it is not known whether an exporter counts so.
    """
    zones = [zone for zone in zones if zone.allocatable.get(name)]
    used = {zone.numa: _in_use(zone, name) for zone in zones}
    if in_full:
        return used
    every = sum(1 << zone.numa for zone in zones if zone.allocatable[name] >= there)
    found = {
        numa: sum(max(0, count) // (every | 1 << numa | 1 << last).bit_count() for last, count in used.items())
        for numa in used
    }
    # Counted in full, a device in use shows on each NUMA node that all devices are near.
    most = max(used.values(), default=0)
    if in_full is None and all(used[numa] == most for numa in members(every)):
        return {numa: max(count, used[numa]) for numa, count in found.items()}
    return found


def _in_use(zone: Zone, name: str) -> int:
    return zone.allocatable[name] - zone.available.get(name, 0) + zone.overdrawn.get(name, 0)
