"""
Which devices are near which NUMA nodes in a hypothesis, and the other ways in which they may be.

A hypothesis keeps for each device that a pod holds what is known of it (``Reach``); of the free ones the numbers near each NUMA node
follow. The masks of its pool are one way to have these numbers, and what this module makes are others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.sharing.bounds import Bounds, held_reaches, vectors
from koord_numa.core.kubelet.sharing.narrowing import narrowed
from koord_numa.core.kubelet.sharing.reach import (
    Counts,
    Place,
    Reach,
    Wiring,
    assumed_pool,
    deal,
    left_of,
    without,
)
from koord_numa.core.kubelet.state import ContainerGrant
from koord_numa.core.value_objects import replace

PAIR: Final = 2

NEAR: Final = 0.1
"""The uncertainty, in seconds of late news, that a device is near a second NUMA node."""

FAR: Final = 10.0
"""As ``NEAR``, for each further one."""


def reaches_of(one: Hypothesis, name: str) -> dict[int, Reach]:
    """What is known of the devices of one resource that are in use, by their place in the pool."""
    return {place: reach for (_, place), reach in held_reaches(one, name).items()}


def laid_out(
    one: Hypothesis, name: str, masks: Mapping[int, int], first: Sequence[int] = (), wiring: Wiring | None = None
) -> Hypothesis:
    """
    The hypothesis with these masks for devices in use; of the free ones those of ``first`` come first in the plugin's order, the rest are
    shared as ``wiring`` says, or as the hypothesis assumes.
    """
    shared, node = one.sharing[name], one.state.node
    pool = node.devices[name]
    if first or wiring is not None:
        free = without(shared.counts, masks.values())
        left = iter(deal(free, shared.total - len(masks), first, wiring or Wiring.OPEN))
    else:
        left = iter(left_of(shared, list(masks.values()), one.wiring))
    near = tuple(masks[place] if place in masks else next(left) for place in range(len(pool.devices)))
    other = assumed_pool(name, near)
    # Pools are made once, so that an equal one is the same.
    if other is pool:
        return one
    return replace(one, state=replace(one.state, node=replace(node, devices={**node.devices, name: other})))


def settled_layout(one: Hypothesis) -> Hypothesis:
    """
    The hypothesis with devices in use near as few NUMA nodes as they may be, or as the wiring says that it assumes, and the free ones near
    the others.
    """
    for name in one.sharing:
        one = _narrowed(one, name)
        bounds = Bounds.of(one, name)
        one = wide(one, name, bounds.low) if one.wiring is Wiring.OPEN else _as_wired(one, name, bounds)
    return one


def _narrowed(one: Hypothesis, name: str) -> Hypothesis:
    found = narrowed(held_reaches(one, name), one.sharing[name].counts)
    if not found:
        return one
    reach = dict(one.reach)
    for (uid, place), each in found.items():
        reach[uid] = {**reach[uid], (name, place): each}
    return replace(one, reach=reach)


def _as_wired(one: Hypothesis, name: str, bounds: Bounds) -> Hypothesis:
    reaches, current = reaches_of(one, name), current_masks(one, name)
    masks = {place: reach.must | (current[place] & reach.may) for place, reach in reaches.items()}
    for numa in bounds.low:
        able = [place for place, reach in reaches.items() if reach.may >> numa & 1]
        near = [place for place in able if masks[place] >> numa & 1]
        for place in near[bounds.high[numa] :]:
            masks[place] &= ~(1 << numa)
        for place in [place for place in able if place not in near][: max(0, bounds.low[numa] - len(near))]:
            masks[place] |= 1 << numa
    return laid_out(one, name, masks)


def with_reach(before: Hypothesis, after: Hypothesis, uid: str, containers: Sequence[ContainerGrant]) -> Hypothesis:
    """``after``, in which this pod was given devices, with what is known of them."""
    if not after.sharing:
        return after
    found = reach_of(before, containers)
    if not found:
        return after
    held = after.state.pods.keys() | after.gone.keys() | {SOMEONE}
    known = {other: each for other, each in after.reach.items() if other in held}
    return settled_layout(replace(after, reach={**known, uid: found}))


def reach_of(before: Hypothesis, containers: Sequence[ContainerGrant]) -> dict[Place, Reach]:
    """
    What is known of the devices that these containers were given.

    A hint of one NUMA node that is preferred fits the devices (generateDeviceTopologyHints), and devices near it are taken first
    (devicesToAllocate): each of them is near it.
    """
    anchors: dict[Place, int] = {}
    for one in containers:
        near = one.hint.mask or 0 if one.hint is not None and one.hint.preferred else 0
        for name, ids in one.devices.items():
            if name in before.sharing:
                given = set(ids)
                for place, device in enumerate(before.state.node.devices[name].devices):
                    if device.id in given:
                        anchors[name, place] = anchors.get((name, place), 0) | (near if near.bit_count() == 1 else 0)
    free = {name: _free_of(before, name) for name in {name for name, _ in anchors}}
    return {(name, place): _reach(anchor, *free[name]) for (name, place), anchor in anchors.items()}


def _free_of(one: Hypothesis, name: str) -> tuple[int, int]:
    """NUMA nodes that some free device may be near, and those that every free device is near."""
    shared, reaches = one.sharing[name], reaches_of(one, name)
    free = without(shared.counts, (reach.must for reach in reaches.values()))
    count = shared.total - len(reaches)
    certain = all(reach.exact for reach in reaches.values())
    some = sum(1 << numa for numa, each in free.items() if each > 0)
    return some, sum(1 << numa for numa, each in free.items() if certain and each >= count)


def _reach(anchor: int, some: int, every: int) -> Reach:
    must = anchor | every
    return Reach(must, some & ~must)


def widened(one: Hypothesis, name: str, most: int) -> Iterator[Hypothesis] | None:
    """
    The hypothesis with the devices in use near other NUMA nodes as well, in every way that leaves other numbers free; ``None`` where these
    are more than ``most``.
    """
    if _all_exact(one, name):
        return iter(())
    ways = Bounds.of(one, name).ways(most)
    return None if ways is None else (wide(one, name, way) for way in ways)


def widest(one: Hypothesis, name: str, most: int) -> Iterator[Hypothesis]:
    """As ``widened``, with as many NUMA nodes as there may be; where these ways are too many, one that leaves less than any of them."""
    if _all_exact(one, name):
        return
    bounds = Bounds.of(one, name)
    limit = min(bounds.most, sum(bounds.high.values()))
    ways = vectors(bounds.low, bounds.high, limit, limit, most)
    for way in [bounds.high] if ways is None else ways:
        yield wide(one, name, way)


def _all_exact(one: Hypothesis, name: str) -> bool:
    return all(reach.exact for reach in reaches_of(one, name).values())


def wide(one: Hypothesis, name: str, more: Counts) -> Hypothesis:
    """With so many devices in use near each NUMA node beside those that surely are."""
    reaches = reaches_of(one, name)
    masks = {place: reach.must for place, reach in reaches.items()}
    for numa, each in more.items():
        able = [place for place, reach in reaches.items() if reach.may >> numa & 1]
        # Those that lack most of their NUMA nodes first: each is near some, and some of a known number.
        able.sort(key=lambda place: masks[place].bit_count() - max(1, reaches[place].width))
        for place in able[:each]:
            masks[place] |= 1 << numa
    return laid_out(one, name, masks)


def prefixes(one: Hypothesis, name: str, needed: Collection[int]) -> Iterator[Hypothesis]:
    """
    With the devices in use whose reach is open near more and more NUMA nodes, the lowest ones first: of those where it is open whether so
    many devices are free as are ``needed``.

    A kubelet takes the lowest NUMA node with enough of them. So these are all of its choices for a pod that takes devices: for each NUMA
    node one in which those below have least and it and those above have most.
    """
    if _all_exact(one, name):
        return
    bounds = Bounds.of(one, name)
    free = without(one.sharing[name].counts, (reach.must for reach in reaches_of(one, name).values()))
    below = dict(bounds.low)
    for numa, high in bounds.high.items():
        if any(free[numa] - high < count <= free[numa] - below[numa] for count in needed):
            below[numa] = high
            found = wide(one, name, below)
            yield replace(found, uncertainty=found.uncertainty + _oddity(found, name))


def _oddity(one: Hypothesis, name: str) -> float:
    """How unlikely these masks are, in the seconds of late news that weigh as much: devices near more than two NUMA nodes are rare."""
    widths = [mask.bit_count() for mask in current_masks(one, name).values()]
    return sum(FAR * (width - PAIR) if width > PAIR else NEAR * (width - 1) for width in widths if width)


def current_masks(one: Hypothesis, name: str) -> dict[int, int]:
    """The masks that devices in use have in this hypothesis, by their place."""
    devices = one.state.node.devices[name].devices
    return {place: devices[place].near for place in members(one.state.managers.devices[name])}
