"""
The kubelet's resource managers of one node as values: the node and its configuration, what every pod holds, and what
is free.

A state is never changed. Admission or removal of a pod returns a new state, which shares everything that did not
change. The module also has the bound on the work of a decision: counted steps, so that the same input gives the same
answer. Code that may run long calls ``spend``, and ``limited`` sets the budget of everything that runs inside it. A
dry run takes 5 to 12 steps per container, a step 15 to 40 microseconds.
"""

from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.kubelet_options import (
    CLOSEST_NUMA,
    ORDER_OPTIONS,
    OVER_NUMA,
    STATIC_CPUS,
    STATIC_MEMORY,
    StaticOptions,
)
from koord_numa.core.cpuset import EMPTY, CpuSet, members
from koord_numa.core.kubelet.demand import PodDemand, pod_demand, pod_level_demand
from koord_numa.core.numa import numa_ids
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import INIT, ContainerKind, KubeletPolicy, KubeQos
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI, NOTHING, PODS, ResourceList, add, subtract, without_zeros
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field, value_object

T = TypeVar("T")

DECISION: Final = 24_000
"""Steps of one decision on one node, in all slices. The hardest recorded nodes (8 NUMA nodes) take 0.4 to 0.9 s for them."""

SLICE: Final = 100
"""Steps of a decision that run at once: 2 to 17 ms. The others run between decisions."""

EVENT: Final = 9_000
"""Steps of the replay of pods after one event."""


class OnTruncation(Enum):
    """Treatment of an answer whose budget ended before every possible state was tried."""

    WAIT = "wait"  # the pod waits for the next topology
    TRUST = "trust"  # the answer rests on the states that were tried; it may be a wrong yes


class TooManyWays(Exception):
    """More states are possible than may be tried."""


class OverBudget(TooManyWays):
    """The steps of a budget are spent."""


_CURRENT: Final[ContextVar["Budget | None"]] = ContextVar("budget", default=None)


class StepCount(MutableObject):
    """The number of steps taken so far, with and without a budget."""

    total: int = 0


STEP_COUNT: Final = StepCount()
"""All steps of this process. The difference between two readings is the cost of what ran in between."""


class Budget:
    """Steps that are left, for everything that runs inside the ``with`` block."""

    __slots__ = ("_token", "left")

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Subtract steps from the budget. Raise ``OverBudget`` if fewer are left."""
        self.left -= steps
        if self.left < 0:
            raise OverBudget

    def __enter__(self) -> "Budget":
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def limited(steps: int) -> Budget:
    """Return a context manager. All code in its ``with`` block together may take this number of steps."""
    return Budget(steps)


def within(budget: Budget, items: Iterator[T]) -> Iterator[tuple[T, int]]:
    """Yield each item with the number of steps that it took from the budget."""
    while True:
        before = budget.left
        with budget:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item, before - budget.left


def spend(steps: int = 1) -> None:
    """Count steps and subtract them from the current budget, if there is one. Raise ``OverBudget`` if fewer are left."""
    STEP_COUNT.total += steps
    budget = _CURRENT.get()
    if budget is not None:
        budget.left -= steps
        if budget.left < 0:
            raise OverBudget


class PluginDevice(ValueObject):
    """One device of a device plugin. ``near`` is the mask of its NUMA nodes, 0 if the plugin reports none."""

    id: str
    near: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class DevicePool:
    """All devices of one resource. A set of devices is an integer: bit i is the device at index i of ``devices``."""

    devices: tuple[PluginDevice, ...]  # in the plugin's order of preference
    assumed: bool = False  # whether the NUMA nodes of devices near several of them are an assumption
    healthy: int = field(init=False)  # bits of the devices that may be allocated
    on: Mapping[int, int] = field(init=False)  # NUMA id -> bits of all devices near it, unhealthy ones included
    hosts: int = field(init=False)  # mask of the NUMA nodes that are near any device
    masks: tuple[int, ...] = field(init=False, repr=False)  # ``near`` by index
    places: Mapping[str, int] = field(init=False, repr=False)  # device id -> index
    _near: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # caches ``near``

    def __post_init__(self) -> None:
        on: dict[int, int] = {}
        healthy = hosts = 0
        for index, device in enumerate(self.devices):
            bit = 1 << index
            healthy |= bit if device.healthy else 0
            hosts |= device.near
            for numa in members(device.near):
                on[numa] = on.get(numa, 0) | bit
        object.__setattr__(self, "healthy", healthy)
        object.__setattr__(self, "on", dict(sorted(on.items())))
        object.__setattr__(self, "hosts", hosts)
        object.__setattr__(self, "masks", tuple([device.near for device in self.devices]))
        object.__setattr__(self, "places", {device.id: index for index, device in enumerate(self.devices)})

    def near(self, mask: int) -> int:
        """Return the bits of the devices near any NUMA node of ``mask``."""
        bits = self._near.get(mask)
        if bits is None:
            bits = 0
            for numa in members(mask):
                bits |= self.on.get(numa, 0)
            self._near[mask] = bits
        return bits

    def ids(self, bits: int) -> tuple[str, ...]:
        """Return the ids of these devices in the plugin's order."""
        return tuple(self.devices[index].id for index in members(bits))


