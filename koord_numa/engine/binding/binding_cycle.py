"""
Binding cycle of one pod: reserve, PreBind steps, bind, and the handling of success and failure.

    placed ─▶ assumed and reserved ─▶ PreBind steps ─▶ its turn at the node ─▶ a worker ─▶ bind ─▶ bound
                                                                                            └─ outcome unknown ─▶ settled ─▶ bound
    any failure: everything undone in reverse order ─▶ gone, or queued again after a pause

The number of workers limits the concurrent bind requests. A worker is held for the request only, not for PreBind steps, for waiting for
other binds to the same node, and for settling an unknown outcome.
"""

import asyncio
from asyncio import CancelledError, Future, Semaphore, get_running_loop, sleep
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from koord_numa.core.fit.node_filters import fits_unschedulable
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.binding.pre_bind import (
    PreBindFailed,
    PreBindStep,
    dynamic_resources,
    pre_bound,
    reserved,
    volume_binding,
)
from koord_numa.engine.cache.cache import AssumedPod, Cache
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import Result
from koord_numa.engine.queue import PendingPod
from koord_numa.ports import (
    ClusterError,
    Conflict,
    Dependencies,
    Forbidden,
    Gone,
    Invalid,
    NotLeader,
    Unavailable,
    UnknownOutcome,
)
from koord_numa.settings import Settings

REQUESTS: Final = 3
"""Maximum number of requests for the same bind while its outcome is unknown."""

ARRIVAL_SECONDS: Final = 15.0
"""Seconds after which a request that was not executed never will be: client and server have timed out by then."""

LONG_LINE: Final = 16
SHORT_LINE: Final = 4
"""Lengths of a node's bind queue: at the first the node gets no more pods, at the second it gets pods again."""


def pre_bind_steps(*steps: PreBindStep | None) -> tuple[PreBindStep, ...]:
    """Return the PreBind steps in execution order; ``None`` stands for a step that this process does not have."""
    return tuple(step for step in steps if step is not None)


class NodeLeft(ClusterError):
    """Raised when the chosen node was cordoned or deleted between the decision and the bind."""


class Elsewhere(Conflict):
    """Raised when the bind was not executed and never will be; the pod has to be read again."""


class NotBound(ClusterError):
    """Raised when an unknown outcome is settled: the bind was not executed and never will be."""


OnTrouble = Callable[[ClusterError], None]
"""Called for every request of a bind with an unknown outcome, while it is being settled."""


class Binding(ValueObject):
    """Bind requests, and settling of unknown outcomes."""

    dependencies: Dependencies
    settings: Settings
    cache: Cache

    async def bind(self, pod: Pod, placement: Placement) -> None:
        """
        Bind and annotate with one request. Return when the pod is on its node.

        Raises ``NodeLeft``, ``NotLeader``, and every ``ClusterError`` of the port; after ``UnknownOutcome`` call ``settle``.
        """
        self._check_node(pod, placement.node)
        # Checked last before the request: a leader without its lease must not bind concurrently with the next leader.
        if not self.dependencies.lease.fresh():
            raise NotLeader("the lease is no longer held")
        annotations = self.dependencies.annotate(pod, placement)
        await self.dependencies.binder.bind(pod.key, placement.node, annotations)

    async def settle(
        self, pod: Pod, placement: Placement, on_trouble: OnTrouble, most_requests: int = REQUESTS
    ) -> None:
        """
        Determine the outcome of a bind whose outcome is unknown, however long that takes. Return when the pod is on its node.

        The bind is requested again, at most ``most_requests`` times in total.

        Raises ``NotBound``, ``Elsewhere`` and ``Gone``: in each case the pod holds nothing on the node.
        """
        clock, requests = self.dependencies.clock, 1
        last = clock()
        for attempt in count(1):
            backoff = self.settings.api_backoff.pause(attempt, self.dependencies.random())
            await self.dependencies.sleep(backoff)
            asked = clock()  # the response may take long and is as old as the request
            try:
                if await self._is_there(pod, placement):
                    return
            # Only the pod's own state ends the wait; all other errors are retried.
            except (Gone, Elsewhere):
                raise
            except ClusterError as error:
                on_trouble(error)  # including 401 and 403: a forbidden read is no information about the bind
                continue
            # No further request: wait until the last request can no longer arrive.
            if requests >= most_requests or not self.dependencies.lease.fresh():
                if asked - last > ARRIVAL_SECONDS:
                    raise NotBound(f"the bind of pod {pod.key} to node {placement.node} was not carried out")
                continue
            requests, last = requests + 1, clock()
            try:
                await self.bind(pod, placement)
            except ClusterError as error:
                last = clock()
                on_trouble(error)
                continue
            return

    async def _is_there(self, pod: Pod, placement: Placement) -> bool:
        """Return whether a request arrived. Raises ``Elsewhere`` when another writer bound the pod elsewhere, ``Gone`` when it is gone."""
        seen = await self.dependencies.binder.read_pod(pod.key)
        if seen.node and seen.node != placement.node:
            raise Elsewhere(f"pod {pod.key} was bound to {seen.node} by another scheduler")
        # The API server rejects the bind of a terminating or gated pod, so that a late request cannot succeed either.
        if not seen.node and (seen.deleting or seen.gated):
            raise Elsewhere(f"pod {pod.key} can no longer be bound")
        return bool(seen.node)

    def _check_node(self, pod: Pod, name: str) -> None:
        """Check the node again as the decision did: a pod that tolerates the cordon may be bound to a cordoned node."""
        info = self.cache.nodes.get(name)
        if info is None or info.node is None:
            raise NodeLeft(f"node {name} was deleted meanwhile")
        if rejection := fits_unschedulable(pod.request, info.node):
            raise NodeLeft(f"node {name}: {rejection.detail}")


