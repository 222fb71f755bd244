"""
One pod from its placement to its node: reserve, PreBind steps, bind, and what follows from success and failure.

    placed ─▶ assumed and reserved ─▶ PreBind steps ─▶ its turn at the node ─▶ a worker ─▶ bind ─▶ bound
                                                                                            └─ outcome unknown ─▶ settled ─▶ bound
    any failure: everything undone in reverse order ─▶ gone, or queued again after a pause

The number of workers bounds how many requests are under way at once. Only the request holds one: PreBind steps, waiting for other binds to
the same node, and settling an unknown outcome do not.
"""

import asyncio
from asyncio import CancelledError, Future, Semaphore, get_running_loop, sleep
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from koord_numa.core.fit.node_filters import fits_unschedulable
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.engine.binding.pre_bind import PreBindFailed, PreBindStep, pre_bound, reserved, volume_binding
from koord_numa.engine.cache.cache import AssumedPod, Cache
from koord_numa.engine.claims.pre_bind import dynamic_resources
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import Result
from koord_numa.engine.queue.pending_pod import PendingPod, pause
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
"""So often the same bind is asked while its outcome is unknown."""

ARRIVAL_SECONDS: Final = 15.0
"""A request that was not carried out this long after it was sent never will be: client and server have given it up by then."""

LONG_LINE: Final = 16
SHORT_LINE: Final = 4
"""Binds to one node that wait for their turn: from the one number on the node takes no more pods, from the other on it does again."""


def pre_bind_steps(*steps: PreBindStep | None) -> tuple[PreBindStep, ...]:
    """The rows of the PreBind stage, in the order in which they run; ``None`` for one that this process does not have."""
    return tuple(step for step in steps if step is not None)


class NodeLeft(ClusterError):
    """The chosen node was cordoned or deleted between the decision and the bind."""


class Elsewhere(Conflict):
    """The bind did not happen and will not: look at the pod again."""


class NotBound(ClusterError):
    """The outcome was unknown; now it is known that the bind was not carried out and will not be."""


OnTrouble = Callable[[ClusterError], None]
"""Told of every request of a bind whose outcome is unknown, while it is being settled."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds pods, one call each, and settles lost answers."""

    dependencies: Dependencies
    settings: Settings
    cache: Cache

    async def bind(self, pod: Pod, placement: Placement) -> None:
        """
        Bind and annotate with one request. Returns when the pod is known to be on its node.

        Raises ``NodeLeft``, ``NotLeader``, and every ``ClusterError`` of the port; after ``UnknownOutcome`` call ``settle``.
        """
        self._check_node(pod, placement.node)
        # The last look before the request: a leader that lost its lease must not bind beside the next one.
        if not self.dependencies.lease.fresh():
            raise NotLeader("the lease is not held any more")
        annotations = self.dependencies.annotate(pod, placement)
        await self.dependencies.binder.bind(pod.key, placement.node, annotations)

    async def settle(
        self, pod: Pod, placement: Placement, on_trouble: OnTrouble, most_requests: int = REQUESTS
    ) -> None:
        """
        Find out what became of a bind whose outcome is unknown, however long that takes. Returns when the pod is on its node.

        The bind is asked for again until it has been ``most_requests`` times.

        Raises ``NotBound``, ``Elsewhere`` and ``Gone``: each means that the pod holds nothing on the node.
        """
        clock, requests = self.dependencies.clock, 1
        last = clock()
        for attempt in count(1):
            backoff = pause(self.settings.api_backoff, attempt, self.dependencies.random())
            await self.dependencies.sleep(backoff)
            asked = clock()  # the answer may take long, and is as old as the question
            try:
                if await self._is_there(pod, placement):
                    return
            # What the pod's own state says ends the wait; everything else is asked again.
            except (Gone, Elsewhere):
                raise
            except ClusterError as error:
                on_trouble(error)  # also 401 and 403: not to be allowed to look says nothing about the bind
                continue
            # No further request: wait until the last one can no longer arrive.
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
        """Did a request arrive? Raises ``Elsewhere`` when another writer gave the pod another node, ``Gone`` when it is gone."""
        seen = await self.dependencies.binder.read_pod(pod.key)
        if seen.node and seen.node != placement.node:
            raise Elsewhere(f"pod {pod.key} was bound to {seen.node} by another scheduler")
        # A pod that is going or gated is refused by the API server, so that a late request cannot succeed either.
        if not seen.node and (seen.deleting or seen.gated):
            raise Elsewhere(f"pod {pod.key} can no longer be bound")
        return bool(seen.node)

    def _check_node(self, pod: Pod, name: str) -> None:
        """As the decision saw it: a pod that tolerates the cordon may go to a cordoned node."""
        info = self.cache.nodes.get(name)
        if info is None or info.node is None:
            raise NodeLeft(f"node {name} was deleted meanwhile")
        if rejection := fits_unschedulable(pod.request, info.node):
            raise NodeLeft(f"node {name}: {rejection.detail}")


