"""
What the parts of one scheduler share (kube-scheduler's ``framework.Handle``): configuration, ports, cache, queue, and what tells people.
"""

from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

from koord_numa.core.request import Pod
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.metrics import SchedulerMetrics, Wait
from koord_numa.engine.pod_status.conditions import PodConditions
from koord_numa.engine.pod_status.messages import Messages
from koord_numa.engine.queue.nominator import Nominator
from koord_numa.engine.queue.request_class import RequestClass, RequestClasses
from koord_numa.engine.queue.scheduling_queue import SchedulingQueue
from koord_numa.engine.ranking.selector import NodeSelection
from koord_numa.ports import Dependencies
from koord_numa.settings import Settings

REMEMBERED_PLACED: Final = 20_000
"""So many of the last placed pods are known by the class they waited in, in case their kubelets refuse them."""


@dataclass(slots=True)
class Handle:
    """What the lanes share. ``waiting`` are the pods that want a node, by uid, as last seen; ``in_flight`` those a lane works on."""

    settings: Settings
    dependencies: Dependencies
    cache: Cache
    queue: SchedulingQueue
    classes: RequestClasses
    selector: NodeSelection
    conditions: PodConditions
    nominator: Nominator
    metrics: SchedulerMetrics
    messages: Messages = field(default_factory=Messages)
    waiting: dict[str, Pod] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)  # of the same pods
    in_flight: set[str] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)  # failed binds in a row, by uid
    # The class in which a pod waited, by uid: binding changes what the pod shows of itself.
    placed: LRUCache[str, RequestClass] = field(default_factory=lambda: LRUCache(maxsize=REMEMBERED_PLACED))

    def forget(self, uid: str) -> None:
        """The pod wants no node any more; one that never waited is no error."""
        self.waiting.pop(uid, None)
        self.attempts.pop(uid, None)
        self.waits.pop(uid, None)
        self.queue.remove(uid)
        self.nominator.end(uid)
        self.conditions.forget(uid)
