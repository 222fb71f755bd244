"""
One record for a pod that waits (kube-scheduler's ``QueuedPodInfo``), and the one place that knows all of them.

Everything that is remembered about a pod because it waits is a field of its record, so that it is forgotten with it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.pod_index import AnchorIndex, anchors_of_pod, anchors_of_term
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.settings import BackoffSettings


def pause(backoff: BackoffSettings, attempts: int, dice: float) -> float:
    """Seconds to wait after so many attempts in a row: doubling, capped, and spread by ``dice`` in [0, 1)."""
    return backoff.pause(attempts, dice)


@dataclass(slots=True, eq=False)
class PendingPod:
    """
    A pod without a node, as last seen. Times are monotonic seconds.

    ``since`` is when it was first seen and ``attempts`` how often it was tried. ``binding`` is true from a decision until the outcome of
    its bind is known, ``failed_binds`` counts failures in a row. ``order`` grows with each time the pod is queued (again): of equal
    priorities the smaller goes first. ``queued_in`` is the class that holds it in the queue, ``None`` while it is not queued, and
    ``backoff_until`` is set while it backs off alone. ``message`` and ``remark`` are what was said last about why it waits; ``provisional``
    means that no decision was known then.
    """

    pod: Pod
    request_class: RequestClass
    since: float
    attempts: int = 0
    failed_binds: int = 0
    deciding: bool = False  # between two slices of a decision
    binding: bool = False
    order: int = 0
    queued_in: RequestClass | None = None
    backoff_until: float | None = None
    message: str = ""
    remark: str = ""
    provisional: bool = False
    preemption_failures: int = 0  # in a row
    preemption_from: float = 0.0  # no attempt to make room before this time
    group_class: RequestClass | None = None  # of a member of a group: its class in the queue

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.key.uid

    @property
    def queue_class(self) -> RequestClass:
        """The class in which the pod is queued: members of a group have classes of their own."""
        return self.group_class or self.request_class

    @property
    def untold(self) -> bool:
        """Was no decision told to the pod?"""
        return self.provisional or not self.message


class PendingPods:
    """All pods that wait, by uid."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PendingPod] = {}
        self._by_anchor: AnchorIndex[str] = AnchorIndex()  # uids

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[PendingPod]:
        """Records as they are now, also when the loop's body forgets some."""
        return iter(list(self._by_uid.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> PendingPod | None:
        """The record of a pod, ``None`` when it does not wait."""
        return self._by_uid.get(uid)

    def observe(self, pod: Pod, request_class: RequestClass, now: float) -> PendingPod:
        """The pod as it is now; its record is made when it is new."""
        known = self._by_uid.get(pod.key.uid)
        if known is None:
            known = self._by_uid[pod.key.uid] = PendingPod(pod, request_class, now)
            self._file(pod)
        # Filed by labels, so that the index follows when they change.
        elif known.pod.labels != pod.labels:
            self._take_out(known.pod)
            self._file(pod)
        known.pod, known.request_class = pod, request_class
        return known

    def pop(self, uid: str) -> PendingPod | None:
        """Forget a pod; returns its record."""
        known = self._by_uid.pop(uid, None)
        if known is not None:
            self._take_out(known.pod)
        return known

    def selected_by(self, terms: Iterable[PodTerm]) -> list[PendingPod]:
        """The pods that one of these terms may select; every one that it does is among them."""
        found = self._by_anchor.find(anchor for term in terms for anchor in anchors_of_term(term))
        return [self._by_uid[uid] for uid in found]

    def _file(self, pod: Pod) -> None:
        self._by_anchor.add(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))

    def _take_out(self, pod: Pod) -> None:
        self._by_anchor.remove(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))