class NodeBindLocks:
    """
    The lines of binds to nodes. ``on_length`` hears of a node whose line became long (true) or short again (false).

    A lock is held while a request is under way, not while its outcome is being settled: no request follows then.
    """

    def __init__(self, on_length: Callable[[str, bool], None]) -> None:
        # Weak: a lock lives as long as a task holds or awaits it.
        self._on_length = on_length
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lengths: Counter[str] = Counter()
        self._long: set[str] = set()

    def __len__(self) -> int:
        """How many nodes have a line."""
        return len(self._lengths)

    @asynccontextmanager
    async def at(self, node: str) -> AsyncIterator[None]:
        """To be held while a bind is sent. Who asks first is served first; an empty line is forgotten."""
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        # Counted before waiting, since those that wait are the line.
        self._joined(node)
        try:
            async with lock:
                yield
        finally:
            self._left(node)

    def _joined(self, node: str) -> None:
        self._lengths[node] += 1
        if self._lengths[node] >= LONG_LINE and node not in self._long:
            self._long.add(node)
            self._on_length(node, True)

    def _left(self, node: str) -> None:
        self._lengths[node] -= 1
        left = self._lengths[node]
        if not left:
            del self._lengths[node]
        # Two thresholds, so that a line around one of them does not open and close the node with every bind.
        if left <= SHORT_LINE and node in self._long:
            self._long.discard(node)
            self._on_length(node, False)


TOLD_FROM: Final = 3
"""From so many failed requests in a row on the pod says what is wrong with its bind."""

OUTAGE: Final = 3
"""So many different pods in a row have to be turned away before the API server counts as overloaded, or as away."""

LONGEST_OUTAGE: Final = 30.0
"""Seconds that all pods wait at most, whatever a server asks for: one bad answer must not stop the scheduler."""


class NotTogether(ClusterError):
    """Another member of the pod's group cannot be bound: none is. Nothing was sent."""


class BindTogether:
    """
    Members of a group whose binds begin when all of them are ready, in the order in which they were decided. Until then the failure of one
    member is that of all: ``NotTogether``.
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
            # In the order of the decisions: kubelets admit pods in the order of their binds.
            for turn in self._turns.values():
                if turn is not None and not turn.done():
                    turn.set_result(None)
        turn = self._turns[uid]
        if turn is not None:
            await turn

    def leave(self, uid: str) -> None:
        """The member's cycle has ended. Before the binds have begun it ends that of the others too."""
        if self._begun or self._failed:
            return
        self._failed = "another member of the group cannot be bound"
        for other, turn in self._turns.items():
            if other != uid and turn is not None and not turn.done():
                turn.set_exception(NotTogether(self._failed))


