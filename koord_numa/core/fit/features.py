"""Features that a kubelet must have declared, or it would reject the pod (kube-scheduler's ``nodedeclaredfeatures``)."""

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection


def fits_features(request: PodRequest, node: Node) -> Rejection | None:
    """Does the node declare every feature that the pod needs? A node that declares none at all has none of them."""
    missing = [name for name in request.constraints.features if node.features is None or name not in node.features]
    if not missing:
        return None
    why = "node declared features check failed"
    return Rejection(Reason.NODE_FEATURE, why, f"unsatisfied requirements: {', '.join(missing)}", resolvable=False)
