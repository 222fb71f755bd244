"""
Which devices a pod may get of those that are free, where it is not published which NUMA nodes these are near.

Theory. On NUMA node n a kubelet gives a container some of the devices near n. Its hint needs the number of free devices near n and nothing
else, so that what else these devices are near (their masks) matters only to what the pod asks for *after* them, in two ways:

- They are missing on the other NUMA nodes that they are near. A pod without init containers is refused the sooner the more are missing, as
  more room never turns a yes into a no there: it is asked with the widest masks, in each way in which devices in use may be near NUMA
  nodes: the fewer these are, the wider may those be that it takes.
- Left by an init container they tie later containers to sets of NUMA nodes that touch each of them (generateDeviceTopologyHints in the
  kubelet's devicemanager/topology_hints.go). If one container is left after them, it fits on a NUMA node m when m is in each mask and has
  enough, devices of the init container included. How many these are does not depend on the masks, and more masks that have m only add
  NUMA nodes. So the narrowest masks decide.

With more than one container left after an init container neither holds, and every choice is asked.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from koord_numa.core.kubelet.admit import foreseen
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, pins_init_cpus
from koord_numa.core.kubelet.sharing.bounds import Bounds
from koord_numa.core.kubelet.sharing.layouts import current_masks, laid_out, prefixes, wide, widened, widest
from koord_numa.core.kubelet.sharing.places import Unit, reached
from koord_numa.core.kubelet.sharing.reach import Counts, Wiring, possible, without
from koord_numa.core.kubelet.sharing.takers import Takers, takers_of
from koord_numa.core.kubelet.spreading.places import TooManyWays
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope

MOST_CHOICES: Final = 128
"""So many choices are asked; where there are more, a pod whose later containers depend on them waits."""

PAIR: Final = 2

MOST_WIDE: Final = 24
"""So many ways in which devices in use may be near other NUMA nodes are asked."""

Masks = tuple[int, ...]
"""Of the devices that a pod takes, in the order in which it takes them."""


def wanted(one: Hypothesis, demand: PodDemand) -> list[str]:
    """The resources of which the pod asks for devices whose sharing is not published."""
    if not one.sharing:
        return []
    return [name for name in one.sharing if any(part.devices.get(name) for _, part in demand.containers)]


def shared_in_all_ways(one: Hypothesis, demand: PodDemand) -> Iterator[Hypothesis]:
    """States that stand for every way in which devices may be near NUMA nodes, the likeliest first: a yes must hold in each."""
    yield one
    names = wanted(one, demand)
    if not names:
        return
    if (found := _by_places(one, demand, names)) is not None:
        yield from found
        return
    states = [one]
    for name in names:
        states = [other for state in states for other in _asked(state, name, demand)]
    yield from (state for state in states if state is not one)


def unclear(one: Hypothesis, demand: PodDemand) -> str:
    """Of which devices the pod may get some in more ways than can be asked, in words; empty where there are none."""
    names = wanted(one, demand)
    if not names or _by_places(one, demand, names) is not None:
        return ""
    for name in names:
        takers = takers_of(demand, name, one.state.node)
        if not takers.init:
            continue
        if widened(one, name, MOST_WIDE) is None or _firsts(one, name, takers, _anchor(one, name, demand)) is None:
            return f"which {name} its init containers get, and near which NUMA nodes these are, is not published"
    return ""


def _by_places(one: Hypothesis, demand: PodDemand, names: Sequence[str]) -> list[Hypothesis] | None:
    units = {}
    for name in names:
        unit = _unit(demand, name, one)
        if unit is None:
            return None
        units[name] = unit
    return reached(one, demand, units)


def _unit(demand: PodDemand, name: str, one: Hypothesis) -> Unit | None:
    """What of the pod is aligned together with devices of this resource; ``None`` where several containers choose for themselves."""
    config = one.state.node.config
    if config.topology_policy not in (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE):
        return None
    takers = takers_of(demand, name, one.state.node)
    if config.topology_scope is KubeletScope.POD:
        unit = Unit(demand.pod.devices.get(name, 0))
    elif len(takers.counts) == 1:
        unit = Unit(takers.counts[0])
    elif takers.lone and takers.counts[0] >= takers.counts[1]:
        unit = Unit(takers.counts[0], kept=True)
    else:
        return None
    return unit if 0 < unit.count <= one.sharing[name].most else None


def unknown_init_devices(demand: PodDemand, node: KubeletNode) -> str:
    """Of which shared devices init containers get some on a node of which only amounts are known, in words; empty where there are none."""
    for container, part in demand.containers:
        for name, count in part.devices.items() if container.kind is ContainerKind.INIT else ():
            pool = node.devices.get(name)
            if count and pool is not None and any(device.near.bit_count() > 1 for device in pool.devices):
                return f"container {container.name}: which {name} it gets, and near which NUMA nodes that is, is not published"
    return ""


def _asked(one: Hypothesis, name: str, demand: PodDemand) -> Iterator[Hypothesis]:
    """Raises ``TooManyWays``."""
    yield one
    takers = takers_of(demand, name, one.state.node)
    # Where devices are taken before the last container's turn, those of pods may be near few NUMA nodes so that these are near more, and
    # of an init container tie the rest: each number is asked then, and not only the fewest that may be free.
    ways = widened(one, name, MOST_WIDE) if takers.new else widest(one, name, MOST_WIDE)
    if ways is None and not takers.init:
        yield _least_left(one, name, takers.new)
    for base in (one, *(ways or ())):
        masks = current_masks(base, name)
        if base is not one:
            yield base
        firsts = _firsts(base, name, takers, _anchor(base, name, demand) if takers.init else 0)
        if firsts is None:
            raise TooManyWays
        for first in firsts:
            yield laid_out(base, name, masks, first)
        if takers.largest > one.sharing[name].most:
            yield from _wired(base, name)


def _least_left(one: Hypothesis, name: str, new: int) -> Hypothesis:
    """Less than any way leaves: devices in use near as many NUMA nodes as may be, those taken first as if they were near few."""
    bounds = Bounds.of(one, name)
    first = _nested_first(_free(wide(one, name, bounds.low), name)[0], new)
    base = wide(one, name, bounds.high)
    return laid_out(base, name, current_masks(base, name), first)


def arriving(one: Hypothesis, demand: PodDemand, near: int) -> Iterator[Hypothesis]:
    """
    States that stand for what may become of an arriving pod: for each NUMA node where it may end up one in which it does.

    ``near`` is the NUMA node where its first devices surely are, as a mask, 0 where that is open.
    """
    yield one
    # One that assumes a wiring is a guess; the open one beside it stands for all others.
    for name in wanted(one, demand) if one.wiring is Wiring.OPEN else ():
        takers = takers_of(demand, name, one.state.node)
        masks = current_masks(one, name)
        yield from prefixes(one, name, {*takers.counts, demand.pod.devices.get(name, 0)})
        if takers.largest > max(_free(one, name)[0].values()):
            yield from _wired(one, name)
        for first in _steps(one, name, takers, near):
            yield laid_out(one, name, masks, first)


def _wired(one: Hypothesis, name: str) -> Iterator[Hypothesis]:
    """For pods that need devices of several NUMA nodes: how many are near these together depends on which are shared."""
    masks = current_masks(one, name)
    return (laid_out(one, name, masks, wiring=wiring) for wiring in Wiring if wiring is not Wiring.OPEN)


def _free(one: Hypothesis, name: str) -> tuple[dict[int, int], int]:
    """How many free devices are near each NUMA node, and how many there are."""
    shared = one.sharing[name]
    masks = current_masks(one, name)
    free = without(shared.counts, masks.values())
    return {numa: max(0, each) for numa, each in free.items()}, shared.total - len(masks)


def _anchor(one: Hypothesis, name: str, demand: PodDemand) -> int:
    """
    The NUMA node, as a mask, near which the first devices are that the pod gets; 0 where that is open.

    It follows from how many are free near each NUMA node, whatever else they are near.
    """
    orders = (CpuReuse.LEAST, CpuReuse.MOST) if pins_init_cpus(demand, one.state.node) else (CpuReuse.BY_ID,)
    found = {_first_hint(foreseen(one.state, demand, one.trust, order) or (), name) for order in orders}
    return found.pop() if len(found) == 1 else 0


def _first_hint(grants: Sequence[ContainerGrant], name: str) -> int:
    given = next((one for one in grants if one.devices.get(name)), None)
    hint = None if given is None else given.hint
    mask = hint.mask or 0 if hint is not None and hint.preferred else 0
    return mask if mask.bit_count() == 1 else 0


def _firsts(one: Hypothesis, name: str, takers: Takers, anchor: int) -> list[Masks] | None:
    """The masks of the devices that decide, as choices; ``None`` where there are too many. The first taker's are near ``anchor``."""
    free, count = _free(one, name)
    if not takers.new or takers.new > count:
        return []
    if not takers.init:
        # Of more than two containers those in between are asked with what is left in between, which only the nested masks bound.
        return (
            _wide_firsts(free, count, takers.new) if len(takers.counts) == PAIR else [_nested_first(free, takers.new)]
        )
    # Under best-effort a hint may be too narrow, to which the theory does not speak.
    strict = one.state.node.config.topology_policy is not KubeletPolicy.BEST_EFFORT
    if strict and takers.lone and takers.largest <= one.sharing[name].most:
        return [first for numa in free if (first := _narrow_first(free, count, numa, takers.new)) is not None]
    return _all_firsts(free, count, takers.new, [anchor] * min(takers.new, takers.counts[0]))


