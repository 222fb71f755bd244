"""
Admission exactly as the kubelet's managers do it, on a node whose configuration and state are known in full.

Topology manager (policy and scope), then device, CPU and memory manager per container, then the node-level check.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.cpu_manager import CpuReuse, CpuStock, Dealing, Earlier, InitTake
from koord_numa.core.kubelet.demand import (
    UNEXPECTED_ADMISSION,
    AdmitRejection,
    ContainerDemand,
    PodDemand,
    check_node_fit,
    pod_demand,
)
from koord_numa.core.kubelet.device_manager import DeviceStock
from koord_numa.core.kubelet.memory_manager import MemoryStock, Reusable, hand_over
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
from koord_numa.core.kubelet.topology_manager import LeftOver, admitted_alone, align_all, align_alone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.value_objects import ValueObject

ANYWHERE: Final = ContainerAffinity(mask=None, preferred=False)
"""What the managers read from the hint store when no hint was stored, as under policy none."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod is in: what it got, and the state after its containers have started."""

    grant: Grant
    state: KubeletState


class DryRunAdmitted(ValueObject):
    """The pod would be in: what it would get, and the managers after its containers have started."""

    grant: Grant
    managers: ManagerState


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """
    The pod is out. ``state`` is the one after the kubelet has cleaned up.

    It equals the state before, with one exception that the kubelet really makes: memory that a hint forced onto one NUMA node of a
    group takes that NUMA node out of the group, and giving the memory back does not put it in again. ``unit`` is the container's or
    pod's demand that could not be met, ``None`` when all were and the node as a whole is too full.
    """

    refusal: AdmitRejection
    state: KubeletState
    unit: ContainerDemand | None


class Trust(Enum):
    """How the state came about that is asked."""

    EXACT = "exact"  # the kubelet's own, or one it may well be in
    INFERRED = "inferred"  # a bound, of which single CPUs may be in use; a silent memory manager rejects, as it may show too little


def admit(state: KubeletState, uid: str, request: PodRequest, trust: Trust = Trust.EXACT) -> Admitted | NotAdmitted:
    """Ask the kubelet of this state to admit a pod. The state is not changed."""
    answer = dry_run(state, request, trust)
    # The draft is thrown away: ``clean_up`` has taken back what containers before the refused one got.
    if isinstance(answer, NotAdmitted):
        return answer
    return Admitted(answer.grant, state.with_pod(uid, request, answer.grant, answer.managers))


def dry_run(
    state: KubeletState,
    request: PodRequest,
    trust: Trust = Trust.EXACT,
    reuse: CpuReuse = CpuReuse.BY_ID,
    dealing: Dealing | None = None,
) -> DryRunAdmitted | NotAdmitted:
    """
    As ``admit``, without what comes after it.

    Containers are handled init containers first, each seeing what is left by those before it, as the admission scopes in
    scope_*.go of the kubelet's topologymanager. ``reuse``: which CPUs later containers get of those that init containers leave.
    """
    demand = pod_demand(request)
    too_full = check_node_fit(effective_requests(request), state.requested, state.node.allocatable)
    # What the managers give follows from these and their state alone.
    question = (demand, state.node, trust, reuse)
    known: DryRunAdmitted | None = state.managers.known(question) if dealing is None else None
    if known is not None and too_full is None:
        return known
    if (
        dealing is None
        and too_full is None
        and (alone := admitted_alone(state.node, state.managers, demand)) is not None
    ):
        known = DryRunAdmitted(*alone)
        state.managers.remember(question, known)
        return known
    attempt = _Attempt(state.node, state.managers.copy(), trust, reuse, dealing)
    # The node-level check comes last, as in the kubelet, which runs the resource managers' admission first.
    rejection = attempt.run(demand) or too_full
    if rejection is not None:
        return NotAdmitted(rejection, state.with_memory(attempt.clean_up()), attempt.failed)
    attempt.start()
    answer = DryRunAdmitted(Grant(demand.qos, tuple(attempt.grants)), attempt.managers)
    if dealing is None:
        state.managers.remember(question, answer)
    return answer


def foreseen(state: KubeletState, demand: PodDemand, trust: Trust, reuse: CpuReuse) -> list[ContainerGrant] | None:
    """What the managers would give to each container, whether the node as a whole has room or not; ``None`` where they refuse."""
    attempt = _Attempt(state.node, state.managers.copy(), trust, reuse)
    return attempt.grants if attempt.run(demand) is None else None


