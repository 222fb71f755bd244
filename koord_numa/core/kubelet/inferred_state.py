"""
The state of a kubelet from published amounts alone, for nodes whose pods cannot be followed from the first pod on.

``infer_state`` returns one conservative state that explains the zones, ``used_starts`` all states of a node whose
topology is explained by a known set of pods. Use that a topology does not show yet (hidden pods) or that its exporter
overlooks is charged wherever it may be: a hidden pod to its predicted NUMA node and to lower ones, overlooked use to
every NUMA node where whole containers fit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpus.kubelet_options import CLOSEST_NUMA, ORDER_OPTIONS
from koord_numa.core.cpuset import lowest, members
from koord_numa.core.explain import needs_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, is_memory, pod_demand
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis, held_by_init, most_used, pins_init_cpus
from koord_numa.core.kubelet.node_config import NodeConfig, config_variants, counts_in_full, first_cpus, sharing_of
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, ManagerState, MemoryTable, PluginDevice
from koord_numa.core.numa import mask_of_ids, masks_of_size, numa_ids
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import INIT, ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, NOTHING, ResourceList, add, subtract, total, without_zeros
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field


def without_leftovers(
    zones: Sequence[Zone], pods: Sequence[PodDemand], parted: ResourceList = NOTHING
) -> tuple[Zone, ...]:
    """
    Return the zones with less available: without the excess of init containers that later containers did not take over,
    and ``parted``.

    The NUMA node of these amounts is not published, so they are subtracted on every NUMA node. An exporter that counts
    them shows more in use than running containers request; this excess is not subtracted again.
    """
    left = dict(total([parted, *(pod.leftovers for pod in pods)]))
    if not left:
        return tuple(zones)
    running = {name: sum(pod.lasting.get(name, 0) for pod in pods) for name in left}
    missing: dict[str, int] = {}
    for name, amount in left.items():
        in_use = sum(zone.allocatable.get(name, 0) - zone.available.get(name, 0) for zone in zones)
        # Use beyond the requests of running containers is counted by the exporter already.
        hidden = amount - max(0, in_use - running[name])
        if hidden > 0:
            missing[name] = hidden
    if not missing:
        return tuple(zones)
    return tuple(
        replace(zone, available={name: amount - missing.get(name, 0) for name, amount in zone.available.items()})
        for zone in zones
    )


def parted_cpus(pods: Iterable[PodDemand], node: KubeletNode, devices: Collection[str]) -> dict[str, int]:
    """
    Return the CPUs (milli) that init containers may hold although later containers request as many, because these got other NUMA nodes.

    ``devices`` are the names of the resources that the kubelet aligns.

    Example: ``init 2, app 6`` on NUMA nodes of 5 and 6 CPUs, where the app's devices are near both. The init container gets the first NUMA
    node and the app the second. 8 CPUs are held, and the topology shows 6.
    """
    found = 0
    for demand in pods:
        if node.pins_cpus and may_be_parted(demand, node, devices):
            inits = sum(part.cpus for container, part in demand.containers if _is_init(container))
            found += max(0, inits * MILLI - demand.leftovers.get(CPU, 0))
    return {CPU: found} if found else {}


def with_loose_cpus(start: Hypothesis) -> Hypothesis:
    """
    Return the hypothesis with the CPUs that finished init containers may still hold, on every NUMA node where they may
    be.

    No topology shows these CPUs. Under strict policies they are beside other CPUs of their pod, and those are in use
    there: on the same NUMA node or, with align-by-socket, in the same socket.
    """
    state, node = start.state, start.state.node
    left = [(_most_left(request, node), _beside(request, node)) for request in start.unlocated.values()]
    held = 0
    policy, total_left = node.config.topology_policy, sum(most for most, _ in left)
    if policy is KubeletPolicy.NONE or (policy is KubeletPolicy.BEST_EFFORT and not node.pins_memory):
        # Only the number of free CPUs of the machine matters there.
        held = lowest(state.managers.cpus, min(total_left, state.managers.cpus.bit_count()))
    else:
        for here in node.machine.numa_bits.values() if total_left else ():
            near = _offered_with(here, node) & ~node.reserved
            used, free = (near & ~state.managers.cpus).bit_count(), state.managers.cpus & here
            held |= lowest(free, min(_at_most(left, used), free.bit_count()))
    if not held:
        return start
    managers = ManagerState(state.managers.cpus & ~held, state.managers.devices, state.managers.memory)
    return replace(start, state=replace(state, managers=managers), loose={SOMEONE: held})


def _offered_with(here: int, node: KubeletNode) -> int:
    """Return the bits of the CPUs that one hint can include beside CPUs of this NUMA node: its socket with ``align-by-socket``."""
    if not node.static_options.align_by_socket:
        return here
    return sum(bits for bits in node.machine.socket_bits.values() if bits & here)


def _beside(request: PodRequest, node: KubeletNode) -> int:
    """
    Return the minimum number of CPUs in use on the NUMA node or in the socket where the pod's init containers hold other CPUs.

    The hints of later containers include the NUMA nodes of these CPUs. Strict policies keep a container on one NUMA node if it fits.
    In pod scope, one hint also has room for the init containers, which may need several NUMA nodes.
    """
    demand = pod_demand(request)
    taking = [
        (container.kind is not ContainerKind.INIT, part.cpus) for container, part in demand.containers if part.cpus
    ]
    lasting = sum(count for lasts, count in taking if lasts)
    if node.config.topology_scope is KubeletScope.POD:
        count, needed = lasting, demand.pod.cpus
    else:
        # The last container had to be beside the CPUs that init containers still hold, unless it is an init container.
        count, needed = next((count if lasts else 0 for lasts, count in reversed(taking)), 0), lasting
    widest = max((bits & ~node.reserved).bit_count() for bits in node.machine.numa_bits.values())
    # A container on several NUMA nodes may have any number of CPUs on each of them.
    return count if node.config.topology_policy in STRICT and needed <= widest else 0


def _at_most(left: Sequence[tuple[int, int]], used: int) -> int:
    """Return the maximum of CPUs left by any of these pods whose CPUs in use sum to at most ``used`` (a knapsack)."""
    best = [0] * (used + 1)
    for most, beside in left:
        if most:
            for room in range(used, beside - 1, -1):
                best[room] = max(best[room], best[room - beside] + most)
    return best[used]


def _most_left(request: PodRequest, node: KubeletNode) -> int:
    """
    Return the maximum number of CPUs that init containers of the pod may hold and no lasting container reuses.

    On an empty NUMA node, later containers reuse the fewest CPUs. Dry runs on an empty node therefore give the bound, with and without
    the containers before the first init container with CPUs. Without a closer bound all their CPUs count: if NUMA nodes differ in size,
    a lasting container is between init containers, or later containers may be on other NUMA nodes.
    """
    if not node.pins_cpus:
        return 0
    demand = pod_demand(request)
    every = sum(part.cpus for container, part in demand.containers if container.kind is ContainerKind.INIT)
    if not every or not pins_init_cpus(demand, node):
        return every  # no later container takes over any of these CPUs
    inits = [at for at, (container, part) in enumerate(demand.containers) if part.cpus and _is_init(container)]
    between = demand.containers[inits[0] : inits[-1]]
    sizes = {bits.bit_count() for bits in node.machine.numa_bits.values() if bits}
    if len(sizes) > 1 or any(part.cpus and not _is_init(container) for container, part in between):
        return every
    if may_be_parted(demand, node, node.devices):
        return every
    unused = KubeletState.empty(node)
    unused = replace(unused, managers=replace(unused.managers, cpus=node.machine.bits))
    alone = replace(request, containers=request.containers[inits[0] :])
    answers = [dry_run(unused, each, Trust.INFERRED, CpuReuse.LEAST) for each in (request, alone)]
    return max(held_by_init(each.grant).bit_count() if isinstance(each, DryRunAdmitted) else every for each in answers)


def _is_init(container: Container) -> bool:
    return container.kind is ContainerKind.INIT


def may_be_parted(demand: PodDemand, node: KubeletNode, devices: Collection[str]) -> bool:
    """
    Return whether a later container may have got other NUMA nodes than the pod's init containers, on a node that is not empty.

    Best-effort admits a container whose memory or devices are not near the CPUs of an init container. Other policies reject it.
    """
    config = node.config
    if config.topology_policy is not KubeletPolicy.BEST_EFFORT or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    return node.pins_memory or any(name in devices for _, part in demand.containers for name in part.devices)


STEPS: Final = 2_000
"""Maximum steps of a search. Attributing blocks to NUMA nodes is a subset sum in the worst case."""

MOST_GROUPINGS: Final = 12
"""Maximum ways to group NUMA nodes that are returned."""

UNCLEAR: Final = 0
"""Mask of a NUMA node that is in one of several possible groups."""


class Block(ValueObject):
    """The memory of one container or pod, bytes by type, and whether it may or must span NUMA nodes."""

    amounts: ResourceList
    may_span: bool
    must_span: bool


@dataclass(slots=True)
class _BlockSearch:
    """A depth-first search over blocks, largest first. The rest of a cell (mask, rest) is the use that is not yet attributed to a block."""

    blocks: Sequence[Block]
    steps: int = field(default=STEPS)

    def covers(self, cells: Sequence[tuple[int, dict[str, int]]], place: int = 0) -> bool:
        """Return whether all blocks from index ``place`` on can be attributed so that no use is left."""
        # Steps instead of time, so that the result is the same on every machine.
        self.steps -= 1
        if self.steps < 0:
            return False
        if place == len(self.blocks):
            return not any(amount for _, rest in cells for amount in rest.values())
        block = self.blocks[place]
        tried: list[dict[str, int]] = []
        for mask, rest in cells:
            spans = mask.bit_count() > 1
            # Cells with equal rests have the same result, so only one of them is tried.
            if (block.must_span and not spans) or (spans and not block.may_span) or rest in tried:
                continue
            if any(rest.get(kind, 0) < amount for kind, amount in block.amounts.items()):
                continue
            if not spans:
                tried.append(dict(rest))  # NUMA nodes with equal rests are interchangeable
            for kind, amount in block.amounts.items():
                # Subtract, recurse and add back: the search shares one set of dicts.
                rest[kind] -= amount
            found = self.covers(cells, place + 1)
            for kind, amount in block.amounts.items():
                rest[kind] += amount
            if found:
                return True
        return False


def explain_use(used: Mapping[int, ResourceList], blocks: Sequence[Block]) -> Mapping[int, int] | None:
    """
    Return the mask of the group of every NUMA node, or ``None`` if the blocks do not explain the use.

    The mask of a NUMA node without a group is the NUMA node itself. ``used`` is bytes per NUMA node and memory type.
    Only explanations with the narrowest groups count; a NUMA node on which they disagree has the mask ``UNCLEAR``.
    """
    # Cheap necessary condition: the sums are equal.
    if _total(used.values()) != _total(block.amounts for block in blocks):
        return None
    # Largest first: few places hold a large block, so dead ends appear early.
    ordered = sorted(blocks, key=lambda block: sorted(block.amounts.values(), reverse=True), reverse=True)
    search = _BlockSearch(ordered)
    nodes = sum(1 << numa for numa in used)
    widest = len(used) if any(block.may_span for block in ordered) else 1
    for width in range(1, widest + 1):
        found: dict[int, int] = {}
        for masks in _partitions(nodes, width):
            if search.covers([(mask, _together(used, mask)) for mask in masks]):
                for mask in masks:
                    for numa in numa_ids(mask):
                        found[numa] = mask if found.get(numa, mask) == mask else UNCLEAR
            # A search without steps left is inconclusive.
            if search.steps < 0:
                return None
        if found:
            return dict(sorted(found.items()))
    return None


class Grouping(ValueObject):
    """One possible binding of memory: the mask of every NUMA node's group, and the bytes by type that blocks on every mask hold."""

    groups: Mapping[int, int]
    held: Mapping[int, ResourceList]