class WholeCoreRule(ValueObject):
    """
    The effect of full-pcpus-only: exclusive CPUs come in multiples of ``threads``, and CPUs on a core with a reserved CPU do not count.

    ``spoiled`` are the bits of the CPUs on such cores if CPU ids are real, ``unlocated`` is their number if not.
    """

    threads: int
    spoiled: int = 0
    unlocated: int = 0


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """
    The node before the first pod, as its kubelet's resource managers know it.

    ``memory`` is what the memory manager can allocate per NUMA node: bytes of memory without huge pages and reservations, and bytes of
    every huge page size. ``allocatable`` is the Node object's, for the node-level check.
    """

    machine: CpuTopology
    config: KubeletConfig
    allocatable: ResourceList
    memory: Mapping[int, ResourceList] = field(default_factory=dict)
    devices: Mapping[str, DevicePool] = field(default_factory=dict)
    ids_are_real: bool = True  # False: CPU ids are invented, and options about cores and sockets have no effect
    aligns_by_socket: bool = False  # with invented CPU ids: align-by-socket is on, and sockets are assumed
    packs: bool = False  # with invented CPU ids: cores have at most two threads, and CPUs are packed into them
    fills_sockets: bool = False  # with invented CPU ids: no option other than align-by-socket spreads CPUs
    is_published: bool = True  # whether the CPU manager's options are known
    takes_whole_cores: bool = False  # with invented CPU ids: full-pcpus-only is on, and CPUs are packed core by core
    pod_level_managers: bool = False  # whether the gate PodLevelResourceManagers is on
    whole_cores: WholeCoreRule | None = None  # with real CPU ids derived from the options
    reserved: int = field(init=False, repr=False)  # bits of the CPUs that are never exclusive
    static_options: StaticOptions = field(init=False, repr=False)
    prefers_closest: bool = field(init=False, repr=False)  # whether NUMA distances break ties between hints
    numa_order_known: bool = field(init=False, repr=False)  # whether the lowest of equally good hints is chosen
    pins_cpus: bool = field(init=False, repr=False)  # whether the CPU manager is static
    pins_memory: bool = field(init=False, repr=False)  # whether the memory manager is static
    distributes_across_numa: bool = field(init=False, repr=False)
    aligns: bool = field(init=False, repr=False)  # whether the topology manager has a policy other than none

    def __post_init__(self) -> None:
        config = self.config
        reserved = config.reserved_cpus.bits if config.reserved_cpus is not None else 0
        options = StaticOptions.of(config.cpu_options)
        # Invented ids have no cores. The shares of NUMA nodes under distribute-cpus-across-numa follow from free CPUs alone.
        if not self.ids_are_real:
            options = StaticOptions(
                align_by_socket=self.aligns_by_socket, distribute_across_numa=options.distribute_across_numa
            )
        object.__setattr__(self, "reserved", reserved)
        object.__setattr__(self, "static_options", options)
        object.__setattr__(self, "prefers_closest", config.topology_options.get(CLOSEST_NUMA, False))
        object.__setattr__(self, "pins_cpus", config.cpu_policy == STATIC_CPUS)
        object.__setattr__(self, "pins_memory", config.memory_policy == STATIC_MEMORY)
        object.__setattr__(self, "distributes_across_numa", config.cpu_options.get(OVER_NUMA, False))
        object.__setattr__(self, "aligns", config.topology_policy not in (None, KubeletPolicy.NONE))
        orders = self.aligns and any(config.topology_options.get(name, False) for name in ORDER_OPTIONS)
        object.__setattr__(self, "numa_order_known", not orders)
        # Under full-pcpus-only no container gets a CPU on the core of a reserved CPU.
        if self.whole_cores is None and options.full_pcpus_only:
            spoiled = sum(core.bits for core in self.machine.cores if core.bits & reserved)
            object.__setattr__(self, "whole_cores", WholeCoreRule(self.machine.threads_per_core, spoiled=spoiled))

    def demand_of(self, request: PodRequest) -> PodDemand:
        """
        Return the requests of a pod to the managers of this node.

        A memory type that no zone lists is not known to be bound, and is counted for the whole node only.
        """
        demand = pod_level_demand(request) if self.pod_level_managers else pod_demand(request)
        if self.ids_are_real or not self.pins_memory or not demand.memory_types:
            return demand
        listed = next(iter(self.memory.values()), NOTHING)
        return demand if demand.memory_types <= listed.keys() else demand.of_memory_types(listed)


