"""
One kubelet-owned node in full: its CPUs, memory and devices per NUMA node, and how its kubelet's managers are configured.

Facts only; nothing here changes when pods come and go.

What a kubelet answers to a pod, and what a scheduler may conclude beforehand. Values only; nothing here decides.

The kubelet's memory manager, policy Static: memory and huge pages per NUMA node, and the groups that wide blocks tie together.

While a block spans several NUMA nodes they form a group: other memory goes to exactly that group or to NUMA nodes outside. The
table follows the manager to the byte, also where releases are credited to another NUMA node of a group than was charged.

A kubelet's managers at one moment: free CPUs, devices and memory, and what every pod on the node was given.

States are values: admitting or removing a pod makes a new one and leaves the old one intact, so trying something costs no more
than a few small copies. ``admit.py`` decides; this module only keeps the managers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import is_
from typing import Any, Final

from koord_numa.core.bit_sets import members
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.options import CLOSEST_NUMA, OVER_NUMA, STATIC_CPUS, STATIC_MEMORY, StaticOptions
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import INIT, ContainerKind, KubeletPolicy, KubeQos
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI, PODS, ResourceList, add, subtract, without_zeros
from koord_numa.core.value_objects import ValueObject, replace, value_field, value_object


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a plugin. ``near`` is the mask of NUMA nodes it is attached to, 0 when the plugin reports none."""

    id: str
    near: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class DevicePool:
    """All devices of one resource, numbered by their place in ``devices``: sets of devices are bits of an integer."""

    devices: tuple[Device, ...]  # in the plugin's order of preference
    assumed: bool = False  # is it assumed which of them are near several NUMA nodes?
    healthy: int = field(init=False)  # bits of the devices that may be handed out
    on: Mapping[int, int] = field(init=False)  # NUMA node -> bits of all devices near it, healthy or not
    hosts: int = field(init=False)  # mask of the NUMA nodes that have any
    masks: tuple[int, ...] = field(init=False, repr=False)  # of each device, what it is near
    places: Mapping[str, int] = field(init=False, repr=False)  # of each device by its id

    def __post_init__(self) -> None:
        # Derived once: pools are asked for masks in every hint, and are never changed.
        on: dict[int, int] = {}
        healthy = hosts = 0
        for place, device in enumerate(self.devices):
            bit = 1 << place
            healthy |= bit if device.healthy else 0
            hosts |= device.near
            for numa in members(device.near):
                on[numa] = on.get(numa, 0) | bit
        object.__setattr__(self, "healthy", healthy)
        object.__setattr__(self, "on", dict(sorted(on.items())))
        object.__setattr__(self, "hosts", hosts)
        object.__setattr__(self, "masks", tuple([device.near for device in self.devices]))
        object.__setattr__(self, "places", {device.id: place for place, device in enumerate(self.devices)})

    def near(self, mask: int) -> int:
        """Bits of the devices near any of these NUMA nodes: a device near two of them counts once."""
        bits = 0
        for numa in members(mask):
            bits |= self.on.get(numa, 0)
        return bits

    def ids(self, bits: int) -> tuple[str, ...]:
        """The ids of these devices, in the plugin's order."""
        return tuple(self.devices[place].id for place in members(bits))


