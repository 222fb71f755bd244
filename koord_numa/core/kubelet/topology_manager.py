"""
The kubelet's topology manager for one alignment unit: the managers' hints are merged into one affinity, or the unit is rejected.

A unit is a container, or a whole pod with scope ``pod``. Policies are the rows of ``core/numa/policies.KUBELET``; hints are merged in
``core/numa/kubelet_merge``.
"""

from collections.abc import Mapping, Sequence

from koord_numa.core.explain import needs_text
from koord_numa.core.kubelet.cpu_manager import CpuStock
from koord_numa.core.kubelet.demand import TOPOLOGY_AFFINITY, UNEXPECTED_ADMISSION, AdmitRejection, ContainerDemand
from koord_numa.core.kubelet.device_manager import DeviceStock
from koord_numa.core.kubelet.memory_manager import MemoryStock, ReusableMemory
from koord_numa.core.kubelet.state import ContainerAffinity, KubeletNode, ManagerState, MemoryTable
from koord_numa.core.numa.hint_providers import Answer
from koord_numa.core.numa.policies import admitted_affinity
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import MutableObject, value_field


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
    Return the merged hint under the node's policy (Admit in scope_container.go and scope_pod.go, policy_*.go).

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
