"""
A kubelet's state surmised from what is published: one that has the published amounts free on every NUMA node.

CPU and device ids are made up; only how many there are on each NUMA node is known, and only that matters to the hints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from koord_numa.core.amounts import CPU, MILLI, Amounts, total, without_zeros
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.aggregates import PodDemand, is_memory
from koord_numa.core.kubelet.groups import UNCLEAR, Block, explain_use
from koord_numa.core.kubelet.machine import STATIC_CPUS, STATIC_MEMORY, Device, DevicePool, KubeletNode
from koord_numa.core.kubelet.memory import MemoryBooks
from koord_numa.core.kubelet.state import Books, KubeletState
from koord_numa.core.machine import MAX_NUMA, Cpu, Machine
from koord_numa.core.node import KubeletConfig, Zone
from koord_numa.core.vocabulary import ContainerKind, KubeletPolicy, KubeletScope

_TIED_UP: Final = 1 << MAX_NUMA
"""A member of a group that no mask can equal."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is known of a node from the outside. ``pods`` are all pods known to be there; ``zones`` ascend by NUMA id."""

    config: KubeletConfig
    zones: Sequence[Zone]
    distances: Mapping[tuple[int, int], int]
    allocatable: Amounts
    requested: Amounts
    pods: Sequence[PodDemand] = ()


@dataclass(frozen=True, slots=True)
class Surmise:
    """A state that fits the facts. ``groups_known``: do the known pods explain where memory is in use?"""

    state: KubeletState
    groups_known: bool


