"""
What the parts of one scheduler share (kube-scheduler's ``framework.Handle``): configuration, ports, cache, queue, and what tells people.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.engine.containment import Quarantine, Subject
from koord_numa.engine.decision_log import DecisionLog
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.engine.metrics import Result, SchedulerMetrics
from koord_numa.engine.pod_status import Messages, PodConditions
from koord_numa.engine.queue.nominator import Nominator
from koord_numa.engine.queue.pending_pod import PendingPods
from koord_numa.engine.queue.request_class import RequestClass, RequestClasses
from koord_numa.engine.queue.scheduling_queue import SchedulingQueue
from koord_numa.engine.ranking.selector import NodeSelection
from koord_numa.ports import Dependencies
from koord_numa.settings import Settings

REMEMBERED_PLACED: Final = 20_000
"""So many of the last placed pods are known by the class they waited in, in case their kubelets refuse them."""


@dataclass(slots=True)
class Handle:
    """Components only. ``pending`` has the one record of each pod that waits, until ``forget``."""

    settings: Settings
    dependencies: Dependencies
    cache: Cache
    queue: SchedulingQueue
    classes: RequestClasses
    selector: NodeSelection
    conditions: PodConditions
    nominator: Nominator
    metrics: SchedulerMetrics
    volumes: VolumeLister
    resource_claims: PodClaimResolver
    quarantine: Quarantine
    decisions: DecisionLog
    messages: Messages = field(default_factory=Messages)
    pending: PendingPods = field(default_factory=PendingPods)
    pod_groups: PodGroups = field(default_factory=PodGroups)
    on_forgotten: Callable[[str], None] = lambda _uid: None  # hears of pods that wait no more
    stopping: bool = False  # decide nothing more, and wait for nothing that may take long
    # The class in which a pod waited, by uid: binding changes what the pod shows of itself.
    placed: LRUCache[str, RequestClass] = field(default_factory=lambda: LRUCache(maxsize=REMEMBERED_PLACED))

    def forget(self, uid: str) -> None:
        """The pod waits no more: the one place that forgets it. One that never waited is no error."""
        # In the reverse order of what a pod's wait has set up; each part forgets what it never had without an error.
        pending = self.pending.pop(uid)
        self.nominator.end(uid)
        self.resource_claims.forget(uid)
        if pending is None:
            return
        self.on_forgotten(uid)
        self.queue.remove(pending)
        self.conditions.forget(uid)
        self.quarantine.release(subject_of(pending.pod))

    def attempted(self, result: Result, request_class: RequestClass, began: float) -> None:
        """An attempt to place a pod of this class that began then (monotonic seconds) has ended so."""
        self.metrics.attempts[result, request_class.profile.scheduler_name].add(self.dependencies.clock() - began)


def subject_of(pod: Pod) -> Subject:
    """A pod, as quarantine knows it."""
    return Subject("pod", str(pod.key), pod.key.uid, pod.resource_version)