class NodeBindLocks:
    """
    Bind queues by node. ``on_length`` is called when a node's queue becomes long (true) or short again (false).

    A lock is held during a request, not while its outcome is being settled: no request follows then.
    """

    def __init__(self, on_length: Callable[[str, bool], None]) -> None:
        # Weak: a lock exists as long as a task holds or awaits it.
        self._on_length = on_length
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lengths: Counter[str] = Counter()
        self._long: set[str] = set()

    def __len__(self) -> int:
        """Return the number of nodes with a queue."""
        return len(self._lengths)

    @asynccontextmanager
    async def at(self, node: str) -> AsyncIterator[None]:
        """Hold the node's lock while a bind is sent. First come, first served; an empty queue is removed."""
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        # Counted before waiting, because the waiting tasks are the queue.
        self._lengths[node] += 1
        if self._lengths[node] >= LONG_LINE and node not in self._long:
            self._long.add(node)
            self._on_length(node, True)
        try:
            async with lock:
                yield
        finally:
            self._lengths[node] -= 1
            left = self._lengths[node]
            if not left:
                del self._lengths[node]
            # Hysteresis: a queue around a single threshold would open and close the node with every bind.
            if left <= SHORT_LINE and node in self._long:
                self._long.discard(node)
                self._on_length(node, False)


TOLD_FROM: Final = 3
"""Number of consecutive failed requests from which the pod's status reports the bind failure."""

OUTAGE: Final = 3
"""Number of different pods that must be rejected consecutively before the API server counts as overloaded or unavailable."""

LONGEST_OUTAGE: Final = 30.0
"""Maximum seconds that all pods wait, whatever the server requests: one wrong response must not stop the scheduler."""


class NotTogether(ClusterError):
    """Raised when another member of the pod's group cannot be bound. No member is bound, and nothing was sent."""


class BindTogether:
    """
    Synchronized binds of the members of a group.

    The binds start when all members are ready, in the order of their decisions. Until then the failure of one member fails all with
    ``NotTogether``.
    """

    def __init__(self, uids: Iterable[str]) -> None:
        self._turns: dict[str, Future[None] | None] = dict.fromkeys(uids)
        self._begun = False
        self._failed = ""

    async def arrive(self, uid: str) -> None:
        """Wait for the other members. Raises ``NotTogether``."""
        if self._failed:
            raise NotTogether(self._failed)
        self._turns[uid] = get_running_loop().create_future()
        if all(turn is not None for turn in self._turns.values()):
            self._begun = True
            # In the order of the decisions, because kubelets admit pods in the order of their binds.
            for turn in self._turns.values():
                if turn is not None and not turn.done():
                    turn.set_result(None)
            await sleep(0)  # the last member to arrive must not go before the others, which wake in their order
        turn = self._turns[uid]
        if turn is not None:
            await turn

    def leave(self, uid: str) -> None:
        """End the member's cycle. Before the binds have started, this ends the cycles of the others too."""
        if self._begun or self._failed:
            return
        self._failed = "another member of the group cannot be bound"
        for other, turn in self._turns.items():
            if other != uid and turn is not None and not turn.done():
                turn.set_exception(NotTogether(self._failed))