def groupings(
    used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList], blocks: Sequence[Block], *, in_full: bool
) -> list[Grouping] | None:
    """
    Return every way to group NUMA nodes in which exactly these blocks cause the published use, or ``None`` if there are
    too many.

    ``used`` and ``supply`` are bytes per NUMA node and memory type. ``in_full``: the exporter counts the full size of a
    block on each of its NUMA nodes, as resource-topology-exporter does. Otherwise it fills the NUMA nodes in ascending
    order, as NFD does.
    """
    due = _total(block.amounts for block in blocks)
    ordered = sorted(blocks, key=lambda block: sorted(block.amounts.values(), reverse=True), reverse=True)
    cells = _in_full(used, supply) if in_full else _filled_up(used, supply)
    holds = {1 << numa: without_zeros(kinds) for numa, kinds in used.items()}
    if any(block.may_span for block in blocks):
        holds |= {mask: without_zeros(kinds) for mask, kinds in cells.items()}
    search = _BlockSearch(ordered)
    found: list[Grouping] = []
    for tried, parts in enumerate(_cellings(sum(1 << numa for numa in used), holds, due)):
        if tried >= STEPS:
            return None
        if parts is None:
            continue
        held = {mask: holds[mask] for mask in parts}
        # A search without steps left is inconclusive, and the grouping stays.
        if search.steps < 0 or search.covers([(mask, dict(rest)) for mask, rest in held.items()]) or search.steps < 0:
            found.append(Grouping({numa: mask for mask in parts for numa in members(mask)}, held))
        if len(found) > MOST_GROUPINGS:
            return None
    return found


