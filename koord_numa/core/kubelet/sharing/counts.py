"""
What a published topology says about shared devices in use: near which NUMA nodes those may be that pods hold.

resource-topology-exporter counts a device in use on each NUMA node near it. NFD counts it as often, but always on the one that its plugin
names last. So the counts of one moment are sums over the devices of the pods that are shown, and each way to share the counts out among
them is possible.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.sharing.last_named import counted_on_last, ways_of
from koord_numa.core.kubelet.sharing.layouts import reaches_of, settled_layout
from koord_numa.core.kubelet.sharing.reach import Counts, Place, Reach, SharedPool, Sums, without
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import ValueObject, replace

MOST_WAYS: Final = 64
"""So many ways to share the counts out are looked at."""

MOST_STEPS: Final = 4_000
"""The search for them ends after so many trials."""

MOST_BRANCHES: Final = 4
"""So many ways in which counts on the last NUMA nodes may be shared out are hypotheses of their own."""

NONE: Final = (0, 0)
"""Bounds of what no device counts."""

Held = tuple[str, Place]
"""A device that a pod, by its uid, holds or held."""

Way = dict[Held, Reach]


def shared_devices_agree(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Can the shared devices of these pods be near NUMA nodes so that an exporter publishes these zones?"""
    return all(any(told.ways for told in _told(one, name, shown, zones)) for name in one.sharing)


