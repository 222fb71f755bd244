"""
The configuration of a kubelet's node: published, or read by the node agent, with the variants that are possible for
the rest.

``NodeConfig`` is the node before the first pod, with invented CPU ids. ``starts`` lists the initial hypotheses, one
per variant of the node. ``exact_hypothesis`` is the state that the node agent publishes, with real ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations, product
from typing import Any, Final, Self

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpus.kubelet_options import (
    CLOSEST_NUMA,
    FULL_CORES,
    LIKELY_THREADS,
    OVER_NUMA,
    STATIC_CPUS,
    STATIC_MEMORY,
    likely_config,
)
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.hypothesis import Hypothesis, SharedDevices, assumed_pool, deal
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryBlock,
    PluginDevice,
)
from koord_numa.core.objects.node import ContainerState, KubeletCheckpoint, KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import APP, ContainerKind, KubeletPolicy
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.value_objects import replace


def packs_sockets(node: KubeletNode) -> bool:
    """Return whether CPUs are packed into sockets, and a pod that needs more CPUs than the sockets of its hint have is rejected."""
    return node.static_options.align_by_socket and node.fills_sockets and node.config.topology_policy in STRICT


def is_located(one: ContainerGrant) -> bool:
    """Return whether the container's CPUs are on one NUMA node for certain."""
    return one.numas != 0 and one.numas & (one.numas - 1) == 0


BY_SOCKET: Final = "align-by-socket"

SPREADING: Final = (
    BY_SOCKET,
    "distribute-cpus-across-cores",
    "prefer-align-cpus-by-uncorecache",
)
"""Options of the static CPU manager policy under which CPUs are not only packed into the cores of a NUMA node."""

Distances = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """
    The node as its kubelet knows it before the first pod, without device pools; ``devices`` are their names.

    ``topology`` and ``allocatable`` are the sources. ``node`` stays the same object while only available amounts
    change. ``derived`` caches values that other modules compute from the topology, by name; it has the same lifetime.
    """

    node: KubeletNode
    devices: tuple[str, ...]
    topology: NodeResourceTopology
    allocatable: ResourceList
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, topology: NodeResourceTopology, allocatable: ResourceList, architecture: str = "") -> Self:
        """
        Return the configuration for a topology and the Node object's allocatable amounts.

        A manager whose resources no zone lists is taken to be off, because exporters list exactly the managed
        resources. ``architecture`` is the Node's, empty if unknown.
        """
        zones = topology.zones
        listed = sorted({kind for zone in zones for kind in zone.allocatable if is_memory(kind)})
        # An exporter that lists memory while the memory manager is off describes the machine and not bound memory.
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
                # Reserved CPUs are in the capacity of a zone and not in its allocatable amount.
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
            fills_sockets=_fills_sockets(topology.kubelet),
            is_published=topology.kubelet.cpu_policy is not None,
            takes_whole_cores=packs_cpus(topology.kubelet) and bool(topology.kubelet.cpu_options.get(FULL_CORES)),
        )
        devices = {name for zone in zones for name in zone.allocatable if name != CPU and not is_memory(name)}
        return cls(node, tuple(sorted(devices)), topology, allocatable)

    def holds_for(self, topology: NodeResourceTopology, allocatable: ResourceList) -> bool:
        """Return whether these objects differ from the sources at most in available amounts."""
        old = self.topology
        return (
            _same(allocatable, self.allocatable)
            and _same(topology.kubelet, old.kubelet)
            and _same(topology.distances, old.distances)
            and (topology.zones is old.zones or _have_the_same(topology.zones, old.zones))
        )


def packs_cpus(config: KubeletConfig) -> bool:
    """Return whether CPUs are known to be taken core by core on every NUMA node: no option spreads them or considers uncore caches."""
    return config.cpu_policy is not None and not any(config.cpu_options.get(name, False) for name in SPREADING)


