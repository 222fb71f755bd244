"""
What one kubelet's node may be like in so far as it is not published: sockets and options.

Every variant is a node of its own; hypotheses start on each, and those that a pod's fate or a topology contradicts are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.node_config import NodeConfig
from koord_numa.core.kubelet.inference.shared_devices import SharedPool, assumed_pool, deal
from koord_numa.core.kubelet.options import CLOSEST_NUMA
from koord_numa.core.kubelet.state import Device, DevicePool, KubeletNode, KubeletState
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace

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