def _narrow_first(free: Counts, count: int, numa: int, new: int) -> Masks | None:
    """The narrowest masks of ``new`` devices near one NUMA node; ``None`` where so many are not there."""
    masks = [1 << numa] * new
    for other, each in free.items():
        # The devices that are left cannot all be near it: some of these must be. The last ones keep out of it as long as they can.
        for place in range(min(new, each - (count - new)) if other != numa else 0):
            masks[place] |= 1 << other
    return tuple(masks) if possible(without(free, masks), count - new) else None


def _wide_firsts(free: Counts, count: int, new: int) -> list[Masks]:
    """The widest masks of ``new`` devices, or where these are too many wider ones than there can be."""
    hosts = [numa for numa, each in free.items() if each]
    most = sum(free.values()) - count + new
    nested = _nested_first(free, new)
    if sum(min(new, free[numa]) for numa in hosts) <= most:
        return [nested]
    # What is left on each NUMA node decides, so that of equal choices one is enough, and those that leave more none.
    left: dict[tuple[int, ...], Masks] = {}
    for first in _all_firsts(free, count, new, ()) or ():
        left.setdefault(tuple(without(free, first).values()), first)
    widest = [first for rest, first in left.items() if not any(_is_less(other, rest) for other in left)]
    return widest if 0 < len(widest) <= MOST_CHOICES else [nested]


