"""
A kubelet's state inferred from what is published: one that has the published amounts free on every NUMA node.

CPU and device ids are made up; only how many there are on each NUMA node is known, and only that matters to the hints.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.inference.config_variants import config_variants, counts_in_full, sharing_of
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.init_reuse import with_loose_cpus
from koord_numa.core.kubelet.inference.memory_groups import UNCLEAR, Block, bound_memory, explain_use, groupings
from koord_numa.core.kubelet.inference.node_config import NodeConfig, first_cpus
from koord_numa.core.kubelet.inference.shared_devices import most_used
from koord_numa.core.kubelet.state import Device, DevicePool, KubeletNode, KubeletState, ManagerState, MemoryTable
from koord_numa.core.numa.hints import mask_of_ids
from koord_numa.core.objects.node import KubeletConfig, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList, total, without_zeros
from koord_numa.core.value_objects import ValueObject, replace

MOST_STARTS: Final = 32
"""In so many states may a used node be begun with."""

MOST_ELSEWHERE: Final = 16_384
"""So many devices near no NUMA node are told apart at most; a Node object may count any number."""

_ALONE: Final[Mapping[int, int]] = {}
"""No NUMA node is in a group with others."""

_TIED_UP: Final = 1 << MAX_NUMA_ID + 1
"""A member of a group that no mask can equal."""


class Published(ValueObject):
    """
    What is known of a node from the outside. ``pods`` are all pods known to be there, ``hidden`` those of them that are missing from
    ``zones`` as well as published ones; ``zones`` ascend by NUMA id.
    """

    frame: NodeConfig
    zones: Sequence[Zone]
    requested: ResourceList
    pods: Sequence[PodDemand] = ()
    hidden: Sequence[PodDemand] = ()

    @property
    def config(self) -> KubeletConfig:
        """The kubelet's settings."""
        return self.frame.node.config


class InferredState(ValueObject):
    """A state that fits the facts. ``groups_known``: do the known pods explain where memory is in use?"""

    state: KubeletState
    groups_known: bool


def infer_state(facts: Published) -> InferredState:
    """
    A state of the kubelet that explains everything published.

    Where the known pods do not explain the memory in use, its NUMA nodes are taken to be tied up.
    """
    node = facts.frame.node
    pools = {name: _pool(name, facts) for name in facts.frame.devices} if facts.frame.devices else {}
    if pools:
        node = replace(node, devices={name: pool for name, (pool, _) in pools.items()})
    memory, known = _memory(facts, node) if node.pins_memory else (None, True)
    managers = ManagerState(
        cpus=first_cpus(node.machine, [(zone.numa, zone.available) for zone in facts.zones]) if node.pins_cpus else 0,
        devices={name: taken for name, (_, taken) in pools.items()},
        # A published topology names the static policy's free CPUs only; with another policy there is no such pool.
        memory=memory,
    )
    return InferredState(KubeletState(node=node, managers=managers, requested=facts.requested), known)


def used_starts(
    frame: NodeConfig, shown: Mapping[str, PodRequest], others: Mapping[str, PodRequest]
) -> list[Hypothesis]:
    """
    Every state that a kubelet may be in while its topology shows just these pods; none where that is too open to tell.

    ``others`` are pods that hold something that no topology shows: CPUs of their init containers. Where each pod is stays open
    (``unlocated``): what they hold together on every NUMA node is what the zones show in use.
    """
    found: list[Hypothesis] = []
    demands = [pod_demand(request) for request in shown.values()]
    due = total(demand.lasting for demand in demands)
    if any(name != CPU and name in frame.devices for demand in demands for name in demand.leftovers) or any(
        name in frame.devices for request in others.values() for name in pod_demand(request).pod.devices
    ):
        return []  # which device a finished init container still has is not shown
    for node, options in config_variants(frame):
        managers = _managers_in_use(frame, node, due)
        tables = _tables(frame, node, demands)
        if managers is None or tables is None:
            return []
        for memory in tables:
            state = KubeletState(node, ManagerState(managers.cpus, managers.devices, memory))
            start = Hypothesis(state, unlocated={**shown, **others}, options=options, sharing=sharing_of(frame))
            found.append(with_loose_cpus(start))
    return found if len(found) <= MOST_STARTS else []