@dataclass(frozen=True, slots=True)
class WholeCoreRule:
    """
    full-pcpus-only is on: exclusive CPUs come in multiples of ``threads``, and only from free CPUs outside the cores of reserved ones.

    ``spoiled`` are the CPU bits of those cores where ids are known, ``unlocated`` their number where they are not.
    """

    threads: int
    spoiled: int = 0
    unlocated: int = 0


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """
    Everything a kubelet's resource managers know before the first pod.

    ``memory`` is per NUMA node what the memory manager can hand out: all memory minus huge pages and reservation, and the
    bytes of every huge page size the machine knows. ``allocatable`` is the Node object's, for the last admission check.
    """

    machine: CpuTopology
    config: KubeletConfig
    allocatable: ResourceList
    memory: Mapping[int, ResourceList] = field(default_factory=dict)
    devices: Mapping[str, DevicePool] = field(default_factory=dict)
    ids_are_real: bool = True  # else CPU ids are made up, and the options that look at cores and sockets say nothing
    aligns_by_socket: bool = False  # the option, where ids are made up and sockets are assumed
    packs: bool = False  # are cores of two threads at most, and CPUs packed into them, where ids are made up?
    may_pack: bool = False  # the same, unless an option says otherwise that is not published?
    core_threads: tuple[int, ...] = ()  # those a core may have, where align-by-socket packs CPUs in made-up ids
    is_published: bool = True  # are the CPU manager's options known?
    takes_whole_cores: bool = False  # does full-pcpus-only let CPUs be packed core by core, where ids are made up?
    whole_cores: WholeCoreRule | None = None  # from the options where ids are real
    reserved: int = field(init=False, repr=False)  # CPU bits that are never exclusive
    static_options: StaticOptions = field(init=False, repr=False)
    prefers_closest: bool = field(init=False, repr=False)
    pins_cpus: bool = field(init=False, repr=False)  # does the CPU manager hand out exclusive CPUs?
    pins_memory: bool = field(init=False, repr=False)  # does the memory manager bind memory to NUMA nodes?
    deals_over_numa: bool = field(init=False, repr=False)  # is an even share taken of each of several NUMA nodes?
    aligns: bool = field(init=False, repr=False)  # does the topology manager ask for hints at all?

    def __post_init__(self) -> None:
        reserved = self.config.reserved_cpus.bits if self.config.reserved_cpus is not None else 0
        object.__setattr__(self, "reserved", reserved)
        options = StaticOptions.of(self.config.cpu_options)
        # Made-up CPU ids have no cores, so that options about cores and sockets would act on fiction.
        if not self.ids_are_real:
            # How many CPUs each of several NUMA nodes gives follows from how many are free there.
            over_numa = options.distribute_across_numa
            options = StaticOptions(align_by_socket=self.aligns_by_socket, distribute_across_numa=over_numa)
        object.__setattr__(self, "static_options", options)
        object.__setattr__(self, "prefers_closest", self.config.topology_options.get(CLOSEST_NUMA, False))
        # Asked many times in every admission.
        object.__setattr__(self, "pins_cpus", self.config.cpu_policy == STATIC_CPUS)
        object.__setattr__(self, "pins_memory", self.config.memory_policy == STATIC_MEMORY)
        object.__setattr__(self, "deals_over_numa", self.config.cpu_options.get(OVER_NUMA, False))
        object.__setattr__(self, "aligns", self.config.topology_policy not in (None, KubeletPolicy.NONE))
        # A reserved CPU leaves the rest of its core to no container under full-pcpus-only.
        if self.whole_cores is None and options.full_pcpus_only:
            cores = sum(core.bits for core in self.machine.cores if core.bits & reserved)
            object.__setattr__(self, "whole_cores", WholeCoreRule(self.machine.threads_per_core, spoiled=cores))


class ContainerAffinity(ValueObject, gc=False):
    """The merged topology hint that a container's CPUs, memory and devices follow; ``mask`` is ``None`` for "anywhere"."""

    mask: int | None
    preferred: bool


class MemoryBlock(ValueObject, gc=False):
    """Memory of one type, taken together from the NUMA nodes of ``mask``, in bytes."""

    resource: str
    amount: int
    mask: int


class ContainerGrant(ValueObject, gc=False):
    """What the kubelet gives to one container. Without CPUs of its own it runs in the shared pool."""

    name: str
    kind: ContainerKind
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = value_field(default_factory=dict)
    hint: ContainerAffinity | None = None  # None under policy none
    numas: int = 0  # mask of NUMA nodes that its CPUs may be of, where only counts are known; 0 for any


@value_object
class Grant:
    """
    The kubelet admits: what every container gets, in the kubelet's order.

    ``place`` remembers ``hypothesis.signature``, ``running`` how many CPUs of each NUMA node its containers use (``reports/report.py``).
    """

    qos: KubeQos
    containers: tuple[ContainerGrant, ...]
    # Excluded from comparison and text: a cache is no part of the value.
    place: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)
    running: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)


class Charge(Enum):
    """How sure we are on which NUMA nodes an admitted pod will hold its resources."""

    PREDICTED = "predicted"  # the amounts per NUMA node are what the kubelet will take
    EVERYWHERE = "everywhere"  # it may be any of several: the amounts are counted on every NUMA node it could be


class KubeletAdmission(ValueObject, gc=False):
    """
    A scheduler's conclusion that a kubelet will admit a pod, and what it will then hold.

    ``numa`` is what to charge per NUMA node, ascending: CPUs (milli) only where exclusive, memory only where bound. ``mask`` is the
    NUMA node set of the whole pod, ``None`` when nothing is bound to any. ``cpus`` is known only when the kubelet's full
    configuration is. ``note`` is the assumption that decided, a sentence for people, empty when there was none. ``explores`` names options
    of the kubelet that are not published and on which the admission depends: the pod's fate would tell whether they are on. ``lacks`` is
    why the kubelet refuses under the first of these, where evicting pods may help under all of them.
    """

    numa: tuple[tuple[int, ResourceList], ...] = ()
    charge: Charge = Charge.PREDICTED
    mask: int | None = None
    cpus: CpuSet = EMPTY
    note: str = ""
    explores: tuple[str, ...] = ()
    lacks: Rejection | None = None