def _nested_first(free: Counts, new: int) -> Masks:
    """Masks that leave on no NUMA node more than any others, neither of one nor of more of these devices."""
    return tuple(sum(1 << numa for numa, each in free.items() if each > place) for place in range(new))


def _is_less(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _all_firsts(free: Counts, count: int, new: int, near: Sequence[int]) -> list[Masks] | None:
    """Every choice of masks; those of the first devices contain what ``near`` says."""
    hosts = sum(1 << numa for numa, each in free.items() if each)
    opened = hosts.bit_count() * new - sum(each.bit_count() for each in near)
    if 1 << opened > 2 * MOST_CHOICES:
        return None
    masks = [mask for mask in range(1, hosts + 1) if not mask & ~hosts]
    choices = [[mask for mask in masks if not each & ~mask] for each in (*near, *[0] * (new - len(near)))]
    found = [first for first in product(*choices) if possible(without(free, first), count - new)]
    return None if len(found) > MOST_CHOICES else found


def _steps(one: Hypothesis, name: str, takers: Takers, near: int) -> Iterator[Masks]:
    """For each NUMA node where the first devices may be, the narrowest masks, and these with one NUMA node more each."""
    free, count = _free(one, name)
    if not takers.new or takers.new > count:
        return
    # Kept apart, so that a mask comes once.
    seen: set[Masks] = set()
    for numa in [numa for numa in free if not near or near >> numa & 1]:
        narrow = _narrow_first(free, count, numa, takers.new)
        if narrow is None:
            continue
        for more in (0, *(1 << other for other, each in free.items() if each)):
            first: Masks = tuple(mask | more for mask in narrow)
            if first not in seen and possible(without(free, first), count - takers.new):
                seen.add(first)
                yield first
