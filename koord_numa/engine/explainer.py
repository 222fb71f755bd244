"""
Why a class fits nowhere: found out in slices, so that explaining never delays a decision for long, and told to its pods.

Theory: that no node takes a pod is known from bounds of all nodes at once; which filter rejects it on which node takes asking the nodes one
by one. The first slice is part of the attempt and is all there is on small clusters. The rest is done beside the loop, a slice at a time;
until it is done any event may wake the class. What was found is remembered by node, so an unchanged verdict is not explained again.
"""

import asyncio
from collections.abc import Callable

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.engine.queue.request_class import RequestClass

AfterUnschedulable = Callable[[Pod, RequestClass, Unschedulable], None]
"""Called when it is known why no node takes a pod (kube-scheduler's PostFilter): where preemption begins."""


class Explainer:
    """Parks classes that fit nowhere and explains them. ``run`` does what does not fit into an attempt."""

    def __init__(self, handle: Handle, after_unschedulable: AfterUnschedulable | None) -> None:
        self._handle = handle
        self._after_unschedulable = after_unschedulable
        self._agenda: dict[RequestClass, PendingPod] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """How many classes are not explained yet."""
        return len(self._agenda)

    def reject(self, pending: PendingPod) -> None:
        """No node takes the pod, nor others of its class: all of them wait, and each is told why."""
        handle, request_class = self._handle, pending.request_class
        now = handle.dependencies.clock()
        # The first slice finds everything out on small clusters; the rest is done beside the loop.
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
                # Also when the class raised: it is left to its quarantine.
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
            # Others have their turn between two slices.
            await asyncio.sleep(0)

    def _tell(self, pending: PendingPod, verdict: Unschedulable, reasons: frozenset[Reason]) -> None:
        if Reason.BIND_QUEUE in reasons:
            return  # a matter of milliseconds, and nothing to evict a pod for
        handle, request_class = self._handle, pending.request_class
        for reason in reasons:
            handle.metrics.rejections[reason.value] += 1
        why, news = handle.messages.say(request_class, verdict, handle.dependencies.clock())
        # First, as what then is done for the pods may take their conditions along.
        if self._after_unschedulable is not None:
            self._after_unschedulable(pending.pod, request_class, verdict)
        # Nothing new for the class: only the pod that was tried is told, and pods that were queued since the class was told.
        told = handle.queue.pods_of(request_class) if news else (pending, *handle.queue.untold(request_class))
        for waiting in told:
            handle.conditions.waits(waiting, why)
