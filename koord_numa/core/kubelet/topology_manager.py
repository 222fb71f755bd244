"""
The kubelet's device, CPU and memory manager as hint providers of the topology manager, at one point of one pod's admission.

Each answers from what is free at that moment; none holds anything by answering. The order is the kubelet's: devices, CPUs, memory.

The kubelet's topology manager for one alignment unit: the managers' hints go in, one affinity comes out, or a rejection.

A unit is a container, or a whole pod under scope ``pod``. Policies are rows of ``core/numa/policies.KUBELET``, hints are merged by
``core/numa/kubelet_merge``; this module only says which distances count, names the rejection, and remembers what units got.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.cpu_manager import CpuStock
from koord_numa.core.kubelet.demand import (
    TOPOLOGY_AFFINITY,
    UNEXPECTED_ADMISSION,
    AdmitRejection,
    ContainerDemand,
    PodDemand,
)
from koord_numa.core.kubelet.device_manager import DeviceStock
from koord_numa.core.kubelet.memory_manager import MemoryStock, Reusable, missing
from koord_numa.core.kubelet.state import (
    ContainerAffinity,
    ContainerGrant,
    Grant,
    KubeletNode,
    ManagerState,
    MemoryBlock,
    MemoryTable,
)
from koord_numa.core.numa.hint_providers import Answer, Hints
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.policies import KUBELET, admitted_affinity
from koord_numa.core.objects.vocabulary import APP, KubeletPolicy
from koord_numa.core.resources import CPU


@dataclass(slots=True)
class DeviceManager:
    """``stocks`` are the devices of every resource with a plugin. GetTopologyHints in devicemanager/topology_hints.go."""

    stocks: Mapping[str, DeviceStock]

    def hints(self, ask: ContainerDemand) -> Answer:
        """One answer for each device resource that the node has; devices without a NUMA node have no preference."""
        found: dict[str, Hints] = {}
        for resource, needed in ask.devices.items():
            # The kubelet skips resources that no plugin has registered.
            if resource in self.stocks:
                found[resource] = self.stocks[resource].hints(needed)
        return found


@dataclass(slots=True)
class CpuManager:
    """``stock`` is ``None`` under policy ``none``. GetTopologyHints in cpumanager/policy_static.go."""

    stock: CpuStock | None

    def hints(self, ask: ContainerDemand) -> Answer:
        """Nothing to say about containers that run in the shared pool."""
        return {CPU: self.stock.hints(ask.cpus)} if ask.cpus and self.stock is not None else None


@dataclass(slots=True)
class MemoryManager:
    """``stock`` is ``None`` under policy ``None``. GetTopologyHints in memorymanager/policy_static.go."""

    stock: MemoryStock | None

    def hints(self, ask: ContainerDemand) -> Answer:
        """The same masks for every memory type; nothing at all where no mask has enough, and then the allocation fails."""
        # ``None`` is "no preference": the kubelet's memory manager returns no hints in both cases, and Allocate fails later.
        if not ask.memory or self.stock is None or not self.stock.table.knows(ask.memory):
            return None
        rule = self.stock.hints(ask.memory)
        return dict.fromkeys(ask.memory, rule) if rule else None


MOST_KNOWN: Final = 4_096
"""So many merged hints are remembered, of all nodes together, about 5 MB."""


_known: Final[dict[tuple[object, ...], tuple[object, ContainerAffinity | AdmitRejection]]] = {}


@dataclass(slots=True)
class LeftOver:
    """What init containers of the pod being admitted leave to later ones: bits of CPUs and devices, and bytes."""

    cpus: int
    devices: Mapping[str, int]
    memory: Reusable


def align_all(
    node: KubeletNode, managers: ManagerState, demand: ContainerDemand, left: LeftOver, *, exact: bool
) -> ContainerAffinity | AdmitRejection:
    """
    ``align`` of all managers' hints for this unit. ``exact``: the managers show just what is free, and no bound of it.

    Remembered by all that the managers look at for their hints: of the node its machine, configuration and memory; how many CPUs are free
    on each NUMA node, and on which of them some are left over; memory of the types that are asked for, and groups; devices that are asked
    for, by what they are near. Replays and questions ask for the same in many states that differ elsewhere.
    """
    key = _seen(node, managers, demand, left, exact=exact)
    known = _known.get(key)
    if known is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        # The key names objects by identity: kept beside the answer, so that none of these is given to another one meanwhile.
        named = node.machine, node.config, managers.memory and managers.memory.supply
        known = _known[key] = named, merged(node, managers, demand, left, exact=exact)
    return known[1]


def _seen(
    node: KubeletNode, managers: ManagerState, demand: ContainerDemand, left: LeftOver, *, exact: bool
) -> tuple[object, ...]:
    machine, table = node.machine, managers.memory
    key: list[Any] = [id(machine), id(node.config), node.aligns_by_socket, node.ids_are_real, exact, demand.cpus]
    if demand.cpus:
        key += [(managers.cpus & here).bit_count() for here in machine.numa_bits.values()]
        key += [(left.cpus & here).bit_count() for here in machine.numa_bits.values()] if left.cpus else ()
    for name, count in demand.devices.items():
        pool = node.devices.get(name)
        if pool is not None:
            taken, again = managers.devices[name], left.devices.get(name, 0)
            key += name, count, pool.masks, pool.healthy & ~taken, again
    if demand.memory and table is not None:
        key += id(table.supply), *demand.memory.items(), *table.groups.values(), *map(bool, table.blocks.values())
        key += [amounts.get(kind, 0) for amounts in table.free.values() for kind in demand.memory]
        key += left.memory.items()
    return tuple(key)


def merged(
    node: KubeletNode, managers: ManagerState, demand: ContainerDemand, left: LeftOver, *, exact: bool
) -> ContainerAffinity | AdmitRejection:
    """As ``align_all``, worked out."""
    answers: list[Answer] = []
    if demand.devices:
        # Devices, CPUs, memory: the order in which the kubelet registers its hint providers.
        stocks = {
            name: DeviceStock(name, node.devices[name], managers.devices[name], left.devices.get(name, 0))
            for name in demand.devices
            if name in node.devices
        }
        answers.append(DeviceManager(stocks).hints(demand))
    if demand.cpus:
        answers.append(CpuManager(CpuStock(node, managers.cpus, left.cpus) if node.pins_cpus else None).hints(demand))
    table = managers.memory
    if demand.memory and table is not None:
        answers.append(MemoryManager(MemoryStock(table, left.memory)).hints(demand))
        if answers[-1] is None and not exact:
            # The memory manager keeps silent and fails later. A state that shows too little free must not count that as consent.
            lacking = missing(demand.memory)
            return AdmitRejection(UNEXPECTED_ADMISSION, f"no set of NUMA nodes has free {lacking}")
    return align(node, answers)


def align(node: KubeletNode, answers: Sequence[Answer]) -> ContainerAffinity | AdmitRejection:
    """
    The merged hint of one alignment unit under the node's policy (Admit of scope_container.go and scope_pod.go, and policy_*.go).

    Example: CPUs hint at {0} and {1}, both preferred, and a GPU only at {1}: the only mask that both prefer is {1}, which every
    policy admits. Had the GPU been on a NUMA node without free CPUs, restricted and single-numa-node would reject the unit, and
    best-effort would take the intersection that is as wide as the most demanding resource needs.
    """
    # An unpublished policy aligns nothing here; where that would matter the view has a problem.
    policy = node.config.topology_policy or KubeletPolicy.NONE
    distances = node.machine.distances if node.prefers_closest else None
    hint = admitted_affinity(policy, answers, node.machine.numa_mask, distances)
    if hint is None:
        wanted = ", ".join(resource for answer in answers if answer for resource in answer)
        return AdmitRejection(TOPOLOGY_AFFINITY, f"no set of NUMA nodes is preferred for all of {wanted}")
    return ContainerAffinity(hint.mask, hint.preferred)


def align_alone(
    node: KubeletNode, demand: ContainerDemand, free: int, table: MemoryTable | None
) -> ContainerAffinity | None:
    """
    As ``align`` of all managers' hints, for a unit that finds everything on one NUMA node; ``None`` where that does not tell.

    ``free`` are CPU bits; nothing is left by init containers. A NUMA node that has what a manager is asked for shows that the manager
    prefers single ones. So the first that has everything is the merged hint under every policy, and no other has to be looked at.
    """
    cpus, memory = demand.cpus if node.pins_cpus else 0, demand.memory if table is not None else None
    if demand.devices or node.prefers_closest or node.static_options.align_by_socket:
        return None
    if memory and table is not None and not table.knows(memory):
        return None
    machine = node.machine
    ids = machine.numa_ids if cpus else members(table.nodes) if memory and table is not None else ()
    for numa in ids:
        if cpus and (free & machine.numa_bits[numa]).bit_count() < cpus:
            continue
        if memory and table is not None:
            if not MemoryStock(table, {}).fits_alone(numa, memory):
                continue
            # All of them together may have less: a release may have left others with less than nothing.
            if MemoryStock(table, {}).lacks(memory):
                return None
        return _settled(node.config.topology_policy, 1 << numa, machine.numa_mask)
    return None


@lru_cache(maxsize=1024)
def _settled(policy: KubeletPolicy | None, mask: int, nodes: int) -> ContainerAffinity | None:
    """What a policy makes of one preferred NUMA node; ``None`` where it asks for no hints. Every admission asks, about few masks."""
    rule = KUBELET.get(policy or KubeletPolicy.NONE)
    if rule is None:
        return None
    hint = rule.settles(Hint(mask, preferred=True), nodes)
    return ContainerAffinity(hint.mask, hint.preferred)


def admitted_alone(node: KubeletNode, managers: ManagerState, demand: PodDemand) -> tuple[Grant, ManagerState] | None:
    """
    What a pod gets of one app container that finds all on one NUMA node, as most pods do, and the managers after it, which are not changed;
    ``None`` where only the whole procedure tells.

    Theory. Such a container is the only unit in either scope, takes nothing over, and no manager is asked for devices. ``align_alone``
    names the NUMA node, which has the CPUs and the memory: so the managers give both there, whatever the order of taking over is.
    """
    if len(demand.containers) > 1 or node.ids_are_real or not node.aligns or node.whole_cores is not None:
        return None
    container, part = demand.containers[0]
    hint = align_alone(node, part, managers.cpus, managers.memory)
    # Of a hint of no NUMA node, where there is but one, the procedure tells.
    if hint is None or hint.mask is None or container.kind is not APP:
        return None
    mask, cpus, table, given = hint.mask, managers.cpus, managers.memory, EMPTY
    blocks: tuple[MemoryBlock, ...] = ()
    if part.cpus and node.pins_cpus:
        # Of made-up CPUs it matters only how many there are on a NUMA node.
        bits = lowest(cpus & node.machine.numa_bits[mask.bit_length() - 1], part.cpus)
        given, cpus = CpuSet(bits), cpus & ~bits
    if part.memory and table is not None:
        blocks = tuple([MemoryBlock(resource, amount, mask) for resource, amount in part.memory.items()])
        table = table.copy()
        for block in blocks:
            table.take(block, covered=0)
    grant = ContainerGrant(container.name, container.kind, given, blocks, {}, hint)
    return Grant(demand.qos, (grant,)), ManagerState(cpus, managers.devices, table)