def _managers_in_use(frame: NodeConfig, node: KubeletNode, due: ResourceList) -> ManagerState | None:
    """CPUs and devices as the zones show them; ``None`` where they do not add up to what the pods hold."""
    zones = frame.topology.zones
    cpus = first_cpus(node.machine, [(zone.numa, zone.available) for zone in zones]) if node.pins_cpus else 0
    if node.pins_cpus and (node.machine.bits & ~node.reserved & ~cpus).bit_count() * MILLI != due.get(CPU, 0):
        return None
    devices: dict[str, int] = {}
    for name, pool in node.devices.items():
        if pool.assumed:
            # How many are in use follows from the pods alone.
            count = due.get(name, 0)
            if count > len(pool.devices) or (count and node.aligns and name not in sharing_of(frame)):
                return None
            devices[name] = (1 << count) - 1
            continue
        taken = 0
        for zone in zones:
            count = zone.allocatable.get(name, 0) - max(0, zone.available.get(name, 0))
            taken |= lowest(pool.on.get(zone.numa, 0), count)
        elsewhere = sum(1 << at for at, device in enumerate(pool.devices) if not device.near)
        missing = due.get(name, 0) - taken.bit_count()
        if not 0 <= missing <= elsewhere.bit_count():
            return None
        devices[name] = taken | lowest(elsewhere, missing)
    return ManagerState(cpus, devices, None)


def _tables(frame: NodeConfig, node: KubeletNode, pods: Sequence[PodDemand]) -> Sequence[MemoryTable | None] | None:
    """The memory tables that explain the use; ``None`` where none does, or too many."""
    if not node.pins_memory:
        return [None]
    used: dict[int, ResourceList] = {}
    for zone in frame.topology.zones:
        has = node.memory[zone.numa]
        used[zone.numa] = {
            kind: amount - min(max(0, zone.available.get(kind, 0)), amount) for kind, amount in has.items()
        }
    blocks = [block for pod in pods for block in _blocks(pod, node.config, node.memory)]
    # Exporters that name their method count in full; without a name it is either way.
    ways = [True] if frame.topology.fingerprint_method else [True, False]
    found: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], MemoryTable] = {}
    for in_full in ways:
        groupings_ = groupings(used, node.memory, blocks, in_full=in_full)
        if groupings_ is None:
            return None
        for each in groupings_:
            table = bound_memory(node.memory, each)
            key = tuple(table.groups.values()), tuple(tuple(kinds.values()) for kinds in table.held.values())
            found[key] = table
    return list(found.values()) or None


def _pool(name: str, facts: Published) -> tuple[DevicePool, int]:
    """The devices of one resource, and the bits of those in use."""
    # An exporter may publish less than nothing for a moment, while a pod is replaced.
    rows = [(zone.numa, zone.allocatable.get(name, 0), max(0, zone.available.get(name, 0))) for zone in facts.zones]
    there = facts.frame.allocatable.get(name, 0)
    listed = sum(count for _, count, _ in rows)
    free: list[int] = []
    used: list[int] = []
    if listed > there > 0:
        # Devices near several NUMA nodes are counted on each. Sharing as much as possible promises the least.
        topology = facts.frame.topology
        used_near = most_used(name, topology.zones, there, in_full=counts_in_full(topology))
        missing = sum(pod.pod.devices.get(name, 0) for pod in facts.hidden)
        rows = [(numa, count, max(0, count - used_near.get(numa, 0) - missing)) for numa, count, _ in rows]
        free = _nested([(numa, available) for numa, _, available in rows])
        # The rest in use is shared as much as possible too, so that both sum up to the zones' counts.
        used = _nested([(numa, count - available) for numa, count, available in rows])
    else:
        for numa, count, available in rows:
            free += [1 << numa] * available
            used += [1 << numa] * (count - available)
        # The rest of what the Node object counts is near no NUMA node.
        without = min(max(0, there - listed), MOST_ELSEWHERE)
        left = there - facts.requested.get(name, 0) - len(free)
        free += [0] * min(max(0, left), without)
        used += [0] * (without - min(max(0, left), without))
    devices = tuple(Device(f"{name}-{place}", near) for place, near in enumerate([*free, *used]))
    # Free devices come first in the pool, so that the bits of those in use are the upper ones.
    return DevicePool(devices), ((1 << len(used)) - 1) << len(free)


