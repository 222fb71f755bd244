"""
Do two sources of truth about a node's CPUs contradict each other? Says what clashes; bars nothing itself.

A static kubelet and an agent that applies our cpusets must not both run on a node: each hands out CPUs the other does not know of.
"""

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.state.ledger import Ledger


def clash(topology: NodeResourceTopology | None, ledger: Ledger) -> str:
    """
    The pods whose CPUs are given twice, by us and by the kubelet (``node.koordinator.sh/pod-cpu-allocs``), as a sentence.

    Empty when nothing clashes. It ends with its cause: when one of the pods is gone, the node is trusted again.
    """
    # The cheap looks first: nearly all nodes have one source of truth only.
    if topology is None or not topology.kubelet_pods or not ledger.bits:
        return ""
    for given in topology.kubelet_pods:
        if not given.managed_by_kubelet or not given.cpus.bits & ledger.bits:
            continue
        for held in ledger:
            both = held.cpus & given.cpus
            # The same pod in both lists is the agent reporting our own cpuset back.
            if both and held.pod.uid != given.uid:
                return (
                    f"CPUs {both} belong to {held.pod} by its resource-status and to "
                    f"{given.namespace}/{given.name} by the kubelet's static policy"
                )
    return ""
