"""
Nodes that differ from a recorded one in nothing that is published: which CPUs share a core or a socket, options, devices.

What exporters tell are numbers per NUMA node; all else may be otherwise on a real machine.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.worlds import Recorded

ARCHITECTURE: Final = "kubernetes.io/arch"
THREADS: Final = {"amd64": (1, 2), "arm64": (1, 2)}
"""Of a core, by architecture; others have up to eight."""

ORDERS: Final = ("adjacent", "apart", "anywhere", "reserved")
"""Which CPUs of a NUMA node share cores: neighbours, as distant ones as can be, any, or each reserved one with others."""

PAIR: Final = 2

HALF: Final = 0.5

MOST_CACHES: Final = 1 << 10
"""More than a NUMA node has of them."""

DRAWINGS: Final = 20
"""So many times devices are dealt out before those of the recorded node are taken."""


def variant(recorded: Recorded, dice: Random) -> KubeletNode:
    """A node that a scheduler cannot tell from the recorded one before the first pod."""
    node = recorded.node
    machine = _machine(recorded, dice) if dice.random() < 0.8 else node.machine
    # Most other devices contradict the first scan already, so that half of the nodes keep theirs.
    devices = {name: _pool(pool, dice) for name, pool in node.devices.items()} if dice.random() < HALF else node.devices
    # The rule about whole cores follows from machine and options; it is worked out for each node.
    varied = replace(node, machine=machine, devices=devices, whole_cores=None)
    return varied if recorded.case["published"] else reserving(with_options(varied, dice), dice)


def reserving(node: KubeletNode, dice: Random) -> KubeletNode:
    """Other CPUs reserved, as many on each NUMA node as before."""
    reserved = node.config.reserved_cpus or CpuSet()
    chosen: list[int] = []
    for ids in _by_numa(node.machine).values():
        chosen += dice.sample(ids, len(reserved & CpuSet.of(ids)))
    return replace(node, config=replace(node.config, reserved_cpus=CpuSet.of(chosen)), whole_cores=None)


def _machine(recorded: Recorded, dice: Random) -> CpuTopology:
    """The CPUs of each NUMA node as they are, in other cores and on other sockets."""
    numas = recorded.node.machine.numa_ids
    threads = dice.choice(possible_threads(recorded))
    per_socket = dice.choice([number for number in (1, 2, 4, len(numas)) if not len(numas) % number])
    order = dice.choice(ORDERS)
    ids = ordered_ids(recorded, threads, order, dice)
    # Of so many cores an uncore cache; 0: one on every socket.
    share = dice.choice((0, 1, 2, 4, 8, 16, 64))
    places = {numa: (place // per_socket, share) for place, numa in enumerate(numas)}
    return machine_of(recorded, ids, threads, places, apart=order == "apart")


def possible_threads(recorded: Recorded) -> list[int]:
    """The numbers of threads that a core may have."""
    counts = [len(cpus) for cpus in _by_numa(recorded.node.machine).values()]
    known = THREADS.get(recorded.case["node"]["labels"].get(ARCHITECTURE, ""), (1, 2, 4, 8))
    return [number for number in known if not any(count % number for count in counts)]


def ordered_ids(recorded: Recorded, threads: int, order: str, dice: Random) -> dict[int, list[int]]:
    """The CPUs of each NUMA node in one of ``ORDERS``."""
    reserved = recorded.node.config.reserved_cpus or CpuSet()
    by_numa = _by_numa(recorded.node.machine)
    return {numa: _ordered(cpus, threads, order, reserved, dice) for numa, cpus in by_numa.items()}


def _by_numa(machine: CpuTopology) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {numa: [] for numa in machine.numa_ids}
    for cpu in machine.cpus:
        found[cpu.numa].append(cpu.id)
    return found


def _ordered(ids: Sequence[int], threads: int, order: str, reserved: CpuSet, dice: Random) -> list[int]:
    """The CPUs of a NUMA node so that siblings are neighbours: as their ids are, anyhow, or with each reserved one on a core of its own."""
    if order == "anywhere":
        return dice.sample(ids, len(ids))
    if order != "reserved":
        return sorted(ids)
    held = [cpu for cpu in ids if cpu in reserved]
    others = dice.sample([cpu for cpu in ids if cpu not in reserved], len(ids) - len(held))
    found: list[int] = []
    while others or held:
        found += [held.pop()] if held else []
        found += [others.pop() for _ in range(min(len(others), threads - len(found) % threads))]
        if not others:
            found += held
            held = []
    return found


def machine_of(
    recorded: Recorded,
    ids: Mapping[int, Sequence[int]],
    threads: int,
    places: Mapping[int, tuple[int, int]],
    *,
    apart: bool,
) -> CpuTopology:
    """
    A machine with these CPUs on each NUMA node, whose socket and cores in an uncore cache ``places`` has; 0: one cache a socket.

    Siblings are neighbours in ``ids``, or ``apart`` as far as can be.
    """
    rows, core = [], 0
    for place, (numa, cpus) in enumerate(ids.items()):
        cores = len(cpus) // threads
        socket, share = places[numa]
        for position, cpu in enumerate(cpus):
            here = position % cores if apart else position // threads
            cache = (1 + place) * MOST_CACHES + here // share if share else socket
            rows.append((cpu, core + here, socket, numa, cache))
        core += cores
    machine = recorded.node.machine
    distances = [[machine.distances.get((one, other), 10) for other in machine.numa_ids] for one in machine.numa_ids]
    return cpu_topology_of(sorted(rows), numa_ids=machine.numa_ids, distances=distances)


def _pool(pool: DevicePool, dice: Random) -> DevicePool:
    """The devices in another order, and perhaps shared by other NUMA nodes: each zone lists as many as before."""
    masks = [device.near for device in pool.devices]
    if any(mask.bit_count() > 1 for mask in masks):
        way = dice.choice((_in_pairs, _of_any_width, _of_as_many_as_can, _few_wide, _few_wide))
        drawn = (way(pool, dice) for _ in range(DRAWINGS))
        masks = next((one for one in drawn if one is not None), masks)
        if way is _few_wide:
            return DevicePool(
                tuple(replace(device, near=mask) for device, mask in zip(pool.devices, masks, strict=True))
            )
    dice.shuffle(masks)
    return DevicePool(tuple(replace(device, near=mask) for device, mask in zip(pool.devices, masks, strict=True)))


def _in_pairs(pool: DevicePool, dice: Random) -> list[int] | None:
    """As many devices of two NUMA nodes as there are, near any pairs; ``None`` where the drawing does not come out even."""
    left = {numa: bits.bit_count() for numa, bits in pool.on.items()}
    shared = sum(device.near.bit_count() - 1 for device in pool.devices if device.near)
    masks = [0] * sum(not device.near for device in pool.devices)
    for _ in range(shared):
        there = [numa for numa, count in left.items() if count]
        if len(there) < PAIR:
            return None
        one, other = dice.sample(there, PAIR)
        masks.append(1 << one | 1 << other)
        left[one] -= 1
        left[other] -= 1
    masks += [1 << numa for numa, count in left.items() for _ in range(count)]
    return masks if len(masks) == len(pool.devices) else None


def _of_any_width(pool: DevicePool, dice: Random) -> list[int] | None:
    """Each device near any number of NUMA nodes; ``None`` where the drawing does not come out even."""
    slots = [numa for numa, bits in pool.on.items() for _ in range(bits.bit_count())]
    dice.shuffle(slots)
    apart = [0 for device in pool.devices if not device.near]
    masks = [1 << numa for numa in slots[: len(pool.devices) - len(apart)]]
    for numa in slots[len(masks) :]:
        without = [place for place, mask in enumerate(masks) if not mask >> numa & 1]
        if not without:
            return None
        masks[dice.choice(without)] |= 1 << numa
    return [*apart, *masks]


def _few_wide(pool: DevicePool, dice: Random) -> list[int] | None:
    """
    Some NUMA nodes have hardly any devices but such that are near others too and are taken first: where these are in use they have none.
    """
    counts = {numa: bits.bit_count() for numa, bits in pool.on.items()}
    closed = dice.sample(sorted(counts), dice.randint(1, len(counts)))
    masks = [0] * sum(1 for device in pool.devices if device.near)
    wide, left = dice.randint(1, len(masks)), dice.choice((0, 0, 1))
    order = dice.sample(range(wide), wide)
    for numa in [*closed, *(numa for numa in counts if numa not in closed)]:
        near = order[: max(0, counts[numa] - left)] if numa in closed else []
        # Each device is near some NUMA node; beyond that it is the later ones that are near more.
        others = sorted(range(len(masks)), key=lambda place: (masks[place] != 0, place < wide, dice.random()))
        near += [place for place in others if place not in near][: counts[numa] - len(near)]
        for place in near:
            masks[place] |= 1 << numa
        if dice.random() < HALF:
            dice.shuffle(order)
    return [*masks, *(0 for device in pool.devices if not device.near)] if all(masks) else None


def _of_as_many_as_can(pool: DevicePool, dice: Random) -> list[int] | None:
    """Devices near as many NUMA nodes as there may be, the rest near one or none."""
    left = {numa: bits.bit_count() for numa, bits in pool.on.items()}
    masks: list[int] = []
    while any(left.values()):
        there = [numa for numa, count in left.items() if count]
        masks.append(sum(1 << numa for numa in there))
        left = {numa: max(0, count - 1) for numa, count in left.items()}
    # Fewer devices than there are: the widest are split in two until the number is right.
    while len(masks) < len(pool.devices):
        wide = max(masks, key=int.bit_count)
        if wide.bit_count() < PAIR:
            return None
        one = 1 << dice.choice(members(wide))
        masks.remove(wide)
        masks += [one, wide & ~one]
    return masks if len(masks) == len(pool.devices) else None


def last_named(node: KubeletNode, dice: Random) -> dict[str, int]:
    """The NUMA node that a plugin names last, by device: any of those it is near."""
    devices = [device for pool in node.devices.values() for device in pool.devices if device.near]
    return {device.id: dice.choice(members(device.near)) for device in devices}


def taken_in_any_order(state: KubeletState, dice: Random) -> KubeletState:
    """The same, with devices in another order: which of equally near ones a kubelet or its plugin takes nothing tells."""
    return in_order(
        state,
        {
            name: tuple(device.id for device in dice.sample(pool.devices, len(pool.devices)))
            for name, pool in state.node.devices.items()
        },
    )


def device_order(node: KubeletNode) -> dict[str, tuple[str, ...]]:
    """The ids of the devices of each resource, in the order in which they are taken."""
    return {name: tuple(device.id for device in pool.devices) for name, pool in node.devices.items()}


def in_order(state: KubeletState, ids: Mapping[str, Sequence[str]]) -> KubeletState:
    """The same, with the devices of each resource in this order."""
    if not state.node.devices:
        return state
    pools: dict[str, DevicePool] = {}
    taken: dict[str, int] = {}
    for name, pool in state.node.devices.items():
        places = {device.id: place for place, device in enumerate(pool.devices)}
        order = [places[each] for each in ids[name]]
        pools[name] = DevicePool(tuple(pool.devices[place] for place in order))
        bits = state.managers.devices[name]
        taken[name] = sum(1 << new for new, old in enumerate(order) if bits >> old & 1)
    managers = replace(state.managers, devices=taken)
    return replace(state, node=replace(state.node, devices=pools), managers=managers)


def with_options(node: KubeletNode, dice: Random) -> KubeletNode:
    """Options that are not published, as a kubelet accepts them together."""
    config = node.config
    options = {name for name in ("full-pcpus-only", "distribute-cpus-across-numa") if dice.random() < 0.4}
    if config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE and dice.random() < 0.2:
        options.add("align-by-socket")
    if dice.random() < 0.2:
        options.add("prefer-align-cpus-by-uncorecache")
        options.discard("distribute-cpus-across-numa")
    if dice.random() < 0.2 and not options:
        options.add("distribute-cpus-across-cores")
    closest = {"prefer-closest-numa-nodes": True} if dice.random() < 0.3 else {}
    changed = replace(config, cpu_options=dict.fromkeys(sorted(options), True), topology_options=closest)
    return replace(node, config=changed, whole_cores=None)
