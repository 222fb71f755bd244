"""The kubelet's configuration as far as it is published, and the variants that are possible for the rest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations, product
from typing import Any, Final, Self

from koord_numa.core.bit_sets import members
from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.demand import PodDemand, is_memory
from koord_numa.core.kubelet.hypothesis import Hypothesis, SharedPool, assumed_pool, deal
from koord_numa.core.kubelet.options import (
    CLOSEST_NUMA,
    FULL_CORES,
    LIKELY_THREADS,
    OVER_NUMA,
    STATIC_MEMORY,
    likely_config,
)
from koord_numa.core.kubelet.state import ContainerGrant, Device, DevicePool, Grant, KubeletNode, KubeletState
from koord_numa.core.numa.hints import mask_of
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList
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


BY_SOCKET: Final = "align-by-socket"

SPREADING: Final = (
    BY_SOCKET,
    "distribute-cpus-across-cores",
    "prefer-align-cpus-by-uncorecache",
)
"""Options of the static CPU manager policy with which CPUs are not just packed into the cores of a NUMA node."""

Distances = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """
    The node as its kubelet knows it before the first pod, but for its devices, whose names are in ``devices``.

    ``topology`` and ``allocatable`` are what it was made of; ``node`` is the same object as long as only what is available changes.
    ``derived`` is what others worked out of the topology, by their names for it: it goes with it.
    """

    node: KubeletNode
    devices: tuple[str, ...]
    topology: NodeResourceTopology
    allocatable: ResourceList
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, topology: NodeResourceTopology, allocatable: ResourceList, architecture: str = "") -> Self:
        """
        From the topology and the Node object's allocatable amounts.

        A manager whose resources no zone lists is taken to be off, as exporters list exactly what is managed. ``architecture`` is the
        Node's, empty where it names none.
        """
        zones = topology.zones
        listed = sorted({kind for zone in zones for kind in zone.allocatable if is_memory(kind)})
        # An exporter that lists memory although the memory manager is off describes the machine, not what is bound.
        kinds = [] if topology.kubelet.memory_policy == "None" else listed
        machine = _machine(
            tuple((zone.numa, zone.capacity.get(CPU, 0) // MILLI) for zone in zones),
            tuple(sorted(topology.distances.items())),
        )
        node = KubeletNode(
            machine=machine,
            config=replace(
                likely_config(topology),
                memory_policy=STATIC_MEMORY if kinds else "None",
                # The reserved CPUs are those that the machine has and no zone allocates.
                reserved_cpus=CpuSet(
                    machine.bits & ~first_cpus(machine, [(zone.numa, zone.allocatable) for zone in zones])
                ),
            ),
            allocatable=allocatable,
            memory={zone.numa: {kind: zone.allocatable.get(kind, 0) for kind in kinds} for zone in zones}
            if kinds
            else {},
            ids_are_real=False,
            packs=architecture in LIKELY_THREADS and packs_cpus(topology.kubelet),
            may_pack=architecture in LIKELY_THREADS and topology.kubelet.cpu_policy is None,
            core_threads=_core_threads(topology.kubelet, architecture),
            is_published=topology.kubelet.cpu_policy is not None,
            takes_whole_cores=packs_cpus(topology.kubelet) and bool(topology.kubelet.cpu_options.get(FULL_CORES)),
        )
        devices = {name for zone in zones for name in zone.allocatable if name != CPU and not is_memory(name)}
        return cls(node, tuple(sorted(devices)), topology, allocatable)

    def holds_for(self, topology: NodeResourceTopology, allocatable: ResourceList) -> bool:
        """Do these objects differ at most in what is available?"""
        old = self.topology
        return (
            _same(allocatable, self.allocatable)
            and _same(topology.kubelet, old.kubelet)
            and _same(topology.distances, old.distances)
            and (topology.zones is old.zones or _have_the_same(topology.zones, old.zones))
        )


def packs_cpus(config: KubeletConfig) -> bool:
    """Are CPUs known to be taken core by core on each NUMA node? With no option that spreads them or looks at uncore caches."""
    return config.cpu_policy is not None and not any(config.cpu_options.get(name, False) for name in SPREADING)


def _core_threads(config: KubeletConfig, architecture: str) -> tuple[int, ...]:
    """The threads that a core may have where CPUs are known to be packed into sockets; empty where that is not known."""
    others = {name: on for name, on in config.cpu_options.items() if name != BY_SOCKET}
    if not packs_cpus(replace(config, cpu_options=others)) or others.get(OVER_NUMA):
        return ()
    return (1, *LIKELY_THREADS[architecture]) if architecture in LIKELY_THREADS else ANY_THREADS


def first_cpus(machine: CpuTopology, amounts: Sequence[tuple[int, ResourceList]]) -> int:
    """Bits of the first CPUs of every NUMA node, as many as its amount says."""
    chosen = 0
    # Made-up ids are contiguous on every NUMA node, so that ``bits & -bits`` is its first CPU and the product a run of CPUs.
    for numa, amount in amounts:
        bits = machine.numa_bits[numa]
        count = min(max(0, amount.get(CPU, 0) // MILLI), bits.bit_count())
        chosen |= ((1 << count) - 1) * (bits & -bits)
    return chosen


def _same(one: object, other: object) -> bool:
    """Equal, most often because it is the same object."""
    # Identity first: informers hand out the same object until it changes.
    return one is other or one == other


def _have_the_same(zones: Sequence[Zone], others: Sequence[Zone]) -> bool:
    return len(zones) == len(others) and all(
        zone.numa == other.numa and _same(zone.capacity, other.capacity) and _same(zone.allocatable, other.allocatable)
        for zone, other in zip(zones, others, strict=True)
    )


# Nodes come in models: the same counts and distances give one machine, and its derived tables are shared.
@lru_cache(maxsize=1024)
def _machine(counts: tuple[tuple[int, int], ...], distances: tuple[tuple[tuple[int, int], int], ...]) -> CpuTopology:
    cpus: list[Cpu] = []
    for numa, count in counts:
        # Sockets, caches and threads are not published: each CPU is a core, each NUMA node a socket, and whole cores are judged
        # apart.
        first = len(cpus)
        cpus += (Cpu(id=first + i, core=first + i, numa=numa, socket=numa, uncore=numa) for i in range(count))
    return CpuTopology(cpus=tuple(cpus), numa_ids=tuple(numa for numa, _ in counts), distances=dict(distances))


ALIGN_BY_SOCKET: Final = "align-by-socket"
MOST_VARIANTS: Final = 12

Variant = tuple[KubeletNode, tuple[str, ...]]
"""A node, and the options that are assumed on it although they are unlikely (alpha, off by default) and not published."""

Sockets = Mapping[int, int]
"""Socket of every NUMA node."""


def config_variants(frame: NodeConfig) -> list[Variant]:
    """The nodes that agree with the objects, the likeliest first; at most ``MOST_VARIANTS``."""
    found: list[Variant] = []
    published = frame.topology.kubelet
    pools = _pools(frame)
    for (sockets, unlikely), closest in product(_sockets(frame, published), _closest(frame, published)):
        config = replace(
            frame.node.config, topology_options={**frame.node.config.topology_options, CLOSEST_NUMA: closest}
        )
        node = replace(frame.node, devices=pools, config=config)
        if sockets is not None:
            node = replace(node, machine=_with_sockets(node.machine, sockets), aligns_by_socket=True)
        found.append((node, unlikely))
    # Stable sort: variants without unlikely options first, in the order in which they were made.
    found.sort(key=lambda variant: len(variant[1]))
    return found[:MOST_VARIANTS]


def _closest(frame: NodeConfig, published: KubeletConfig) -> tuple[bool, ...]:
    """prefer-closest-numa-nodes matters where some NUMA nodes are closer than others and sets of them are compared."""
    known = published.topology_options.get(CLOSEST_NUMA)
    if known is not None or published.cpu_policy is not None:
        return (bool(known),)  # a published configuration lists the options that are on
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    return (False, True) if wide and len(_thresholds(frame.node.machine)) > 1 else (False,)


def _sockets(frame: NodeConfig, published: KubeletConfig) -> list[tuple[Sockets | None, tuple[str, ...]]]:
    """align-by-socket needs sockets, which no exporter publishes; distances tell which there may be."""
    machine = frame.node.machine
    known = published.cpu_options.get(ALIGN_BY_SOCKET)
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    if known is None and published.cpu_policy is not None:
        known = False  # an exporter of the policy lists its options
    if known is False or not wide or not frame.node.pins_cpus or len(machine.numa_ids) == 1:
        return [(None, ())]
    # Stated or published: the sockets are open, the option is not, so it counts as no unlikely assumption.
    if known:
        return [(sockets, ()) for sockets in socket_partitions(machine)] or [(None, ())]
    # Sockets that nothing tells of are not guessed beside an option that is unlikely itself.
    partitions = list(socket_partitions(machine, guessed=False))
    return [
        (None, ()),
        # One NUMA node a socket aligns as NUMA nodes do: not a variant.
        *((sockets, (ALIGN_BY_SOCKET,)) for sockets in partitions if len(set(sockets.values())) < len(sockets)),
    ]


def socket_partitions(machine: CpuTopology, *, guessed: bool = True) -> Iterator[Sockets]:
    """
    Ways to put NUMA nodes into sockets of equal size: NUMA nodes within some distance of one another, and each on its own.

    Distances inside a socket are smaller than between sockets. Where they are the same between some sockets as inside, as where each die of
    a socket has links of its own to others, NUMA nodes within that distance of one another make up no sockets (0 is near 1 and 2, which are
    not near one another). There, NUMA nodes of a socket come one after the other, or in turn with those of the others, as far as no pair in
    one socket is farther apart than that, and none in different sockets is closer.

    Where all distances are equal, as firmware and hypervisors without a distance table have them, they tell nothing: there NUMA nodes come
    in the same orders if such are to be ``guessed``.
    """
    seen: set[tuple[int, ...]] = set()
    for socket_of in _partitions(machine, guessed=guessed):
        key = tuple(socket_of.values())
        if key not in seen:
            seen.add(key)
            yield socket_of


def _partitions(machine: CpuTopology, *, guessed: bool) -> Iterator[Sockets]:
    ids, thresholds = machine.numa_ids, _thresholds(machine)
    # Threshold 0 puts every NUMA node into a socket of its own.
    for threshold in (*thresholds, 0):
        near = {
            numa: [other for other in ids if other == numa or machine.distance(numa, other) <= threshold]
            for numa in ids
        }
        # Sockets of one machine are of equal size; anything else is no partition into sockets.
        if len({len(others) for others in near.values()}) == 1 and all(
            near[other] == others for others in near.values() for other in others
        ):
            yield {numa: min(others) for numa, others in near.items()}
        else:
            yield from (sockets for sockets in _in_order(ids) if _may_be(sockets, machine, threshold))
    if guessed and len(thresholds) == 1:
        yield from _in_order(ids)


def _in_order(ids: Sequence[int]) -> Iterator[Sockets]:
    """Several sockets of several NUMA nodes, one after the other or in turn."""
    for sockets in range(2, len(ids) // 2 + 1):
        if len(ids) % sockets == 0:
            size = len(ids) // sockets
            yield {numa: ids[at - at % size] for at, numa in enumerate(ids)}
            yield {numa: ids[at % sockets] for at, numa in enumerate(ids)}


def _may_be(sockets: Sockets, machine: CpuTopology, threshold: int) -> bool:
    """Is no pair in one socket farther apart, and none in different sockets closer?"""
    return all(
        machine.distance(a, b) <= threshold if sockets[a] == sockets[b] else machine.distance(a, b) >= threshold
        for a, b in permutations(sockets, 2)
    )


def _thresholds(machine: CpuTopology) -> list[int]:
    """The different distances between NUMA nodes, ascending."""
    ids = machine.numa_ids
    return sorted({machine.distance(a, b) for a in ids for b in ids if a != b})


def _with_sockets(machine: CpuTopology, sockets: Sockets) -> CpuTopology:
    cpus = tuple(replace(cpu, socket=sockets[cpu.numa]) for cpu in machine.cpus)
    return CpuTopology(cpus=cpus, numa_ids=machine.numa_ids, distances=machine.distances)


def sharing_of(frame: NodeConfig) -> dict[str, SharedPool]:
    """
    The resources whose devices are near several NUMA nodes: zones count more of them than the Node. Without those of a kubelet that aligns
    nothing, where it makes no difference.
    """
    if not frame.node.aligns:
        return {}
    found = {}
    for name in frame.devices:
        counts = {zone.numa: zone.allocatable.get(name, 0) for zone in frame.topology.zones}
        total = frame.allocatable.get(name, 0)
        # A device more than there are near one NUMA node would have to be counted there twice.
        if sum(counts.values()) > total >= max(counts.values()):
            found[name] = SharedPool({numa: count for numa, count in counts.items() if count}, total)
    return found


def counts_in_full(topology: NodeResourceTopology) -> bool | None:
    """Is a device in use counted on every NUMA node near it? ``None`` where that is not known (``most_used``)."""
    # Only resource-topology-exporter writes how it makes its fingerprint; one that does not may count either way.
    return True if topology.fingerprint_method else None


def starts(frame: NodeConfig) -> list[Hypothesis]:
    """The states that a kubelet may be in before the first pod, by all that is not published, the likeliest first."""
    sharing = sharing_of(frame)
    return [
        Hypothesis(KubeletState.empty(node), options=options, sharing=sharing)
        for node, options in config_variants(frame)
    ]


def _pools(frame: NodeConfig) -> dict[str, DevicePool]:
    """Device pools that have as many devices near each NUMA node as its zone counts."""
    return {name: device_pool(name, frame) for name in frame.devices}


def device_pool(name: str, frame: NodeConfig) -> DevicePool:
    """
    The pool of one resource. ``Node`` allocatable counts every device once, zones count it on each NUMA node near it.

    Where zones count more, the masks are one way to have these counts; what they count too often
    beyond that cannot be explained.
    """
    counts = {zone.numa: zone.allocatable.get(name, 0) for zone in frame.topology.zones}
    there = frame.allocatable.get(name, 0)
    listed = sum(counts.values())
    # Zones that count no more than the Node object share no device.
    if listed <= there or not there:
        near = [1 << numa for numa, count in counts.items() for _ in range(count)]
        near += [0] * max(0, there - listed)
        return DevicePool(tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near)))
    return assumed_pool(name, tuple(deal(counts, there)))
