"""
The kubelet's topology manager for one alignment unit: the managers' hints go in, one affinity comes out, or a rejection.

A unit is a container, or a whole pod under scope ``pod``. Policies are rows of ``core/numa/policies.KUBELET``, hints are merged by
``core/numa/kubelet_merge``; this module only says which distances count and names the rejection.
"""

from collections.abc import Sequence

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.memory import MemoryTable
from koord_numa.core.kubelet.managers.results import TOPOLOGY_AFFINITY, AdmitRejection, ContainerAffinity
from koord_numa.core.numa.hint_providers import Answer
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.policies import KUBELET, admitted_affinity
from koord_numa.core.objects.vocabulary import KubeletPolicy


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
    rule = KUBELET.get(node.config.topology_policy or KubeletPolicy.NONE)
    if rule is None or demand.devices or node.prefers_closest or node.static_options.align_by_socket:
        return None
    if memory and table is not None and (not table.knows(memory) or table.lacks(memory, {})):
        return None
    machine = node.machine
    ids = machine.numa_ids if cpus else members(table.nodes) if memory and table is not None else ()
    for numa in ids:
        if cpus and (free & machine.numa_bits[numa]).bit_count() < cpus:
            continue
        if memory and table is not None and not table.fits_alone(numa, memory):
            continue
        hint = rule.settles(Hint(1 << numa, preferred=True), machine.numa_mask)
        return ContainerAffinity(hint.mask, hint.preferred)
    return None
