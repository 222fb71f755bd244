"""The node's labels against the pod's nodeSelector and node affinity (kube-scheduler's NodeAffinity)."""

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.selectors import matches_term


def matches_node(request: PodRequest, node: Node) -> bool:
    """Does the node match the nodeSelector and at least one required term?"""
    demands = request.constraints
    for key, value in demands.node_selector:
        if node.labels.get(key) != value:
            return False
    # No terms at all is no demand (``None``); an empty list of terms matches nothing (nodeaffinity.NewNodeSelector).
    return demands.node_terms is None or any(matches_term(term, node.name, node.labels) for term in demands.node_terms)


def fits_node_affinity(request: PodRequest, node: Node) -> Rejection | None:
    """Required node affinity."""
    if matches_node(request, node):
        return None
    missing = [f"{key}={value}" for key, value in request.constraints.node_selector if node.labels.get(key) != value]
    detail = f"the node lacks {', '.join(missing)}" if missing else "no required node affinity term matches"
    return Rejection(
        Reason.NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector", detail, resolvable=False
    )


def preferred_weight(request: PodRequest, node: Node) -> int:
    """The weights of all preferred terms that the node matches; an empty preferred term matches nothing."""
    return sum(
        preferred.weight
        for preferred in request.constraints.preferred_nodes
        if matches_term(preferred.term, node.name, node.labels)
    )
