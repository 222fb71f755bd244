"""The pods of one request class that are queued, in the order in which they were queued."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.engine.queue.request_class import RequestClass


class Stage(Enum):
    """Where a class stands, in the words of kube-scheduler's metrics."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"


@dataclass(slots=True, eq=False)
class ClassQueue:
    """
    One class. ``verdict`` is why its pods fit nowhere, while the stage is not ``ACTIVE``. ``failures`` counts rejections in a row;
    a woken class may be tried from ``rested`` on when nothing else is active, and is active again from ``not_before`` on.
    """

    request_class: RequestClass
    pods: OrderedDict[str, PendingPod] = field(
        default_factory=OrderedDict
    )  # by uid; its first item is found in constant time
    stage: Stage = Stage.ACTIVE
    verdict: Unschedulable | None = None
    reasons: frozenset[Reason] = frozenset()
    failures: int = 0
    rested: float = 0.0
    not_before: float = 0.0

    def head(self) -> PendingPod | None:
        """The pod to try next."""
        return next(iter(self.pods.values()), None)

    @property
    def turn(self) -> tuple[int, int, int]:
        """Sort key among classes: higher priority first, then by when the first pod was queued and what it pays for its size."""
        head = self.head()
        # The class number as the last key: two classes must never compare equal.
        order = head.order + self.request_class.handicap if head else 0
        return (-self.request_class.priority, order, self.request_class.number)


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """How many pods stand where, as kube-scheduler's ``scheduler_pending_pods`` counts them."""

    active: int
    backoff: int
    unschedulable: int
