"""
Admission of a pod of one app container that finds all it asks for on one NUMA node, as most pods do.

Theory. Such a container is the only unit in either scope, takes nothing over, and no manager is asked for devices. ``align_alone`` names
the NUMA node, which has the CPUs and the memory: so the managers give both there, whatever the order of taking over is, and none refuses.
"""

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.managers.aggregates import PodDemand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import ManagerState
from koord_numa.core.kubelet.managers.results import ContainerGrant, Grant, MemoryBlock
from koord_numa.core.kubelet.managers.topology_manager import align_alone
from koord_numa.core.objects.vocabulary import ContainerKind


def admitted_alone(node: KubeletNode, managers: ManagerState, demand: PodDemand) -> tuple[Grant, ManagerState] | None:
    """What the pod gets, and the managers after it; ``None`` where only the whole procedure tells. The managers are not changed."""
    if len(demand.containers) > 1 or node.ids_are_real or not node.aligns or node.whole_cores is not None:
        return None
    container, part = demand.containers[0]
    hint = align_alone(node, part, managers.cpus, managers.memory)
    # Of a hint of no NUMA node, where there is but one, the procedure tells.
    if hint is None or hint.mask is None or container.kind is not ContainerKind.APP:
        return None
    mask, cpus, table = hint.mask, managers.cpus, managers.memory
    given, blocks = EMPTY, tuple[MemoryBlock, ...]()
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