class ContainerAffinity(ValueObject, gc=False):
    """The merged topology hint that the managers allocate by. ``mask`` is ``None`` for any NUMA node."""

    mask: int | None
    preferred: bool


class MemoryBlock(ValueObject, gc=False):
    """Bytes of one memory type, allocated together from the NUMA nodes of ``mask``."""

    resource: str
    amount: int
    mask: int


class ContainerGrant(ValueObject, gc=False):
    """The allocation of one container. A container without exclusive CPUs runs in the shared pool."""

    name: str
    kind: ContainerKind
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = value_field(default_factory=dict)
    hint: ContainerAffinity | None = None  # None under policy none
    numas: int = 0  # with invented CPU ids: mask of the NUMA nodes that the CPUs may be on, 0 for any


@value_object
class Grant:
    """
    The allocation of a pod, with its containers in the kubelet's order.

    ``pod_cpus`` and ``pod_memory`` are allocated to the pod as a whole (PodLevelResourceManagers with scope pod). Then the containers'
    CPUs are slices of ``pod_cpus``, and containers without CPUs share the rest.

    ``place`` caches ``hypothesis.signature``, ``running`` the CPUs that the containers use per NUMA node (``reports.py``).
    """

    qos: KubeQos
    containers: tuple[ContainerGrant, ...]
    pod_cpus: CpuSet = EMPTY
    pod_memory: tuple[MemoryBlock, ...] = ()
    place: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)
    running: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)


class Charge(Enum):
    """Certainty about the NUMA nodes on which an admitted pod will hold its resources."""

    PREDICTED = "predicted"  # the kubelet takes these amounts from these NUMA nodes
    EVERYWHERE = "everywhere"  # one of several NUMA nodes, each of which is charged


class KubeletAdmission(ValueObject, gc=False):
    """
    The prediction that a kubelet admits a pod, and the amounts that the pod will hold.

    ``numa`` are the amounts to charge per NUMA node, ascending: exclusive CPUs (milli), bound memory, devices. ``mask`` is the NUMA node
    set of the pod, ``None`` when nothing is bound. ``cpus`` is known only with the kubelet's full configuration. ``note`` is the assumption
    behind the prediction, for people. ``explores`` names unpublished options that the admission depends on. ``lacks`` is the rejection
    under the first of these options, if eviction of pods may help under all of them.
    """

    numa: tuple[tuple[int, ResourceList], ...] = ()
    charge: Charge = Charge.PREDICTED
    mask: int | None = None
    cpus: CpuSet = EMPTY
    note: str = ""
    explores: tuple[str, ...] = ()
    lacks: Rejection | None = None


