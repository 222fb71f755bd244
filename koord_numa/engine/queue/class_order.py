"""
Which request class is tried next.

Theory: the order is kube-scheduler's ``PrioritySort``: by priority, then by when a pod was queued (again). Three rules bound what classes
that fit nowhere cost all others:

* A class that was rejected pauses, 1 s at first and up to 10 s in the end, as a pod in kube-scheduler's ``backoffQ``. As there
  (``SchedulerPopFromBackoffQ``) it is tried earlier when nothing is active, after the much shorter ``wakePause``.
* A woken class of higher priority than every active one is tried at once: its pause would be a priority inversion.
* After a retry in vain the next attempt belongs to a class that was not rejected since it was last placed, if there is one.

So a pod that fits waits for at most one attempt in vain per pod that fits, whatever the number of classes that do not.

Example: A and C were rejected before and are active again, B is new and was queued last. A is tried, in vain; B is next, then C.
"""

from koord_numa.engine.queue.class_queue import ClassQueue, Stage
from koord_numa.engine.queue.keyed_heap import KeyedHeap


class ClassOrder:
    """The classes with pods to try. ``in_vain`` is set by the queue: was the last attempt a retry that failed?"""

    def __init__(self) -> None:
        self.in_vain = False
        self._fresh: KeyedHeap[ClassQueue] = KeyedHeap()  # active, not rejected since they were last placed
        self._retries: KeyedHeap[ClassQueue] = KeyedHeap()  # active, rejected before
        self._woken: KeyedHeap[ClassQueue] = KeyedHeap()  # in BACKOFF
        self._rested: KeyedHeap[ClassQueue] = KeyedHeap()  # those of them that may be tried when nothing is active

    @property
    def any_active(self) -> bool:
        """May a class be tried that does not back off?"""
        return bool(self._fresh or self._retries)

    @property
    def any_rested(self) -> bool:
        """May a class be tried if no other is active?"""
        return bool(self._rested)

    @property
    def entries(self) -> int:
        """How many entries the heaps keep, stale ones among them."""
        return sum(heap.entries for heap in (self._fresh, self._retries, self._woken, self._rested))

    def offer(self, chosen: ClassQueue) -> None:
        """Let a class stand where its stage and its first pod put it."""
        if chosen.stage is Stage.ACTIVE:
            # A class that fits nowhere must not stand before classes that were never refused; both heaps keep the same order
            # among themselves.
            (self._retries if chosen.failures else self._fresh).set(chosen, chosen.turn)
        elif chosen.stage is Stage.BACKOFF:
            self._woken.set(chosen, chosen.turn)

    def rest_over(self, chosen: ClassQueue) -> None:
        """A class in BACKOFF may be tried from now on when no class is active."""
        self._rested.set(chosen, chosen.turn)

    def withdraw(self, chosen: ClassQueue) -> None:
        """The class is not to be tried."""
        # A class may be in several heaps while its stage changes; ``discard`` of one that is not there costs a look-up.
        for heap in (self._fresh, self._retries, self._woken, self._rested):
            heap.discard(chosen)

    def next(self) -> ClassQueue | None:
        """The class to try now, ``None`` when there is none. It stays where it is."""
        fresh, retry, woken = self._fresh.first(), self._retries.first(), self._woken.first()
        # One attempt in vain was made: the next belongs to a class that was not refused.
        if fresh is not None and self.in_vain:
            return fresh[1]
        best = min((found for found in (fresh, retry) if found is not None), key=lambda found: found[0], default=None)
        if best is None:
            rested = self._rested.first()
            return None if rested is None else rested[1]
        # Only a higher priority breaks the pause: equal ones wait their turn.
        if woken is not None and woken[1].request_class.priority > best[1].request_class.priority:
            return woken[1]
        return best[1]