@dataclass(slots=True)
class MemoryTable:
    """
    Who holds how much on which NUMA node. Changed by ``take`` and ``release``; ``copy`` first to try something. The amounts of one NUMA
    node are replaced where they change, never changed: copies share those of the others.

    ``groups`` maps a NUMA node to the mask of the group it is in, itself alone at first; ``blocks`` counts the blocks on it.
    """

    supply: Mapping[int, ResourceList]  # never changed
    free: dict[int, dict[str, int]]
    held: dict[int, dict[str, int]]
    groups: dict[int, int]
    blocks: dict[int, int]
    nodes: int  # mask of all NUMA nodes

    @classmethod
    def of(cls, supply: Mapping[int, ResourceList]) -> "MemoryTable":
        """The table of an empty machine."""
        return cls(
            supply=supply,
            free={numa: dict(amounts) for numa, amounts in supply.items()},
            held={numa: dict.fromkeys(amounts, 0) for numa, amounts in supply.items()},
            groups={numa: 1 << numa for numa in supply},
            blocks=dict.fromkeys(supply, 0),
            nodes=sum(1 << numa for numa in supply),
        )

    def copy(self) -> "MemoryTable":
        """A table of its own, with the same entries."""
        return MemoryTable(
            self.supply, self.free.copy(), self.held.copy(), self.groups.copy(), self.blocks.copy(), self.nodes
        )

    def knows(self, kinds: Collection[str]) -> bool:
        """Does every NUMA node have an entry for each of these memory types?"""
        # The kubelet indexes its table by type without a look whether the entry is there.
        for amounts in self.supply.values():
            for kind in kinds:
                if kind not in amounts:
                    return False
        return True

    def take(self, block: MemoryBlock, covered: int) -> None:
        """Enter a block; ``covered`` bytes of it are there already, left by an init container. Drains low NUMA ids first."""
        rest = max(0, block.amount - covered)
        for numa in numa_ids(block.mask):
            self.blocks[numa] += 1
            # Every block on a group writes the mask again: it is the same for all of them.
            self.groups[numa] = block.mask
            # Free may be below zero after a release that credited the other NUMA node of a group.
            part = min(rest, max(0, self.free[numa].get(block.resource, 0)))
            self.hold(numa, block.resource, part)
            rest -= part

    def release(self, block: MemoryBlock) -> None:
        """Strike a block out. Credits low NUMA ids first, as the manager does, whichever of the group was charged."""
        rest = block.amount
        for numa in numa_ids(block.mask):
            self.blocks[numa] -= 1
            # The last block gone, the NUMA node is on its own again.
            if not self.blocks[numa]:
                self.groups[numa] = 1 << numa
            part = min(rest, self.held[numa].get(block.resource, 0))
            self.hold(numa, block.resource, -part)
            rest -= part

    def credit(self, block: MemoryBlock) -> None:
        """Give back what a block holds; its group stays, as others may be in it."""
        rest = block.amount
        for numa in members(block.mask):
            part = min(rest, self.held[numa].get(block.resource, 0))
            self.hold(numa, block.resource, -part)
            rest -= part

    def end_block(self, mask: int) -> None:
        """One block less in this group, which ends with its last."""
        for numa in members(mask):
            self.blocks[numa] = max(0, self.blocks[numa] - 1)
            if not self.blocks[numa]:
                self.groups[numa] = 1 << numa

    def hold(self, numa: int, kind: str, amount: int) -> None:
        """So many bytes of a NUMA node are held that were free; below zero the other way round."""
        if amount:
            free, held = self.free[numa], self.held[numa]
            self.free[numa] = {**free, kind: free[kind] - amount}
            self.held[numa] = {**held, kind: held[kind] + amount}

    def allows(self, mask: int) -> bool:
        """Do the groups allow a new block on exactly these NUMA nodes?"""
        if mask and not mask & (mask - 1):
            return self.groups[mask.bit_length() - 1].bit_count() == 1
        return all(not self.blocks[numa] or self.groups[numa] == mask for numa in numa_ids(mask))


MOST_ANSWERS: Final = 4
"""So many pods' answers are remembered with a state of the managers."""


