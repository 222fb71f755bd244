"""
Pending pods: the scheduling queue, the events that may help rejected pods, and nominated nodes.
"""

from koord_numa.engine.queue.nominator import Nomination, Nominator
from koord_numa.engine.queue.pending_pod import PendingPod, PendingPods, RequestClass, RequestClasses
from koord_numa.engine.queue.scheduling_queue import (
    FREES_NOTHING,
    NodeChange,
    QueueNumbers,
    SchedulingQueue,
    reasons_of,
    wake,
)

__all__ = [
    "FREES_NOTHING",
    "NodeChange",
    "Nomination",
    "Nominator",
    "PendingPod",
    "PendingPods",
    "QueueNumbers",
    "RequestClass",
    "RequestClasses",
    "SchedulingQueue",
    "reasons_of",
    "wake",
]