class MemoryTable(MutableObject):
    """
    The memory manager's machine state (state.go in the kubelet's memorymanager): free and held bytes, and groups of NUMA nodes.

    A block on several NUMA nodes ties them together: while it exists, other memory goes to exactly this group or to NUMA nodes outside.
    ``groups`` maps a NUMA id to the mask of its group, at first the NUMA node alone; ``blocks`` counts the blocks on a NUMA node.
    ``take`` and ``release`` change the table. The inner dictionaries are replaced and never changed, so that copies share them.
    """

    supply: Mapping[int, ResourceList]  # allocatable bytes; never changed
    free: dict[int, dict[str, int]]
    held: dict[int, dict[str, int]]
    groups: dict[int, int]
    blocks: dict[int, int]
    nodes: int  # mask of all NUMA nodes

    @classmethod
    def of(cls, supply: Mapping[int, ResourceList]) -> "MemoryTable":
        """Return the table of a machine without pods."""
        return cls(
            supply=supply,
            free={numa: dict(amounts) for numa, amounts in supply.items()},
            held={numa: dict.fromkeys(amounts, 0) for numa, amounts in supply.items()},
            groups={numa: 1 << numa for numa in supply},
            blocks=dict.fromkeys(supply, 0),
            nodes=sum(1 << numa for numa in supply),
        )

    def copy(self) -> "MemoryTable":
        """Return an independent table with the same entries."""
        return MemoryTable(
            self.supply, self.free.copy(), self.held.copy(), self.groups.copy(), self.blocks.copy(), self.nodes
        )

    def knows(self, resources: Collection[str]) -> bool:
        """Return whether every NUMA node has an entry for each of these memory types."""
        return not [resource for amounts in self.supply.values() for resource in resources if resource not in amounts]

    def allows(self, mask: int) -> bool:
        """Return whether the groups allow a new block on exactly these NUMA nodes."""
        if mask and not mask & (mask - 1):
            return self.groups[mask.bit_length() - 1].bit_count() == 1
        return all(not self.blocks[numa] or self.groups[numa] == mask for numa in numa_ids(mask))

    def take(self, block: MemoryBlock, covered: int) -> None:
        """
        Add a block, from the lowest NUMA ids first. ``covered`` bytes are charged already, left by an init container.

        Source: Allocate and updateMachineState in memorymanager/policy_static.go.
        """
        rest = max(0, block.amount - covered)
        for numa in numa_ids(block.mask):
            self.blocks[numa] += 1
            self.groups[numa] = block.mask
            # Free bytes are below zero after a release that credited another NUMA node of the group.
            part = min(rest, max(0, self.free[numa].get(block.resource, 0)))
            self.hold(numa, block.resource, part)
            rest -= part

    def release(self, block: MemoryBlock) -> None:
        """
        Remove a block. The lowest NUMA ids are credited first, whichever NUMA node of the group was charged.

        Source: releaseMemory in memorymanager/policy_static.go.
        """
        self.end_block(block.mask)
        self.credit(block)

    def credit(self, block: MemoryBlock) -> None:
        """Return the bytes of a block that stays in its group."""
        rest = block.amount
        for numa in members(block.mask):
            part = min(rest, self.held[numa].get(block.resource, 0))
            self.hold(numa, block.resource, -part)
            rest -= part

    def end_block(self, mask: int) -> None:
        """Count one block less on these NUMA nodes. A NUMA node without blocks leaves its group."""
        for numa in members(mask):
            self.blocks[numa] = max(0, self.blocks[numa] - 1)
            if not self.blocks[numa]:
                self.groups[numa] = 1 << numa

    def hold(self, numa: int, resource: str, amount: int) -> None:
        """Move bytes of a NUMA node from free to held, or back if ``amount`` is negative."""
        if amount:
            free, held = self.free[numa], self.held[numa]
            self.free[numa] = {**free, resource: free[resource] - amount}
            self.held[numa] = {**held, resource: held[resource] + amount}


