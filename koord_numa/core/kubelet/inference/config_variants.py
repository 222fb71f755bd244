"""
What one kubelet's node may be like in so far as it is not published: sockets, options, and which devices are near two NUMA nodes.

Every variant is a node of its own; hypotheses start on each, and those that a pod's fate or a topology contradicts are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.kubelet.inference.node_config import NodeConfig
from koord_numa.core.kubelet.managers.kubelet_node import CLOSEST_NUMA, Device, DevicePool, KubeletNode
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy

ALIGN_BY_SOCKET: Final = "align-by-socket"
MOST_VARIANTS: Final = 8

Variant = tuple[KubeletNode, tuple[str, ...]]
"""A node, and the options that are assumed on it although they are unlikely (alpha, off by default) and not published."""

Sockets = Mapping[int, int]
"""Socket of every NUMA node."""


def config_variants(frame: NodeConfig) -> list[Variant]:
    """The nodes that agree with the objects, the likeliest first; at most ``MOST_VARIANTS``."""
    found: list[Variant] = []
    published = frame.topology.kubelet
    for pools in _pools(frame):
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
    partitions: list[Sockets] = list(socket_partitions(machine))
    if known:
        return [(sockets, ()) for sockets in partitions] or [(None, ())]
    return [
        (None, ()),
        # One NUMA node a socket aligns as NUMA nodes do: not a variant.
        *((sockets, (ALIGN_BY_SOCKET,)) for sockets in partitions if len(set(sockets.values())) < len(sockets)),
    ]


def socket_partitions(machine: CpuTopology) -> Iterator[Sockets]:
    """
    Ways to put NUMA nodes into sockets of equal size: NUMA nodes within some distance of one another, and each on its own.

    Distances inside a socket are smaller than between sockets.
    """
    seen: set[tuple[int, ...]] = set()
    # Threshold 0 puts every NUMA node into a socket of its own.
    for threshold in (*_thresholds(machine), 0):
        socket_of: dict[int, int] = {}
        for numa in machine.numa_ids:
            near = [other for other in machine.numa_ids if other == numa or machine.distance(numa, other) <= threshold]
            socket_of[numa] = min(near)
        # Sockets of one machine are of equal size; anything else is no partition into sockets.
        sizes = {list(socket_of.values()).count(socket) for socket in socket_of.values()}
        key = tuple(socket_of.values())
        if len(sizes) == 1 and key not in seen:
            seen.add(key)
            yield socket_of


def _thresholds(machine: CpuTopology) -> list[int]:
    """The different distances between NUMA nodes, ascending."""
    ids = machine.numa_ids
    return sorted({machine.distance(a, b) for a in ids for b in ids if a != b})


def _with_sockets(machine: CpuTopology, sockets: Sockets) -> CpuTopology:
    cpus = tuple(replace(cpu, socket=sockets[cpu.numa]) for cpu in machine.cpus)
    return CpuTopology(cpus=cpus, numa_ids=machine.numa_ids, distances=machine.distances)


def _pools(frame: NodeConfig) -> list[dict[str, DevicePool]]:
    """Device pools that have as many devices near each NUMA node as its zone counts."""
    ways = [[(name, pool) for pool in device_pools(name, frame)] for name in frame.devices]
    # The product over resources grows fast; four ways keep the hypotheses few, as each of them is replayed.
    return [dict(chosen) for chosen in product(*ways)][:4]


def device_pools(name: str, frame: NodeConfig) -> list[DevicePool]:
    """
    The pools that one resource may have. ``Node`` allocatable counts every device once, zones count it on each NUMA node near it.

    What zones count too often is shared by neighbours: in pairs, in a ring, or by all.
    """
    counts = [(zone.numa, zone.allocatable.get(name, 0)) for zone in frame.topology.zones]
    there = frame.allocatable.get(name, 0)
    listed = sum(count for _, count in counts)
    # Zones that count no more than the Node object share no device.
    if listed <= there or not there:
        near = [1 << numa for numa, count in counts for _ in range(count)]
        return [_pool(name, [*near, *([0] * max(0, there - listed))])]
    # In the order in which machines are wired most often; equal pools are kept once.
    ways = [_paired(counts, listed - there), _ring(counts, listed - there), nested(counts, there)]
    found: list[list[int]] = []
    for way in ways:
        if way is not None and sorted(way) not in found:
            found.append(sorted(way))
    return [_pool(name, way) for way in found]


def _pool(name: str, near: Sequence[int]) -> DevicePool:
    return DevicePool(tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near)))


def _paired(counts: Sequence[tuple[int, int]], shared: int) -> list[int] | None:
    """Neighbours 0 and 1, 2 and 3 share devices, as many as they can."""
    left = dict(counts)
    near = []
    for (numa, _), (other, _) in zip(counts[::2], counts[1::2], strict=False):
        both = min(left[numa], left[other], shared)
        near += [1 << numa | 1 << other] * both
        left[numa] -= both
        left[other] -= both
        shared -= both
    # What is left over does not come in pairs: this way does not explain the counts.
    return None if shared else [*near, *(1 << numa for numa, count in left.items() for _ in range(count))]


def _ring(counts: Sequence[tuple[int, int]], shared: int) -> list[int] | None:
    """Every NUMA node shares one device after the other with the next one."""
    left = dict(counts)
    near: list[int] = []
    progress = True
    while shared and progress:
        progress = False
        for place, (numa, _) in enumerate(counts):
            other = counts[(place + 1) % len(counts)][0]
            if shared and other != numa and left[numa] and left[other]:
                near.append(1 << numa | 1 << other)
                left[numa] -= 1
                left[other] -= 1
                shared -= 1
                progress = True
    return None if shared else [*near, *(1 << numa for numa, count in left.items() for _ in range(count))]


def nested(counts: Sequence[tuple[int, int]], there: int) -> list[int]:
    """As many NUMA nodes as possible share each device; the rest of what the Node counts is near none."""
    most = max((count for _, count in counts), default=0)
    near = [sum(1 << numa for numa, count in counts if count > place) for place in range(most)]
    return [*near, *([0] * max(0, there - len(near)))]
