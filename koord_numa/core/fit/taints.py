"""Cordoned and tainted nodes take only pods that tolerate it (kube-scheduler's NodeUnschedulable and TaintToleration)."""

from typing import Final

from koord_numa.core.objects.constraints import Constraints, Requirement, TaintEffect, Toleration
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.selectors import meets

_HARD: Final = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)
CORDONED: Final = Taint("node.kubernetes.io/unschedulable", TaintEffect.NO_SCHEDULE)


def fits_unschedulable(request: PodRequest, node: Node) -> Rejection | None:
    """May the pod go to this node although it is cordoned?"""
    # A toleration of the well-known taint lets a pod on to a cordoned node, as NodeUnschedulable has it.
    if not node.unschedulable or _tolerated(request.constraints, CORDONED):
        return None
    return Rejection(Reason.UNSCHEDULABLE, "node(s) were unschedulable", "the node is cordoned", resolvable=False)


def fits_taints(request: PodRequest, node: Node) -> Rejection | None:
    """Does the pod tolerate every taint that forbids scheduling or execution? The first other one is named."""
    for taint in node.taints:
        if taint.effect in _HARD and not _tolerated(request.constraints, taint):
            message = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
            return Rejection(Reason.TAINT, message, f"taint {taint.key}:{taint.effect}", resolvable=False)
    return None


def soft_taints(request: PodRequest, node: Node) -> int:
    """How many PreferNoSchedule taints the pod does not tolerate: fewer is better."""
    count = 0
    for taint in node.taints:
        if taint.effect is TaintEffect.PREFER_NO_SCHEDULE and not _tolerated(request.constraints, taint):
            count += 1
    return count


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Does one toleration cover one taint? As core/v1 Toleration.ToleratesTaint."""
    # An empty effect covers all effects, an empty key (with Exists) all keys.
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    # Gt and Lt compare numbers (KEP-5471); the taint's value is the label to be compared.
    if toleration.compares is not None:
        return meets({taint.key: taint.value}, (Requirement(taint.key, toleration.compares, (toleration.value,)),))
    return toleration.exists or (bool(toleration.key) and toleration.value == taint.value)


def _tolerated(demands: Constraints, taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in demands.tolerations)
