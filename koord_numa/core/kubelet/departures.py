"""
The possible states after departures of pods whose NUMA nodes are not known.

Every placement that is consistent with the sums of the unlocated pods gives one state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.cpuset import CpuSet, from_each, lowest, members
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.budget import TooManyWays, spend
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis, released
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    ManagerState,
    MemoryBlock,
    MemoryTable,
)
from koord_numa.core.kubelet.variants import distinct, one_of_each_kind
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import without_zeros
from koord_numa.core.value_objects import ValueObject, replace

MOST_WAYS: Final = 64
"""Maximum number of states that one hypothesis may lead to after a departure."""

Unit = Sequence[tuple[Container, ContainerDemand]]
"""Containers that are aligned together."""


class Rest(ValueObject):
    """The sum of what unlocated pods hold: CPU bits, bytes by memory group and type, and device bits by resource."""

    cpus: int
    memory: Mapping[int, Mapping[str, int]]
    devices: Mapping[str, int]


def rest_of(one: Hypothesis) -> Rest:
    """Return the amounts that are in use in a hypothesis, except those of pods with a known placement."""
    node, managers = one.state.node, one.state.managers
    cpus = node.machine.bits & ~node.reserved & ~managers.cpus if node.pins_cpus else 0
    devices = dict(managers.devices)
    memory = {} if managers.memory is None else _in_use(managers.memory)
    cpus &= ~one.loose.get(SOMEONE, 0)
    for pod in one.state.pods.values():
        for given in pod.grant.containers:
            cpus &= ~given.cpus.bits
            for resource, ids in given.devices.items():
                pool = node.devices[resource].devices
                devices[resource] &= ~sum(1 << at for at, device in enumerate(pool) if device.id in ids)
            if given.kind is not ContainerKind.INIT:
                for block in given.memory:
                    if block.mask in memory:
                        memory[block.mask][block.resource] -= block.amount
    return Rest(cpus, memory, devices)


def _in_use(table: MemoryTable) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for numa, mask in table.groups.items():
        sums = found.setdefault(mask, {})
        for kind, amount in table.held[numa].items():
            sums[kind] = sums.get(kind, 0) + amount
    return found


Departed = dict[tuple[str, ...], list[Hypothesis]]
"""States by departed pods, in the order of departure."""


def without(one: Hypothesis, uids: Iterable[str], known: Departed | None = None) -> Iterator[Hypothesis]:
    """
    Yield the hypotheses after these pods have left: several if their placement was not known.

    Pods leave in the order of their uids, whatever the order of ``uids``, so that limits apply alike in each process.
    ``known`` caches the states after departures from this hypothesis, and is extended. Raises ``TooManyWays`` when a
    departure has more than ``MOST_WAYS`` results.
    """
    states, departed = [one], {} if known is None else known
    away: tuple[str, ...] = ()
    for uid in sorted(uids):
        away = (*away, uid)
        if (found := departed.get(away)) is not None:
            states = found
        elif uid in one.unlocated:
            states = distinct(_few(way for state in states for way in _departures(state, uid)))
        else:
            states = [released(state, uid) for state in states]
        departed[away] = states
    yield from states


def _few(ways: Iterator[Hypothesis]) -> Iterator[Hypothesis]:
    for number, way in enumerate(ways):
        if number >= MOST_WAYS:
            raise TooManyWays
        yield way


def _departures(one: Hypothesis, uid: str) -> Iterator[Hypothesis]:
    """Yield one state per possible placement of the pod, without the pod."""
    demand, node = pod_demand(one.unlocated[uid]), one.state.node
    unlocated = {other: request for other, request in one.unlocated.items() if other != uid}
    found = False
    for grants, left in _places(list(_units(demand.containers, node)), rest_of(one), node):
        found = True
        grant = Grant(demand.qos, tuple(grants))
        managers = _given_back(one.state.managers, grant, left, node)
        yield replace(
            one,
            state=replace(one.state, managers=managers),
            unlocated=unlocated,
            gone={**one.gone, uid: grant},
        )
    # No placement agrees with the sums: the use of the pod stays counted, and the next topology contradicts it.
    if not found:
        yield replace(one, unlocated=unlocated, gone={**one.gone, uid: None})


def _units(containers: Unit, node: KubeletNode) -> Iterator[Unit]:
    # Topologies show nothing of finished init containers. Their CPUs are in ``loose``.
    lasting = [(container, part) for container, part in containers if container.kind is not ContainerKind.INIT]
    if node.config.topology_policy is not KubeletPolicy.NONE and node.config.topology_scope is KubeletScope.POD:
        yield lasting
    else:
        yield from ([each] for each in lasting)


def _places(units: Sequence[Unit], rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    if not units:
        yield [], rest
        return
    ways = list(_aligned(units[0], rest, node)) or (
        [] if node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE else list(_anywhere(units[0], rest, node))
    )
    for grants, left in ways:
        for others, end in _places(units[1:], left, node):
            yield [*grants, *others], end


def _aligned(unit: Unit, rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """
    Yield the placements of the unit on one NUMA node.

    Memory may be in a group of NUMA nodes; the other resources are then on any NUMA node of the group.
    """
    if not node.aligns:
        return
    binds = node.pins_memory and any(part.memory for _, part in unit)
    if not (binds or _needs_a_place(unit, node)):
        yield [_grant(container, 0, (), {}) for container, _ in unit], rest
        return
    tried: set[tuple[int, int, int]] = set()
    for cell in list(rest.memory) if binds else [1 << numa for numa in node.machine.numa_ids]:
        for numa in members(cell) if _needs_a_place(unit, node) else members(cell)[:1]:
            for cpus in _cpus_near(unit, rest.cpus, node, numa):
                # Without devices, the NUMA node of the hint within a socket does not matter.
                place = (cell if binds else 0, cpus, numa if _has_devices(unit, node) else 0)
                if place in tried:
                    continue
                tried.add(place)
                for grants, left in _taken(unit, replace(rest, cpus=cpus), node, cell, 1 << numa):
                    yield grants, replace(left, cpus=left.cpus | rest.cpus & ~cpus)


def _cpus_near(unit: Unit, cpus: int, node: KubeletNode, numa: int) -> Iterator[int]:
    """
    Yield the CPUs that a unit aligned to the NUMA node may have.

    With ``align-by-socket``, these are all ways to take CPUs of the socket.
    """
    machine, near = node.machine, node.machine.numa_bits.get(numa, 0)
    socket = next((bits for bits in machine.socket_bits.values() if bits & near), near)
    count = sum(part.cpus for _, part in unit) if node.pins_cpus else 0
    # Best-effort does not reject pods for the NUMA nodes of CPUs.
    by_socket = node.static_options.align_by_socket and node.config.topology_policy in STRICT
    if not count or socket == near or not by_socket:
        yield cpus & near
    else:
        yield from from_each([cpus & here for here in machine.numa_bits.values() if here & socket], count)


def _has_devices(unit: Unit, node: KubeletNode) -> bool:
    return any(count and name in node.devices for _, part in unit for name, count in part.devices.items())


def _needs_a_place(unit: Unit, node: KubeletNode) -> bool:
    return _has_devices(unit, node) or (node.pins_cpus and any(part.cpus for _, part in unit))


def _anywhere(unit: Unit, rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """Yield the placements with memory in any group, and CPUs and devices from the lowest NUMA nodes that have any."""
    for cell in rest.memory or (0,):
        yield from _taken(unit, rest, node, cell, node.machine.numa_mask)


def _taken(
    unit: Unit, rest: Rest, node: KubeletNode, cell: int, near: int
) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """
    Yield what the unit may hold with memory in ``cell`` and devices on ``near``, and the rest.

    Nothing is yielded if the sums have less.
    """
    spend()
    cpus, memory = rest.cpus, {mask: dict(kinds) for mask, kinds in rest.memory.items()}
    held: list[tuple[int, tuple[MemoryBlock, ...]]] = []
    for _, part in unit:
        count = part.cpus if node.pins_cpus else 0
        if cpus.bit_count() < count:
            return
        own = lowest(cpus, count)
        cpus &= ~own
        blocks = tuple(
            MemoryBlock(kind, amount, cell)
            for kind, amount in without_zeros(part.memory or {}).items()
            if node.pins_memory
        )
        for block in blocks:
            memory[cell][block.resource] = memory[cell].get(block.resource, 0) - block.amount
            if memory[cell][block.resource] < 0:
                return
        held.append((own, blocks))
    wants = [
        (at, name, count)
        for at, (_, part) in enumerate(unit)
        for name, count in part.devices.items()
        if count and name in node.devices
    ]
    for given, devices in _handed_out(wants, rest, node, near):
        grants = [
            _grant(container, own, blocks, {name: ids for (to, name), ids in given.items() if to == at})
            for at, ((container, _), (own, blocks)) in enumerate(zip(unit, held, strict=True))
        ]
        yield grants, Rest(cpus, memory, devices)


def _handed_out(
    wants: Sequence[tuple[int, str, int]], rest: Rest, node: KubeletNode, near: int
) -> Iterator[tuple[dict[tuple[int, str], tuple[str, ...]], Mapping[str, int]]]:
    """Yield the devices for ``wants`` by container and resource, in every distinct way, and the remaining devices."""
    if not wants:
        yield {}, rest.devices
        return
    (at, name, count), *others = wants
    pool = node.devices[name]
    for taken in _which(name, count, rest, pool, near):
        left = replace(rest, devices={**rest.devices, name: rest.devices[name] & ~taken})
        for given, devices in _handed_out(others, left, node, near):
            yield {(at, name): pool.ids(taken), **given}, devices


def _which(name: str, count: int, rest: Rest, pool: DevicePool, near: int) -> Iterator[int]:
    """Yield the devices that a container aligned to ``near`` may have, as bits. Equal devices are taken in one order only."""
    # Devices near no NUMA node are allocated to pods on any. Devices near several NUMA nodes may be near this one.
    fitting = rest.devices[name] & (pool.near(near) if pool.hosts and not pool.assumed else -1)
    if fitting.bit_count() >= count:
        yield lowest(fitting, count)


def _grant(
    container: Container, cpus: int, memory: tuple[MemoryBlock, ...], devices: dict[str, tuple[str, ...]]
) -> ContainerGrant:
    return ContainerGrant(
        name=container.name, kind=container.kind, cpus=CpuSet(cpus), memory=memory, devices=devices, hint=None
    )


def _given_back(managers: ManagerState, grant: Grant, left: Rest, node: KubeletNode) -> ManagerState:
    """Return the managers without what this grant holds. ``left`` is what the other unlocated pods hold."""
    after = managers.copy()
    for given in grant.containers:
        after.cpus |= given.cpus.bits
        for resource, ids in given.devices.items():
            pool = node.devices[resource].devices
            after.devices[resource] &= ~sum(1 << at for at, device in enumerate(pool) if device.id in ids)
        for block in given.memory:
            if after.memory is not None:
                after.memory.credit(block)
    if after.memory is not None:
        for mask in {block.mask for given in grant.containers for block in given.memory}:
            # The number of blocks of unlocated pods is not known, so they count as a single block.
            if not any(left.memory[mask].values()):
                after.memory.end_block(mask)
    return after


def with_one_away(one: Hypothesis) -> Iterator[Hypothesis]:
    """
    Yield the states after the departure of any single pod that holds resources.

    Such a pod may have left unseen from any possible placement. Pods of one kind give a single state.
    """
    for each in without(one, one.leaving):
        yield each
        tried: list[PodRequest] = []
        for uid, request in each.unlocated.items():
            if request not in tried:
                tried.append(request)
                yield from without(each, [uid])
        for uid in one_of_each_kind(each, holding(each)):
            yield released(each, uid)


def holding(one: Hypothesis) -> Iterator[str]:
    """Yield the pods that hold resources of the managers."""
    for uid, pod in one.state.pods.items():
        if any(given.cpus or given.devices or given.memory for given in pod.grant.containers):
            yield uid


def without_leaving(one: Hypothesis, demand: PodDemand) -> Iterator[Hypothesis]:
    """
    Yield the states without the pods in ``leaving`` if more room for one container may leave less for the next container.

    That is possible if several containers are aligned separately.
    """
    node = one.state.node
    if not (one.leaving and node.aligns and node.config.topology_scope is KubeletScope.CONTAINER):
        return iter(())
    parts = sum(1 for _, part in demand.containers if part.cpus or part.memory or part.devices)
    return without(one, one.leaving) if parts > 1 else iter(())