def settled_devices(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> list[Hypothesis]:
    """The hypothesis with what these zones say of the shared devices of these pods; several where that may be told apart later."""
    found = [one]
    for name in one.sharing:
        found = [after for each in found for told in _told(each, name, shown, zones) for after in _settled(each, told)]
    return found


class _Told(ValueObject):
    """
    What an exporter that counts in one of the two manners says of the devices ``held``: they may be near NUMA nodes in each of ``ways``,
    and in others where these are not ``all``. ``used`` is what it publishes.
    """

    name: str
    in_full: bool
    held: Mapping[Held, Reach]
    used: Counts
    ways: list[Way]
    all: bool


def _told(one: Hypothesis, name: str, shown: Collection[str], zones: Sequence[Zone]) -> Iterator[_Told]:
    shared = one.sharing[name]
    used = {zone.numa: _in_use(zone, name) for zone in zones if name in zone.allocatable}
    held = dict(_held(one, shown, name))
    present = reaches_of(one, name)
    for in_full in (True, False) if shared.in_full is None else (shared.in_full,):
        search = _searched(tuple(held.items()), tuple(used.items()), in_full)
        ways = [way for way in search.found if _leaves_devices(shared, present, way)]
        if not ways and not search.complete and (in_full or counted_on_last(held, used) is not None):
            # Of many ways those that were looked at may all be impossible by chance; that is no contradiction.
            ways = [{}]
        yield _Told(name, in_full, held, used, ways, search.complete)


def _settled(one: Hypothesis, told: _Told) -> Iterator[Hypothesis]:
    sharing = {**one.sharing, told.name: replace(one.sharing[told.name], in_full=told.in_full)}
    one = replace(one, sharing=sharing, sums={name: sums for name, sums in one.sums.items() if name != told.name})
    if told.all and len(told.ways) <= (1 if told.in_full else MOST_BRANCHES):
        for way in told.ways:
            yield _with_way(one, way)
    elif told.ways:
        yield _with_sums(one, told) if told.in_full else _with_last(one, told)


def _with_way(one: Hypothesis, way: Way) -> Hypothesis:
    reach = dict(one.reach)
    for (uid, place), each in way.items():
        reach[uid] = {**reach[uid], place: each}
    return settled_layout(replace(one, reach=reach))


def _with_last(one: Hypothesis, told: _Told) -> Hypothesis:
    """With what all ways have in common to count the devices on the NUMA nodes that are named last."""
    return _with_way(one, _alike(counted_on_last(told.held, told.used) or dict(told.held)))


def _with_sums(one: Hypothesis, told: _Told) -> Hypothesis:
    """With what all ways have in common, and the sum over the devices: which of them it is matters first when one of them is given back."""
    common: Way = dict(told.held)
    if told.all:
        for who in common:
            must, may = -1, 0
            for way in told.ways:
                must &= way[who].must
                may |= way[who].must
            common[who] = Reach(must, may & ~must)
    common = _alike(common)
    open_ = frozenset((uid, place) for (uid, (_, place)), reach in common.items() if not reach.exact)
    more = without(told.used, (reach.must for reach in common.values()))
    one = replace(one, sums={**one.sums, told.name: Sums(open_, {numa: each for numa, each in more.items() if each})})
    return _with_way(one, common)


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


def _alike(known: Way) -> Way:
    """With the same known of all devices of unlocated pods: which of them a pod had that leaves nothing tells."""
    theirs = [reach for (uid, _), reach in known.items() if uid == SOMEONE]
    must, may, last = -1, 0, 0
    for reach in theirs:
        must &= reach.must
        may |= reach.must | reach.may
        last |= reach.last or reach.must | reach.may
    widths = {reach.width for reach in theirs}
    alike = Reach(must, may & ~must, widths.pop() if len(widths) == 1 else 0, last)
    return {who: alike if who[0] == SOMEONE else reach for who, reach in known.items()}


def _in_use(zone: Zone, name: str) -> int:
    return zone.allocatable[name] - zone.available.get(name, 0) + zone.overdrawn.get(name, 0)


def _held(one: Hypothesis, shown: Collection[str], name: str) -> Iterator[tuple[Held, Reach]]:
    """The devices that an exporter counts: of running containers, not those that only finished init containers had."""
    for uid in shown:
        pod = one.state.pods.get(uid)
        grant = pod.grant if pod is not None else one.gone.get(uid)
        if grant is None or uid not in one.reach:
            continue
        ids = {
            device
            for container in grant.containers
            if container.kind is not ContainerKind.INIT
            for device in container.devices.get(name, ())
        }
        places = {device.id: place for place, device in enumerate(one.state.node.devices[name].devices)}
        for device in sorted(ids):
            place = name, places[device]
            yield (uid, place), one.reach[uid][place]
    for place, reach in sorted(one.reach.get(SOMEONE, {}).items()):
        if place[0] == name:
            yield (SOMEONE, place), reach


def _leaves_devices(shared: SharedPool, present: Mapping[int, Reach], way: Way) -> bool:
    known = {**present, **{place: reach for (_, (_, place)), reach in way.items() if place in present}}
    exact = [reach for reach in known.values() if reach.exact]
    # Those that are open count like free ones: they may be near any NUMA node that is left.
    count = shared.total - len(exact)
    free = without(shared.counts, (reach.must for reach in exact))
    return all(0 <= numa <= count for numa in free.values()) and sum(free.values()) >= count


@lru_cache(maxsize=256)
def _searched(held: tuple[tuple[Held, Reach], ...], used: tuple[tuple[int, int], ...], in_full: bool) -> "Ways":
    """All ways, or as many as are looked for. States of one node that differ in other pods ask for the same."""
    search = Ways(list(held), in_full)
    search.share(0, dict(used), {})
    return search


class Ways:
    """The search for all ways; not ``complete`` where it ends before them."""

    def __init__(self, held: list[tuple[Held, Reach]], in_full: bool) -> None:
        self.held = held
        self.in_full = in_full
        self.found: list[Way] = []
        self.complete = True
        self.steps = MOST_STEPS
        self.bounds = _bounds([reach for _, reach in held], in_full)

    def share(self, at: int, left: dict[int, int], way: Way) -> None:
        """Share out what is left of the counts among the devices from this one on."""
        if at == len(self.held):
            if not any(left.values()):
                self.found.append(way)
                self.complete = len(self.found) < MOST_WAYS
            return
        self.steps -= 1
        if self.steps < 0:
            self.complete = False
            return
        # Without this look ahead counts that no way explains would be shared out in every way before that shows.
        bounds = self.bounds[at]
        for numa, count in left.items():
            least, most = bounds.get(numa, NONE)
            if not least <= count <= most:
                return
        who, reach = self.held[at]
        before = self.held[at - 1] if at else None
        # Equal devices of one pod are interchangeable: their reaches are tried in one order only.
        first = (
            way[before[0]].key if before is not None and before[0][0] == who[0] and before[1].key == reach.key else None
        )
        for told in _in_full(reach, left) if self.in_full else _on_last(reach, left):
            if first is not None and told.key < first:
                continue
            rest = dict(left)
            for numa in members(told.must) if self.in_full else (told.last.bit_length() - 1,):
                rest[numa] -= 1 if self.in_full else told.width
            self.share(at + 1, rest, {**way, who: told})
            if not self.complete:
                return


def _bounds(reaches: Sequence[Reach], in_full: bool) -> list[dict[int, tuple[int, int]]]:
    """By NUMA node the least and the most that these devices may count there: all of them, those from the second on, and so on."""
    found: list[dict[int, tuple[int, int]]] = []
    after: dict[int, tuple[int, int]] = {}
    for reach in reversed(reaches):
        everywhere = reach.must | reach.may
        places = everywhere if in_full else reach.last or everywhere
        bounds = dict(after)
        for numa in members(places):
            less, more = after.get(numa, (0, 0))
            if in_full:
                bounds[numa] = less + (reach.must >> numa & 1), more + 1
            else:
                bounds[numa] = less, more + (reach.width or everywhere.bit_count())
        after = bounds
        found.append(bounds)
    return found[::-1]


def _in_full(reach: Reach, left: Counts) -> Iterator[Reach]:
    """One count on each NUMA node that the device is near."""
    there = sum(1 << numa for numa, count in left.items() if count > 0)
    if reach.must & ~there:
        return
    for more in _subsets(reach.may & there):
        mask = reach.must | more
        if mask and (not reach.width or mask.bit_count() == reach.width):
            yield replace(reach, must=mask, may=0, width=mask.bit_count())


def _on_last(reach: Reach, left: Counts) -> Iterator[Reach]:
    """As many counts as the device is near NUMA nodes, all on the last one."""
    for last, width in ways_of(reach, left):
        must = reach.must | last
        yield Reach(must, 0 if width == must.bit_count() else reach.may & ~must, width, last)


def _subsets(mask: int) -> Iterator[int]:
    subset = 0
    while True:
        yield subset
        subset = (subset - mask) & mask
        if not subset:
            return