def bound_memory(supply: Mapping[int, ResourceList], grouping: Grouping, *, highest_first: bool = False) -> MemoryTable:
    """
    Return the memory manager's table with the memory of this grouping in use, on the lowest or the highest NUMA nodes of each group.

    The real shares depend on pods that have left. They matter under best-effort, which may align a pod to a part of a group: if this part
    has enough free memory, the pod is rejected, and otherwise it gets the whole group (``Allocate`` in memorymanager/policy_static.go).
    """
    table = MemoryTable.of(supply)
    for mask, kinds in grouping.held.items():
        for kind, amount in kinds.items():
            left = amount
            for numa in sorted(members(mask), reverse=highest_first):
                part = min(left, table.free[numa].get(kind, 0))
                table.hold(numa, kind, part)
                left -= part
        for numa in members(mask):
            table.groups[numa] = mask
            # The number of blocks is not known, so it is 0 or 1.
            table.blocks[numa] = int(any(kinds.values()))
    return table


def _cellings(nodes: int, holds: Mapping[int, ResourceList], due: ResourceList) -> Iterator[list[int] | None]:
    """
    Yield all ways to divide these NUMA nodes (a mask) into groups that hold ``due`` together, and ``None`` for each dead end.

    ``holds`` are the amounts that each possible group holds, by mask. A group of several NUMA nodes holds at most what
    they hold as groups of one.
    """
    most = total(holds[1 << numa] for numa in members(nodes))
    if any(amount > most.get(kind, 0) for kind, amount in due.items()):
        yield None
        return
    if not nodes:
        yield []
        return
    first = nodes & -nodes
    for mask, held in holds.items():
        if not mask & first or mask & ~nodes:
            continue
        if any(amount > due.get(kind, 0) for kind, amount in held.items()):
            yield None
            continue
        for others in _cellings(nodes & ~mask, holds, subtract(due, held)):
            yield None if others is None else [mask, *others]


