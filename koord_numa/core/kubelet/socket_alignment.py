"""
align-by-socket where the kubelet is not followed: a container's CPUs come from any NUMA node of its sockets, which no exporter publishes.

Where the kubelet is followed, hypotheses try the sockets out (``inference/config_variants``). Decides that and nothing else.
"""

from typing import Final

from koord_numa.core.kubelet.inference.config_variants import ALIGN_BY_SOCKET
from koord_numa.core.kubelet.managers.aggregates import PodDemand
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope

_TOGETHER: Final = 2
"""So many containers with CPUs of their own may take them from one another."""


def lost_to_sockets(demand: PodDemand, view: KubeletView) -> str:
    """
    Why one container may take CPUs away that the next one must have on its NUMA node; empty when none can.

    By getAlignedCPUs in the kubelet's cpumanager/policy_static.go. Only ``restricted`` refuses for it, as ``best-effort`` admits what it
    cannot align and ``single-numa-node`` excludes the option; pod scope looks for the CPUs of all containers at once.
    """
    node = view.state.node
    config = node.config
    if node.ids_are_real or view.followed or not node.pins_cpus or not config.cpu_options.get(ALIGN_BY_SOCKET):
        return ""
    if config.topology_policy is not KubeletPolicy.RESTRICTED or config.topology_scope is not KubeletScope.CONTAINER:
        return ""
    taking = [container.name for container, part in demand.containers if part.cpus]
    if len(taking) < _TOGETHER:
        return ""
    first, second = taking[:2]
    return f"container {first} may take CPUs of any NUMA node of its socket, of which {second} needs some, and sockets are not published"