def surmise(facts: Published) -> Surmise:
    """
    A state of the kubelet that explains everything published.

    A manager whose resources no zone lists is taken to be off, as exporters list exactly what is managed. Where the known pods do
    not explain the memory in use, its NUMA nodes are taken to be tied up.
    """
    kinds = sorted({kind for zone in facts.zones for kind in zone.allocatable if is_memory(kind)})
    pools = {name: _pool(name, facts) for name in _device_names(facts.zones)}
    static = any(zone.allocatable.get(CPU) for zone in facts.zones)
    machine = _machine(
        tuple((zone.numa, zone.capacity.get(CPU, 0) // MILLI) for zone in facts.zones),
        tuple(sorted(facts.distances.items())),
    )
    node = KubeletNode(
        machine=machine,
        config=replace(
            facts.config,
            cpu_policy=facts.config.cpu_policy or (STATIC_CPUS if static else "none"),
            memory_policy=STATIC_MEMORY if kinds else "None",
            reserved_cpus=CpuSet(machine.bits & ~_first_cpus(machine, {z.numa: z.allocatable for z in facts.zones})),
        ),
        allocatable=facts.allocatable,
        memory={zone.numa: {kind: zone.allocatable.get(kind, 0) for kind in kinds} for zone in facts.zones}
        if kinds
        else {},
        devices={name: pool for name, (pool, _) in pools.items()},
        ids_are_real=False,
    )
    memory, known = _memory(facts, node) if kinds else (None, True)
    books = Books(
        cpus=_first_cpus(machine, {zone.numa: zone.available for zone in facts.zones}) if node.pins_cpus else 0,
        devices={name: taken for name, (_, taken) in pools.items()},
        memory=memory,
    )
    return Surmise(KubeletState(node=node, books=books, requested=facts.requested), known)


@lru_cache(maxsize=1024)
def _machine(counts: tuple[tuple[int, int], ...], distances: tuple[tuple[tuple[int, int], int], ...]) -> Machine:
    cpus: list[Cpu] = []
    for numa, count in counts:
        first = len(cpus)
        cpus += (Cpu(id=first + i, core=first + i, numa=numa, socket=numa, uncore=numa) for i in range(count))
    return Machine(cpus=tuple(cpus), numa_ids=tuple(numa for numa, _ in counts), distances=dict(distances))


def _first_cpus(machine: Machine, amounts: Mapping[int, Amounts]) -> int:
    """Bits of the first CPUs of every NUMA node, as many as its amount says."""
    chosen = 0
    for numa, amount in amounts.items():
        bits = machine.numa_bits[numa]
        count = min(max(0, amount.get(CPU, 0) // MILLI), bits.bit_count())
        chosen |= ((1 << count) - 1) * (bits & -bits)
    return chosen


def _device_names(zones: Sequence[Zone]) -> list[str]:
    return sorted({name for zone in zones for name in zone.allocatable if name != CPU and not is_memory(name)})


def _pool(name: str, facts: Published) -> tuple[DevicePool, int]:
    """The devices of one resource, and the bits of those in use."""
    rows = [(zone.numa, zone.allocatable.get(name, 0), max(0, zone.available.get(name, 0))) for zone in facts.zones]
    there = facts.allocatable.get(name, 0)
    listed = sum(count for _, count, _ in rows)
    free: list[int] = []
    used: list[int] = []
    if listed > there > 0:
        # Devices near several NUMA nodes are counted on each. Sharing as much as possible promises the least.
        free = _nested([(numa, available) for numa, _, available in rows])
        used = _nested([(numa, count - available) for numa, count, available in rows])
    else:
        for numa, count, available in rows:
            free += [1 << numa] * available
            used += [1 << numa] * (count - available)
        # The rest of what the Node object counts is near no NUMA node.
        without = max(0, there - listed)
        left = there - facts.requested.get(name, 0) - len(free)
        free += [0] * min(max(0, left), without)
        used += [0] * (without - min(max(0, left), without))
    devices = tuple(Device(f"{name}-{place}", near) for place, near in enumerate([*free, *used]))
    return DevicePool(devices), ((1 << len(used)) - 1) << len(free)


def _nested(counts: Sequence[tuple[int, int]]) -> list[int]:
    most = max((count for _, count in counts), default=0)
    return [sum(1 << numa for numa, count in counts if count > place) for place in range(most)]


def _memory(facts: Published, node: KubeletNode) -> tuple[MemoryBooks, bool]:
    books = MemoryBooks.of(node.memory)
    used: dict[int, dict[str, int]] = {}
    for zone in facts.zones:
        free = books.free[zone.numa]
        for kind in free:
            free[kind] = min(max(0, zone.available.get(kind, 0)), free[kind])
            books.held[zone.numa][kind] = node.memory[zone.numa][kind] - free[kind]
        used[zone.numa] = without_zeros(books.held[zone.numa])
    blocks = [block for pod in facts.pods for block in _blocks(pod, facts.config, node.memory)]
    groups: Mapping[int, int] | None = books.groups
    if any(_is_torn(pod, facts) for pod in facts.pods):
        groups = None
    elif any(block.may_span for block in blocks):
        groups = explain_use(used, blocks)
    for numa in books.supply:
        group = UNCLEAR if groups is None and used[numa] else books.groups[numa] if groups is None else groups[numa]
        books.groups[numa] = (1 << numa) | _TIED_UP if group == UNCLEAR else group
        books.blocks[numa] = int(bool(used[numa]) or books.groups[numa].bit_count() > 1)
    return books, groups is not None


def _is_torn(pod: PodDemand, facts: Published) -> bool:
    """
    Did CPUs or devices need several NUMA nodes for a pod under best-effort? Then its memory belongs to a group, too, of which
    nothing can be seen: the bytes may all have come from one of its NUMA nodes.
    """
    if facts.config.topology_policy is not KubeletPolicy.BEST_EFFORT or not pod.pod.memory:
        return False
    units = [pod.pod] if facts.config.topology_scope is KubeletScope.POD else [demand for _, demand in pod.containers]
    return any(
        unit.cpus * MILLI > max((zone.capacity.get(CPU, 0) for zone in facts.zones), default=0)
        or any(
            count > max((zone.allocatable.get(name, 0) for zone in facts.zones), default=0)
            for name, count in unit.devices.items()
            if any(zone.allocatable.get(name) for zone in facts.zones)
        )
        for unit in units
    )


def _blocks(pod: PodDemand, config: KubeletConfig, supply: Mapping[int, Amounts]) -> list[Block]:
    """The memory blocks that a pod's lasting containers hold, as far as requests tell; together where they share one mask."""
    lasting = [
        amounts
        for container, demand in pod.containers
        if container.kind is not ContainerKind.INIT and (amounts := without_zeros(demand.memory or {}))
    ]
    if config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return [Block(amounts, may_span=False, must_span=False) for amounts in lasting]
    if config.topology_policy is not KubeletPolicy.RESTRICTED:
        return [Block(amounts, may_span=True, must_span=not _fits_one(amounts, supply)) for amounts in lasting]
    # Restricted accepts the narrowest set only: more than one NUMA node exactly when one could never do.
    if config.topology_scope is KubeletScope.POD and lasting:
        spans = not _fits_one(pod.pod.memory or {}, supply)
        return [Block(total(lasting), may_span=spans, must_span=spans)]
    return [
        Block(amounts, may_span=spans, must_span=spans)
        for amounts in lasting
        for spans in [not _fits_one(amounts, supply)]
    ]


def _fits_one(amounts: Amounts, supply: Mapping[int, Amounts]) -> bool:
    return any(all(zone.get(kind, 0) >= amount for kind, amount in amounts.items()) for zone in supply.values())