def _fills_sockets(config: KubeletConfig) -> bool:
    """Return whether no option other than align-by-socket is known to spread CPUs."""
    others = {name: on for name, on in config.cpu_options.items() if name != BY_SOCKET}
    return packs_cpus(replace(config, cpu_options=others)) and not others.get(OVER_NUMA)


def first_cpus(machine: CpuTopology, amounts: Sequence[tuple[int, ResourceList]]) -> int:
    """Return the bits of the first CPUs of every NUMA node, as many as the zone's amount."""
    chosen = 0
    # Invented ids are contiguous on every NUMA node: ``bits & -bits`` is its first CPU, and the product is a run of
    # CPUs.
    for numa, amount in amounts:
        bits = machine.numa_bits[numa]
        count = min(max(0, amount.get(CPU, 0) // MILLI), bits.bit_count())
        chosen |= ((1 << count) - 1) * (bits & -bits)
    return chosen


def _same(one: object, other: object) -> bool:
    # Identity first: informers return the same object until it changes.
    return one is other or one == other


def _have_the_same(zones: Sequence[Zone], others: Sequence[Zone]) -> bool:
    return len(zones) == len(others) and all(
        zone.numa == other.numa and _same(zone.capacity, other.capacity) and _same(zone.allocatable, other.allocatable)
        for zone, other in zip(zones, others, strict=True)
    )


# Nodes with the same counts and distances share one machine and its derived tables.
@lru_cache(maxsize=1024)
def _machine(counts: tuple[tuple[int, int], ...], distances: tuple[tuple[tuple[int, int], int], ...]) -> CpuTopology:
    cpus: list[Cpu] = []
    for numa, count in counts:
        # Sockets, caches and threads are not published. Every CPU is a core and every NUMA node a socket; whole cores
        # are checked separately (``WholeCores``).
        first = len(cpus)
        cpus += (Cpu(id=first + i, core=first + i, numa=numa, socket=numa, uncore=numa) for i in range(count))
    return CpuTopology(cpus=tuple(cpus), numa_ids=tuple(numa for numa, _ in counts), distances=dict(distances))


ALIGN_BY_SOCKET: Final = "align-by-socket"
MOST_VARIANTS: Final = 12
"""Maximum variants of a node that are followed."""

Variant = tuple[KubeletNode, tuple[str, ...]]
"""A node, and the unpublished options (alpha, off by default) that are assumed on although they are unlikely."""

Sockets = Mapping[int, int]
"""Socket by NUMA id."""


def config_variants(frame: NodeConfig) -> list[Variant]:
    """Return the nodes that agree with the objects, the most likely first, at most ``MOST_VARIANTS``."""
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
    # Stable sort: variants without unlikely options come first, in creation order.
    found.sort(key=lambda variant: len(variant[1]))
    return found[:MOST_VARIANTS]


def _closest(frame: NodeConfig, published: KubeletConfig) -> tuple[bool, ...]:
    """
    Return the possible values of prefer-closest-numa-nodes.

    The option matters where distances differ and the policy compares sets of NUMA nodes.
    """
    known = published.topology_options.get(CLOSEST_NUMA)
    if known is not None or published.cpu_policy is not None:
        return (bool(known),)  # a published configuration lists the options that are on
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    return (False, True) if wide and len(_thresholds(frame.node.machine)) > 1 else (False,)


def _sockets(frame: NodeConfig, published: KubeletConfig) -> list[tuple[Sockets | None, tuple[str, ...]]]:
    """
    Return the sockets that the node may have, each with the unlikely options that it assumes. ``None`` means that align-by-socket is off.

    align-by-socket depends on sockets, which no exporter publishes. Distances show which sockets are possible.
    """
    machine = frame.node.machine
    known = published.cpu_options.get(ALIGN_BY_SOCKET)
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    if known is None and published.cpu_policy is not None:
        known = False  # an exporter that publishes the policy lists its options
    if known is False or not wide or not frame.node.pins_cpus or len(machine.numa_ids) == 1:
        return [(None, ())]
    # The option is stated or published. Only the sockets are unknown, so that no unlikely option is assumed.
    if known:
        return [(sockets, ()) for sockets in socket_partitions(machine)] or [(None, ())]
    # Sockets are not guessed in addition to an unlikely option.
    partitions = list(socket_partitions(machine, guessed=False))
    return [
        (None, ()),
        # Sockets of one NUMA node have no effect on alignment.
        *((sockets, (ALIGN_BY_SOCKET,)) for sockets in partitions if len(set(sockets.values())) < len(sockets)),
    ]


def socket_partitions(machine: CpuTopology, *, guessed: bool = True) -> Iterator[Sockets]:
    """
    Yield ways to put NUMA nodes into sockets of equal size: NUMA nodes within a distance of each other, and every NUMA
    node alone.

    Distances inside a socket are smaller than between sockets. They may be equal, as where each die of a socket has its
    own links to other sockets. Then NUMA nodes within that distance of each other form no sockets (0 is near 1 and 2,
    which are not near each other). In this case the NUMA nodes of a socket are consecutive or interleaved with other
    sockets. No pair in one socket may be farther apart than the distance, and no pair in different sockets closer.

    Where all distances are equal, as from firmware and hypervisors without a distance table, they give no information.
    With ``guessed``, the consecutive and interleaved orders are yielded then.
    """
    seen: set[tuple[int, ...]] = set()
    for socket_of in _partitions(machine, guessed=guessed):
        key = tuple(socket_of.values())
        if key not in seen:
            seen.add(key)
            yield socket_of


def _partitions(machine: CpuTopology, *, guessed: bool) -> Iterator[Sockets]:
    ids, thresholds = machine.numa_ids, _thresholds(machine)
    # Threshold 0 puts every NUMA node into its own socket.
    for threshold in (*thresholds, 0):
        near = {
            numa: [other for other in ids if other == numa or machine.distance(numa, other) <= threshold]
            for numa in ids
        }
        # Sockets of a machine have equal size; other results are no partition into sockets.
        if len({len(others) for others in near.values()}) == 1 and all(
            near[other] == others for others in near.values() for other in others
        ):
            yield {numa: min(others) for numa, others in near.items()}
        else:
            yield from (sockets for sockets in _in_order(ids) if _may_be(sockets, machine, threshold))
    if guessed and len(thresholds) == 1:
        yield from _in_order(ids)


def _in_order(ids: Sequence[int]) -> Iterator[Sockets]:
    """Yield partitions into several sockets of several NUMA nodes, consecutive or interleaved."""
    for sockets in range(2, len(ids) // 2 + 1):
        if len(ids) % sockets == 0:
            size = len(ids) // sockets
            yield {numa: ids[at - at % size] for at, numa in enumerate(ids)}
            yield {numa: ids[at % sockets] for at, numa in enumerate(ids)}


def _may_be(sockets: Sockets, machine: CpuTopology, threshold: int) -> bool:
    """Return whether no pair in one socket is farther apart than the threshold, and no pair in different sockets closer."""
    return all(
        machine.distance(a, b) <= threshold if sockets[a] == sockets[b] else machine.distance(a, b) >= threshold
        for a, b in permutations(sockets, 2)
    )


def _thresholds(machine: CpuTopology) -> list[int]:
    """Return the different distances between NUMA nodes, ascending."""
    ids = machine.numa_ids
    return sorted({machine.distance(a, b) for a in ids for b in ids if a != b})


def _with_sockets(machine: CpuTopology, sockets: Sockets) -> CpuTopology:
    cpus = tuple(replace(cpu, socket=sockets[cpu.numa]) for cpu in machine.cpus)
    return CpuTopology(cpus=cpus, numa_ids=machine.numa_ids, distances=machine.distances)


def sharing_of(frame: NodeConfig) -> dict[str, SharedDevices]:
    """
    Return the resources with devices near several NUMA nodes: zones count more devices than the Node.

    The result is empty for a kubelet that aligns nothing, where this has no effect.
    """
    if not frame.node.aligns:
        return {}
    found = {}
    for name in frame.devices:
        counts = {zone.numa: zone.allocatable.get(name, 0) for zone in frame.topology.zones}
        total = frame.allocatable.get(name, 0)
        # A zone with more devices than the Node would count a device twice.
        if sum(counts.values()) > total >= max(counts.values()):
            found[name] = SharedDevices({numa: count for numa, count in counts.items() if count}, total)
    return found


def counts_in_full(topology: NodeResourceTopology) -> bool | None:
    """Return whether a device in use is counted on every NUMA node near it, or ``None`` if not known (``most_used``)."""
    # Only resource-topology-exporter publishes its fingerprint method. Other exporters may count either way.
    return True if topology.fingerprint_method else None


def starts(frame: NodeConfig) -> list[Hypothesis]:
    """Return the possible states of a kubelet before the first pod, the most likely first."""
    sharing = sharing_of(frame)
    return [
        Hypothesis(KubeletState.empty(node), options=options, sharing=sharing)
        for node, options in config_variants(frame)
    ]


def _pools(frame: NodeConfig) -> dict[str, DevicePool]:
    return {name: device_pool(name, frame) for name in frame.devices}


def device_pool(name: str, frame: NodeConfig) -> DevicePool:
    """
    Return the pool of one resource.

    The Node's allocatable counts every device once, and zones count a device on every NUMA node near it. Where zones
    count more, the masks are one possible assignment with these counts. Counts that no assignment can have are ignored.
    """
    counts = {zone.numa: zone.allocatable.get(name, 0) for zone in frame.topology.zones}
    there = frame.allocatable.get(name, 0)
    listed = sum(counts.values())
    # Zones that count no more devices than the Node object have no shared devices.
    if listed <= there or not there:
        near = [1 << numa for numa, count in counts.items() for _ in range(count)]
        near += [0] * max(0, there - listed)
        return DevicePool(tuple(PluginDevice(f"{name}-{place}", mask) for place, mask in enumerate(near)))
    return assumed_pool(name, tuple(deal(counts, there)))


POD_LEVEL = "(pod)"
"""Container name for the resources that a pod holds as a whole (PodLevelResourceManagers)."""


def exact_node(config: NodeConfig, checkpoint: KubeletCheckpoint) -> KubeletNode:
    """
    Return the node with the CPUs, devices and manager settings of the running kubelet.

    The checkpoint takes precedence over the topology.
    """
    known: tuple[KubeletCheckpoint, KubeletNode] | None = config.derived.get("exact node")
    if known is not None and _describes_the_same(known[0], checkpoint):
        return known[1]
    published = config.topology.kubelet
    machine = CpuTopology(
        cpus=tuple(Cpu(row.cpu, row.core, row.numa, row.socket, row.l3) for row in checkpoint.cpus),
        numa_ids=tuple(zone.numa for zone in config.topology.zones),
        distances=config.topology.distances,
    )
    policy, memory_policy = checkpoint.cpu_policy, checkpoint.memory_policy
    node = replace(
        config.node,
        machine=machine,
        config=replace(
            config.node.config,
            cpu_policy=config.node.config.cpu_policy if policy is None else policy,
            cpu_options=published.cpu_options if checkpoint.cpu_options is None else checkpoint.cpu_options,
            memory_policy=config.node.config.memory_policy if memory_policy is None else memory_policy,
            reserved_cpus=CpuSet(checkpoint.reserved_cpus),
        ),
        memory=_memory(config, checkpoint),
        devices={
            name: DevicePool(tuple(PluginDevice(device, mask) for device, mask in sorted(ids.items(), key=_natural)))
            for name, ids in sorted(checkpoint.device_numa.items())
        },
        ids_are_real=True,
        packs=False,
        takes_whole_cores=False,
        is_published=True,
        whole_cores=None,
    )
    config.derived["exact node"] = checkpoint, node
    return node


def _natural(item: tuple[str, int]) -> tuple[int, str]:
    # The order in which device plugins prefer devices is not published. Numbered IDs are sorted by number.
    digits = "".join(letter for letter in item[0] if letter.isdigit())
    return (int(digits[:18]) if digits else 0, item[0])


def _describes_the_same(first: KubeletCheckpoint, second: KubeletCheckpoint) -> bool:
    """Return whether two checkpoints differ at most in the allocations of pods."""
    return (
        (first.cpus, first.reserved_cpus, first.cpu_policy, first.memory_policy, first.cpu_options)
        == (second.cpus, second.reserved_cpus, second.cpu_policy, second.memory_policy, second.cpu_options)
        and first.device_numa == second.device_numa
        and {numa: _allocatable(first, numa) for numa in first.memory}
        == {numa: _allocatable(second, numa) for numa in second.memory}
    )


def _allocatable(checkpoint: KubeletCheckpoint, numa: int) -> dict[str, int]:
    return {name: amounts.allocatable for name, amounts in checkpoint.memory[numa].amounts.items()}


def _memory(config: NodeConfig, checkpoint: KubeletCheckpoint) -> Mapping[int, Mapping[str, int]]:
    if checkpoint.memory_policy != STATIC_MEMORY:
        return {} if checkpoint.memory_policy is not None else config.node.memory
    return {numa: _allocatable(checkpoint, numa) for numa in sorted(checkpoint.memory)}


def exact_hypothesis(
    config: NodeConfig, checkpoint: KubeletCheckpoint, requests: Mapping[str, PodRequest]
) -> Hypothesis:
    """
    Return the state of the kubelet when the checkpoint was read.

    ``requests`` are the requests of known pods by uid. The CPUs, memory and devices of pods without a known request are
    held anonymously and stay held until the next checkpoint.
    """
    node = exact_node(config, checkpoint)
    empty = KubeletState.empty(node)
    managers = empty.managers.copy()
    state = KubeletState(node, managers)
    for uid in sorted(checkpoint.active | checkpoint.pods.keys()):
        held = dict(checkpoint.pods.get(uid, {}))
        if uid in checkpoint.pod_level:
            held[POD_LEVEL] = checkpoint.pod_level[uid]
        request = requests.get(uid)
        kinds = {} if request is None else {container.name: container.kind for container in request.containers}
        order = {name: at for at, name in enumerate(kinds)}
        grants = tuple(
            _grant(name, kinds.get(name, APP), held[name], node)
            for name in sorted(held, key=lambda name: (order.get(name, len(order)), name))
        )
        _hold(managers, grants, node)
        if request is not None and (grants or uid in checkpoint.active):
            state = state.with_pod(uid, request, Grant(kube_qos(request), grants), managers)
    return Hypothesis(replace(state, managers=managers))


def _grant(name: str, kind: ContainerKind, held: ContainerState, node: KubeletNode) -> ContainerGrant:
    return ContainerGrant(
        name=name,
        kind=kind,
        cpus=CpuSet(held.cpus if node.config.cpu_policy == STATIC_CPUS else 0),
        memory=tuple(
            MemoryBlock(block.resource, block.size, block.numa_mask)
            for block in held.memory
            if node.pins_memory and is_memory(block.resource)
        ),
        devices={
            resource: known
            for resource, ids in held.devices.items()
            if resource in node.devices
            and (known := tuple(device for device in ids if device in node.devices[resource].places))
        },
    )


def _hold(managers: ManagerState, grants: Iterable[ContainerGrant], node: KubeletNode) -> None:
    for grant in grants:
        managers.cpus &= ~grant.cpus.bits
        for resource, ids in grant.devices.items():
            for device in ids:
                managers.devices[resource] |= 1 << node.devices[resource].places[device]
        if managers.memory is not None:
            for block in grant.memory:
                managers.memory.take(block, covered=0)
