"""A pod that names its node goes there or nowhere (kube-scheduler's NodeName)."""

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection


def fits_node_name(request: PodRequest, node: Node) -> Rejection | None:
    """Is this the node that the pod names, if it names one?"""
    wanted = request.constraints.node_name
    if not wanted or wanted == node.name:
        return None
    return Rejection(
        Reason.NODE_NAME, "node(s) didn't match the requested node name", f"the pod wants {wanted}", resolvable=False
    )
