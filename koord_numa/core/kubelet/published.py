"""
What the published amounts of a node say: candidates to start with, and whether a topology agrees with a candidate.

An exporter counts what running app containers and sidecars use (the pod resources API leaves finished init containers out), per NUMA node.
resource-topology-exporter counts a memory block over several NUMA nodes in full on each of them; NFD fills them up in ascending order.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from operator import add
from typing import Final, Self

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpu_topology import MAX_NUMA_ID, CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.demand import PodDemand, is_memory, pod_demand
from koord_numa.core.kubelet.inference.node_config import NodeConfig
from koord_numa.core.kubelet.options import CLOSEST_NUMA
from koord_numa.core.kubelet.state import (
    AdmittedPod,
    ContainerGrant,
    Device,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryTable,
)
from koord_numa.core.kubelet.unknowns import LIMITS, CandidateState, cpus_by_numa, has_open_split, with_open_split
from koord_numa.core.objects.node import KubeletConfig, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList, total, without_zeros
from koord_numa.core.value_objects import replace

ALIGN_BY_SOCKET: Final = "align-by-socket"

OVERLOOKED: Final = ""
"""Stands for the pods that an exporter overlooks, in amounts by pod."""

_TIED_UP: Final = 1 << MAX_NUMA_ID + 1
"""A member of a memory group that no mask can equal."""

Sockets = Mapping[int, int]
"""Socket of every NUMA node."""


def empty_candidates(config: NodeConfig) -> list[CandidateState]:
    """The candidates before the first pod, one for each machine and configuration that the objects allow; the likeliest first."""
    return [CandidateState(KubeletState.empty(node), options=options) for node, options in node_variants(config)]


def node_variants(config: NodeConfig) -> list[tuple[KubeletNode, tuple[str, ...]]]:
    """
    The nodes that agree with the objects, and the options that are assumed on each although they are off by default and not published.

    Sockets matter with ``align-by-socket`` and no exporter publishes them; distances show which there may be.
    """
    known: list[tuple[KubeletNode, tuple[str, ...]]] | None = config.derived.get("variants")
    if known is not None:
        return known
    found: list[tuple[KubeletNode, tuple[str, ...]]] = []
    pools, shared = _pools(config)
    published = config.topology.kubelet
    for (sockets, unlikely), closest in product(_sockets(config, published), _closest(config, published)):
        options = {**config.node.config.topology_options, CLOSEST_NUMA: closest}
        node = replace(
            config.node,
            devices=pools,
            shared_devices=shared,
            config=replace(config.node.config, topology_options=options),
        )
        if sockets is not None:
            node = replace(node, machine=_with_sockets(node.machine, sockets), aligns_by_socket=True)
        found.append((node, unlikely))
    found.sort(key=lambda variant: len(variant[1]))
    config.derived["variants"] = found
    return found


def _pools(config: NodeConfig) -> tuple[dict[str, DevicePool], frozenset[str]]:
    """
    Device pools with as many devices near each NUMA node as its zone counts, and the resources whose devices may be near several.

    ``Node`` allocatable counts a device once, zones count it on each NUMA node near it. Where zones count more, the pool has one device for
    each count, and a pod's devices are charged to each NUMA node (``unknowns.py``).
    """
    pools: dict[str, DevicePool] = {}
    shared: set[str] = set()
    for name in config.devices:
        counts = {zone.numa: zone.allocatable.get(name, 0) for zone in config.topology.zones}
        there, listed = config.allocatable.get(name, 0), sum(counts.values())
        near = [1 << numa for numa, count in counts.items() for _ in range(count)]
        if there and listed > there:
            shared.add(name)
        else:
            near += [0] * max(0, min(there - listed, LIMITS.devices_without_numa))
        pools[name] = DevicePool(tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near)))
    return pools, frozenset(shared)


def _closest(config: NodeConfig, published: KubeletConfig) -> tuple[bool, ...]:
    """Whether prefer-closest-numa-nodes is on. It matters where some NUMA nodes are closer than others and sets of them are compared."""
    known = published.topology_options.get(CLOSEST_NUMA)
    if known is not None or published.cpu_policy is not None:
        return (bool(known),)  # a published configuration lists the options that are on
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    return (False, True) if wide and len(_distances(config.node.machine)) > 1 else (False,)


def _sockets(config: NodeConfig, published: KubeletConfig) -> list[tuple[Sockets | None, tuple[str, ...]]]:
    machine = config.node.machine
    known = published.cpu_options.get(ALIGN_BY_SOCKET)
    if known is None and published.cpu_policy is not None:
        known = False  # an exporter of the policy lists its options
    wide = published.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT)
    if known is False or not wide or not config.node.pins_cpus or len(machine.numa_ids) == 1:
        return [(None, ())]
    if known:
        return [(sockets, ()) for sockets in socket_partitions(machine)] or [(None, ())]
    partitions = socket_partitions(machine, guessed=False)
    return [
        (None, ()),
        # One NUMA node a socket aligns as NUMA nodes do.
        *((sockets, (ALIGN_BY_SOCKET,)) for sockets in partitions if len(set(sockets.values())) < len(sockets)),
    ]


def socket_partitions(machine: CpuTopology, *, guessed: bool = True) -> Iterator[Sockets]:
    """
    Ways to put NUMA nodes into sockets of equal size.

    NUMA nodes within some distance of one another share a socket. Where such NUMA nodes make up no sockets of equal size, and where all
    distances are equal (``guessed``), NUMA nodes of a socket come one after the other or in turn with those of the others.
    """
    seen: set[tuple[int, ...]] = set()
    for sockets in _partitions(machine, guessed=guessed):
        if (key := tuple(sockets.values())) not in seen:
            seen.add(key)
            yield sockets


def _partitions(machine: CpuTopology, *, guessed: bool) -> Iterator[Sockets]:
    ids, distances = machine.numa_ids, _distances(machine)
    for most in (*distances, 0):
        near = {a: [b for b in ids if a == b or machine.distance(a, b) <= most] for a in ids}
        if len({*map(len, near.values())}) == 1 and all(near[b] == others for others in near.values() for b in others):
            yield {numa: min(others) for numa, others in near.items()}
            continue
        for sockets in _in_order(ids):
            if all(
                machine.distance(a, b) <= most if sockets[a] == sockets[b] else machine.distance(a, b) >= most
                for a, b in permutations(ids, 2)
            ):
                yield sockets
    if guessed and len(distances) == 1:
        yield from _in_order(ids)


def _in_order(ids: Sequence[int]) -> Iterator[Sockets]:
    for sockets in range(2, len(ids) // 2 + 1):
        if len(ids) % sockets == 0:
            size = len(ids) // sockets
            yield {numa: ids[at - at % size] for at, numa in enumerate(ids)}
            yield {numa: ids[at % sockets] for at, numa in enumerate(ids)}


def _distances(machine: CpuTopology) -> list[int]:
    ids = machine.numa_ids
    return sorted({machine.distance(a, b) for a in ids for b in ids if a != b})


def _with_sockets(machine: CpuTopology, sockets: Sockets) -> CpuTopology:
    cpus = tuple(replace(cpu, socket=sockets[cpu.numa]) for cpu in machine.cpus)
    return CpuTopology(cpus=cpus, numa_ids=machine.numa_ids, distances=machine.distances)


def used_candidates(config: NodeConfig, zones: Sequence[Zone], shown: Mapping[str, PodRequest]) -> list[CandidateState]:
    """
    The candidates of a node that was in use when it was first seen: the published amounts are free.

    Which of the pods ``shown`` holds what is not known. Pods that run hold at least what they request: where less is published in use, the
    difference may be held on each NUMA node.
    """
    found = []
    for empty in empty_candidates(config):
        node = empty.state.node
        start = with_published_sums(replace(empty, unlocated=dict(shown), trust=Trust.INFERRED), (), zones)
        missing = {
            name: short for name, (due, used) in _sums(start, (), shown, zones).items() if (short := due - used) > 0
        }
        if missing:
            held = dict.fromkeys(node.machine.numa_ids, missing)
            start = replace(start, maybe_held={**start.maybe_held, OVERLOOKED: held})
        found.append(start)
    return found


def with_published_sums(candidate: CandidateState, located: Collection[str], zones: Sequence[Zone]) -> CandidateState:
    """
    The candidate with the published amounts free. What the pods ``located`` do not use of the amounts in use is held by the unlocated pods.

    CPUs and devices of finished init containers are in no published amount: those of unlocated pods may be held on each NUMA node.
    """
    node = candidate.state.node
    use = _use_of(candidate, located)
    if use is None:
        raise ValueError("a located pod is not in the candidate")
    demands = {uid: pod_demand(request) for uid, request in candidate.unlocated.items()}
    managers = _held_by(candidate.state)
    is_tied = node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE and any(
        may_span_memory(demand, node) for demand in demands.values()
    )
    for at, zone in enumerate(zones):
        used, here = in_use(zone), node.machine.numa_bits.get(zone.numa, 0)
        if node.pins_cpus:
            free = managers.cpus & here
            more = used.get(CPU, 0) // MILLI - use.cpus[at]
            managers.cpus &= ~lowest(free, max(0, min(more, free.bit_count())))
        for name, pool in node.devices.items():
            free = pool.on.get(zone.numa, 0) & ~managers.devices[name]
            more = max(0, used.get(name, 0)) - use.devices.get((zone.numa, name), 0)
            managers.devices[name] |= lowest(free, max(0, min(more, free.bit_count())))
        if managers.memory is not None:
            _hold_published(managers.memory, zone, node.memory[zone.numa])
    if is_tied and managers.memory is not None and any(managers.memory.blocks.values()):
        # Memory groups are not published, and NFD shows no use on some NUMA nodes of a group: no block may join any of them.
        for numa in managers.memory.groups:
            managers.memory.groups[numa] |= _TIED_UP
            managers.memory.blocks[numa] = max(1, managers.memory.blocks[numa])
    held = {uid: of for uid, of in candidate.maybe_held.items() if uid not in demands and uid != OVERLOOKED}
    for uid, demand in demands.items():
        if left := _left_by_init(demand, node):
            held[uid] = dict.fromkeys(node.machine.numa_ids if node.places_matter else node.machine.numa_ids[:1], left)
    return replace(
        candidate,
        state=replace(candidate.state, managers=managers),
        maybe_held=held,
        # What departed pods of unknown placement held is in the published amounts now.
        maybe_free={uid: of for uid, of in candidate.maybe_free.items() if uid in candidate.state.pods},
    )


def _left_by_init(demand: PodDemand, node: KubeletNode) -> dict[str, int]:
    """The CPUs and devices that finished init containers may still hold beside those of later containers."""
    left = {name: amount for name, amount in demand.leftovers.items() if name in node.devices}
    # Later containers may take none of the CPUs that init containers leave.
    init = sum(part.cpus for container, part in demand.containers if container.kind is INIT)
    if init and node.pins_cpus:
        left[CPU] = init * MILLI
    return left


def _held_by(state: KubeletState) -> ManagerState:
    """The managers in which just the pods of a state hold something."""
    managers = KubeletState.empty(state.node).managers.copy()
    for pod in state.pods.values():
        for container in pod.grant.containers:
            managers.cpus &= ~container.cpus.bits
            for name, ids in container.devices.items():
                places = state.node.devices[name].places
                managers.devices[name] |= sum(1 << places[device] for device in ids)
            if managers.memory is not None and container.kind is not INIT:
                for block in container.memory:
                    managers.memory.take(block, covered=0)
    return managers


def _hold_published(table: MemoryTable, zone: Zone, supply: ResourceList) -> None:
    """Hold what a zone shows in use beyond what the table holds."""
    for kind, free in [*table.free[zone.numa].items()]:
        more = free - min(max(0, zone.available.get(kind, 0)), supply[kind])
        if more > 0:
            table.hold(zone.numa, kind, more)
            table.blocks[zone.numa] = max(1, table.blocks[zone.numa])


def _sums(
    candidate: CandidateState, located: Collection[str], others: Mapping[str, PodRequest], zones: Sequence[Zone]
) -> dict[str, tuple[int, int]]:
    """
    By resource, what pods at known and unknown places use in all, and what the zones show in use. Shared devices and memory are left
    out.
    """
    node = candidate.state.node
    use = _use_of(candidate, located)
    if use is None:
        raise ValueError("a located pod is not in the candidate")
    lasting = total(pod_demand(request).lasting for request in others.values())
    others_span = bool(use.blocks) or any(may_span_memory(pod_demand(request), node) for request in others.values())
    found = {}
    if node.pins_cpus:
        due = (sum(use.cpus) + use.open_cpus) * MILLI + lasting.get(CPU, 0)
        found[CPU] = due, sum(in_use(zone).get(CPU, 0) for zone in zones)
    if node.pins_memory:
        for kind in {kind for zone in zones for kind in zone.allocatable if is_memory(kind)}:
            due = sum(amount for (_, other), amount in use.memory.items() if other == kind)
            due += sum(size for other, _, size in use.blocks if other == kind)
            due += sum(
                (part.memory or {}).get(kind, 0)
                for request in others.values()
                for container, part in pod_demand(request).containers
                if container.kind is not INIT
            )
            used = sum(in_use(zone).get(kind, 0) for zone in zones)
            # Exporters count memory of several NUMA nodes at least once.
            found[kind] = due, min(due, used) if others_span else used
    for name, pool in node.devices.items():
        if name not in node.shared_devices and all(pool.masks):
            due = sum(count for (_, other), count in use.devices.items() if other == name) + lasting.get(name, 0)
            found[name] = due, sum(in_use(zone).get(name, 0) for zone in zones)
    return found


def may_span_memory(pod: PodDemand, node: KubeletNode) -> bool:
    """Whether the kubelet may bind memory of this pod to several NUMA nodes, whatever else is there."""
    policy = node.config.topology_policy
    units = [pod.pod] if node.config.topology_scope is KubeletScope.POD else [part for _, part in pod.containers]
    for unit in units:
        wanted = without_zeros(unit.memory or {})
        if not wanted or not node.pins_memory:
            continue
        # Restricted admits the narrowest sets only, so memory spans NUMA nodes exactly where no single one could hold it.
        if policy is not KubeletPolicy.RESTRICTED:
            return True
        if not any(all(has.get(kind, 0) >= amount for kind, amount in wanted.items()) for has in node.memory.values()):
            return True
    return False


@dataclass(slots=True)
class _Use:
    """What the shown pods use: CPUs by NUMA node, CPUs of unknown split, memory blocks, devices. ``is_partial``: some are not known."""

    cpus: tuple[int, ...]
    open_cpus: int
    memory: dict[tuple[int, str], int]
    blocks: list[tuple[str, int, int]]
    devices: dict[tuple[int, str], int]
    is_partial: bool

    def count(self, container: ContainerGrant, node: KubeletNode, *, is_open: bool) -> None:
        """Add what a running container uses. ``is_open``: CPUs on several NUMA nodes may lie otherwise."""
        if is_open and has_open_split(container, node):
            self.open_cpus += len(container.cpus)
        elif container.cpus:
            self.cpus = tuple(map(add, self.cpus, cpus_by_numa(container.cpus.bits, node)))
        for block in container.memory:
            numas = members(block.mask)
            if len(numas) == 1:
                key = numas[0], block.resource
                self.memory[key] = self.memory.get(key, 0) + block.amount
            else:
                self.blocks.append((block.resource, block.mask, block.amount))
        for name, ids in container.devices.items():
            pool = node.devices[name]
            for device in ids if name not in node.shared_devices else ():
                near = pool.masks[pool.places[device]]
                if near.bit_count() == 1:
                    key = near.bit_length() - 1, name
                    self.devices[key] = self.devices.get(key, 0) + 1


def in_use(zone: Zone) -> dict[str, int]:
    """What a zone shows in use: allocatable less available."""
    return {name: amount - zone.available.get(name, 0) for name, amount in zone.allocatable.items()}


def agrees(candidate: CandidateState, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Whether an exporter may have published these zones while just these pods were there, if the candidate is true."""
    use = _use_of(candidate, shown)
    if use is None:
        return False
    node = candidate.state.node
    published = {zone.numa: in_use(zone) for zone in zones}
    if use.is_partial and OVERLOOKED not in candidate.maybe_held:
        others = {
            uid: request
            for uid, request in (*candidate.unlocated.items(), *candidate.unknown_placement.items())
            if uid in shown
        }
        located = [uid for uid in shown if uid not in others]
        if all(_grant(candidate, uid) is not None for uid in located) and any(
            due != used for due, used in _sums(candidate, located, others, zones).values()
        ):
            return False
    return (
        (not node.pins_cpus or _cpus_agree(use, node, published))
        and (not node.pins_memory or _memory_agrees(use, zones))
        and _devices_agree(use, node, published)
    )


