"""
The loop: take the pod whose turn it is, decide, hold, bind, tell.

Theory: a number of lanes run at once. Deciding and holding happen without an ``await`` in between, so decisions are one at a time
although binds overlap; a lane that waits for the API server keeps only itself busy. An idle lane sleeps until it is called, and
calls the next one when there is more to do.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from logging import getLogger

from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement, Unschedulable
from koord_numa.core.vocabulary import CpuOwner
from koord_numa.engine.binding import Binding, NodeBindLocks
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import Result, Wait
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.engine.queue.scheduling_queue import pause
from koord_numa.ports import ClusterError, Conflict, Forbidden, Gone, Invalid, NotLeader, Unavailable

log = getLogger(__name__)

LEASE_POLL_SECONDS = 0.2


AfterUnschedulable = Callable[[Pod, RequestClass, Unschedulable], None]
"""Called when no node takes a pod: where preemption begins."""


class SchedulingLoop:
    """Decides and binds what the queue offers."""

    def __init__(self, handle: Handle, after_unschedulable: AfterUnschedulable | None = None) -> None:
        self._handle = handle
        self._binding = Binding(handle.dependencies, handle.settings)
        self._turns = NodeBindLocks()
        self._after_unschedulable = after_unschedulable
        self._idle: deque[asyncio.Future[None]] = deque()
        self._stopping = False
        self._pause_until = 0.0
        self._outages = 0
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Decide and bind until ``stop``, once; returns when every bind in flight is settled."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self._handle.settings.bind_concurrency):
                lanes.create_task(self._lane())

    def stop(self) -> None:
        """Decide nothing more; binds in flight are finished."""
        self._stopping = True
        while self._idle:
            self._call_one()

    def kick(self) -> None:
        """There may be something to do: call one idle lane."""
        if self._idle:
            self._call_one()

    def next_pod(self) -> Pod | None:
        """The pod to try now; ``None`` when nobody may be tried, we do not lead, or the API server asked for a pause."""
        now = self._handle.dependencies.clock()
        if self._stopping or now < self._pause_until or not self._handle.dependencies.lease.fresh():
            return None
        return self._next_freed() or self._handle.queue.pop(now)

    async def schedule_one(self, pod: Pod) -> None:
        """Place one pod: decide, hold, bind. Whatever goes wrong, what was held is given back, and the pod waits again or is gone."""
        handle, uid = self._handle, pod.key.uid
        klass = handle.classes.of(pod)
        if klass is None or uid not in handle.waiting:
            return
        began = handle.dependencies.clock()
        wait = handle.waits.setdefault(uid, Wait(began))
        wait.attempts += 1
        verdict = self._decide(pod, klass, began)
        if isinstance(verdict, Unschedulable):
            self._park(pod, klass, verdict)
            self._attempted(Result.UNSCHEDULABLE, klass, began)
            return
        handle.queue.placed(klass)
        handle.in_flight.add(uid)
        started = handle.dependencies.clock()
        try:
            handle.placed[uid] = klass
            with handle.cache.assume(pod, verdict) as assumption:
                async with self._turn(verdict):
                    await self._binding.bind(pod, verdict)
                assumption.confirmed = handle.dependencies.clock()
            self._bound(pod, verdict, wait)
            self._attempted(Result.SCHEDULED, klass, began)
        except ClusterError as error:
            self._attempted(Result.ERROR, klass, began)
            await self._failed(pod, klass, error)
        finally:
            handle.in_flight.discard(uid)
            if uid in handle.waiting and uid not in handle.queue:
                self._again(pod, klass, 0.0)  # cancelled, or a bug: either way the pod is not lost
            handle.metrics.binding.add(handle.dependencies.clock() - started)

    def _turn(self, placement: Placement) -> AbstractAsyncContextManager[object]:
        """Where a kubelet chooses NUMA nodes for the pod, those who were decided on before go first."""
        record = self._handle.cache.nodes.get(placement.node)
        topology = None if record is None else record.topology
        kubelet_chooses = topology is not None and topology.owner is CpuOwner.KUBELET
        return self._turns.at(placement.node) if kubelet_chooses and placement.numa else nullcontext()

    async def _lane(self) -> None:
        while not self._stopping:
            pod = self.next_pod()
            if pod is None:
                await self._idle_until_called()
                continue
            if self._handle.queue.ready:
                self.kick()
            await self.schedule_one(pod)
            await asyncio.sleep(0)

    def _next_freed(self) -> Pod | None:
        """A pod whose node has been freed goes first, unless a bind of it goes on or has failed and is waited out."""
        handle = self._handle
        while (pod := handle.nominator.next_due()) is not None:
            uid = pod.key.uid
            if uid in handle.waiting and uid not in handle.in_flight and uid not in handle.attempts:
                handle.queue.remove(uid)
                return handle.waiting[uid]
        return None

    def _decide(self, pod: Pod, klass: RequestClass, began: float) -> Placement | Unschedulable:
        verdict = self._on_nominated_node(pod, klass) or self._handle.selector.decide(klass)
        self._handle.metrics.deciding.add(self._handle.dependencies.clock() - began)
        return verdict

    def _on_nominated_node(self, pod: Pod, klass: RequestClass) -> Placement | None:
        """The node that is being freed for the pod is tried before all others."""
        node = self._handle.nominator.node_of(pod)
        answer = self._handle.selector.try_node(klass, node, pod) if node else None
        return answer if isinstance(answer, Placement) else None

    def _park(self, pod: Pod, klass: RequestClass, verdict: Unschedulable) -> None:
        """Nobody of this class fits anywhere: all of them wait, and each is told once."""
        handle = self._handle
        now = handle.dependencies.clock()
        for reason in handle.queue.park(pod, klass, verdict, now):
            handle.metrics.rejections[reason.value] += 1
        why, news = handle.messages.say(klass, verdict, now)
        for waiting in handle.queue.pods_of(klass) if news else (pod,):
            handle.conditions.waits(waiting.key, why)
        if self._after_unschedulable is not None:
            self._after_unschedulable(pod, klass, verdict)

    def _attempted(self, result: Result, klass: RequestClass, began: float) -> None:
        self._handle.metrics.attempts[result, klass.profile.scheduler_name].add(
            self._handle.dependencies.clock() - began
        )

    def _bound(self, pod: Pod, placement: Placement, wait: Wait) -> None:
        handle = self._handle
        self._outages = 0
        handle.waiting.pop(pod.key.uid, None)
        handle.attempts.pop(pod.key.uid, None)
        handle.waits.pop(pod.key.uid, None)
        handle.nominator.end(pod.key.uid)
        handle.metrics.bound(wait, handle.dependencies.clock())
        handle.metrics.placements[placement.alignment.value] += 1
        handle.conditions.placed(pod, placement)

    async def _failed(self, pod: Pod, klass: RequestClass, error: ClusterError) -> None:
        handle, uid = self._handle, pod.key.uid
        handle.metrics.failures[type(error).__name__] += 1
        if isinstance(error, Conflict):
            error = await self._look_again(pod) or error
        if isinstance(error, Gone):
            handle.forget(uid)
            return
        delay = pause(handle.settings.api_backoff, handle.attempts.get(uid, 0) + 1, handle.dependencies.random())
        if isinstance(error, NotLeader):
            delay = 0.0
        elif isinstance(error, Unavailable):
            delay = max(delay, error.retry_after or 0.0)
            self._outage(error)
        elif isinstance(error, Forbidden):
            delay = handle.settings.parked_retry_seconds
            handle.conditions.warn(pod.key, f"koord-numa lacks the right to {error.rule}")
        elif isinstance(error, Invalid):
            delay = handle.settings.parked_retry_seconds
            handle.conditions.warn(pod.key, f"the API server does not accept the binding: {error}")
        self._again(pod, klass, delay)

    async def _look_again(self, pod: Pod) -> ClusterError | None:
        """After a conflict: what has become of the pod? It may have got a node, from us or from others, or be going."""
        handle = self._handle
        try:
            seen = await handle.dependencies.binder.read_pod(pod.key)
        except ClusterError as error:
            return error
        if seen.node:
            handle.cache.observe_pod(None, seen)
        if seen.node or seen.deleting or seen.gated or seen.finished:
            return Gone(f"pod {pod.key} waits no longer")
        return None

    def _again(self, pod: Pod, klass: RequestClass, delay: float) -> None:
        """The pod, as it is by now, is tried again after ``delay`` seconds."""
        handle, uid = self._handle, pod.key.uid
        current = handle.waiting.get(uid)
        if current is None:
            handle.attempts.pop(uid, None)
            return
        if delay:
            handle.attempts[uid] = handle.attempts.get(uid, 0) + 1
        handle.queue.back_off(current, handle.classes.of(current) or klass, handle.dependencies.clock() + delay)

    def _outage(self, error: Unavailable) -> None:
        """The API server cannot cope or cannot be reached: all lanes pause, longer each time, as long as it asks for."""
        self._outages += 1
        seconds = pause(self._handle.settings.api_backoff, self._outages, self._handle.dependencies.random())
        until = self._handle.dependencies.clock() + max(seconds, error.retry_after or 0.0)
        self._pause_until = max(self._pause_until, until)

    async def _idle_until_called(self) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(called)
        self._set_alarm()
        try:
            await called
        finally:
            with suppress(ValueError):
                self._idle.remove(called)

    def _call_one(self) -> None:
        called = self._idle.popleft()
        if not called.done():
            called.set_result(None)

    def _set_alarm(self) -> None:
        """Time alone can make a pod ready: one timer for all idle lanes."""
        handle = self._handle
        now = handle.dependencies.clock()
        due = handle.queue.next_due(now)
        if due is None:
            return
        if not handle.dependencies.lease.fresh():
            due = now + LEASE_POLL_SECONDS
        if self._alarm is not None:
            self._alarm.cancel()
        wait = max(due, self._pause_until) - now
        self._alarm = asyncio.get_running_loop().call_later(max(wait, 0.001), self.kick)
