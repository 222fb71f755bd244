"""
What devices in use cannot be near, because of what other devices in use surely are.

As many devices are near each NUMA node as its zone counts. Where so many of those that pods hold are surely near it, no other device is;
and a device that is near a known number of NUMA nodes is near no more than these. What is found so is true of the device for as long as it
is held, also when the others are given back.
"""

from collections.abc import Mapping
from typing import TypeVar

from koord_numa.core.kubelet.sharing.reach import Counts, Reach, without
from koord_numa.core.value_objects import replace

Holder = TypeVar("Holder")


def narrowed(held: Mapping[Holder, Reach], counts: Counts) -> dict[Holder, Reach]:
    """Those of the devices in use, which are all that are, of which less is open than before, with what is known of them now."""
    known = {each: _complete(reach) for each, reach in held.items()}
    left = without(counts, (reach.must for reach in known.values()))
    closed = sum(1 << numa for numa, count in left.items() if count <= 0)
    found = {
        each: replace(reach, may=reach.may & ~closed) if reach.may & closed else reach for each, reach in known.items()
    }
    return {each: reach for each, reach in found.items() if reach is not held[each]}


def _complete(reach: Reach) -> Reach:
    """Of a device that is surely near as many NUMA nodes as it is near in all nothing is open."""
    if reach.may and reach.width and reach.must.bit_count() == reach.width:
        return replace(reach, may=0)
    return reach
