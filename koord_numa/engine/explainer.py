"""
Explanation of unschedulable classes in slices, so that decisions are not delayed, and reports to their pods.

Bounds of all nodes show that no node fits; the rejection by each node requires evaluating the nodes. The first slice is part of the attempt
and sufficient on small clusters. The rest runs concurrently, a slice at a time; until then any event may wake the class. Results are cached
by node, so that an unchanged verdict is not explained again.
"""

import asyncio
from collections.abc import Callable

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.engine.queue.request_class import RequestClass

AfterUnschedulable = Callable[[Pod, RequestClass, Unschedulable], None]
"""Called when it is known why no node fits a pod (PostFilter of kube-scheduler): preemption starts here."""


class Explainer:
    """Parks and explains unschedulable classes. ``run`` completes what does not fit into an attempt."""

    def __init__(self, handle: Handle, after_unschedulable: AfterUnschedulable | None) -> None:
        self._handle = handle
        self._after_unschedulable = after_unschedulable
        self._agenda: dict[RequestClass, PendingPod] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of classes that are not explained yet."""
        return len(self._agenda)

    def reject(self, pending: PendingPod) -> None:
        """Park the pod's class, because no node fits, and report why to its pods."""
        handle, request_class = self._handle, pending.request_class
        now = handle.dependencies.clock()
        # The first slice is sufficient on small clusters; the rest runs concurrently.
        if not handle.selector.explain_some(request_class, request_class.slice):
            handle.queue.park(pending, None, now)
            self._agenda[request_class] = pending
            self._news.set()
            return
        verdict = handle.selector.explain(request_class)
        self._tell(pending, verdict, handle.queue.park(pending, verdict, now))

    async def run(self) -> None:
        """Explain until cancelled."""
        while True:
            while self._agenda:
                request_class = next(iter(self._agenda))
                pending = self._agenda[request_class]
                with self._handle.quarantine.contained(subject_of(pending.pod)):
                    await self._explain(request_class, pending)
                # Also if an exception was raised: the class is quarantined then.
                self._agenda.pop(request_class, None)
            self._news.clear()
            await self._news.wait()

    async def _explain(self, request_class: RequestClass, pending: PendingPod) -> None:
        handle = self._handle
        # Stops when the class was woken or explained by another attempt.
        while handle.queue.is_unexplained(request_class):
            if handle.selector.explain_some(request_class, request_class.slice):
                verdict = handle.selector.explain(request_class)
                self._tell(pending, verdict, handle.queue.explained(request_class, verdict))
                return
            # Other tasks run between two slices.
            await asyncio.sleep(0)

    def _tell(self, pending: PendingPod, verdict: Unschedulable, reasons: frozenset[Reason]) -> None:
        if Reason.BIND_QUEUE in reasons:
            return  # takes milliseconds, and no reason for preemption
        handle, request_class = self._handle, pending.request_class
        for reason in reasons:
            handle.metrics.rejections[reason.value] += 1
        why, news = handle.messages.say(request_class, verdict, handle.dependencies.clock())
        # First, because the callback may write the conditions of the pods together with other changes.
        if self._after_unschedulable is not None:
            self._after_unschedulable(pending.pod, request_class, verdict)
        # Nothing new for the class: only the tried pod and pods queued since the last report are updated.
        told = handle.queue.pods_of(request_class) if news else (pending, *handle.queue.untold(request_class))
        for waiting in told:
            handle.conditions.waits(waiting, why)
