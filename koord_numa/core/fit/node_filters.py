"""
Filters on the Node object: kube-scheduler's NodeDeclaredFeatures, NodeAffinity, NodeName, NodePorts, NodeResourcesFit,
NodeUnschedulable and TaintToleration.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koord_numa.core.explain import bare_amount, needs_text
from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    Requirement,
    TaintEffect,
    Toleration,
    matches_term,
    meets,
)
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceList


def fits_features(request: PodRequest, node: Node) -> Rejection | None:
    """
    Reject a node that does not declare every feature the pod needs. A node without declared features has no features.
    """
    missing = [name for name in request.constraints.features if node.features is None or name not in node.features]
    if not missing:
        return None
    why = "node declared features check failed"
    return Rejection(Reason.NODE_FEATURE, why, f"unsatisfied requirements: {', '.join(missing)}", resolvable=False)


def matches_node(request: PodRequest, node: Node) -> bool:
    """Return whether the node matches the nodeSelector and at least one required term."""
    demands = request.constraints
    for key, value in demands.node_selector:
        if node.labels.get(key) != value:
            return False
    # None means no required terms. An empty list of terms matches nothing (nodeaffinity.NewNodeSelector).
    return demands.node_terms is None or any(matches_term(term, node.name, node.labels) for term in demands.node_terms)


def fits_node_affinity(request: PodRequest, node: Node) -> Rejection | None:
    """Reject a node that does not match the nodeSelector or the required node affinity."""
    if matches_node(request, node):
        return None
    missing = [f"{key}={value}" for key, value in request.constraints.node_selector if node.labels.get(key) != value]
    detail = f"the node lacks {', '.join(missing)}" if missing else "no required node affinity term matches"
    return Rejection(
        Reason.NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector", detail, resolvable=False
    )


def preferred_weight(request: PodRequest, node: Node) -> int:
    """Return the sum of the weights of all matching preferred terms. An empty preferred term matches nothing."""
    return sum(
        preferred.weight
        for preferred in request.constraints.preferred_nodes
        if matches_term(preferred.term, node.name, node.labels)
    )


def fits_node_name(request: PodRequest, node: Node) -> Rejection | None:
    """Reject every node except the node that the pod names, if it names a node."""
    wanted = request.constraints.node_name
    if not wanted or wanted == node.name:
        return None
    return Rejection(
        Reason.NODE_NAME, "node(s) didn't match the requested node name", f"the pod wants {wanted}", resolvable=False
    )


_ANY: Final = "0.0.0.0"  # noqa: S104  (Kubernetes' wildcard address, nothing listens here)


def fits_ports(request: PodRequest, used: Iterable[HostPort]) -> Rejection | None:
    """Reject a node where a requested host port is in use. The wildcard address conflicts with every address."""
    wanted = request.constraints.host_ports
    if not wanted:
        return None
    taken = list(used)
    for port in wanted:
        if any(_clash(port, other) for other in taken):
            return Rejection(
                Reason.HOST_PORT,
                "node(s) didn't have free ports for the requested pod ports",
                f"{port.protocol} port {port.port} is taken",
            )
    return None


def _clash(one: HostPort, other: HostPort) -> bool:
    # The protocol is part of the key: TCP 80 and UDP 80 do not conflict.
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or _ANY in (one.ip, other.ip)


# The order of kube-scheduler's fitsRequest, so that the same resource is reported first.
_ORDER = {PODS: 0, CPU: 1, MEMORY: 2, EPHEMERAL_STORAGE: 3}


def has_room(wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int], pods: int) -> bool:
    """Return whether ``fits_resources`` accepts the pod, without building a rejection."""
    limit = allocatable.get(PODS)
    return (limit is None or pods < limit) and not _short(wanted, allocatable, held)


def _short(wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int]) -> list[str]:
    return [
        name for name, amount in wanted.items() if amount > 0 and amount > allocatable.get(name, 0) - held.get(name, 0)
    ]


def fits_resources(
    wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int], pods: int
) -> Rejection | None:
    """
    Reject a node if ``wanted`` exceeds ``allocatable`` minus ``held``, or if the node has no room for one more pod than
    ``pods``.

    The first resource that does not fit is reported: pods, cpu, memory, ephemeral-storage, then other resources by
    name. A node that does not list a resource has none of it. A node that does not list ``pods`` accepts any number of
    pods.
    """
    limit = allocatable.get(PODS)
    if limit is not None and pods + 1 > limit:
        return Rejection(Reason.RESOURCES, "Too many pods", f"{pods} of {limit} pods are there")
    short = _short(wanted, allocatable, held)
    if not short:
        return None
    name = min(short, key=lambda name: (_ORDER.get(name, 4), name))
    amount, there = wanted[name], allocatable.get(name, 0)
    free = max(0, there - held.get(name, 0))
    detail = f"needs {needs_text({name: amount})}, {bare_amount(name, free)} of {bare_amount(name, there)} free"
    # Preemption cannot free more than the node has in total.
    lack = round(1 - free / amount, 6)
    return Rejection(Reason.RESOURCES, f"Insufficient {name}", detail, resolvable=amount <= there, lack=lack)


_HARD: Final = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)
CORDONED: Final = Taint("node.kubernetes.io/unschedulable", TaintEffect.NO_SCHEDULE)


def fits_unschedulable(request: PodRequest, node: Node) -> Rejection | None:
    """Reject a cordoned node unless the pod tolerates the unschedulable taint."""
    # As in NodeUnschedulable, a toleration of the well-known taint permits cordoned nodes.
    if not node.unschedulable or _tolerated(request.constraints, CORDONED):
        return None
    return Rejection(Reason.UNSCHEDULABLE, "node(s) were unschedulable", "the node is cordoned", resolvable=False)


def fits_taints(request: PodRequest, node: Node) -> Rejection | None:
    """
    Reject a node with a NoSchedule or NoExecute taint that the pod does not tolerate. The first such taint is reported.
    """
    for taint in node.taints:
        if taint.effect in _HARD and not _tolerated(request.constraints, taint):
            message = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
            return Rejection(Reason.TAINT, message, f"taint {taint.key}:{taint.effect}", resolvable=False)
    return None


def soft_taints(request: PodRequest, node: Node) -> int:
    """Return the number of PreferNoSchedule taints that the pod does not tolerate. Fewer is better."""
    count = 0
    for taint in node.taints:
        if taint.effect is TaintEffect.PREFER_NO_SCHEDULE and not _tolerated(request.constraints, taint):
            count += 1
    return count


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration matches a taint, as core/v1 Toleration.ToleratesTaint."""
    # An empty effect matches all effects, an empty key (with Exists) all keys.
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    # Gt and Lt compare numbers (KEP-5471). The value of the taint is compared with the value of the toleration.
    if toleration.compares is not None:
        return meets({taint.key: taint.value}, (Requirement(taint.key, toleration.compares, (toleration.value,)),))
    return toleration.exists or (bool(toleration.key) and toleration.value == taint.value)


def _tolerated(demands: Constraints, taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in demands.tolerations)