class BindingCycle:
    """The second half of a pod's way. ``on_free`` is called when a worker is free again."""

    def __init__(self, handle: Handle, on_free: Callable[[], None]) -> None:
        self._handle = handle
        self.binding = Binding(handle.dependencies, handle.settings, handle.cache)
        self.locks = NodeBindLocks(handle.cache.set_bind_line)
        self._volumes = volume_binding(handle)
        self.steps = pre_bind_steps(self._volumes, dynamic_resources(handle))
        self._on_free = on_free
        self._workers = Semaphore(handle.settings.bind_concurrency)
        self.cut_off = False  # was a bind given up while its outcome was unknown?
        self._busy = 0  # pods that have a worker or wait for one
        self._turned_away: dict[str, None] = {}  # uids in a row that the API server had no time for
        self.pause_until = 0.0
        self._outages = 0

    @property
    def free_workers(self) -> int:
        """How many workers are free."""
        return self._handle.settings.bind_concurrency - self._busy

    async def expire_volumes(self) -> None:
        """See ``VolumeBinding.expire``."""
        if self._volumes is not None and self._handle.dependencies.lease.fresh():
            await self._volumes.expire(each.pod for each in self._handle.pending)

    async def run(
        self, pending: PendingPod, placement: Placement, began: float, together: BindTogether | None = None
    ) -> None:
        """
        Bind one pod, whatever that takes. When it returns the pod is bound, gone, or queued again, and nothing else is held.

        With ``together`` no bind is sent before the PreBind steps of all members are done.
        """
        handle, pod, request_class = self._handle, pending.pod, pending.request_class
        # Before the request: the class has found a node, whatever becomes of the bind.
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
                self._again(pending, 0.0)  # cancelled, or a bug: either way the pod is not lost
            handle.metrics.binding.add(handle.dependencies.clock() - started)

    async def _bind(self, pending: PendingPod, pod: Pod, placement: Placement, together: BindTogether | None) -> None:
        handle = self._handle
        # In this order: what fails inside undoes steps first, then reservations, then the assumption.
        with handle.cache.assume(pod, placement) as assumed, reserved(self.steps, pod, placement) as steps:
            await sleep(0)  # the scheduling loop goes on to the next pod here; nothing before it may wait
            async with pre_bound(steps, pod, placement):
                if together is not None:
                    await together.arrive(pending.uid)
                try:
                    await self._send(pod, placement)
                except UnknownOutcome as error:
                    # Said before settling, which may take minutes.
                    self._trouble(pending, placement.node, error)
                    await self._settle(pending, pod, placement)
                assumed.confirmed = handle.dependencies.clock()

    async def _settle(self, pending: PendingPod, pod: Pod, placement: Placement) -> None:
        # Asked for again it would come after pods that were decided on later, in whose decisions it comes first.
        most = 1 if self._kubelet_chooses(pod, placement) else REQUESTS
        try:
            await self.binding.settle(pod, placement, lambda error: self._trouble(pending, placement.node, error), most)
        except CancelledError:
            self.cut_off = True
            raise

    async def _send(self, pod: Pod, placement: Placement) -> None:
        # Where the scheduler chooses CPUs the order of binds means nothing.
        in_line = self._kubelet_chooses(pod, placement)
        async with self.locks.at(placement.node) if in_line else nullcontext():
            # Counted before the semaphore, so that ``free`` counts those that wait for a worker too.
            self._busy += 1
            try:
                async with self._workers:
                    await self.binding.bind(pod, placement)
            finally:
                self._busy -= 1
                self._on_free()

    def _kubelet_chooses(self, pod: Pod, placement: Placement) -> bool:
        """Then pods that were decided on before go first, also where it is not foreseen on which NUMA nodes this one will be."""
        info = self._handle.cache.nodes.get(placement.node)
        if info is None or info.topology is None:
            return False
        return info.topology.owner is CpuOwner.KUBELET and info.history.is_tied(pod)

    def _bound(self, pending: PendingPod, pod: Pod, placement: Placement) -> None:
        handle = self._handle
        # A success ends the outage: pauses start small again.
        self._outages = 0
        self._turned_away.clear()
        handle.metrics.bound(pending.attempts, handle.dependencies.clock() - pending.since)
        handle.metrics.placements[placement.alignment.value] += 1
        handle.conditions.placed(pod, placement)
        handle.forget(pending.uid)

    def _trouble(self, pending: PendingPod, node: str, error: ClusterError) -> None:
        """A request failed in a way that leaves its outcome open, or asking for it did."""
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
        # A conflict may be our own bind of before: what the pod says now decides.
        if isinstance(error, Conflict):
            error = await self._look_again(pod) or error
        if isinstance(error, Gone):
            handle.forget(pending.uid)
            return
        # Not the pod's fault: it is tried at once by the next leader, or by this one when it leads again.
        if isinstance(error, NotLeader | NotTogether):
            self._again(pending, 0.0)
            return
        pending.failed_binds += 1
        # The decision rested on an old object: a new one is made at once, a few times.
        if isinstance(error, PreBindFailed) and error.at_once and pending.failed_binds < TOLD_FROM:
            self._again(pending, 0.0)
            return
        self._say(pending, error)
        self._again(pending, self._delay(pending, error))

    def _say(self, pending: PendingPod, error: ClusterError) -> None:
        conditions = self._handle.conditions
        if isinstance(error, Forbidden):
            conditions.waits(pending, f"koord-numa lacks the right to {error.rule}")
        elif isinstance(error, Invalid):
            conditions.waits(pending, f"the API server does not accept the binding: {error}")
        elif isinstance(error, PreBindFailed):
            conditions.waits(pending, str(error))
        else:
            self._tell(pending, f"the bind fails, {pending.failed_binds} times so far: {error}")

    def _delay(self, pending: PendingPod, error: ClusterError) -> float:
        """Seconds before the pod is tried again. What only a change of some object can resolve is tried again as seldom as allowed."""
        settings, dice = self._handle.settings, self._handle.dependencies.random()
        if isinstance(error, Forbidden | Invalid | PreBindFailed | NotBound):
            return pause(settings.backoff, pending.failed_binds, dice)
        delay = pause(settings.api_backoff, pending.failed_binds, dice)
        if isinstance(error, Unavailable):
            self._outage(pending.uid, error)
            # The server's own wish is heeded, within bounds.
            delay = max(delay, min(error.retry_after or 0.0, LONGEST_OUTAGE))
        return delay

    async def _look_again(self, pod: Pod) -> ClusterError | None:
        """After a conflict: what has become of the pod? It may have got a node, from us or from others, or be going."""
        try:
            seen = await self._handle.dependencies.binder.read_pod(pod.key)
        except ClusterError as error:
            return error
        cache, uid = self._handle.cache, pod.key.uid
        if seen.node and uid not in cache.node_of:
            cache.observe_pod(None, seen)
            if uid in cache.node_of:
                # The watch may have told of its deletion before this answer came: until it shows the pod it is read back.
                cache.assumed[uid] = AssumedPod(seen, Placement(seen.node), self._handle.dependencies.clock())
        if seen.node or seen.deleting or seen.gated or seen.finished:
            return Gone(f"pod {pod.key} waits no longer")
        return None

    def _again(self, pending: PendingPod, delay: float) -> None:
        """The pod, as it is by now, is tried again after ``delay`` seconds, unless it waits no longer."""
        handle = self._handle
        if handle.pending.get(pending.uid) is pending:
            handle.queue.back_off(pending, handle.dependencies.clock() + delay)
            handle.nominator.try_again(pending.uid)
            self._on_free()

    def _outage(self, uid: str, error: Unavailable) -> None:
        """
        The API server cannot cope or cannot be reached: all pods wait, longer each time.

        A single pod that is turned away again and again (a webhook answers 503 to it) is no outage.
        """
        # A dict, as one pod that is turned away again and again counts once.
        self._turned_away[uid] = None
        if len(self._turned_away) < OUTAGE:
            return
        self._turned_away.clear()
        self._outages += 1
        handle = self._handle
        seconds = pause(handle.settings.api_backoff, self._outages, handle.dependencies.random())
        asked = min(error.retry_after or 0.0, LONGEST_OUTAGE)
        self.pause_until = max(self.pause_until, handle.dependencies.clock() + max(seconds, asked))