def _in_full(used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> dict[int, ResourceList]:
    """
    Return what blocks on several NUMA nodes may hold together, by mask, for an exporter that counts in full.

    Every NUMA node of the mask shows the same amount, or all that it has.
    """
    found: dict[int, ResourceList] = {}
    nodes = sum(1 << numa for numa in used if any(used[numa].values()))
    for size in range(2, nodes.bit_count() + 1):
        for mask in masks_of_size(nodes, size):
            kinds = {kind for numa in members(mask) for kind in supply[numa]}
            most = {kind: max(used[numa].get(kind, 0) for numa in members(mask)) for kind in kinds}
            if all(
                used[numa].get(kind, 0) in (amount, supply[numa].get(kind, 0))
                for numa in members(mask)
                for kind, amount in most.items()
            ):
                found[mask] = most
    return found


def _filled_up(used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> dict[int, ResourceList]:
    """Return ``_in_full`` for an exporter that fills NUMA nodes in turn: a NUMA node shows use only if the NUMA nodes below it are full."""
    found: dict[int, ResourceList] = {}
    nodes = sum(1 << numa for numa in used)
    for size in range(2, nodes.bit_count() + 1):
        for mask in masks_of_size(nodes, size):
            sums = _together(used, mask)
            if any(sums.values()) and all(_is_filled_up(kind, mask, used, supply) for kind in sums):
                found[mask] = sums
    return found


def _is_filled_up(kind: str, mask: int, used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> bool:
    is_full = True
    for numa in members(mask):
        amount = used[numa].get(kind, 0)
        if amount and not is_full:
            return False
        is_full = is_full and amount == supply[numa].get(kind, 0)
    return True


def _partitions(nodes: int, width: int) -> Iterator[list[int]]:
    """Yield the NUMA nodes in up to two groups, the wider group of this width, and all other NUMA nodes alone."""
    singles = [1 << numa for numa in numa_ids(nodes)]
    if width == 1:
        yield singles
        return
    for wide in masks_of_size(nodes, width):
        rest = nodes & ~wide
        others = [mask for size in range(2, width + 1) for mask in masks_of_size(rest, size)]
        # A pair of groups of the same width is made once, with the larger mask second.
        for other in [0, *(mask for mask in others if mask.bit_count() < width or mask > wide)]:
            yield [mask for mask in (wide, other) if mask] + [one for one in singles if not one & (wide | other)]


def _total(parts: Iterable[ResourceList]) -> dict[str, int]:
    return without_zeros(total(parts))


def _together(used: Mapping[int, ResourceList], mask: int) -> dict[str, int]:
    rest: dict[str, int] = {}
    for numa in numa_ids(mask):
        for kind, amount in used[numa].items():
            rest[kind] = rest.get(kind, 0) + amount
    return rest


MOST_STARTS: Final = 32
"""Maximum initial states of a used node."""

MOST_ELSEWHERE: Final = 16_384
"""Maximum devices near no NUMA node that are distinguished. A Node object may count any number."""

_ALONE: Final[Mapping[int, int]] = {}
"""No NUMA node is in a group with others."""

_TIED_UP: Final = 1 << MAX_NUMA_ID + 1
"""A bit above all NUMA ids. A group with this bit equals no mask, so the NUMA node gets no memory of a group."""


class Published(ValueObject):
    """
    The published facts about a node.

    ``pods`` are all pods known to be on the node. ``hidden`` are the pods of these that both ``zones`` and published
    pods lack. ``zones`` ascend by NUMA id.
    """

    frame: NodeConfig
    zones: Sequence[Zone]
    requested: ResourceList
    pods: Sequence[PodDemand] = ()
    hidden: Sequence[PodDemand] = ()

    @property
    def config(self) -> KubeletConfig:
        """The kubelet's configuration."""
        return self.frame.node.config


class InferredState(ValueObject):
    """A state that fits the facts. ``groups_known``: whether the known pods explain which NUMA nodes have memory in use."""

    state: KubeletState
    groups_known: bool


def infer_state(facts: Published) -> InferredState:
    """
    Return a state of the kubelet that explains all published amounts.

    Where the known pods do not explain the memory in use, no block that spans NUMA nodes may use these NUMA nodes.
    """
    node = facts.frame.node
    pools = {name: _pool(name, facts) for name in facts.frame.devices} if facts.frame.devices else {}
    if pools:
        node = replace(node, devices={name: pool for name, (pool, _) in pools.items()})
    memory, known = _memory(facts, node) if node.pins_memory else (None, True)
    managers = ManagerState(
        cpus=first_cpus(node.machine, [(zone.numa, zone.available) for zone in facts.zones]) if node.pins_cpus else 0,
        devices={name: taken for name, (_, taken) in pools.items()},
        # Zones show free exclusive CPUs only under the static policy. Other policies have no such pool.
        memory=memory,
    )
    return InferredState(KubeletState(node=node, managers=managers, requested=facts.requested), known)


def used_starts(
    frame: NodeConfig, shown: Mapping[str, PodRequest], others: Mapping[str, PodRequest]
) -> list[Hypothesis]:
    """
    Return every state that a kubelet may be in while its topology shows exactly these pods.

    Return an empty list if the states cannot be determined or are too many.

    ``others`` are pods that hold resources that no topology shows: CPUs of their init containers. The place of every pod stays unknown
    (``unlocated``). The sum of their resources per NUMA node is the use that the zones show.
    """
    found: list[Hypothesis] = []
    demands = [pod_demand(request) for request in shown.values()]
    due = total(demand.lasting for demand in demands)
    if any(name != CPU and name in frame.devices for demand in demands for name in demand.leftovers) or any(
        name in frame.devices for request in others.values() for name in pod_demand(request).pod.devices
    ):
        return []  # a topology does not show which device a finished init container still has
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
    """Return the CPUs and devices as the zones show them, or ``None`` if they differ from what the pods hold in sum."""
    zones = frame.topology.zones
    cpus = first_cpus(node.machine, [(zone.numa, zone.available) for zone in zones]) if node.pins_cpus else 0
    if node.pins_cpus and (node.machine.bits & ~node.reserved & ~cpus).bit_count() * MILLI != due.get(CPU, 0):
        return None
    devices: dict[str, int] = {}
    for name, pool in node.devices.items():
        if pool.assumed:
            # The number of devices in use follows from the pods alone.
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
    """Return the memory tables that explain the use, or ``None`` if there are none or too many."""
    if not node.pins_memory:
        return [None]
    used: dict[int, ResourceList] = {}
    for zone in frame.topology.zones:
        has = node.memory[zone.numa]
        used[zone.numa] = {
            kind: amount - min(max(0, zone.available.get(kind, 0)), amount) for kind, amount in has.items()
        }
    blocks = [block for pod in pods for block in _blocks(pod, node.config, node.memory)]
    # Exporters that name their fingerprint method count in full. Without a name both ways are possible.
    ways = [True] if frame.topology.fingerprint_method else [True, False]
    found: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], MemoryTable] = {}
    shares = [False, True] if node.config.topology_policy is KubeletPolicy.BEST_EFFORT else [False]
    for in_full in ways:
        groupings_ = groupings(used, node.memory, blocks, in_full=in_full)
        if groupings_ is None:
            return None
        for each, highest_first in product(groupings_, shares):
            table = bound_memory(node.memory, each, highest_first=highest_first)
            key = tuple(table.groups.values()), tuple(tuple(kinds.values()) for kinds in table.held.values())
            found[key] = table
    return list(found.values()) or None


def _pool(name: str, facts: Published) -> tuple[DevicePool, int]:
    """Return the devices of one resource, and the bits of the devices in use."""
    # An exporter may publish a negative amount for a moment, while a pod is replaced.
    rows = [(zone.numa, zone.allocatable.get(name, 0), max(0, zone.available.get(name, 0))) for zone in facts.zones]
    there = facts.frame.allocatable.get(name, 0)
    listed = sum(count for _, count, _ in rows)
    free: list[int] = []
    used: list[int] = []
    if listed > there > 0:
        # Devices near several NUMA nodes are counted on each of them. As much sharing as possible is the conservative
        # assumption.
        topology = facts.frame.topology
        used_near = most_used(name, topology.zones, there, in_full=counts_in_full(topology))
        missing = sum(pod.pod.devices.get(name, 0) for pod in facts.hidden)
        rows = [(numa, count, max(0, count - used_near.get(numa, 0) - missing)) for numa, count, _ in rows]
        free = _nested([(numa, available) for numa, _, available in rows])
        # The devices in use are shared as much as possible too, so that both sum to the zones' counts.
        used = _nested([(numa, count - available) for numa, count, available in rows])
    else:
        for numa, count, available in rows:
            free += [1 << numa] * available
            used += [1 << numa] * (count - available)
        # Devices that only the Node object counts are near no NUMA node.
        without = min(max(0, there - listed), MOST_ELSEWHERE)
        left = there - facts.requested.get(name, 0) - len(free)
        free += [0] * min(max(0, left), without)
        used += [0] * (without - min(max(0, left), without))
    devices = tuple(PluginDevice(f"{name}-{place}", near) for place, near in enumerate([*free, *used]))
    # Free devices come first in the pool, so the devices in use are the upper bits.
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
            # Free memory is at most what the manager has. Exporters may publish the memory of the machine.
            left[kind] = there = amount if there > amount else max(0, there)
            used[kind] = amount - there
    # Only whether there are blocks is known, not their number. The memory manager ends a group when the number reaches
    # zero.
    blocks = {numa: int(any(used.values())) for numa, used in held.items()}
    groups, alone = _groups(facts, node, held), {numa: 1 << numa for numa in held}
    table = MemoryTable(node.memory, free, held, alone, blocks, mask_of_ids(tuple(held)))
    if groups is _ALONE:
        return table, True
    shows_all = counts_in_full(facts.frame.topology)
    for numa, is_used in blocks.items():
        own = 1 << numa
        # Without an explanation, a NUMA node may be in any group. An unused NUMA node is in none if the exporter counts
        # a block on each of its NUMA nodes.
        group = groups[numa] if groups is not None else UNCLEAR if is_used or not shows_all else own
        table.groups[numa] = group = own | _TIED_UP if group == UNCLEAR else group
        blocks[numa] = int(is_used or group.bit_count() > 1)
    return table, groups is not None


def _groups(facts: Published, node: KubeletNode, held: Mapping[int, ResourceList]) -> Mapping[int, int] | None:
    """
    Return the mask of the memory group by NUMA node, ``_ALONE`` if there are no groups, or ``None`` if the pods do not explain ``held``.
    """
    policy = facts.config.topology_policy
    # Under single-numa-node no block spans NUMA nodes.
    if policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return _ALONE
    # Best-effort may have put a block on more NUMA nodes than its bytes need, which amounts do not show.
    if policy is KubeletPolicy.BEST_EFFORT and any(_is_torn(pod, facts) for pod in facts.pods):
        return None
    blocks = [block for pod in facts.pods for block in _blocks(pod, facts.config, node.memory)]
    if not any(block.may_span for block in blocks):
        return _ALONE
    return explain_use({numa: without_zeros(amounts) for numa, amounts in held.items()}, blocks)


def _is_torn(pod: PodDemand, facts: Published) -> bool:
    """
    Return whether CPUs or devices of a pod need several NUMA nodes under best-effort.

    The memory of such a pod belongs to a group too, which amounts may not show: all bytes may come from one NUMA node of the group.
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
    """Return the memory blocks of a pod's lasting containers by its requests, as one block where the containers share one mask."""
    # Init containers have ended, and the memory manager gives their blocks to later containers.
    lasting = [
        amounts
        for container, demand in pod.containers
        if container.kind is not ContainerKind.INIT and (amounts := without_zeros(demand.memory or {}))
    ]
    if config.topology_policy is not KubeletPolicy.RESTRICTED:
        return [Block(amounts, may_span=True, must_span=not _fits_one(amounts, supply)) for amounts in lasting]
    # Restricted admits the narrowest set only: several NUMA nodes exactly if one NUMA node can never have enough.
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


DEMANDS: Final = "demands"
"""Key of ``KnownDemands`` in the sums of a ledger."""


class KnownDemands(MutableObject, eq=False):
    """
    The requests of the pods of one node. ``pods`` are the pods with a known request, by uid, in the order of their arrival.

    ``left`` are the pods of these with leftovers, or with init containers that may leave CPUs.
    """

    pods: dict[str, PodDemand] = value_field(default_factory=dict)
    left: dict[str, PodDemand] = value_field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""
        uid = holding.pod.uid
        if sign < 0:
            self.pods.pop(uid, None)
            self.left.pop(uid, None)
        elif holding.request is not None:
            demand = self.pods[uid] = pod_demand(holding.request)
            if demand.leftovers or any(container.kind is INIT and part.cpus for container, part in demand.containers):
                self.left[uid] = demand

    def shown_leftovers(self, hidden: Collection[str]) -> Sequence[PodDemand]:
        """Return the requests of all pods that are not hidden, if any of them has leftovers, else an empty sequence."""
        if not self.left or all(uid in hidden for uid in self.left):
            return ()
        return [demand for uid, demand in self.pods.items() if uid not in hidden]


def holdings_by_uid(holdings: Ledger | list[Holding]) -> Mapping[str, Holding]:
    return holdings.holdings if isinstance(holdings, Ledger) else {held.pod.uid: held for held in holdings}


def known_demands(holdings: Ledger | list[Holding]) -> KnownDemands:
    """
    Return the requests of the pods. A ledger keeps them up to date from now on.

    The result must not be changed, and is valid until the ledger changes.
    """
    ledger = holdings if isinstance(holdings, Ledger) else None
    known = None if ledger is None else ledger.sums.get(DEMANDS)
    if isinstance(known, KnownDemands):
        return known
    made = KnownDemands()
    for holding in holdings:
        made.count(holding, 1)
    if ledger is not None:
        ledger.sums[DEMANDS] = made
    return made


Parts = tuple[tuple[int, ResourceList], ...]
"""Amounts that a pod may hold, by NUMA node."""

NAMED: Final = 3
"""Maximum pods that a text about overlooked use names."""

MOST_HOLDERS: Final = 8
"""Maximum running pods whose subsets are compared with the overlooked amount: 255 sets."""

HIDDEN: Final = "hidden"
"""Key of ``HiddenUse`` in the sums of a ledger."""


class HiddenUse:
    """
    The amounts that hidden pods of one node may hold, by NUMA node, updated in time proportional to the change.

    The sums are valid while the topology changes in available amounts only. A ledger keeps them after the first use and calls ``count`` for
    every changed holding.
    """

    __slots__ = ("_parts", "_sums", "frame")

    def __init__(self, frame: object) -> None:
        self.frame = frame  # the sums are valid for this object, compared by identity
        self._parts: dict[str, Parts] = {}  # of the present hidden pods, by uid
        self._sums: dict[int, dict[str, int]] = {}  # by NUMA id

    def count(self, holding: Holding, _sign: int) -> None:
        """Remove a changed pod from the sums. They are computed again when they are used."""
        self._forget(holding.pod.uid)

    def of(
        self,
        there: Mapping[str, Holding],
        hidden: Set[str],
        zones: Sequence[Zone],
        topology: NodeResourceTopology,
    ) -> Mapping[int, ResourceList]:
        """
        Return the maximum that the ``hidden`` pods among the pods in ``there`` may hold together, by NUMA node.

        The result must not be changed, and is valid until the next call.
        """
        known = self._parts.keys()
        if known != hidden:
            for uid in known - hidden:
                self._forget(uid)
            for uid in hidden - known:
                if (holding := there.get(uid)) is not None:
                    self._parts[uid] = parts = tuple(_wherever(holding, zones, topology))
                    self._add(parts, 1)
        return self._sums

    def _forget(self, uid: str) -> None:
        if (parts := self._parts.pop(uid, None)) is not None:
            self._add(parts, -1)

    def _add(self, parts: Parts, sign: int) -> None:
        for numa, amounts in parts:
            sums = self._sums.setdefault(numa, {})
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + sign * amount


def hidden_use(holdings: Ledger | list[Holding], frame: object) -> HiddenUse:
    """Return the sums of hidden pods for ``frame``, which is compared by identity. A ledger keeps them up to date from now on."""
    ledger = holdings if isinstance(holdings, Ledger) else None
    known = None if ledger is None else ledger.sums.get(HIDDEN)
    if isinstance(known, HiddenUse) and known.frame is frame:
        return known
    made = HiddenUse(frame)
    if ledger is not None:
        ledger.sums[HIDDEN] = made
    return made


def without_hidden(
    zones: Sequence[Zone],
    there: Mapping[str, Holding],
    topology: NodeResourceTopology,
    known: HiddenUse | None = None,
    hidden: Collection[str] | None = None,
) -> tuple[Zone, ...]:
    """
    Return the zones without the amounts that the ``hidden`` pods in ``there``, or all of these pods, may hold.

    ``known`` saves time and is updated.
    """
    uids = there.keys() if hidden is None else hidden if isinstance(hidden, Set) else frozenset(hidden)
    if not uids:
        return tuple(zones)
    return _without(zones, (HiddenUse(topology) if known is None else known).of(there, uids, zones, topology))


def shown_where_foreseen(zones: Sequence[Zone], hidden: Sequence[Holding]) -> tuple[Zone, ...]:
    """
    Return the zones as they would be published if every one of these pods were on its predicted NUMA nodes.

    A pod without a prediction is subtracted from every zone. The result is an estimate of the effect of an
    eviction, and not safe for placement.
    """
    missing: dict[int, dict[str, int]] = {}
    for holding in hidden:
        parts = holding.numa or [(zone.numa, amounts) for zone in zones for amounts in _anywhere(holding)]
        for numa, amounts in parts:
            missing[numa] = add(missing.get(numa, NOTHING), amounts)
    return _without(zones, missing)


class Overlooked(ValueObject):
    """
    Use that an exporter does not publish although running pods have it: ``amounts`` by resource, and the ``pods`` that it may belong to.

    Running pods are a lower bound of use. For example, NFD leaves out Guaranteed pods with a fractional container.
    """

    amounts: ResourceList = value_field(default_factory=dict)
    pods: tuple[PodKey, ...] = ()
    # By resource: for every set of pods whose use sums to the amount, the amounts of their containers. Empty where not
    # known.
    sets: Mapping[str, Sequence[Sequence[int]]] = value_field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def text(self) -> str:
        """A sentence such as ``the exporter overlooks 30 CPUs of default/vm-1, default/vm-2``, with at most three pods."""
        names = [str(pod) for pod in self.pods[:NAMED]]
        if len(self.pods) > NAMED:
            names.append(f"{len(self.pods) - NAMED} others")
        return f"the exporter overlooks {needs_text(self.amounts)} of running pods: {', '.join(names)}"


NONE_OVERLOOKED: Final = Overlooked()


def overlooked_use(frame: NodeConfig, running: Iterable[tuple[PodKey, PodDemand]]) -> Overlooked:
    """Compare the published use of all zones with the use of running pods that the topology should show. Return the difference."""
    zones, node = frame.topology.zones, frame.node
    pods = list(running)
    counted = [*frame.devices, *([CPU] if node.pins_cpus else ())]
    missing = _missing(frame, counted, total(demand.lasting for _, demand in pods))
    if node.pins_memory:
        memory = total(demand.lasting_memory for _, demand in pods)
        kinds = [name for name in memory if any(name in zone.allocatable for zone in zones)]
        # Zones that list memory without a memory manager show none in use. A failed exporter overlooks CPUs or devices
        # too.
        is_bound = missing or frame.topology.kubelet.memory_policy is not None or any(map(_memory_in_use, zones))
        missing |= _missing(frame, kinds, memory) if is_bound else {}
    if not missing:
        return NONE_OVERLOOKED
    holders = [(pod, demand) for pod, demand in pods if _lasting(demand).keys() & missing.keys()]
    # Pods with fractional containers are the known case. Only these are named if they explain all missing amounts.
    partly = [(pod, demand) for pod, demand in holders if len(demand.containers) > len(demand.counts)]
    explains = all(
        sum([_lasting(demand).get(name, 0) for _, demand in partly]) >= amount for name, amount in missing.items()
    )
    named = tuple(sorted((pod for pod, _ in (partly if explains else holders)), key=str))
    # Only under this policy every container is on one NUMA node.
    is_single = frame.topology.kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
    demands = [demand for _, demand in holders]
    return Overlooked(
        missing, named, {name: _sets_of(name, missing[name], demands) for name in missing} if is_single else {}
    )


def _missing(frame: NodeConfig, counted: Iterable[str], held: ResourceList) -> dict[str, int]:
    """Return the amounts of these resources that pods hold and that no zone shows in use."""
    missing: dict[str, int] = {}
    for name in counted:
        if not (wanted := held.get(name, 0)):
            continue
        there = sum([zone.allocatable.get(name, 0) for zone in frame.topology.zones])
        used = there - sum([zone.available.get(name, 0) for zone in frame.topology.zones])
        # Devices near no NUMA node are in no zone.
        elsewhere = 0 if name == CPU or is_memory(name) else max(0, frame.allocatable.get(name, 0) - there)
        if wanted > used + elsewhere:
            missing[name] = wanted - used - elsewhere
    return missing


def _lasting(demand: PodDemand) -> ResourceList:
    return {**demand.lasting, **demand.lasting_memory} if demand.lasting_memory else demand.lasting


def _memory_in_use(zone: Zone) -> bool:
    return any(zone.available.get(name, 0) < amount for name, amount in zone.allocatable.items() if is_memory(name))


def _sets_of(name: str, amount: int, demands: Sequence[PodDemand]) -> Sequence[Sequence[int]]:
    """
    Return the container amounts of every set of these pods that holds exactly the amount, or of all pods if there is no such set.

    Unknown pods, whose use is published, may hide a part of the amount.
    """
    pods = [
        (
            _lasting(demand)[name],
            [held for container, part in demand.containers if container.kind is not INIT and (held := _of(part, name))],
        )
        for demand in demands
        if _lasting(demand).get(name)
    ]
    if len(pods) > MOST_HOLDERS:
        # There are too many sums of memory to list.
        return () if is_memory(name) else [[held for _, parts in pods for held in parts]]
    exact = [
        [held for _, parts in chosen for held in parts]
        for size in range(1, len(pods) + 1)
        for chosen in combinations(pods, size)
        if sum([total for total, _ in chosen]) == amount
    ]
    return exact or [[held for _, parts in pods for held in parts]]


def _of(part: ContainerDemand, name: str) -> int:
    if name == CPU:
        return part.cpus * MILLI
    return (part.memory or NOTHING).get(name, 0) if is_memory(name) else part.devices.get(name, 0)


def without_overlooked(zones: Sequence[Zone], overlooked: Overlooked, published: Sequence[Zone]) -> tuple[Zone, ...]:
    """
    Return the zones without the overlooked use, which may be on any NUMA node where whole containers fit.

    The containers fit in the available amounts of ``published``. Other pods that ``zones`` charges may be elsewhere.
    """
    if not overlooked:
        return tuple(zones)
    missing = {
        zone.numa: {name: _most_on(zone, name, amount, overlooked) for name, amount in overlooked.amounts.items()}
        for zone in published
    }
    return _without(zones, missing)


def _most_on(zone: Zone, name: str, amount: int, overlooked: Overlooked) -> int:
    """Return the maximum that overlooked containers may hold on one NUMA node, within its published available amount."""
    available, sets = zone.available.get(name, 0), overlooked.sets.get(name)
    if not sets:
        return amount
    most = 0
    for parts in sets:
        sums = {0}
        for part in parts:
            sums |= {total + part for total in sums if total + part <= available}
        most = max(most, *sums)
    return min(amount, most)


def _anywhere(holding: Holding) -> Iterator[ResourceList]:
    if holding.request is not None and any((most := _all_of(pod_demand(holding.request))).values()):
        yield most


def _without(zones: Sequence[Zone], missing: Mapping[int, ResourceList]) -> tuple[Zone, ...]:
    return tuple([_less(zone, missing.get(zone.numa, NOTHING)) for zone in zones])


def _wherever(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    """Return the maximum amounts of the pod for every NUMA node that it may be on."""
    if not holding.numa or any(topology.kubelet.topology_options.get(name) for name in ORDER_OPTIONS):
        return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones)
    # Charged more than the pod can hold: every one of its NUMA nodes was and is possible.
    if len(holding.numa) > 1 and _is_counted_on_several(holding):
        return _on_several(holding, zones, topology)
    return _here_and_below(holding, zones, topology)


def _here_and_below(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    for numa, amounts in holding.numa:
        yield numa, amounts
        # Never a higher NUMA node (module docstring). Lower NUMA nodes that are too small even when empty are left out.
        for zone in zones:
            if zone.numa < numa and not (_never_had(zone, amounts) and _is_one_unit(holding, topology)):
                yield zone.numa, amounts


def _on_several(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    highest = (
        # With prefer-closest-numa-nodes, NUMA nodes are ordered by distance and not by id.
        MAX_NUMA_ID if topology.kubelet.topology_options.get(CLOSEST_NUMA) else max(numa for numa, _ in holding.numa)
    )
    return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones if zone.numa <= highest)


def _is_counted_on_several(holding: Holding) -> bool:
    """Return whether the pod is charged with its full amounts to several NUMA nodes, all of which were possible when it was placed."""
    if holding.request is None:
        return False
    most = _all_of(pod_demand(holding.request))
    return any(amount > most.get(name, 0) for name, amount in total(amounts for _, amounts in holding.numa).items())


def _is_one_unit(holding: Holding, topology: NodeResourceTopology) -> bool:
    """Return whether all resources of the pod are aligned together."""
    if holding.request is None or topology.kubelet.topology_scope is KubeletScope.POD:
        return holding.request is not None
    parts = (part for _, part in pod_demand(holding.request).containers)
    return sum(1 for part in parts if part.cpus or part.memory or part.devices) <= 1


def _never_had(zone: Zone, amounts: ResourceList) -> bool:
    return bool([name for name, amount in amounts.items() if zone.allocatable.get(name, 0) < amount])


def _all_of(demand: PodDemand) -> dict[str, int]:
    """Return the maximum that a pod may hold: CPUs of all containers, memory and devices of the containers that run at the same time."""
    # The sum over all containers, because CPUs of init containers stay with the pod until it ends.
    cpus = sum(part.cpus for _, part in demand.containers) * MILLI
    return {CPU: cpus, **(demand.pod.memory or {}), **demand.pod.devices}


def _less(zone: Zone, missing: ResourceList) -> Zone:
    if not missing:
        return zone
    # Resources that a zone does not list are not tracked. The rest may be negative, because one pod is charged to
    # several places. A sum that is too low only causes rejections.
    left = {name: amount - missing.get(name, 0) for name, amount in zone.available.items()}
    return Zone(zone.numa, zone.capacity, zone.allocatable, left)
