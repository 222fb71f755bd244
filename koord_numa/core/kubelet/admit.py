"""
Admission as in the kubelet, on a node with known configuration and state.

The hints of the device manager (``devicemanager/topology_hints.go``), the memory manager with policy Static
(``memorymanager/policy_static.go``) and the CPU manager are merged by the topology manager for a pod or a container.
The managers allocate per container by the merged hint. The node-level check comes last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet, lowest, members
from koord_numa.core.explain import needs_text
from koord_numa.core.kubelet.cpu_manager import ChooseCpus, CpuReuse, CpuStock, Earlier, InitTake
from koord_numa.core.kubelet.demand import (
    EMPTY_POD_SHARED_POOL,
    TOPOLOGY_AFFINITY,
    UNEXPECTED_ADMISSION,
    AdmitRejection,
    ContainerDemand,
    PodDemand,
    check_node_fit,
    check_pod_pool,
)
from koord_numa.core.kubelet.state import (
    ContainerAffinity,
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryBlock,
    MemoryTable,
    spend,
)
from koord_numa.core.numa import (
    IMPOSSIBLE,
    Answer,
    HintRule,
    admitted_affinity,
    fewest_that_reach,
    masks_of_size,
    numa_ids,
)
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, ResourceList
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field


class DeviceStock(ValueObject):
    """
    The devices of one resource at one moment of an admission, as bits: ``taken`` devices belong to pods. Of these, ``reusable`` devices
    were left by init containers of the pod that is being admitted.
    """

    resource: str
    pool: DevicePool
    taken: int = 0
    reusable: int = 0

    def hints(self, count: int) -> HintRule | None:
        """
        Return the hints for ``count`` devices, or ``None`` (no preference) if no device has a NUMA node (generateDeviceTopologyHints).

        Only NUMA nodes near a device count. A mask must include all reusable devices. Unhealthy devices count for the preferred size.
        """
        pool = self.pool
        if not pool.hosts:
            return None
        available = pool.healthy & ~self.taken
        if (available | self.reusable).bit_count() < count:
            return IMPOSSIBLE
        pinned = self.reusable & pool.near(pool.hosts)

        def fits(mask: int) -> bool:
            near = pool.near(mask)
            return not pinned & ~near and pinned.bit_count() + (available & near).bit_count() >= count

        return HintRule(nodes=pool.hosts, size=_preferred_size(pool, count), fits=fits)

    def take(self, count: int, mask: int | None) -> int | AdmitRejection:
        """
        Return the device bits of a container: reusable devices, then devices near ``mask``, then others (devicesToAllocate).

        Among equal devices the plugin is assumed to prefer those listed first.
        """
        pool = self.pool
        if not pool.healthy:
            return AdmitRejection(UNEXPECTED_ADMISSION, f"no healthy {self.resource}")
        # The kubelet takes reusable devices before it applies the hint.
        chosen = lowest(self.reusable, count)
        count -= chosen.bit_count()
        available = pool.healthy & ~self.taken & ~chosen
        if available.bit_count() < count:
            return AdmitRejection(
                UNEXPECTED_ADMISSION, f"{self.resource}: needed {count}, free {available.bit_count()}"
            )
        aligned = available & pool.near(mask) if mask is not None else 0
        chosen_aligned = lowest(aligned, count)
        return chosen | chosen_aligned | lowest(available & ~aligned, count - chosen_aligned.bit_count())


def _preferred_size(pool: DevicePool, count: int) -> int:
    """Return the smallest number of NUMA nodes near ``count`` devices, or the number of all NUMA nodes near devices."""
    # A device near two NUMA nodes counts twice here, so that the result is a lower bound.
    fewest = fewest_that_reach({numa: bits.bit_count() for numa, bits in pool.on.items()}, count)
    for size in range(fewest, pool.hosts.bit_count()):
        if any(pool.near(mask).bit_count() >= count for mask in masks_of_size(pool.hosts, size)):
            return size
    return pool.hosts.bit_count()


ReusableMemory = dict[tuple[int, str], int]
"""Bytes that init containers of the pod that is being admitted left, by (mask, memory type)."""

_FEW_NUMA_NODES: Final = 2
"""Up to this number of NUMA nodes, all masks are tried instead of a list of candidates."""


@dataclass(slots=True)
class MemoryStock:
    """The memory at one moment of an admission: the table, and the bytes that init containers of the pod left."""

    table: MemoryTable
    reusable: ReusableMemory

    def hints(self, demand: ResourceList) -> HintRule:
        """
        Return the hints for these amounts, all from the same NUMA nodes (calculateHints).

        The preferred size counts what is allocatable, without reservations.
        """
        table = self.table
        if self._is_short(demand):
            return IMPOSSIBLE

        def fits(mask: int) -> bool:
            # The groups are the cheapest test.
            if not table.allows(mask):
                return False
            for resource, amount in demand.items():
                if _sum(table.supply, mask, resource) < amount:
                    return False
                if _sum(table.free, mask, resource) + self.reusable.get((mask, resource), 0) < amount:
                    return False
            return True

        # A wider mask may include a part of a group, so that a superset of a fitting mask may not fit.
        return HintRule(
            nodes=table.nodes, size=self._preferred_size(demand), fits=fits, grows=False, candidates=self._candidates()
        )

    def choose(self, demand: ResourceList, hint: ContainerAffinity) -> int | AdmitRejection:
        """
        Return the mask that a container's memory is bound to (Allocate).

        A hint without a mask is replaced by the best own hint. A mask with too little free memory is extended to the best own hint that
        includes the mask. A preferred hint is never replaced by one that is not preferred.
        """
        mask, preferred = hint.mask, hint.preferred
        if mask is None and not demand:
            # getDefaultHint has no hints for a container without exclusive memory, and fails.
            return AdmitRejection(UNEXPECTED_ADMISSION, "no hint for a container without exclusive memory")
        if mask is None:
            best = _best(self.hints(demand), within=0)
            if best is None:
                return AdmitRejection(UNEXPECTED_ADMISSION, f"no set of NUMA nodes has free {needs_text(demand)}")
            if preferred and not best.preferred:
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no preferred set of NUMA nodes has free {needs_text(demand)}"
                )
            mask, preferred = best.mask or 0, best.preferred
        # The kubelet compares with free memory alone; reusable bytes do not count here.
        if [resource for resource, amount in demand.items() if _sum(self.table.free, mask, resource) < amount]:
            best = _best(self.hints(demand), within=mask)
            if best is None or (preferred and not best.preferred):
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no set around NUMA nodes {_ids_text(mask)} has {needs_text(demand)}"
                )
            mask = best.mask or 0
        if mask.bit_count() > 1 and not self.table.allows(mask):
            return AdmitRejection(
                UNEXPECTED_ADMISSION, f"NUMA nodes {_ids_text(mask)} are bound to other groups already"
            )
        return mask

    def _is_short(self, demand: ResourceList) -> bool:
        """Return whether all NUMA nodes together have too little, free or in total."""
        for resource, amount in demand.items():
            # Reusable bytes belong to one mask, so at most the largest of them helps.
            reusable = max((size for (_, name), size in self.reusable.items() if name == resource), default=0)
            free = reusable + _sum(self.table.free, self.table.nodes, resource)
            total = _sum(self.table.supply, self.table.nodes, resource)
            if free < amount or total < amount:
                return True
        return False

    def _candidates(self) -> list[int] | None:
        """
        Return the masks that the groups allow, by size: NUMA nodes in no group, groups, and sets of NUMA nodes without blocks.

        ``None`` means nearly every mask.
        """
        groups, blocks = self.table.groups, self.table.blocks
        if len(blocks) <= _FEW_NUMA_NODES:
            return None
        empty = sum(1 << numa for numa, count in blocks.items() if not count)
        if empty.bit_count() > len(blocks) - 2:
            return None
        masks = {1 << numa for numa, group in groups.items() if group.bit_count() == 1}
        masks.update(mask for size in range(2, empty.bit_count() + 1) for mask in masks_of_size(empty, size))
        masks.update(group for group in groups.values() if group.bit_count() > 1 and not group & ~self.table.nodes)
        return sorted(masks, key=lambda mask: (mask.bit_count(), members(mask)))

    def _preferred_size(self, demand: ResourceList) -> int:
        """Return the smallest number of NUMA nodes with these allocatable amounts, or the number of all NUMA nodes."""
        supply, nodes = self.table.supply, self.table.nodes
        for amounts in supply.values():
            if not [resource for resource, amount in demand.items() if amounts.get(resource, 0) < amount]:
                return 1
        if any(_sum(supply, nodes, resource) < amount for resource, amount in demand.items()):
            return nodes.bit_count()
        # The largest NUMA nodes per type are a lower bound: all types must come from the same set.
        fewest = (
            fewest_that_reach({numa: amounts.get(resource, 0) for numa, amounts in supply.items()}, amount)
            for resource, amount in demand.items()
        )
        for size in range(max(fewest, default=1), nodes.bit_count()):
            for mask in masks_of_size(nodes, size):
                if all(_sum(supply, mask, resource) >= amount for resource, amount in demand.items()):
                    return size
        return nodes.bit_count()


_amount = attrgetter("amount")


def release_reused(blocks: tuple[MemoryBlock, ...], earlier: list[ContainerGrant]) -> None:
    """Subtract these blocks from the blocks of earlier init containers, which stay listed with size 0 (updatePodReusableMemory)."""
    for block in blocks:
        rest = block.amount
        for index, grant in enumerate(earlier):
            if not rest or grant.kind is ContainerKind.APP:
                break  # containers follow init containers and sidecars
            if grant.kind is not ContainerKind.INIT or not any(map(_amount, grant.memory)):
                continue
            remaining = []
            for old in grant.memory:
                if old.resource == block.resource and old.mask == block.mask:
                    part = min(rest, old.amount)
                    rest -= part
                    old = replace(old, amount=old.amount - part)
                remaining.append(old)
            earlier[index] = replace(grant, memory=tuple(remaining))


def _sum(amounts: Mapping[int, ResourceList], mask: int, resource: str) -> int:
    if not mask & (mask - 1):  # one NUMA node, as for most masks
        return amounts[mask.bit_length() - 1].get(resource, 0) if mask else 0
    return sum([amounts[numa].get(resource, 0) for numa in numa_ids(mask)])


def _best(hints: HintRule, within: int) -> ContainerAffinity | None:
    """Return the narrowest hint that includes ``within``, preferred hints first, then the smallest mask (findBestHint)."""
    preferred = [mask for mask in hints.preferred() if not within & ~mask]
    if preferred:
        return ContainerAffinity(min(preferred), preferred=True)
    others = [(mask.bit_count(), mask) for mask, *_ in hints.hints() if mask and not within & ~mask]
    return ContainerAffinity(min(others)[1], preferred=False) if others else None


def _ids_text(mask: int) -> str:
    return ", ".join(str(numa) for numa in numa_ids(mask))


class InitLeftovers(MutableObject):
    """Resources that init containers of the pod that is being admitted left: bits of CPUs and devices, and bytes."""

    cpus: int = 0
    devices: dict[str, int] = value_field(default_factory=dict)
    memory: ReusableMemory = value_field(default_factory=dict)


def align_unit(
    node: KubeletNode, managers: ManagerState, demand: ContainerDemand, left: InitLeftovers, *, exact: bool
) -> ContainerAffinity | AdmitRejection:
    """
    Return the affinity of a unit from the hints of the device, CPU and memory manager, in the order in which the kubelet registers them.

    ``exact`` is false where the managers' free amounts are lower bounds.
    """
    answers: list[Answer] = [
        {
            # The kubelet skips resources without a device plugin.
            name: DeviceStock(name, node.devices[name], managers.devices[name], left.devices.get(name, 0)).hints(count)
            for name, count in demand.devices.items()
            if name in node.devices
        }
    ]
    if demand.cpus and node.pins_cpus:
        answers.append({CPU: CpuStock(node, managers.cpus, left.cpus).hints(demand.cpus)})
    if demand.memory and managers.memory is not None:
        answer = memory_hints(managers.memory, demand.memory, left.memory)
        # Without hints the kubelet's Allocate fails later. A lower bound of free memory must not count as no preference.
        if answer is None and not exact:
            detail = f"no set of NUMA nodes has free {needs_text(demand.memory)}"
            return AdmitRejection(UNEXPECTED_ADMISSION, detail)
        answers.append(answer)
    return align(node, answers)


def memory_hints(table: MemoryTable, demand: Mapping[str, int], reusable: ReusableMemory) -> Answer:
    """
    Return the hints for memory, the same for every type, or ``None`` (no preference) if no NUMA nodes have enough.

    Source: GetTopologyHints in memorymanager/policy_static.go, which returns no hints in both cases.
    """
    if not table.knows(demand):
        return None
    rule = MemoryStock(table, reusable).hints(demand)
    return dict.fromkeys(demand, rule) if rule else None


def align(node: KubeletNode, answers: Sequence[Answer]) -> ContainerAffinity | AdmitRejection:
    """
    Return the merged hint under the node's policy, or the rejection TopologyAffinityError.

    Source: Admit in scope_container.go and scope_pod.go, policy_*.go.

    Example: CPUs are possible on {0} and on {1}, both preferred, and a GPU only on {1}. The merged hint is {1}, preferred, which every
    policy admits. If {1} had no free CPUs, restricted and single-numa-node would reject the unit, and best-effort would use the
    intersection that is as wide as the resource with the widest preferred hint needs.
    """
    # An unpublished policy is treated as none; where that matters the view has a problem.
    policy = node.config.topology_policy or KubeletPolicy.NONE
    distances = node.machine.distances if node.prefers_closest else None
    hint = admitted_affinity(policy, answers, node.machine.numa_mask, distances)
    if hint is None:
        resources = ", ".join(resource for answer in answers if answer for resource in answer)
        return AdmitRejection(TOPOLOGY_AFFINITY, f"no set of NUMA nodes is preferred for all of {resources}")
    return ContainerAffinity(hint.mask, hint.preferred)


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


def admit_pod(state: KubeletState, uid: str, request: PodRequest, trust: Trust = Trust.EXACT) -> Admitted | NotAdmitted:
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
