"""
The kubelet's topology manager for one alignment unit: the managers' hints go in, one affinity comes out, or a rejection.

A unit is a container, or a whole pod under scope ``pod``. Policies are rows of ``core/numa/policies.KUBELET``, hints are merged by
``core/numa/kubelet_merge``; this module only says which distances count and names the rejection.
"""

from collections.abc import Sequence

from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.results import TOPOLOGY_AFFINITY, AdmitRejection, ContainerAffinity
from koord_numa.core.numa.hint_providers import Answer
from koord_numa.core.numa.policies import admitted_affinity
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
