"""Would the kubelet admit the pod if nothing else were on the node? Where it would not, evicting pods cannot help."""

from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.predicates import check_node_fit
from koord_numa.core.kubelet.managers.room import has_room
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.pod_resources import effective_requests


def fits_empty_node(request: PodRequest, node: KubeletNode) -> bool:
    """Whether the kubelet of this node admits the pod while no other is there. Asked for every refusal, so amounts come first."""
    if check_node_fit(effective_requests(request), {}, node.allocatable) is not None:
        return False
    empty = KubeletState.empty(node)
    return has_room(request, node, empty.managers) or isinstance(dry_run(empty, request), DryRunAdmitted)
