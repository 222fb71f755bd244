"""Shared components of one scheduler (``framework.Handle`` of kube-scheduler): settings, ports, cache, queue, reporting."""

from collections.abc import Callable
from typing import Final

from cachetools import LRUCache

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.engine.containment import Quarantine, Subject
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.engine.metrics import DecisionLog, Result, SchedulerMetrics
from koord_numa.engine.object_events import Messages, PodConditions
from koord_numa.engine.queue import Nominator, PendingPods, RequestClass, RequestClasses, SchedulingQueue
from koord_numa.engine.ranking import NodeSelection
from koord_numa.ports import Dependencies
from koord_numa.settings import Settings

REMEMBERED_PLACED: Final = 20_000
"""Maximum number of placed pods with a remembered request class, for rejections by their kubelets."""


class Handle(MutableObject):
    """Components of a scheduler. ``pending`` has the record of each waiting pod, until ``forget``."""

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
    messages: Messages = value_field(default_factory=Messages)
    pending: PendingPods = value_field(default_factory=PendingPods)
    pod_groups: PodGroups = value_field(default_factory=PodGroups)
    on_forgotten: Callable[[str], None] = lambda _uid: None  # called for pods that do not wait any more
    stopping: bool = False  # make no more decisions, and do not wait for slow operations
    # The class in which a pod waited, by UID: the bind changes the fields that the class depends on.
    placed: LRUCache[str, RequestClass] = value_field(default_factory=lambda: LRUCache(maxsize=REMEMBERED_PLACED))

    def forget(self, uid: str) -> None:
        """Remove a pod that does not wait any more from all components. Does nothing for other pods."""
        # In the reverse order of registration; every component ignores unknown pods.
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
        """Record the result of a scheduling attempt of this class that started at ``began`` (monotonic seconds)."""
        self.metrics.attempts[result, request_class.profile.scheduler_name].add(self.dependencies.clock() - began)


def subject_of(pod: Pod) -> Subject:
    """Return the quarantine subject of a pod."""
    return Subject("pod", str(pod.key), pod.key.uid, pod.resource_version)