def _nested(counts: Sequence[tuple[int, int]]) -> list[int]:
    most = max((count for _, count in counts), default=0)
    return [sum(1 << numa for numa, count in counts if count > place) for place in range(most)]


def _memory(facts: Published, node: KubeletNode) -> tuple[MemoryTable, bool]:
    free: dict[int, dict[str, int]] = {}
    held: dict[int, dict[str, int]] = {}
    for zone in facts.zones:
        available, left, used = zone.available, free.setdefault(zone.numa, {}), held.setdefault(zone.numa, {})
        for kind, amount in node.memory[zone.numa].items():
            there = available.get(kind, 0)
            # Free memory is never more than what the manager has: exporters may publish the machine's.
            left[kind] = there = amount if there > amount else max(0, there)
            used[kind] = amount - there
    # The number of blocks is not known, only whether there are any: the memory manager frees a group when it reaches zero.
    blocks = {numa: int(any(used.values())) for numa, used in held.items()}
    groups, alone = _groups(facts, node, held), {numa: 1 << numa for numa in held}
    table = MemoryTable(node.memory, free, held, alone, blocks, mask_of_ids(tuple(held)))
    if groups is _ALONE:
        return table, True
    for numa, is_used in blocks.items():
        own = 1 << numa
        # A NUMA node in use that no explanation covers may be in any group; an unused one is in none.
        group = groups[numa] if groups is not None else UNCLEAR if is_used else own
        table.groups[numa] = group = own | _TIED_UP if group == UNCLEAR else group
        blocks[numa] = int(is_used or group.bit_count() > 1)
    return table, groups is not None


def _groups(facts: Published, node: KubeletNode, held: Mapping[int, ResourceList]) -> Mapping[int, int] | None:
    """By NUMA node the mask of its memory group, ``_ALONE`` if each is in none; ``None`` where the pods do not explain what is held."""
    policy = facts.config.topology_policy
    # Under single-numa-node no block spans NUMA nodes, so every group is a single one.
    if policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return _ALONE
    # Best-effort may have put a block on more NUMA nodes than its bytes need, which leaves no trace in amounts.
    if policy is KubeletPolicy.BEST_EFFORT and any(_is_torn(pod, facts) for pod in facts.pods):
        return None
    blocks = [block for pod in facts.pods for block in _blocks(pod, facts.config, node.memory)]
    if not any(block.may_span for block in blocks):
        return _ALONE
    return explain_use({numa: without_zeros(amounts) for numa, amounts in held.items()}, blocks)


def _is_torn(pod: PodDemand, facts: Published) -> bool:
    """
    Did CPUs or devices need several NUMA nodes for a pod under best-effort? Then its memory belongs to a group, too, of which
    nothing can be seen: the bytes may all have come from one of its NUMA nodes.
    """
    if not pod.pod.memory:
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


def _blocks(pod: PodDemand, config: KubeletConfig, supply: Mapping[int, ResourceList]) -> list[Block]:
    """The memory blocks that a pod's lasting containers hold, as far as requests tell; together where they share one mask."""
    # Regular init containers have ended, and the memory manager gives their blocks to later containers.
    lasting = [
        amounts
        for container, demand in pod.containers
        if container.kind is not ContainerKind.INIT and (amounts := without_zeros(demand.memory or {}))
    ]
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


def _fits_one(amounts: ResourceList, supply: Mapping[int, ResourceList]) -> bool:
    return any(all(zone.get(kind, 0) >= amount for kind, amount in amounts.items()) for zone in supply.values())