class BindingCycle:
    """Binding cycle of pods. ``on_free`` is called when a worker becomes free."""

    def __init__(self, handle: Handle, on_free: Callable[[], None]) -> None:
        self._handle = handle
        self.binding = Binding(handle.dependencies, handle.settings, handle.cache)
        self.locks = NodeBindLocks(handle.cache.set_bind_line)
        self._volumes = volume_binding(handle)
        self.steps = pre_bind_steps(self._volumes, dynamic_resources(handle))
        self._on_free = on_free
        self._workers = Semaphore(handle.settings.bind_concurrency)
        self.cut_off = False  # whether a bind was abandoned while its outcome was unknown
        self._busy = 0  # pods that have a worker or wait for a worker
        self._turned_away: dict[str, None] = {}  # UIDs of consecutive pods that the API server rejected as unavailable
        self.pause_until = 0.0
        self._outages = 0

    @property
    def free_workers(self) -> int:
        """Number of free workers."""
        return self._handle.settings.bind_concurrency - self._busy

    async def expire_volumes(self) -> None:
        """Expire selected nodes of claims, see ``VolumeBinding.expire``."""
        if self._volumes is not None and self._handle.dependencies.lease.fresh():
            await self._volumes.expire(each.pod for each in self._handle.pending)

    async def run(
        self, pending: PendingPod, placement: Placement, began: float, together: BindTogether | None = None
    ) -> None:
        """
        Bind one pod. On return the pod is bound, gone, or queued again, and nothing else is held.

        With ``together`` no bind is sent before the PreBind steps of all members are done.
        """
        handle, pod, request_class = self._handle, pending.pod, pending.request_class
        # Before the request: the class has found a node, whatever the outcome of the bind.
        handle.queue.placed(pending.queue_class)
        handle.placed[pod.key.uid] = request_class
        pending.binding = True
        started = handle.dependencies.clock()
        try:
            await self._bind(pending, pod, placement, together)
            self._bound(pending, pod, placement)
            handle.attempted(Result.SCHEDULED, request_class, began)
        except ClusterError as error:
            handle.attempted(Result.ERROR, request_class, began)
            await self._failed(pending, error)
        finally:
            if together is not None:
                together.leave(pending.uid)
            pending.binding = False
            if handle.pending.get(pending.uid) is pending and pending.queued_in is None:
                self._again(pending, 0.0)  # cancelled, or a bug: in both cases the pod is not lost
            handle.metrics.binding.add(handle.dependencies.clock() - started)

    async def _bind(self, pending: PendingPod, pod: Pod, placement: Placement, together: BindTogether | None) -> None:
        handle = self._handle
        # In this order: a failure inside undoes steps first, then reservations, then the assumption.
        with handle.cache.assume(pod, placement) as assumed, reserved(self.steps, pod, placement) as steps:
            await sleep(0)  # the scheduling loop continues with the next pod here; nothing before may wait
            async with pre_bound(steps, pod, placement):
                if together is not None:
                    await together.arrive(pending.uid)
                try:
                    await self._send(pod, placement)
                except UnknownOutcome as error:
                    # Reported before settling, which may take minutes.
                    self._trouble(pending, placement.node, error)
                    await self._settle(pending, pod, placement)
                assumed.confirmed = handle.dependencies.clock()

    async def _settle(self, pending: PendingPod, pod: Pod, placement: Placement) -> None:
        # A repeated request would arrive after pods that were decided later, whose decisions assume the opposite order.
        most = 1 if self._kubelet_chooses(pod, placement) else REQUESTS
        try:
            await self.binding.settle(pod, placement, lambda error: self._trouble(pending, placement.node, error), most)
        except CancelledError:
            self.cut_off = True
            raise

    async def _send(self, pod: Pod, placement: Placement) -> None:
        # Where the scheduler allocates CPUs, the order of binds is irrelevant.
        in_line = self._kubelet_chooses(pod, placement)
        async with self.locks.at(placement.node) if in_line else nullcontext():
            # Counted before the semaphore, so that ``free_workers`` includes pods that wait for a worker.
            self._busy += 1
            try:
                async with self._workers:
                    await self.binding.bind(pod, placement)
            finally:
                self._busy -= 1
                self._on_free()

    def _kubelet_chooses(self, pod: Pod, placement: Placement) -> bool:
        """
        Return whether the kubelet allocates for the pod. Pods decided earlier are then bound first, even if the NUMA nodes are unknown.
        """
        info = self._handle.cache.nodes.get(placement.node)
        if info is None or info.topology is None:
            return False
        return info.topology.owner is CpuOwner.KUBELET and info.history.is_tied(pod)

    def _bound(self, pending: PendingPod, pod: Pod, placement: Placement) -> None:
        handle = self._handle
        # A success ends the outage: pauses are short again.
        self._outages = 0
        self._turned_away.clear()
        handle.metrics.bound(pending.attempts, handle.dependencies.clock() - pending.since)
        handle.metrics.placements[placement.alignment.value] += 1
        handle.conditions.placed(pod, placement)
        handle.forget(pending.uid)

    def _trouble(self, pending: PendingPod, node: str, error: ClusterError) -> None:
        """Report a request whose outcome is unknown, or a failed read of the outcome."""
        pending.failed_binds += 1
        self._handle.metrics.failures[type(error).__name__] += 1
        self._tell(pending, f"the bind to node {node} fails, {pending.failed_binds} times so far: {error}")

    def _tell(self, pending: PendingPod, why: str) -> None:
        if pending.failed_binds >= TOLD_FROM and self._handle.pending.get(pending.uid) is pending:
            self._handle.conditions.waits(pending, why)

    async def _failed(self, pending: PendingPod, error: ClusterError) -> None:
        handle, pod = self._handle, pending.pod
        if not isinstance(error, NotBound):
            handle.metrics.failures[type(error).__name__] += 1
        # The conflict may come from the own earlier bind: the current pod decides.
        if isinstance(error, Conflict):
            error = await self._look_again(pod) or error
        if isinstance(error, Gone):
            handle.forget(pending.uid)
            return
        # Not caused by the pod: retried at once by the next leader, or by this replica when it leads again.
        if isinstance(error, NotLeader | NotTogether):
            self._again(pending, 0.0)
            return
        pending.failed_binds += 1
        # The decision used an old object: decided again at once, a few times.
        if isinstance(error, PreBindFailed) and error.at_once and pending.failed_binds < TOLD_FROM:
            self._again(pending, 0.0)
            return
        self._say(pending, error)
        self._again(pending, self._delay(pending, error))

    def _say(self, pending: PendingPod, error: ClusterError) -> None:
        conditions = self._handle.conditions
        if isinstance(error, Forbidden):
            conditions.waits(pending, f"koord-numa lacks the permission to {error.rule}")
        elif isinstance(error, Invalid):
            conditions.waits(pending, f"the API server does not accept the binding: {error}")
        elif isinstance(error, PreBindFailed):
            conditions.waits(pending, str(error))
        else:
            self._tell(pending, f"the bind fails, {pending.failed_binds} times so far: {error}")

    def _delay(self, pending: PendingPod, error: ClusterError) -> float:
        """Return the seconds until the pod is retried. Failures that only a changed object can resolve have the longer back-off."""
        settings, dice = self._handle.settings, self._handle.dependencies.random()
        if isinstance(error, Forbidden | Invalid | PreBindFailed | NotBound):
            return settings.backoff.pause(pending.failed_binds, dice)
        delay = settings.api_backoff.pause(pending.failed_binds, dice)
        if isinstance(error, Unavailable):
            self._outage(pending.uid, error)
            # The server's ``Retry-After`` is respected, up to a limit.
            delay = max(delay, min(error.retry_after or 0.0, LONGEST_OUTAGE))
        return delay

    async def _look_again(self, pod: Pod) -> ClusterError | None:
        """Read the pod after a conflict. It may have been bound by this or another scheduler, or be terminating."""
        try:
            seen = await self._handle.dependencies.binder.read_pod(pod.key)
        except ClusterError as error:
            return error
        cache, uid = self._handle.cache, pod.key.uid
        if seen.node and uid not in cache.node_of:
            cache.observe_pod(None, seen)
            if uid in cache.node_of:
                # The watch may have reported its deletion before this response: it is read again until the watch shows
                # it.
                cache.assumed[uid] = AssumedPod(seen, Placement(seen.node), self._handle.dependencies.clock())
        if seen.node or seen.deleting or seen.gated or seen.finished:
            return Gone(f"pod {pod.key} no longer waits")
        return None

    def _again(self, pending: PendingPod, delay: float) -> None:
        """Queue the current version of the pod again after ``delay`` seconds, unless it is not pending any more."""
        handle = self._handle
        if handle.pending.get(pending.uid) is pending:
            # Changed terms of placed pods do not reclassify a pod while it is bound.
            pending.request_class = handle.classes.of(pending.pod) or pending.request_class
            handle.queue.back_off(pending, handle.dependencies.clock() + delay)
            handle.nominator.try_again(pending.uid)
            self._on_free()

    def _outage(self, uid: str, error: Unavailable) -> None:
        """
        Pause all pods, with increasing duration, because the API server is overloaded or unavailable.

        A single pod that is rejected repeatedly (a webhook responds with 503) is not an outage.
        """
        # A dict, so that repeated rejections of the same pod count once.
        self._turned_away[uid] = None
        if len(self._turned_away) < OUTAGE:
            return
        self._turned_away.clear()
        self._outages += 1
        handle = self._handle
        seconds = handle.settings.api_backoff.pause(self._outages, handle.dependencies.random())
        asked = min(error.retry_after or 0.0, LONGEST_OUTAGE)
        self.pause_until = max(self.pause_until, handle.dependencies.clock() + max(seconds, asked))
