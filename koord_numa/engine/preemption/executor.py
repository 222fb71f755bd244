"""
Execution of preemption for unschedulable pods: choose a node and victims, publish, check again, and evict.

Plans are made sequentially, concurrently with the scheduling loop. A plan may be outdated at its end, so it is executed only if the same
node gives the same victims again. Then the amounts are reserved for the pod, and the node is checked again before evictions if it has
changed. Nodes are freed concurrently (``freeing``), except for plans that depend on more than their node. A failure ends the nomination.
Victims evicted without benefit are not restored: the pod that needed their resources is tried first when they have left.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from logging import getLogger
from typing import Final

from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.resources import NOTHING, ResourceList, add, total
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.preemption.evaluator import Evaluator, Evictor
from koord_numa.engine.preemption.groups import NEVER, PROTECTED, SHOWN, GroupPreemption
from koord_numa.engine.queue import Nomination, PendingPod, RequestClass
from koord_numa.ports import ClusterError, Forbidden, Gone

Nodes = frozenset[str] | None
"""Names of the nodes to evaluate; ``None``: all."""


class Agenda:
    """Queue of classes to evaluate, one at a time inside ``next``. Classes that nothing helped are evaluated again on changed nodes."""

    def __init__(self) -> None:
        self._current: RequestClass | None = None
        self._due: dict[RequestClass, Nodes] = {}
        self._hopeless: dict[RequestClass, None] = {}  # no candidate when all nodes were evaluated
        # Nodes that have changed since the last evaluation in a way that may make evictions helpful.
        self._changed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._due)

    def __contains__(self, request_class: object) -> bool:
        """Return whether the class is being evaluated or queued."""
        return request_class in self._due or (request_class is not None and request_class is self._current)

    def add(self, *request_classes: RequestClass) -> None:
        """Queue these classes for an evaluation of all nodes."""
        self._due.update(dict.fromkeys(request_classes))

    def goes_before(self, priority: int) -> bool:
        """Return whether a queued class has a higher priority."""
        return any(request_class.priority > priority for request_class in self._due)

    @contextmanager
    def next(self) -> Iterator[tuple[RequestClass, Nodes]]:
        """
        Yield the class to evaluate and its nodes: the highest priority first, because it may displace the nominations of others.

        The class counts as being evaluated until the block ends.
        """
        self._current = min(self._due, key=lambda request_class: (-request_class.priority, request_class.number))
        try:
            yield self._current, self._due.pop(self._current)
        finally:
            self._current = None

    def note_helped(self, request_class: RequestClass) -> None:
        """Record that a node was found for a pod of this class."""
        self._hopeless.pop(request_class, None)

    def note_hopeless(self, request_class: RequestClass, again: Iterable[str]) -> None:
        """Record that no eviction helps this class now. The nodes ``again`` are evaluated again soon."""
        self._hopeless[request_class] = None
        self._changed.update(again)

    def nodes_changed(self, *nodes: str) -> None:
        """Record changed nodes: pods left or more is known of them. Evictions there may help now."""
        # Also for a class that is being evaluated: it may have passed the node already.
        if self._hopeless or self._current is not None:
            self._changed.update(nodes)

    def bind_confirmed(self, node: str) -> None:
        """Record that a pod of this node may be evicted from now on."""
        # If it is not confirmed by the end of an evaluation, ``note_hopeless`` names the node; in between only this
        # call reports it.
        if self._current is not None:
            self._changed.add(node)

    def look_again(
        self,
        waits: Callable[[RequestClass], bool],
        worth_a_look: Callable[[RequestClass, frozenset[str]], frozenset[str]],
    ) -> None:
        """Queue the hopeless classes for the changed nodes that are worth evaluating. Classes without waiting pods are dropped."""
        # Collected, so that many changes cause one iteration over the classes.
        changed, self._changed = frozenset(self._changed), set()
        if not changed:
            return
        # A class becomes hopeless at the end of its evaluation, and this change may have occurred during it.
        if self._current is not None:
            self._add_on(self._current, changed)
        for request_class in list(self._hopeless):
            if not waits(request_class):
                del self._hopeless[request_class]
            elif found := worth_a_look(request_class, changed):
                self._add_on(request_class, found)

    def _add_on(self, request_class: RequestClass, nodes: frozenset[str]) -> None:
        due = self._due.get(request_class, frozenset())
        # A queued evaluation of all nodes, or of other nodes, must not shrink to these nodes.
        self._due[request_class] = None if due is None else due | nodes


class FreeableAmounts(ValueObject):
    """
    Amounts that a node would have free.

    ``free`` is without the terminating pods, plus ``sums[i]`` without the pods of priorities up to ``priorities[i]``, which ascend.
    ``leaving`` is whether any pod is terminating. Amounts reserved for nominees count as free.
    """

    free: ResourceList
    leaving: bool
    priorities: tuple[int, ...]
    sums: tuple[ResourceList, ...]

    @classmethod
    def of(cls, info: NodeInfo, evicted: Collection[str]) -> "FreeableAmounts":
        """Return the amounts for this node. The UIDs ``evicted`` are terminating, though no event has shown it yet."""
        holdings = info.counted.holdings
        held = {uid: holding.amounts if (holding := holdings.get(uid)) else NOTHING for uid in info.pods}
        leaving = [uid for uid, pod in info.pods.items() if pod.deleting or uid in evicted]
        staying = [(pod.request.priority, held[uid]) for uid, pod in info.pods.items() if uid not in set(leaving)]
        # Their amounts are free already, and they may be displaced.
        staying += [(nominee.pod.request.priority, NOTHING) for nominee in info.nominees.values()]
        free = add(info.free, total(held[uid] for uid in leaving))
        priorities, sums, more = [], [], NOTHING
        for priority, found in groupby(sorted(staying, key=_priority), key=_priority):
            more = add(more, total(amounts for _, amounts in found))
            priorities.append(priority)
            sums.append(more)
        return cls(free, bool(leaving), tuple(priorities), tuple(sums))

    def suffices(self, request_class: RequestClass) -> bool:
        """Return whether the amounts may be sufficient for a pod of this class, with any pod to evict or terminating."""
        lower = bisect_left(self.priorities, request_class.priority)
        if not lower and not self.leaving:
            return False
        free, more = self.free, self.sums[lower - 1] if lower else NOTHING
        return not [
            name for name, amount in request_class.amounts.items() if amount > free.get(name, 0) + more.get(name, 0)
        ]


class Glance:
    """Quick check of the current cluster state for any number of classes."""

    def __init__(self, cache: Cache, evicted: Collection[str]) -> None:
        self._cache = cache
        self._evicted = evicted
        self._known: dict[str, FreeableAmounts | None] = {}

    def worth_a_look(self, request_class: RequestClass, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes on which evictions may help the class."""
        return frozenset(
            [name for name in names if (found := self._of(name)) is not None and found.suffices(request_class)]
        )

    def _of(self, name: str) -> FreeableAmounts | None:
        if name not in self._known:
            info = self._cache.nodes.get(name)
            self._known[name] = None if info is None else FreeableAmounts.of(info, self._evicted)
        return self._known[name]