def may_agree_later(candidate: CandidateState, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Whether the zones may be published once more of these pods have come: those that are there use no more than the zones show."""
    use = _use_of(candidate, [uid for uid in shown if uid in candidate.state.pods])
    if use is None or use.is_partial:
        return True
    node = candidate.state.node
    for zone in zones:
        at = node.machine.numa_ids.index(zone.numa)
        used = in_use(zone)
        # Exporters may cut off what is used beyond all that a NUMA node has.
        if node.pins_cpus and use.cpus[at] * MILLI > used.get(CPU, 0) and zone.available.get(CPU, 0) > 0:
            return False
        for (numa, name), amount in (*use.memory.items(), *use.devices.items()):
            if numa == zone.numa and amount > used.get(name, amount) and zone.available.get(name, 0) > 0:
                return False
    return True


def _grant(candidate: CandidateState, uid: str) -> Grant | None:
    pod = candidate.state.pods.get(uid)
    return pod.grant if pod is not None else candidate.departed.get(uid)


def _running(grant: Grant) -> Iterator[ContainerGrant]:
    return (container for container in grant.containers if container.kind is not INIT)


def _use_of(candidate: CandidateState, shown: Collection[str]) -> _Use | None:
    """What these pods use, ``None`` where the candidate does not have one of them."""
    node = candidate.state.node
    use = _Use((0,) * len(node.machine.numa_bits), 0, {}, [], {}, is_partial=False)
    for uid in shown:
        grant = _grant(candidate, uid)
        if grant is None:
            if not candidate.has(uid) and uid not in candidate.departed:
                return None
            use.is_partial = True
            continue
        is_open = uid not in candidate.state.pods or uid in candidate.open_split or uid in candidate.open_owner
        for container in _running(grant):
            use.count(container, node, is_open=is_open)
    return use


def _cpus_agree(use: _Use, node: KubeletNode, published: Mapping[int, Mapping[str, int]]) -> bool:
    counts = [published.get(numa, {}).get(CPU, 0) // MILLI for numa in node.machine.numa_bits]
    if use.is_partial or use.open_cpus:
        if any(count < used for count, used in zip(counts, use.cpus, strict=True)):
            return False
        return use.is_partial or sum(counts) == sum(use.cpus) + use.open_cpus
    return tuple(counts) == use.cpus


def _memory_agrees(use: _Use, zones: Sequence[Zone]) -> bool:
    for kind in {kind for zone in zones for kind in zone.allocatable if is_memory(kind)}:
        most = {zone.numa: zone.allocatable.get(kind, 0) for zone in zones}
        counts = {zone.numa: most[zone.numa] - zone.available.get(kind, 0) for zone in zones}
        alone = {numa: use.memory.get((numa, kind), 0) for numa in counts}
        # Blocks of no bytes belong to a group and leave no trace in amounts.
        blocks = [(mask, size) for resource, mask, size in use.blocks if resource == kind and size]
        if use.is_partial:
            if any(counts[numa] < alone[numa] for numa in counts):
                return False
        # The object does not name its exporter, so either way of counting will do.
        elif not (_in_full(counts, alone, blocks, most) or _filled_up(counts, alone, blocks)):
            return False
    return True


def _in_full(
    counts: Mapping[int, int], alone: Mapping[int, int], blocks: Sequence[tuple[int, int]], most: Mapping[int, int]
) -> bool:
    """As resource-topology-exporter counts: a block in full on each of its NUMA nodes, cut off at what the NUMA node has."""
    return all(
        used == min(alone[numa] + sum(size for mask, size in blocks if mask >> numa & 1), max(alone[numa], most[numa]))
        for numa, used in counts.items()
    )


def _filled_up(counts: Mapping[int, int], alone: Mapping[int, int], blocks: Sequence[tuple[int, int]]) -> bool:
    """As NFD counts: a block fills its NUMA nodes up in ascending order, so only the sum over all of them is certain."""
    joined = 0
    for mask, _ in blocks:
        joined |= mask
    if any(used != alone[numa] for numa, used in counts.items() if not joined >> numa & 1):
        return False
    within = [numa for numa in counts if joined >> numa & 1]
    return sum(counts[numa] for numa in within) == sum(alone[numa] for numa in within) + sum(size for _, size in blocks)


def _devices_agree(use: _Use, node: KubeletNode, published: Mapping[int, Mapping[str, int]]) -> bool:
    for name in node.devices:
        if name in node.shared_devices:
            continue
        pairs = [(amounts.get(name, 0), use.devices.get((numa, name), 0)) for numa, amounts in published.items()]
        if not node.places_matter:
            # Devices are handed out in the plugin's order, which is not known: only their number counts.
            pairs = [(sum(used for used, _ in pairs), sum(due for _, due in pairs))]
        if any(used < due or (used > due and not use.is_partial) for used, due in pairs):
            return False
    return True


def settled(candidate: CandidateState, shown: Collection[str], zones: Sequence[Zone]) -> CandidateState:
    """
    The candidate with CPUs of unknown split on the NUMA nodes where a topology that agrees shows them.

    Of several such pods only the sum is known then (``open_owner``), and nothing of what their init containers keep.
    """
    if any(uid in candidate.unlocated or uid in candidate.unknown_placement for uid in shown):
        return _absorbed(candidate, shown, zones)
    open_ = candidate.open_split | candidate.open_owner
    pods = [uid for uid in sorted(open_) if uid in shown and uid in candidate.state.pods]
    if not pods or any(uid not in candidate.state.pods for uid in shown):
        return candidate
    node, managers = candidate.state.node, candidate.state.managers
    held = 0
    for uid in pods:
        for container in _running(candidate.state.pods[uid].grant):
            held |= container.cpus.bits if has_open_split(container, node) else 0
    due = _due_cpus(candidate, shown, zones)
    chosen = 0
    for numa, count in due.items():
        here = (managers.cpus | held) & node.machine.numa_bits[numa]
        if count < 0 or here.bit_count() < count:
            return candidate  # CPUs that init containers may hold are free in truth
        kept = lowest(held & here, min(count, (held & here).bit_count()))
        chosen |= kept | lowest(here & ~kept, count - kept.bit_count())
    if chosen.bit_count() != held.bit_count():
        return candidate
    grants = _dealt(candidate.state, pods, chosen, node)
    state = replace(
        candidate.state,
        pods={**candidate.state.pods, **grants},
        managers=ManagerState((managers.cpus | held) & ~chosen, managers.devices, managers.memory),
    )
    is_certain = len(pods) == 1 or sum(1 for count in due.values() if count) == 1
    after = replace(
        candidate,
        state=state,
        maybe_free={uid: of for uid, of in candidate.maybe_free.items() if uid not in pods},
        maybe_held={uid: of for uid, of in candidate.maybe_held.items() if uid not in pods},
        open_split=candidate.open_split.difference(pods),
        open_owner=candidate.open_owner.difference(pods) if is_certain else candidate.open_owner.union(pods),
    )
    for uid in pods:
        after = with_open_split(after, uid, only_init=True)
    return after


def _due_cpus(candidate: CandidateState, shown: Collection[str], zones: Sequence[Zone]) -> dict[int, int]:
    """By NUMA node the CPUs that the zones show in use and that no pod of known split has; below 0 where they show too few."""
    use = _use_of(candidate, shown)
    if use is None or use.is_partial:
        return dict.fromkeys(candidate.state.node.machine.numa_bits, -1)
    published = {zone.numa: in_use(zone).get(CPU, 0) // MILLI for zone in zones}
    pairs = zip(candidate.state.node.machine.numa_bits, use.cpus, strict=True)
    return {numa: published.get(numa, 0) - used for numa, used in pairs}


def _absorbed(candidate: CandidateState, shown: Collection[str], zones: Sequence[Zone]) -> CandidateState:
    """The candidate with the sum of what pods at unknown places hold, as the topology shows it."""
    open_ = {uid for uid in candidate.open_split | candidate.open_owner if uid in candidate.state.pods}
    unlocated = {
        uid: request
        for uid, request in (*candidate.unlocated.items(), *candidate.unknown_placement.items())
        # Pods without running containers that hold anything are shown by no topology, and hold what init containers left.
        if uid in shown or uid in candidate.unlocated
    }
    state = candidate.state
    for uid in open_:
        if (request := state.pods[uid].request) is not None:
            unlocated[uid] = request
            state = state.without(uid)
    start = replace(
        candidate,
        state=state,
        unlocated=unlocated,
        unknown_placement={uid: of for uid, of in candidate.unknown_placement.items() if uid not in unlocated},
        maybe_held={uid: of for uid, of in candidate.maybe_held.items() if uid not in open_},
        maybe_free={uid: of for uid, of in candidate.maybe_free.items() if uid not in open_},
        open_split=candidate.open_split - open_,
        open_owner=candidate.open_owner - open_,
    )
    return with_published_sums(start, [uid for uid in shown if uid in state.pods], zones)


def _dealt(state: KubeletState, pods: Sequence[str], chosen: int, node: KubeletNode) -> dict[str, AdmittedPod]:
    """The pods with the chosen CPUs instead of those that the model gave their running containers."""
    found: dict[str, AdmittedPod] = {}
    for uid in pods:
        pod = state.pods[uid]
        place_of: dict[int, int] = {}
        containers = []
        for container in pod.grant.containers:
            if container.kind is not INIT and has_open_split(container, node):
                bits = container.cpus.bits
                own = chosen & bits
                more = lowest(chosen & ~own, bits.bit_count() - own.bit_count())
                chosen &= ~(own | more)
                place_of.update(zip(members(bits & ~own), members(more), strict=True))
                container = replace(container, cpus=CpuSet(own | more))
            containers.append(container)
        moved = tuple(
            replace(container, cpus=CpuSet(sum(1 << place_of.get(cpu, cpu) for cpu in members(container.cpus.bits))))
            if container.kind is INIT and place_of
            else container
            for container in containers
        )
        found[uid] = replace(pod, grant=Grant(pod.grant.qos, moved))
    return found


@dataclass(frozen=True)
class Undated:
    """A topology without a pod fingerprint: one of the sets of pods ``shown`` was there when it was made; it came at ``when``."""

    shown: tuple[tuple[str, ...], ...]
    zones: Sequence[Zone]
    when: float

    @classmethod
    def of(cls, shown: Iterable[Collection[str]], zones: Sequence[Zone], when: float) -> Self:
        """A topology that may show each of these sets."""
        return cls(tuple(map(tuple, shown)), zones, when)

    def explains(self, candidate: CandidateState) -> bool:
        """Whether one of the sets agrees with the candidate."""
        return any(agrees(candidate, pods, self.zones) for pods in self.shown)

    def allows(self, candidate: CandidateState) -> bool:
        """Whether the topology may be of the moment of this candidate, or of a later one."""
        return not self.shown or any(
            agrees(candidate, pods, self.zones)
            if all(candidate.has(uid) or uid in candidate.departed for uid in pods)
            else may_agree_later(candidate, pods, self.zones)
            for pods in self.shown
        )

    def speaks_of(self, uid: str) -> bool:
        """Whether the pod is in one of the sets."""
        return uid in self._uids

    @cached_property
    def _uids(self) -> frozenset[str]:
        return frozenset(uid for pods in self.shown for uid in pods)

    def without(self, uid: str, *, surely: bool) -> "Undated":
        """The topology if this pod was gone when it was made, or ``surely`` gone."""
        if uid not in self._uids:
            return self
        away = [tuple(other for other in pods if other != uid) for pods in self.shown]
        sets = dict.fromkeys(away if surely else [*self.shown, *away])
        return replace(self, shown=tuple(sets)) if len(sets) <= LIMITS.pod_sets * 4 else replace(self, shown=())
