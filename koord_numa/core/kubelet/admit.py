"""
Admission as in the kubelet, on a node with known configuration and state.

The topology manager aligns the pod or its containers. The device, CPU and memory manager allocate per container. The node-level check comes
last.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.cpu_manager import ChooseCpus, CpuReuse, CpuStock, Earlier, InitTake
from koord_numa.core.kubelet.demand import (
    EMPTY_POD_SHARED_POOL,
    UNEXPECTED_ADMISSION,
    AdmitRejection,
    ContainerDemand,
    PodDemand,
    check_node_fit,
    check_pod_pool,
)
from koord_numa.core.kubelet.device_manager import DeviceStock
from koord_numa.core.kubelet.memory_manager import MemoryStock, release_reused
from koord_numa.core.kubelet.state import (
    ContainerAffinity,
    ContainerGrant,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryBlock,
    MemoryTable,
)
from koord_numa.core.kubelet.topology_manager import InitLeftovers, align_unit
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field

ANYWHERE: Final = ContainerAffinity(mask=None, preferred=False)
"""The affinity that the managers read if no hint is stored, as under policy none."""


class Admitted(ValueObject):
    """An admitted pod: its allocation, and the state after its containers have started."""

    grant: Grant
    state: KubeletState


class DryRunAdmitted(ValueObject):
    """A pod that would be admitted: its allocation, and the managers after its containers have started."""

    grant: Grant
    managers: ManagerState


class NotAdmitted(ValueObject):
    """
    A rejected pod. ``state`` is the state after the kubelet has cleaned up.

    It equals the state before, except that memory which a hint forced onto one NUMA node of a group removes this NUMA node from the group,
    as in the kubelet. ``unit`` is the rejected request of a container or pod, or ``None`` if the node-level check rejected the pod.
    """

    refusal: AdmitRejection
    state: KubeletState
    unit: ContainerDemand | None


class Trust(Enum):
    """The origin of a state."""

    EXACT = "exact"  # the kubelet's own state, or a candidate for it
    INFERRED = "inferred"  # lower bounds of what is free: a memory manager without hints rejects the pod


def admit(state: KubeletState, uid: str, request: PodRequest, trust: Trust = Trust.EXACT) -> Admitted | NotAdmitted:
    """Return the kubelet's answer to a pod in this state, which is not changed."""
    answer = dry_run(state, request, trust)
    if isinstance(answer, NotAdmitted):
        return answer
    return Admitted(answer.grant, state.with_pod(uid, request, answer.grant, answer.managers))


def dry_run_steps(node: KubeletNode, demand: PodDemand) -> int:
    """Return the steps that a dry run takes of a budget: hints are sets of NUMA nodes, merged for every container."""
    return (4 + len(node.machine.numa_ids)) * max(1, len(demand.containers))


def dry_run(
    state: KubeletState,
    request: PodRequest,
    trust: Trust = Trust.EXACT,
    reuse: CpuReuse = CpuReuse.BY_ID,
    choose_cpus: ChooseCpus | None = None,
) -> DryRunAdmitted | NotAdmitted:
    """
    Return the kubelet's answer without the state of an admitted pod.

    Containers are handled in order, init containers first; a container may reuse what earlier init containers left (topologymanager/
    scope_*.go). ``reuse`` says which CPUs are reused.
    """
    demand = state.node.demand_of(request)
    spend(dry_run_steps(state.node, demand))
    asked = (state.node, trust, reuse, choose_cpus, demand)
    no_room = check_node_fit(effective_requests(request), state.requested, state.node.allocatable)
    # A pod arrives in the state in which it was evaluated: a gang's decision takes a quarter less time.
    if no_room is None and (known := state.managers.admitted) is not None and known[0] == asked:
        answer: DryRunAdmitted = known[1]
        return answer
    attempt = _Attempt(state.node, state.managers.copy(), trust, reuse, choose_cpus)
    # The kubelet runs the managers before the node-level check.
    if (rejection := attempt.run(demand) or no_room) is not None:
        return NotAdmitted(rejection, state.with_memory(attempt.clean_up()), attempt.failed)
    attempt.start()
    grant = Grant(demand.qos, tuple(attempt.grants), attempt.pod_cpus, attempt.pod_memory)
    answer = DryRunAdmitted(grant, attempt.managers)
    state.managers.admitted = asked, answer
    return answer