def _priority(found: tuple[int, ResourceList]) -> int:
    return found[0]


class Pauses:
    """Pauses of preemption by pod. Their ends and the numbers of failures are in the pods' records."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._paused: dict[str, PendingPod] = {}  # by UID

    def __contains__(self, uid: str) -> bool:
        return uid in self._paused

    def over(self, now: float) -> Iterator[PendingPod]:
        """
        Yield the pods whose pause has ended, and remove them.

        The pause of a pod also ends when the pod is gone, because other pods of its class may have waited for it.
        """
        for uid, pending in list(self._paused.items()):
            # The record was replaced or removed: the pod is gone, has a node, or was created again.
            if self._handle.pending.get(uid) is not pending or pending.preemption_from <= now:
                del self._paused[uid]
                yield pending

    def next(self, uid: str) -> float:
        """Count another failure of this pod and return the pause in seconds."""
        pending = self._handle.pending.get(uid)
        times = 1 if pending is None else pending.preemption_failures + 1
        if pending is not None:
            pending.preemption_failures = times
        return self._handle.settings.backoff.pause(times, self._handle.dependencies.random())

    def begin(self, uid: str, seconds: float) -> None:
        """Pause preemption for this pod. Does nothing if it does not wait any more."""
        if (pending := self._handle.pending.get(uid)) is not None:
            pending.preemption_from = self._handle.dependencies.clock() + seconds
            self._paused[uid] = pending

    def reset(self, uid: str) -> None:
        """Reset the failures after success, so that the next pause is short again."""
        if pending := self._handle.pending.get(uid):
            pending.preemption_failures = 0


def being_freed(candidate: PreemptionCandidate) -> str:
    """Return ``preemption: node n is being freed, 4 pod(s) are evicted: default/a, default/b, default/c, ...``."""
    names = sorted(str(victim.key) for victim in candidate.victims)
    others = len(candidate.awaited - {victim.key.uid for victim in candidate.victims})
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    text = f"preemption: node {candidate.node} is being freed"
    if names:
        text += f", {len(names)} pod(s) are evicted: {shown}"
    if others:
        text += f", {others} pod(s) are leaving anyway"
    return f"{text}."


log = getLogger(__name__)

PLANS: Final = 3
"""Maximum number of plans for a pod if the chosen node changes meanwhile; then the pod pauses."""


class Executor:
    """Preemption of one engine. ``consider`` is called when a pod is unschedulable; the work is done in ``run``."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.evaluator = Evaluator(handle)
        self._evictor = Evictor(handle, self.evaluator)
        self._agenda = Agenda()
        self._pauses = Pauses(handle)
        self._failed: set[RequestClass] = set()  # classes with a pod whose node could not be freed in this round
        self._news = asyncio.Event()
        self.groups = GroupPreemption(handle, self.evaluator, self._evictor, self._news.set, self._requeue)

    def replace_budgets(self, budgets: Iterable[DisruptionBudget]) -> None:
        """Replace the budgets by this complete list. Until it is known no pod is evicted."""
        self.evaluator.replace_budgets(budgets)
        self._news.set()

    def consider(self, _pod: Pod, request_class: RequestClass, _verdict: Unschedulable) -> None:
        """Queue an unschedulable class (``AfterUnschedulable``)."""
        if self._handle.settings.preemption.enabled:
            self._agenda.add(request_class)
            self._news.set()

    def nodes_changed(self, *nodes: str) -> None:
        """Record nodes whose pods left, of which more is known, or that are not barred any more."""
        self._agenda.nodes_changed(*nodes)
        self.groups.nodes_changed()

    def bind_confirmed(self, node: str) -> None:
        """Record that a pod of this node may be evicted from now on."""
        self._agenda.bind_confirmed(node)
        self.groups.nodes_changed()

    def will_write(self, pending: PendingPod) -> bool:
        """Return whether the pod is queued for a plan, whose status update will include its condition."""
        if pending.request_class not in self._agenda or self.evaluator.budgets is None or not pending.pod.preempts:
            return False
        return pending.uid not in self._pauses and self._handle.nominator.of(pending.uid) is None

    def look_again(self) -> None:
        """Queue classes whose pauses ended, whose nodes changed, or whose freed node is still insufficient."""
        now, patience = self._handle.dependencies.clock(), self._handle.settings.preemption.topology_patience_seconds
        self._agenda.add(*(pending.request_class for pending in self._pauses.over(now)))
        for nomination in self._handle.nominator:
            if not self._handle.nominator.may_still_fit(nomination, patience):
                self._requeue((nomination,))
        glance = Glance(self._handle.cache, self.evaluator.evicted)
        self._agenda.look_again(lambda waiting: bool(self._handle.queue.pods_of(waiting)), glance.worth_a_look)
        self.groups.look_again()
        if self._agenda or self.groups:
            self._news.set()

    def _requeue(self, nominations: Iterable[Nomination]) -> None:
        """Queue the classes or groups of these nominations."""
        for nomination in nominations:
            if (ref := nomination.pod.request.gang) is None:
                self._agenda.add(nomination.request_class)
            else:
                self.groups.consider_gang(ref.key)

    async def run(self) -> None:
        """Process the queue until cancelled."""
        try:
            while True:
                await self._plan()
                self._news.clear()
                # Cleared before waiting and after the plans, so that no change in between is lost.
                await self._news.wait()
        finally:
            await self.evaluator.freeing.cancel()

    async def work(self) -> None:
        """Process all queued classes and wait for the evictions."""
        await self._plan()
        while len(self.evaluator.freeing):
            await self.evaluator.freeing.settled()
            await self._plan()

    async def foresee(
        self, pod: Pod, request_class: RequestClass, verdict: Unschedulable
    ) -> tuple[str, PreemptionCandidate | None]:
        """Return the message for an unschedulable pod and its preemption candidate. Nothing is executed."""
        if not self._handle.settings.preemption.enabled or self.evaluator.budgets is None:
            return "", None
        if not pod.preempts:
            return NEVER, None
        candidate = await self.evaluator.plan(pod, request_class, verdict)
        if candidate is None or not self.evaluator.may_carry_out(pod, candidate):
            return "" if candidate is None else PROTECTED, None
        return being_freed(candidate), candidate

    async def _plan(self) -> None:
        """Evaluate every queued class, highest priority first."""
        self.evaluator.forget_the_gone()
        while (self._agenda or self.groups) and self.evaluator.budgets is not None:
            if self.groups and not self._agenda.goes_before(self.groups.priority):
                await self.groups.serve_next()
                continue
            with self._agenda.next() as (request_class, only):
                await self._serve_class(request_class, only)
            # Pods that were not served, unless another round is about to start.
            if request_class not in self._agenda and not self._handle.queue.is_active(request_class):
                self._tell_unless_nominated(*self._handle.queue.pods_of(request_class))

    async def _serve_class(self, request_class: RequestClass, only: frozenset[str] | None) -> None:
        """Serve the pods of a class until no more candidates are found."""
        self._failed.discard(request_class)
        for pending in self._handle.queue.pods_of(request_class):
            # The reason why a pod's node could not be freed, such as a missing permission, applies to the next pod too.
            if request_class in self._failed:
                return
            goes_on = True
            with self._handle.quarantine.contained(subject_of(pending.pod)):
                goes_on = await self._serve(pending, only)
            self._tell_unless_nominated(pending)
            if not goes_on:
                return

    def _tell_unless_nominated(self, *found: PendingPod) -> None:
        """Release the held conditions of pods without a nomination. ``_free`` handles the nominated pods."""
        for pending in found if self._handle.conditions.held else ():
            if self._handle.nominator.of(pending.uid) is None:
                self._handle.conditions.release(pending.uid)

    async def _serve(self, pending: PendingPod, only: frozenset[str] | None) -> bool:
        """Serve a waiting pod. Return whether other pods of its class may succeed."""
        handle, uid, pod, request_class = self._handle, pending.uid, pending.pod, pending.request_class
        verdict = handle.queue.verdict(pending)
        if verdict is None or handle.queue.is_active(request_class):
            return False  # the class is being retried
        if handle.pending.get(uid) is not pending or pending.binding:
            return True
        nomination = handle.nominator.of(uid)
        # A pause applies to all pods of the class.
        if nomination is not None:
            if self._goes_on(nomination, verdict) or self._tries_again(nomination):
                return True
            self._note_outdated_topology(nomination)
            # Its own nomination first: a second nomination would evict twice for the same pod.
            await self._take_back(nomination)
        if not pod.preempts:
            self._say(pod.key, NEVER)
            return True
        if uid in self._pauses:
            return False
        return await self._make_room(pod, request_class, verdict, only)

    def _goes_on(self, nomination: Nomination, verdict: Unschedulable) -> bool:
        """Return whether it is still worth waiting for the node that is being freed."""
        if self._handle.nominator.is_due(nomination.pod.key.uid):
            return True  # the node is free: the pod is tried there next
        rejection = verdict.rejections.get(nomination.node)
        patience = self._handle.settings.preemption.topology_patience_seconds
        resolvable = rejection is not None and rejection.resolvable
        return resolvable and self._handle.nominator.may_still_fit(nomination, patience)

    def _tries_again(self, nomination: Nomination) -> bool:
        """
        Rebuild the kubelet's state once before the reservation ends; the pod is then tried first.

        A state tracked for long may be less precise than the published data.
        """
        if nomination.rebuilt or nomination.cleared is None:
            return False
        nomination.rebuilt = self._handle.cache.rebuild(nomination.node)
        return nomination.rebuilt and self._handle.nominator.is_due(nomination.pod.key.uid)

    def _note_outdated_topology(self, nomination: Nomination) -> None:
        """Exclude a kubelet-owned node from further evictions if its topology did not follow."""
        record = self._handle.cache.nodes.get(nomination.node)
        if record is None or record.inventory is not None or nomination.cleared is None or nomination.shown is None:
            return
        if not self._handle.nominator.has_followed(nomination, record):
            self.evaluator.note_outdated(nomination.node, nomination.shown)

    async def _make_room(
        self, pod: Pod, request_class: RequestClass, verdict: Unschedulable, only: frozenset[str] | None
    ) -> bool:
        # A plan yields to other tasks, so that its node may have changed by its end.
        for _ in range(PLANS):
            candidate = await self.evaluator.plan(pod, request_class, verdict, only)
            if candidate is None or not self.evaluator.may_carry_out(pod, candidate):
                self._nothing_helps(pod, request_class, candidate)
                return False
            self._agenda.note_helped(request_class)
            # Executed only if the same node gives the same victims again.
            if self._evictor.still_waits(pod.key) and self.evaluator.repeats(pod, request_class, candidate):
                return await self._carry_out(Nomination(pod, request_class, candidate))
        self._pauses.begin(pod.key.uid, self._handle.settings.backoff.initial)
        return False

    def _nothing_helps(self, pod: Pod, request_class: RequestClass, candidate: PreemptionCandidate | None) -> None:
        """Report that no preemption is possible, and wait for a changed node or budget."""
        # Pods with unconfirmed binds cannot be evicted yet: their nodes are evaluated again.
        self._agenda.note_hopeless(request_class, (it.placement.node for it in self._handle.cache.assumed.values()))
        self._handle.nominator.end(pod.key.uid)  # a nomination in its status from before a restart
        if candidate is None:
            self._handle.metrics.preemptions["nothing helps"] += 1
            self._say(pod.key, "")
            return
        self._handle.metrics.preemptions["protected"] += 1
        self._say(pod.key, PROTECTED)
        self._pauses.begin(pod.key.uid, self._pauses.next(pod.key.uid))

    async def _carry_out(self, nomination: Nomination) -> bool:
        """Reserve the amounts, publish, and evict; displaced pods of lower priority lose their nominations."""
        handle, candidate = self._handle, nomination.candidate
        # Displaced pods first, because their reservation ends.
        displaced = [ended for key in candidate.displaced for ended in handle.nominator.end_together(key.uid)]
        handle.nominator.begin(nomination)
        if not displaced:
            # The plan was repeated just before, and only this nomination has changed the node since.
            nomination.confirmed = handle.cache.nodes[candidate.node].revision
        # Before any request, which may raise: their nominations have ended already.
        self._requeue(displaced)
        if displaced or not self.evaluator.concerns_its_node_alone(nomination):
            await self.evaluator.freeing.settled()
            return await self._free(nomination, displaced)
        await self.evaluator.freeing.start(nomination.node, partial(self._free_contained, nomination))
        return True

    async def _free_contained(self, nomination: Nomination) -> None:
        with self._handle.quarantine.contained(subject_of(nomination.pod)):
            await self._free(nomination)

    async def _free(self, nomination: Nomination, displaced: Iterable[Nomination] = ()) -> bool:
        """Execute a plan. Return whether other pods of the class may succeed."""
        handle, pod, candidate = self._handle, nomination.pod, nomination.candidate
        try:
            # Publish the nomination and the displaced nominations, and evict. Raises ``ClusterError``.
            self._say(nomination.pod.key, being_freed(nomination.candidate))
            for ended in displaced:
                self._say(ended.pod.key, "")
                await self._evictor.withdraw(ended.pod.key)
            await self._evictor.free(nomination)
        except ClusterError as error:
            if not isinstance(error, Gone):
                self._failed.add(nomination.request_class)
            await self._give_up(nomination, error)
            # Other pods of the class have a chance at the same node only if this pod is gone.
            return isinstance(error, Gone)
        except Exception:
            # A bug about this pod, which will be quarantined: nothing may be reserved for evictions that are not
            # requested.
            self._pauses.begin(pod.key.uid, self._pauses.next(pod.key.uid))
            await self._take_back(nomination)
            raise
        finally:
            handle.conditions.release(pod.key.uid)  # not written with the nomination
        self.nodes_changed(nomination.node)  # there may be more free than this pod needs
        handle.metrics.preemptions["nominated"] += 1
        handle.metrics.victims_each.add(len(candidate.victims))
        self._pauses.reset(pod.key.uid)
        return True

    async def _give_up(self, nomination: Nomination, error: ClusterError) -> None:
        handle, key = self._handle, nomination.pod.key
        handle.metrics.preemptions[type(error).__name__] += 1
        log.info("preemption for pod %s on node %s failed: %s", key, nomination.node, error)
        await self._take_back(nomination, write=not isinstance(error, Gone))
        if isinstance(error, Gone) or key.uid not in handle.pending:
            return
        delay = self._pauses.next(key.uid)
        if isinstance(error, Forbidden):
            delay = handle.settings.parked_retry_seconds
            handle.conditions.warn(key, f"koord-numa lacks the permission to {error.rule}")
        self._pauses.begin(key.uid, delay)

    async def _take_back(self, nomination: Nomination, write: bool = True) -> None:
        """End the nomination and clear the pod's status, if the pod still waits."""
        key = nomination.pod.key
        if self._handle.nominator.of(key.uid) is not nomination:
            return
        self._handle.nominator.end(key.uid)
        self._say(key, "")
        if write:
            await self._evictor.withdraw(key)

    def _say(self, pod: PodKey, remark: str) -> None:
        """Set the remark about preemption in the pod's message."""
        pending = self._handle.pending.get(pod.uid)
        if pending is None or pending.remark == remark:
            return
        pending.remark = remark
        verdict = self._handle.queue.verdict(pending)
        if verdict is not None:
            self._handle.conditions.waits(pending, self._handle.messages.told(pending.request_class, verdict))
