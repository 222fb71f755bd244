"""
Queueing hints, as in kube-scheduler: whether a change may help the pods of a class.

A positive result may be wrong and costs an attempt; a negative result is certain.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

from koord_numa.core.fit.node_filters import fits_node_affinity, fits_node_name, fits_taints, fits_unschedulable
from koord_numa.core.objects.constraints import Labels, PodTerm, selects
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.scheduling.request import may_be_refused_for_others
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.queue.cluster_events import ClusterEvent
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.engine.queue.scheduling_queue import Help, HelpRefused, SchedulingQueue

# The filters on the Node object only: cheap, and sufficient to exclude most classes.
_OF_NODE_OBJECT: Final = (fits_node_name, fits_unschedulable, fits_taints, fits_node_affinity)

_MAKES_ELIGIBLE: Final = (
    ClusterEvent.NODE_ADDED,
    ClusterEvent.NODE_CHANGED,
    ClusterEvent.NODE_UNLOCKED,
    ClusterEvent.TOPOLOGY_CHANGED,
)
"""Events that may resolve a rejection which no eviction resolves, such as a taint or a lock."""


def node_may_help(node: Node) -> Help:
    """
    Return the hint for a change on this node: it helps classes that the Node object admits by name, cordon, taints and labels.

    A class that depends on other pods may also be helped on other nodes, by a topology domain that was added, removed or enlarged.
    """

    def helps(request_class: RequestClass) -> bool:
        elsewhere = bool(request_class.pickers) or may_be_refused_for_others(request_class.request)
        return elsewhere or not any(filter_(request_class.request, node) for filter_ in _OF_NODE_OBJECT)

    return helps


def pod_may_help(pod: Pod, namespaces: Mapping[str, Labels]) -> Help:
    """Return the hint for an added, removed or changed pod: it helps classes that count the pod, and classes that its terms select."""
    labels, namespace = dict(pod.labels), pod.key.namespace

    def helps(request_class: RequestClass) -> bool:
        request = request_class.request
        demands = request.constraints
        # A shared claim: ReadWriteOncePod and attach limits depend on it.
        if demands.claims and pod.request.constraints.claims and request.namespace == namespace:
            return True
        if namespace == request.namespace and any(
            each.hard and selects(each.selector, labels) for each in demands.spread
        ):
            return True
        if any(_selects(term, namespace, labels, namespaces) for term in _required(request)):
            return True
        # The other direction: the affinity of the added or removed pod.
        own = dict(request.labels)
        return any(_selects(term, request.namespace, own, namespaces) for term in _required(pod.request))

    return helps


def evictions_may_help(info: NodeInfo, node: Node) -> HelpRefused:
    """
    Return the hint whether evictions on the node may help now.

    They may help classes that the node rejected as not resolvable and that have priority over a pod there. Free resources are not
    considered, as in the hints of kube-scheduler.
    """
    lowest = min((pod.request.priority for pod in info.pods.values()), default=inf)

    def helps(request_class: RequestClass, verdict: Unschedulable) -> bool:
        if request_class.priority <= lowest:
            return False
        known = verdict.rejections.get(info.name)
        is_news = known is None or not known.resolvable
        return is_news and not any(filter_(request_class.request, node) for filter_ in _OF_NODE_OBJECT)

    return helps


class NodeChange(ValueObject):
    """Change on a node, with the pod if a pod caused it. ``namespaces`` are labels by name."""

    event: ClusterEvent
    info: NodeInfo
    pod: Pod | None
    namespaces: Mapping[str, Labels]


def wake(queue: SchedulingQueue, now: float, change: NodeChange) -> None:
    """Wake the classes that the change may help, by the state of the node and by the pod that was added, removed or changed."""
    event, node, pod = change.event, change.info.node, change.pod
    if node is None:
        queue.wake(event, now, {})  # only changes on other nodes for classes that depend on other pods
    elif event is ClusterEvent.BINDS_DONE:
        queue.wake(event, now)  # all these classes: nothing was reported for them, and no preemption started
    elif event is not ClusterEvent.POD_BOUND:
        queue.wake(event, now, change.info.free, node_may_help(node))
        if event in _MAKES_ELIGIBLE:
            queue.wake_refused(event, now, evictions_may_help(change.info, node))
    if pod is not None:
        gone = event is ClusterEvent.CAPACITY_FREED
        about_pod = ClusterEvent.POD_GONE if gone else ClusterEvent.POD_BOUND
        queue.wake(about_pod, now, helps=pod_may_help(pod, change.namespaces))


def _required(request: PodRequest) -> tuple[PodTerm, ...]:
    """Return the required terms. Preferred terms never affect feasibility."""
    return (*request.constraints.affinity, *request.constraints.anti_affinity)


def _selects(term: PodTerm, namespace: str, labels: Labels, namespaces: Mapping[str, Labels]) -> bool:
    inside = namespace in term.namespaces or selects(term.namespace_selector, namespaces.get(namespace, {}))
    return inside and selects(term.selector, labels)
