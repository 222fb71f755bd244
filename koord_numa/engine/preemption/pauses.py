"""Pods for which the next attempt to make room has to wait. Times are monotonic seconds."""

from collections.abc import Iterator

from koord_numa.engine.handle import Handle
from koord_numa.engine.queue.backoff import pause
from koord_numa.engine.queue.pending_pod import PendingPod


class Pauses:
    """When they end and how often they failed is in the pods' records."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._paused: dict[str, PendingPod] = {}  # by uid

    def __contains__(self, uid: str) -> bool:
        return uid in self._paused

    def over(self, now: float) -> Iterator[PendingPod]:
        """
        The pods whose pause has ended; they are not paused any more. Also with the pod itself a pause ends: others of its class may have
        waited for it.
        """
        for uid, pending in list(self._paused.items()):
            # Another record is there, or none: the pod is gone, has a node, or has come again.
            if self._handle.pending.get(uid) is not pending or pending.preemption_from <= now:
                del self._paused[uid]
                yield pending

    def next(self, uid: str) -> float:
        """One more failure of this pod; returns for how many seconds it is to wait."""
        pending = self._handle.pending.get(uid)
        times = 1 if pending is None else pending.preemption_failures + 1
        if pending is not None:
            pending.preemption_failures = times
        return pause(self._handle.settings.backoff, times, self._handle.dependencies.random())

    def begin(self, uid: str, seconds: float) -> None:
        """No room is made for this pod for so long; one that waits no longer is no error."""
        if (pending := self._handle.pending.get(uid)) is not None:
            pending.preemption_from = self._handle.dependencies.clock() + seconds
            self._paused[uid] = pending

    def reset(self, uid: str) -> None:
        """Room was made: the next pause starts small again."""
        if pending := self._handle.pending.get(uid):
            pending.preemption_failures = 0