def foreseen(state: KubeletState, demand: PodDemand, trust: Trust, reuse: CpuReuse) -> list[ContainerGrant] | None:
    """Return the allocations by the managers without the node-level check, or ``None`` if the managers reject the pod."""
    attempt = _Attempt(state.node, state.managers.copy(), trust, reuse)
    return attempt.grants if attempt.run(demand) is None else None


class _Attempt(MutableObject):
    """One admission in progress: a copy of the managers, the allocations so far, and what init containers have left."""

    node: KubeletNode
    managers: ManagerState
    trust: Trust
    reuse: CpuReuse
    choose_cpus: ChooseCpus | None = None
    left: InitLeftovers = value_field(default_factory=InitLeftovers)
    earlier: Earlier | None = None
    same_pool: tuple[InitTake, ...] = ()
    grants: list[ContainerGrant] = value_field(default_factory=list)
    pod_cpus: CpuSet = EMPTY
    pod_memory: tuple[MemoryBlock, ...] = ()
    failed: ContainerDemand | None = None

    def run(self, demand: PodDemand) -> AdmitRejection | None:
        """Allocate for every container. Return the rejection of the first one that cannot be served."""
        scope = self.node.config.topology_scope if self.node.aligns else None
        pod_hint: ContainerAffinity | AdmitRejection = ANYWHERE
        if scope is KubeletScope.POD:
            pod_hint = self._align(demand.pod)
            if isinstance(pod_hint, AdmitRejection):
                self.failed = demand.pod
                return pod_hint
            if demand.pod_level:
                return self._allocate_pod(demand, pod_hint)
        for container, part in demand.containers:
            hint = self._align(part) if scope is KubeletScope.CONTAINER else pod_hint
            grant = hint if isinstance(hint, AdmitRejection) else self._allocate(container, part, hint)
            if isinstance(grant, AdmitRejection):
                self.failed = part
                return AdmitRejection(grant.reason, f"container {container.name}: {grant.detail}")
            self.grants.append(grant)
        return None

    def _allocate_pod(self, demand: PodDemand, hint: ContainerAffinity) -> AdmitRejection | None:
        """
        Allocate CPUs and memory for the pod as one, and slices of the CPUs for its containers (AllocatePod in both managers).

        A slice is taken from what sidecars and app containers before it have left. Devices are allocated per container; the kubelet does
        that later, when it creates the container, by the same hint.
        """
        self.failed = demand.pod
        if detail := check_pod_pool(demand):
            return AdmitRejection(EMPTY_POD_SHARED_POOL, detail)
        cpus = self._take_cpus(ContainerKind.APP, demand.pod, hint)
        if isinstance(cpus, AdmitRejection):
            return cpus
        self.pod_cpus = cpus
        blocks = self._take_memory(ContainerKind.APP, demand.pod, hint)
        if isinstance(blocks, AdmitRejection):
            return blocks
        self.pod_memory = blocks
        stock, pool = CpuStock(self.node, self.managers.cpus), cpus.bits
        for container, part in demand.containers:
            devices = self._take_devices(container.kind, part, hint)
            if isinstance(devices, AdmitRejection):
                return devices
            bits = stock.partition(pool, part.cpus) if pool else 0
            if container.kind is not ContainerKind.INIT:
                pool &= ~bits
            self.grants.append(ContainerGrant(container.name, container.kind, CpuSet(bits), (), devices, hint))
        self.failed = None
        return None

    def start(self) -> None:
        """Release the memory of init containers, which finish before the app containers start. CPUs and devices stay with the pod."""
        self._release_memory(lambda grant: grant.kind is ContainerKind.INIT)

    def clean_up(self) -> MemoryTable | None:
        """Return the memory table after the removal of the allocations so far."""
        self._release_memory(lambda _: True)
        if self.managers.memory is not None:
            for block in self.pod_memory:
                self.managers.memory.release(block)
        return self.managers.memory

    def _release_memory(self, chosen: Callable[[ContainerGrant], bool]) -> None:
        if self.managers.memory is None:
            return
        for grant in filter(chosen, self.grants):
            for block in grant.memory:
                self.managers.memory.release(block)

    def _align(self, demand: ContainerDemand) -> ContainerAffinity | AdmitRejection:
        return align_unit(self.node, self.managers, demand, self.left, exact=self.trust is Trust.EXACT)

    def _allocate(
        self, container: Container, demand: ContainerDemand, hint: ContainerAffinity
    ) -> ContainerGrant | AdmitRejection:
        devices = self._take_devices(container.kind, demand, hint)
        if isinstance(devices, AdmitRejection):
            return devices
        cpus = self._take_cpus(container.kind, demand, hint)
        if isinstance(cpus, AdmitRejection):
            return cpus
        blocks = self._take_memory(container.kind, demand, hint)
        if isinstance(blocks, AdmitRejection):
            return blocks
        return ContainerGrant(
            name=container.name,
            kind=container.kind,
            cpus=cpus,
            memory=blocks,
            devices=devices,
            hint=hint if self.node.aligns else None,
        )

    def _take_devices(
        self, kind: ContainerKind, demand: ContainerDemand, hint: ContainerAffinity
    ) -> dict[str, tuple[str, ...]] | AdmitRejection:
        allocated: dict[str, tuple[str, ...]] = {}
        for resource, count in demand.devices.items():
            # A resource without a device plugin is left to the node-level check.
            if resource not in self.node.devices:
                continue
            pool, reusable = self.node.devices[resource], self.left.devices.get(resource, 0)
            bits = DeviceStock(resource, pool, self.managers.devices[resource], reusable).take(count, hint.mask)
            if isinstance(bits, AdmitRejection):
                return bits
            self.managers.devices[resource] |= bits
            self.left.devices[resource] = reusable | bits if kind is ContainerKind.INIT else reusable & ~bits
            if bits:
                allocated[resource] = pool.ids(bits)
        return allocated

    def _take_cpus(
        self, kind: ContainerKind, demand: ContainerDemand, hint: ContainerAffinity
    ) -> CpuSet | AdmitRejection:
        if not demand.cpus or not self.node.pins_cpus:
            return EMPTY
        exact = self.trust is Trust.EXACT
        stock = CpuStock(self.node, self.managers.cpus, self.left.cpus, self.earlier, self.same_pool, exact)
        bits = stock.take(demand.cpus, hint.mask, self.reuse)
        if isinstance(bits, AdmitRejection):
            return bits
        if self.choose_cpus is not None:
            bits = self.choose_cpus(stock, bits, hint.mask)
        init = kind is ContainerKind.INIT
        if self.reuse is not CpuReuse.BY_ID:
            is_first = not any(grant.cpus for grant in self.grants)
            self.earlier = stock.after(bits, hint.mask, init=init, is_first=is_first)
            self.same_pool = (*self.same_pool, (demand.cpus, hint.mask, bits)) if init else ()
        self.managers.cpus &= ~bits
        self.left.cpus = self.left.cpus | bits if init else self.left.cpus & ~bits
        return CpuSet(bits)

    def _take_memory(
        self, kind: ContainerKind, demand: ContainerDemand, hint: ContainerAffinity
    ) -> tuple[MemoryBlock, ...] | AdmitRejection:
        table, reusable = self.managers.memory, self.left.memory
        if table is None or demand.memory is None:
            return ()
        if not table.knows(demand.memory):
            # The kubelet dereferences a missing entry of its table here.
            return AdmitRejection(UNEXPECTED_ADMISSION, f"a NUMA node lacks one of {', '.join(demand.memory)}")
        mask = MemoryStock(table, reusable).choose(demand.memory, hint)
        if isinstance(mask, AdmitRejection):
            return mask
        blocks = tuple(MemoryBlock(resource, amount, mask) for resource, amount in demand.memory.items())
        for block in blocks:
            # Memory is reused by mask: memory of other NUMA nodes is not.
            key = (mask, block.resource)
            left = reusable.get(key, 0)
            table.take(block, covered=left)
            # Init containers run one after the other, so that the largest amount is left and not the sum.
            reusable[key] = max(left, block.amount) if kind is ContainerKind.INIT else max(0, left - block.amount)
        release_reused(blocks, self.grants)
        return blocks
