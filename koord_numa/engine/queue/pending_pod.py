"""
Records of pending pods (``QueuedPodInfo`` of kube-scheduler), and their index.

All data about a pod while it is pending is in its record, so that it is dropped with the record.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.pod_index import AnchorIndex, anchors_of_pod, anchors_of_term
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.settings import BackoffSettings


def pause(backoff: BackoffSettings, attempts: int, dice: float) -> float:
    """Return the seconds to wait after this number of consecutive attempts: doubling, capped, and spread by ``dice`` in [0, 1)."""
    return backoff.pause(attempts, dice)


@dataclass(slots=True, eq=False)
class PendingPod:
    """
    Pod without a node, as last observed. Times are monotonic seconds.

    ``since`` is when it was first observed and ``attempts`` the number of attempts. ``binding`` is true from a decision until the outcome
    of the bind is known, ``failed_binds`` counts consecutive failures. ``order`` increases whenever the pod is queued: among equal
    priorities the smaller goes first. ``queued_in`` is the class that holds it in the queue, ``None`` while it is not queued, and
    ``backoff_until`` is set while it backs off separately. ``message`` is the last reported reason why it waits; ``reason`` is the same
    without the ``remark`` about preemption. ``provisional`` means that there was no decision at that time.
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
    reason: str = ""
    remark: str = ""
    provisional: bool = False
    preemption_failures: int = 0  # consecutive failures
    preemption_from: float = 0.0  # no preemption for this pod before this time
    group_class: RequestClass | None = None  # class in the queue of a group member

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return self.pod.key.uid

    @property
    def queue_class(self) -> RequestClass:
        """Class in which the pod is queued: group members have separate classes."""
        return self.group_class or self.request_class

    @property
    def untold(self) -> bool:
        """Whether no decision has been reported to the pod."""
        return self.provisional or not self.message


class PendingPods:
    """All pending pods by UID."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PendingPod] = {}
        self._by_anchor: AnchorIndex[str] = AnchorIndex()  # UIDs

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[PendingPod]:
        """Iterate over a copy of the records, so that the loop body may remove records."""
        return iter(list(self._by_uid.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> PendingPod | None:
        """Return the record of a pod, ``None`` when it is not pending."""
        return self._by_uid.get(uid)

    def observe(self, pod: Pod, request_class: RequestClass, now: float) -> PendingPod:
        """Update the record of a pod, or create it."""
        known = self._by_uid.get(pod.key.uid)
        if known is None:
            known = self._by_uid[pod.key.uid] = PendingPod(pod, request_class, now)
            self._file(pod)
        # Indexed by labels, so that the index is updated when they change.
        elif known.pod.labels != pod.labels:
            self._take_out(known.pod)
            self._file(pod)
        known.pod, known.request_class = pod, request_class
        return known

    def pop(self, uid: str) -> PendingPod | None:
        """Remove a pod and return its record."""
        known = self._by_uid.pop(uid, None)
        if known is not None:
            self._take_out(known.pod)
        return known

    def selected_by(self, terms: Iterable[PodTerm]) -> list[PendingPod]:
        """Return the pods that one of these terms may select, including all that any of them selects."""
        found = self._by_anchor.find(anchor for term in terms for anchor in anchors_of_term(term))
        return [self._by_uid[uid] for uid in found]

    def _file(self, pod: Pod) -> None:
        self._by_anchor.add(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))

    def _take_out(self, pod: Pod) -> None:
        self._by_anchor.remove(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))