@dataclass(slots=True)
class _Attempt:
    """One admission in progress: a draft of the managers, and what init containers of this pod have left so far."""

    node: KubeletNode
    managers: ManagerState
    trust: Trust
    reuse: CpuReuse
    dealing: Dealing | None = None
    reusable_cpus: int = 0
    earlier: Earlier | None = None
    same_pool: tuple[InitTake, ...] = ()
    reusable_devices: dict[str, int] = field(default_factory=dict)
    reusable_memory: Reusable = field(default_factory=dict)
    grants: list[ContainerGrant] = field(default_factory=list)
    failed: ContainerDemand | None = None

    def run(self, demand: PodDemand) -> AdmitRejection | None:
        """Allocate for every container, or say why one of them cannot be served."""
        common: ContainerAffinity | AdmitRejection = ANYWHERE
        # Scope pod: one hint for all containers, made from the pod's demand at once.
        if self.node.aligns and self.node.config.topology_scope is KubeletScope.POD:
            common = self._align(demand.pod)
            if isinstance(common, AdmitRejection):
                self.failed = demand.pod
                return common
        for container, part in demand.containers:
            hint: ContainerAffinity | AdmitRejection = common
            if self.node.aligns and self.node.config.topology_scope is KubeletScope.CONTAINER:
                hint = self._align(part)
            grant = hint if isinstance(hint, AdmitRejection) else self._allocate(container, part, hint)
            if isinstance(grant, AdmitRejection):
                self.failed = part
                return AdmitRejection(grant.reason, f"container {container.name}: {grant.detail}")
            self.grants.append(grant)
        return None

    def start(self) -> None:
        # Only memory: CPUs and devices of an init container stay with the pod until it is gone.
        """Containers start one after the other, which gives the memory of finished init containers back."""
        self._release_memory(lambda grant: grant.kind is ContainerKind.INIT)

    def clean_up(self) -> MemoryTable | None:
        """The memory managers after the containers served so far are removed again."""
        self._release_memory(lambda _: True)
        return self.managers.memory

    def _release_memory(self, chosen: Callable[[ContainerGrant], bool]) -> None:
        if self.managers.memory is None:
            return
        for grant in filter(chosen, self.grants):
            for block in grant.memory:
                self.managers.memory.release(block)

    def _align(self, demand: ContainerDemand) -> ContainerAffinity | AdmitRejection:
        left = self.reusable_cpus or any(self.reusable_memory.values())
        if not left and (alone := align_alone(self.node, demand, self.managers.cpus, self.managers.memory)) is not None:
            return alone
        left_over = LeftOver(self.reusable_cpus, self.reusable_devices, self.reusable_memory)
        return align_all(self.node, self.managers, demand, left_over, exact=self.trust is Trust.EXACT)

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
        given: dict[str, tuple[str, ...]] = {}
        for resource, needed in demand.devices.items():
            # A resource without a plugin is no device; the node-level check judges it.
            if resource not in self.node.devices:
                continue
            stock = self._devices(resource)
            bits = stock.take(needed, hint.mask)
            if isinstance(bits, AdmitRejection):
                return bits
            self.managers.devices[resource] |= bits
            # An init container leaves what it got to later ones; an app container uses it up.
            kept = stock.reusable | bits if kind is ContainerKind.INIT else stock.reusable & ~bits
            self.reusable_devices[resource] = kept
            if bits:
                given[resource] = stock.pool.ids(bits)
        return given

    def _take_cpus(
        self, kind: ContainerKind, demand: ContainerDemand, hint: ContainerAffinity
    ) -> CpuSet | AdmitRejection:
        stock = self._cpus()
        if stock is None or not demand.cpus:
            return EMPTY
        bits = stock.take(demand.cpus, hint.mask, self.reuse)
        if isinstance(bits, AdmitRejection):
            return bits
        if self.dealing is not None:
            bits = self.dealing(stock, bits, hint.mask)
        if self.reuse is not CpuReuse.BY_ID:
            init = kind is ContainerKind.INIT
            self.earlier = stock.after(bits, hint.mask, init=init, is_first=not any(one.cpus for one in self.grants))
            self.same_pool = (*self.same_pool, (demand.cpus, hint.mask, bits)) if init else ()
        self.managers.cpus &= ~bits
        if kind is ContainerKind.INIT:
            self.reusable_cpus |= bits
        else:
            self.reusable_cpus &= ~bits
        return CpuSet(bits)

    def _take_memory(
        self, kind: ContainerKind, demand: ContainerDemand, hint: ContainerAffinity
    ) -> tuple[MemoryBlock, ...] | AdmitRejection:
        memory = self.managers.memory
        if memory is None or demand.memory is None:
            return ()
        if not memory.knows(demand.memory):
            # The kubelet itself has no answer here: it follows a missing entry of its table.
            return AdmitRejection(UNEXPECTED_ADMISSION, f"a NUMA node lacks one of {', '.join(demand.memory)}")
        mask = MemoryStock(memory, self.reusable_memory).choose(demand.memory, hint)
        if isinstance(mask, AdmitRejection):
            return mask
        blocks = tuple(MemoryBlock(resource, amount, mask) for resource, amount in demand.memory.items())
        for block in blocks:
            # Reuse goes by the mask: memory that was bound to other NUMA nodes cannot be handed on.
            place = (mask, block.resource)
            left = self.reusable_memory.get(place, 0)
            memory.take(block, covered=left)
            # Init containers run one after the other, so the larger one's memory is what is left, not their sum.
            kept = max(left, block.amount) if kind is ContainerKind.INIT else max(0, left - block.amount)
            self.reusable_memory[place] = kept
        hand_over(blocks, self.grants)
        return blocks

    def _devices(self, resource: str) -> DeviceStock:
        return DeviceStock(
            resource=resource,
            pool=self.node.devices[resource],
            taken=self.managers.devices[resource],
            reusable=self.reusable_devices.get(resource, 0),
        )

    def _cpus(self) -> CpuStock | None:
        if not self.node.pins_cpus:
            return None
        taken = self.reusable_cpus, self.earlier, self.same_pool
        return CpuStock(self.node, self.managers.cpus, *taken, exact=self.trust is Trust.EXACT)
