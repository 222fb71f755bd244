"""
Scheduling loop: take the next pod, decide, and run its binding cycle concurrently with the next decisions.

Deciding and assuming happen without an ``await`` in between, so that decisions are sequential. Binding cycles overlap. The loop decides
while a worker is free, and sleeps when nothing may be tried, until ``kick`` or the end of the next pause.

Decisions and their requests run in bursts, because repeated execution of the same code takes half of the time. A cycle therefore suspends
once between assuming and sending (``BindingCycle``), and the loop continues with the next pod.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from logging import getLogger
from typing import Any, Final

from koord_numa.core.claims import SELECTOR_LIMITS
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Unschedulable
from koord_numa.engine.binding.binding_cycle import BindingCycle
from koord_numa.engine.gangs.group_cycle import GroupCycle, GroupStatuses, Refusal
from koord_numa.engine.gangs.group_queue import GroupQueue
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.metrics import RUNNERS_UP, Result
from koord_numa.engine.queue import PendingPod, RequestClass
from koord_numa.engine.ranking import Undecided
from koord_numa.ports import ObjectReference

# Explanation of unschedulable classes in slices, so that decisions are not delayed, and reports to their pods.
#
# Bounds of all nodes show that no node fits; the rejection by each node requires evaluating the nodes. The first slice is part of the
# attempt and sufficient on small clusters. The rest runs concurrently, a slice at a time; until then any event may wake the class.
# Results are cached by node, so that an unchanged verdict is not explained again.

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


log = getLogger(__name__)

UNDECIDED: Final = Undecided.UNDECIDED

BUDGET_USED: Final = "SelectorBudgetUsed"
BUDGET_MESSAGE: Final = (
    f"the CEL selectors of the claims of a pod have used their budget of {SELECTOR_LIMITS.claim} units; "
    "their evaluation continues after a pause that grows up to 5 minutes"
)

LEASE_POLL_SECONDS: Final = 0.2

DECISIONS: Final = 2
"""Maximum number of decisions that are suspended between slices: a decision that evaluates thousands of nodes does not block the others."""

BURST: Final = 16
BURST_SECONDS: Final = 0.002
"""Maximum number of consecutive decisions, and their duration, before requests are sent and events are processed."""


class SchedulingLoop:
    """Scheduling loop: decides and binds the pods of the queue."""

    def __init__(
        self,
        handle: Handle,
        groups: GroupQueue,
        after_unschedulable: AfterUnschedulable | None = None,
        after_group_refused: Callable[[Refusal], None] = lambda _refusal: None,
    ) -> None:
        self._handle = handle
        self._rejections = Explainer(handle, after_unschedulable)
        self.binding = BindingCycle(handle, self.kick)
        self.group_statuses = GroupStatuses(handle.pod_groups, handle.dependencies)
        self._groups = GroupCycle(
            handle, groups, self.binding, self.group_statuses, after_group_refused, self._give_way_to_pods
        )
        self.burst = BURST  # maximum number of consecutive decisions
        self._deciding = 0
        self._deciding_large = 0  # suspended decisions about large pods
        self._idle: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Decide and bind until ``stop``. Call it once. Return when every bind is settled."""
        async with asyncio.TaskGroup() as cycles:
            explaining = cycles.create_task(self._rejections.run())
            while not self._handle.stopping:
                if self._schedule_some(cycles):
                    await asyncio.sleep(0)  # requests are sent now; more may be sent before these are answered
                else:
                    self._idle = asyncio.get_running_loop().create_future()
                    self._set_alarm()
                    await self._idle
                    self._idle = None
            explaining.cancel()

    def _schedule_some(self, cycles: asyncio.TaskGroup) -> bool:
        """Decide on the next pods in a burst and start their binding cycles. Return whether there were any pods."""
        clock = self._handle.dependencies.clock
        until, count = clock() + BURST_SECONDS, 0
        # Decisions of this burst have no worker yet.
        while self._may_decide(count) and (pending := self.next_pod()) is not None:
            count += 1
            cycle = self.schedule_one(pending)
            if goes_on(cycle):
                cycles.create_task(cycle)
            if count == self.burst or pending.request_class.is_large or clock() >= until:
                break
        return count > 0

    def _may_decide(self, begun: int = 0) -> bool:
        """Return whether another decision may start after ``begun`` decisions that have no worker yet."""
        return self.binding.free_workers > begun and self._deciding < DECISIONS

    def stop(self) -> None:
        """Make no more decisions. Binds in progress are finished."""
        self._handle.stopping = True
        self.kick()

    def kick(self) -> None:
        """Wake the loop, because there may be work."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def next_pod(self) -> PendingPod | None:
        """Return the pod to try now; ``None`` when no pod may be tried, this replica does not lead, or the API server is overloaded."""
        if self._is_paused():
            return None
        # One large decision at a time: the other slot is for ordinary pods.
        accepts = _is_ordinary if self._deciding_large else None
        return self._next_nominated() or self._handle.queue.pop(self._handle.dependencies.clock(), accepts)

    async def schedule_one(self, pending: PendingPod) -> None:
        """
        Try to place one pod. On failure everything held is released, and the pod waits again or is gone.

        An exception about the pod quarantines it and is not raised.
        """
        handle = self._handle
        if handle.pending.get(pending.uid) is not pending or pending.pod.problem:
            return
        if pending.pod.request.gang is not None:
            await self._schedule_group(pending)
            return
        handle.queue.remove(pending)  # it may have changed and been queued again since it was taken
        began = handle.dependencies.clock()
        pending.attempts += 1
        subject = subject_of(pending.pod)
        with handle.quarantine.contained(subject):
            placement = await self._decide(pending, began)
            if placement is UNDECIDED:
                return  # it does not wait any more, or another attempt is in progress
            if placement is None:
                self._rejections.reject(pending)
                if paused := handle.selector.paused_until(pending.request_class):
                    self._pause(pending, paused)
                handle.attempted(Result.UNSCHEDULABLE, pending.request_class, began)
            else:
                self._record(pending, placement)
                await self.binding.run(pending, placement, began)
            handle.quarantine.release(subject)
        if (until := handle.quarantine.until(subject)) and handle.pending.get(pending.uid) is pending:
            handle.attempted(Result.ERROR, pending.request_class, began)
            handle.queue.back_off(pending, until)
            handle.nominator.try_again(pending.uid)

    async def _schedule_group(self, pending: PendingPod) -> None:
        """Try the group of the pod. An exception quarantines this member; the others are retried without it."""
        handle, subject = self._handle, subject_of(pending.pod)
        handle.queue.remove(pending)
        with handle.quarantine.contained(subject):
            await self._groups.run(pending)
            handle.quarantine.release(subject)
        if (until := handle.quarantine.until(subject)) and handle.pending.get(pending.uid) is pending:
            handle.queue.back_off(pending, until)

    def _pause(self, pending: PendingPod, until: float) -> None:
        """Retry the class when the pause ends, because the selectors of the pod's claims have exhausted their budget."""
        handle = self._handle
        handle.queue.retry_at(pending.request_class, until)
        for claim in handle.resource_claims.claims_of(pending.pod):
            about = ObjectReference("ResourceClaim", claim.namespace, claim.name, claim.uid, "resource.k8s.io/v1")
            handle.dependencies.recorder.object_event(about, warning=True, reason=BUDGET_USED, message=BUDGET_MESSAGE)

    def _next_nominated(self) -> PendingPod | None:
        """Return the next pod whose node has been freed, unless it is being bound or backs off."""
        handle = self._handle
        while (pod := handle.nominator.next_due(self._backs_off)) is not None:
            pending = handle.pending.get(pod.key.uid)
            if pending is None or pending.binding or pending.deciding or pending.pod.problem:
                continue
            handle.queue.remove(pending)
            return pending
        return None

    def _backs_off(self, uid: str) -> bool:
        pending = self._handle.pending.get(uid)
        until = None if pending is None else pending.backoff_until
        return until is not None and until > self._handle.dependencies.clock()

    async def _decide(self, pending: PendingPod, began: float) -> Placement | Undecided | None:
        """Decide in slices, each on the current state. Return ``UNDECIDED`` when the pod is not to be placed any more."""
        handle = self._handle
        # Try the nominated node before all others.
        node = self._handle.nominator.node_of(pending.pod)
        answer = self._handle.selector.try_node(pending.request_class, node, pending.pod) if node else None
        placement: Placement | Undecided | None = answer if isinstance(answer, Placement) else None
        if placement is None:
            placement = handle.selector.choose_some(
                pending.request_class, pending.request_class.slice, pending.pod.images
            )
        while placement is UNDECIDED:
            await self._give_way(pending)
            if handle.pending.get(pending.uid) is not pending or pending.queued_in is not None or self._is_paused():
                self._requeue(pending)
                return UNDECIDED
            placement = handle.selector.choose_some(
                pending.request_class, pending.request_class.slice, pending.pod.images
            )
        handle.metrics.deciding.add(handle.dependencies.clock() - began)
        return placement

    async def _give_way(self, pending: PendingPod) -> None:
        is_large = pending.request_class.is_large
        self._deciding += 1
        self._deciding_large += is_large
        pending.deciding = True
        try:
            await asyncio.sleep(0)
        finally:
            pending.deciding = False
            self._deciding -= 1
            self._deciding_large -= is_large
            self.kick()

    async def _give_way_to_pods(self) -> None:
        """Let other tasks run between two turns of a decision about a group. No decision about a large pod starts meanwhile."""
        self._deciding += 1
        self._deciding_large += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._deciding -= 1
            self._deciding_large -= 1
            self.kick()

    def _requeue(self, pending: PendingPod) -> None:
        handle = self._handle
        if handle.pending.get(pending.uid) is pending and pending.queued_in is None and not pending.pod.problem:
            handle.queue.add(pending)

    def _is_paused(self) -> bool:
        """Return whether no pod may be tried: stopping, not leading, or the API server is overloaded."""
        dependencies = self._handle.dependencies
        return (
            self._handle.stopping or dependencies.clock() < self.binding.pause_until or not dependencies.lease.fresh()
        )

    def _record(self, pending: PendingPod, placement: Placement) -> None:
        selector = self._handle.selector
        if pending.request_class.slice <= RUNNERS_UP:
            # The comparison runs in a single turn of the event loop.
            self._handle.decisions.record(pending.pod.key, placement, dict)
            return
        compare = partial(selector.compare, pending.request_class, pending.pod, placement.node, RUNNERS_UP)
        self._handle.decisions.record(pending.pod.key, placement, compare)

    def _set_alarm(self) -> None:
        """Schedule the next ``kick``, because pods may become ready by time only."""
        handle = self._handle
        now = handle.dependencies.clock()
        due = handle.queue.next_due(now)
        if due is None or not self._may_decide():
            return
        if not handle.dependencies.lease.fresh():
            due = now + LEASE_POLL_SECONDS
        if self._alarm is not None:
            self._alarm.cancel()
        wait = max(due, self.binding.pause_until) - now
        self._alarm = asyncio.get_running_loop().call_later(max(wait, 0.001), self.kick)


def _is_ordinary(request_class: RequestClass) -> bool:
    return not request_class.is_large


def goes_on(cycle: Coroutine[Any, Any, None]) -> bool:
    """
    Run a coroutine until its first suspension and return whether it suspended; the caller then creates a task for the rest.

    An eager task of Python 3.12 starts in the same way. Raises ``RuntimeError`` if it waits for anything but ``asyncio.sleep(0)``, because
    no task would be woken.
    """
    try:
        waits_for = cycle.send(None)
    except StopIteration:
        return False
    if waits_for is not None:
        raise RuntimeError(f"a cycle waits for {waits_for!r} before anything is assumed")
    return True