@dataclass(slots=True)
class ManagerState:
    """
    What is free right now. A draft to be changed while one pod is admitted; never changed once it is part of a state.

    ``answers`` are what ``dry_run`` was asked last in states with these managers, and answered: who decides on a pod and then counts it in
    asks the same twice.
    """

    cpus: int  # bits of the CPUs that may become exclusive
    devices: dict[str, int]  # resource -> bits of the devices that some pod has
    memory: MemoryTable | None  # None: the memory manager is off
    # Excluded from comparison and text: a cache is no part of the value.
    answers: tuple[tuple[tuple[object, ...], Any], ...] = field(default=(), init=False, repr=False, compare=False)

    def copy(self) -> "ManagerState":
        """A draft of its own."""
        return ManagerState(self.cpus, dict(self.devices), self.memory.copy() if self.memory is not None else None)

    def known(self, question: tuple[object, ...]) -> Any:
        """What was answered to this question, whose parts are compared by identity; ``None`` where it was not asked of late."""
        for asked, answer in self.answers:
            if all(map(is_, asked, question)):
                return answer
        return None

    def remember(self, question: tuple[object, ...], answer: object) -> None:
        """Keep an answer, in the place of the oldest one."""
        self.answers = (*self.answers[1 - MOST_ANSWERS :], (question, answer))

    def release(self, grant: Grant, node: KubeletNode) -> None:
        """Give back what a pod was given: CPUs and devices of all containers, memory of those that run."""
        for container in grant.containers:
            # CPUs of init containers may be held by app containers too; a union counts each once.
            self.cpus |= container.cpus.bits
            for resource, ids in container.devices.items():
                places = node.devices[resource].places
                for device in ids:
                    self.devices[resource] &= ~(1 << places[device])
            # Regular init containers gave their memory back when the next container started, but not their CPUs and devices.
            if self.memory is not None and container.kind is not INIT:
                for block in container.memory:
                    self.memory.release(block)


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod on the node: what it was given, what it counts as in the last admission check, and what it asks the managers for."""

    grant: Grant
    requests: ResourceList
    demand: PodDemand | None = field(default=None, repr=False, compare=False)


class KubeletState(ValueObject):
    """The node, the managers, and the pods by uid."""

    node: KubeletNode
    managers: ManagerState
    pods: Mapping[str, AdmittedPod] = value_field(default_factory=dict)
    requested: ResourceList = value_field(default_factory=dict)

    @classmethod
    def empty(cls, node: KubeletNode) -> "KubeletState":
        """The managers before the first pod."""
        return cls(
            node=node,
            managers=ManagerState(
                cpus=node.machine.bits & ~node.reserved if node.pins_cpus else 0,
                devices=dict.fromkeys(node.devices, 0),
                memory=MemoryTable.of(node.memory) if node.pins_memory else None,
            ),
        )

    def with_pod(self, uid: str, request: PodRequest, grant: Grant, managers: ManagerState) -> "KubeletState":
        """The state after this grant, whose ``managers`` the decision worked out on a draft of these."""
        resident = AdmittedPod(grant, {**effective_requests(request), PODS: 1}, pod_demand(request))
        return replace(
            # A new state shares everything that the pod did not change.
            self,
            managers=managers,
            pods={**self.pods, uid: resident},
            requested=add(self.requested, resident.requests),
        )

    def with_memory(self, memory: MemoryTable | None) -> "KubeletState":
        """The same state with other memory managers."""
        return replace(self, managers=ManagerState(self.managers.cpus, self.managers.devices, memory))

    def without(self, uid: str) -> "KubeletState":
        """The state after the pod is gone; unchanged when it was never there."""
        resident = self.pods.get(uid)
        if resident is None:
            return self
        managers, pods = self.managers_without(resident), dict(self.pods)
        del pods[uid]
        requested = subtract(self.requested, resident.requests)
        # Without zeros, so that a state after a departure equals the one before the arrival.
        return KubeletState(
            self.node, managers, pods, without_zeros(requested) if 0 in requested.values() else requested
        )

    def managers_without(self, resident: AdmittedPod) -> ManagerState:
        """The managers after one of the pods is gone."""
        managers = self.managers.copy()
        managers.release(resident.grant, self.node)
        return managers


def free_on(node: KubeletNode, managers: ManagerState, numa: int) -> dict[str, int]:
    """What is free on one NUMA node, in our units: exclusive CPUs (milli), memory by type, devices near it."""
    free = {
        name: (pool.near(1 << numa) & pool.healthy & ~managers.devices[name]).bit_count()
        for name, pool in node.devices.items()
    }
    if node.pins_cpus:
        free[CPU] = (managers.cpus & node.machine.numa_bits[numa]).bit_count() * MILLI
    if managers.memory is not None:
        free.update(managers.memory.free[numa])
    return free