@dataclass(slots=True)
class ManagerState:
    """Free and taken resources. The managers change a copy while they admit a pod; the managers of a state are never changed."""

    cpus: int  # bits of the free CPUs
    devices: dict[str, int]  # resource -> bits of the devices that pods hold
    memory: MemoryTable | None  # None: the memory manager is off
    admitted: Any = field(default=None, repr=False, compare=False)  # the last admission, see ``admit.dry_run``

    def copy(self) -> "ManagerState":
        """Return an independent copy."""
        return ManagerState(self.cpus, dict(self.devices), self.memory.copy() if self.memory is not None else None)

    def release(self, grant: Grant, node: KubeletNode) -> None:
        """Return the CPUs and devices of all containers of a pod, and the memory of those that run."""
        self.cpus |= grant.pod_cpus.bits
        if self.memory is not None:
            for block in grant.pod_memory:
                self.memory.release(block)
        for container in grant.containers:
            self.cpus |= container.cpus.bits
            for resource, ids in container.devices.items():
                places = node.devices[resource].places
                for device in ids:
                    self.devices[resource] &= ~(1 << places[device])
            # An init container returned its memory when the next container started, and kept its CPUs and devices.
            if self.memory is not None and container.kind is not INIT:
                for block in container.memory:
                    self.memory.release(block)


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod on the node: its allocation, its amounts in the node-level check, and its requests to the managers."""

    grant: Grant
    requests: ResourceList
    demand: PodDemand | None = field(default=None, repr=False, compare=False)
    request: PodRequest | None = field(default=None, repr=False, compare=False)


class KubeletState(ValueObject):
    """The node, the managers, the pods by uid, and the sum of the pods' amounts in the node-level check."""

    node: KubeletNode
    managers: ManagerState
    pods: Mapping[str, AdmittedPod] = value_field(default_factory=dict)
    requested: ResourceList = value_field(default_factory=dict)

    @classmethod
    def empty(cls, node: KubeletNode) -> "KubeletState":
        """Return the state of a node without pods."""
        return cls(
            node=node,
            managers=ManagerState(
                cpus=node.machine.bits & ~node.reserved if node.pins_cpus else 0,
                devices=dict.fromkeys(node.devices, 0),
                memory=MemoryTable.of(node.memory) if node.pins_memory else None,
            ),
        )

    def with_pod(self, uid: str, request: PodRequest, grant: Grant, managers: ManagerState) -> "KubeletState":
        """Return the state with this pod. ``managers`` are the managers after the allocation of ``grant``."""
        pod = AdmittedPod(grant, {**effective_requests(request), PODS: 1}, self.node.demand_of(request), request)
        return replace(
            self, managers=managers, pods={**self.pods, uid: pod}, requested=add(self.requested, pod.requests)
        )

    def with_memory(self, memory: MemoryTable | None) -> "KubeletState":
        """Return the state with another memory table."""
        return replace(self, managers=ManagerState(self.managers.cpus, self.managers.devices, memory))

    def without(self, uid: str) -> "KubeletState":
        """Return the state without this pod, or the same state if the pod is not there."""
        pod = self.pods.get(uid)
        if pod is None:
            return self
        managers, pods = self.managers_without(pod), dict(self.pods)
        del pods[uid]
        requested = subtract(self.requested, pod.requests)
        # Without zeros, the state equals the state before the pod's arrival.
        return KubeletState(
            self.node, managers, pods, without_zeros(requested) if 0 in requested.values() else requested
        )

    def managers_without(self, pod: AdmittedPod) -> ManagerState:
        """Return the managers without one of the pods."""
        managers = self.managers.copy()
        managers.release(pod.grant, self.node)
        return managers


def reached_by(container: ContainerGrant, node: KubeletNode) -> int:
    """Return the mask of the NUMA nodes that the container's CPUs may be on. Only its hint and the number of CPUs are certain."""
    machine = node.machine
    mask = container.hint.mask if container.hint is not None else None
    if mask is None:
        return machine.numa_mask
    near = sum(machine.numa_bits.get(numa, 0) for numa in members(mask))
    if node.static_options.align_by_socket:
        near = sum(bits for bits in machine.socket_bits.values() if bits & near)
    # CPUs that the hint's NUMA nodes do not have come from any NUMA node.
    if container.cpus.bits & ~near:
        return machine.numa_mask
    return sum(1 << numa for numa, bits in machine.numa_bits.items() if bits & near)


def free_on(node: KubeletNode, managers: ManagerState, numa: int) -> dict[str, int]:
    """Return the free amounts of one NUMA node: exclusive CPUs (milli), bytes per memory type, devices near it."""
    free = {
        name: (pool.near(1 << numa) & pool.healthy & ~managers.devices[name]).bit_count()
        for name, pool in node.devices.items()
    }
    if node.pins_cpus:
        free[CPU] = (managers.cpus & node.machine.numa_bits[numa]).bit_count() * MILLI
    if managers.memory is not None:
        free.update(managers.memory.free[numa])
    return free
