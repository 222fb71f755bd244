"""
Scheduling cycle of a group: its members are decided on together and bound together, or all members wait and report the reason.

    popped ─▶ complete? ─▶ trial ─▶ placed ─▶ members assumed in the order of the decisions ─▶ PreBind of all members ─▶ binds
                             └─▶ rejected: every request class of the group waits for an event that may help it

The last step of the decision and all assumptions are made in one turn of the event loop. The next attempt retries failed binds. It counts
the bound members and stays in their topology domain.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Final

from cachetools import LRUCache

from koord_numa.core.objects.gangs import GangKey, GroupStatus, PodGroup, TopologyLevel
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Unschedulable
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.scheduling.gangs import Group, Placed, Refused, decide_in_steps
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field
from koord_numa.engine.binding.binding_cycle import BindingCycle, BindTogether, NotTogether
from koord_numa.engine.gangs.group_queue import GroupQueue
from koord_numa.engine.gangs.group_report import (
    EXPLAINED,
    HOSTNAME,
    GroupRejection,
    contradiction,
    explain_rejection,
    scheduled_pods,
    verdict_on,
)
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.engine.gangs.trial import ClusterTrial, Suspended, member_of
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import Result
from koord_numa.engine.object_events import why_everywhere
from koord_numa.engine.queue import PendingPod, RequestClass, reasons_of
from koord_numa.ports import ClusterError, Dependencies, Forbidden, Gone, Invalid

# Writer of the status of PodGroups. Statuses are written asynchronously, and only if they have changed.
#
# ``PodGroupInitiallyScheduled=True`` is final: the status of a group that was scheduled once is not written again.

log = getLogger(__name__)

SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
RETRY_SECONDS: Final = 2.0


class GroupStatuses(MutableObject):
    """
    Writer of group statuses. ``_due`` are the statuses to be written, the oldest first.

    ``_told`` has the last written status by gang: the UID of the PodGroup, the reason, and the first clause of the message.
    """

    groups: PodGroups
    dependencies: Dependencies
    _due: OrderedDict[GangKey, GroupStatus] = value_field(default_factory=OrderedDict)
    _told: dict[GangKey, tuple[str, str, str]] = value_field(default_factory=dict)
    _news: asyncio.Event = value_field(default_factory=asyncio.Event)

    def tell(self, key: GangKey, status: GroupStatus) -> None:
        """Schedule the write of this status if the gang has a PodGroup with another status."""
        group = self.groups.objects.get(key)
        if group is None or group.satisfied or self.dependencies.pod_groups is None:
            return
        known = self._told.get(key)
        if known is not None and known[0] == group.uid and (known[1] == SCHEDULED or known[1:] == _essence(status)):
            return
        self._due[key] = status
        self._news.set()

    def tell_all(self) -> None:
        """
        Report every gang that has its minimal count as scheduled, also if another scheduler bound members. Called once a second.

        A PodGroup that cannot be used is reported if pods of this scheduler wait for it.
        """
        for key, group in self.groups.objects.items():
            if group.spec.problem and self.groups.gang(key).pending:
                self.tell(key, GroupStatus(SCHEDULER_ERROR, group.spec.problem))
            elif not group.satisfied and (gang := self.groups.gang(key)).satisfied:
                count = len(gang.scheduled)
                self.tell(key, GroupStatus(SCHEDULED, f"minCount ({group.spec.min_count}) is satisfied", count))

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            while self._due:
                key, status = self._due.popitem(last=False)
                group = self.groups.objects.get(key)
                if group is not None and not await self._write(group, status):
                    self._due.setdefault(key, status)
                    await self.dependencies.sleep(RETRY_SECONDS)
            self._forget_gone()
            self._news.clear()
            await self._news.wait()

    async def _write(self, group: PodGroup, status: GroupStatus) -> bool:
        """Write a status. Return false if the write must be retried."""
        writer = self.dependencies.pod_groups
        if writer is None:
            return True
        try:
            if not self.dependencies.lease.fresh():
                return False
            await writer.write_status(group, status)
        except (Gone, Invalid):
            return True
        except Forbidden as error:
            log.warning("the status of PodGroup %s cannot be written: missing permission: %s", group.key, error.rule)
            return True
        except ClusterError as error:
            log.debug("the status of PodGroup %s cannot be written now: %s", group.key, error)
            return False
        self._told[group.key] = (group.uid, *_essence(status))
        return True

    def _forget_gone(self) -> None:
        for key in [key for key in self._told if key not in self.groups.objects]:
            del self._told[key]


def _essence(status: GroupStatus) -> tuple[str, str]:
    """Return the parts whose change causes a write: the reason, and the first clause without the numbers of nodes."""
    return status.reason, status.message.partition(";")[0]


FEWEST_EXPLAINED: Final = 4
"""Minimum nodes that are evaluated per request class of members beyond the minimal count, however many classes there are."""

NEWS_SECONDS: Final = 60.0
"""Seconds until members get another event for the same rejection with other numbers."""

REMEMBERED: Final = 4096
"""Maximum groups whose last message is remembered. Bounds memory, since any user can create groups."""

AGAIN_SECONDS: Final = 0.05
"""Pause in seconds of a group that changed during its decision."""

RESTARTS: Final = 3
"""Maximum decisions per attempt. A decision restarts if other pods have taken the resources of the members."""


class Refusal(ValueObject):
    """
    Rejected group. ``nodes`` are the nodes on which members could be placed.

    ``blocked`` is the member that fits on no node. ``verdict`` has its rejections if all nodes were evaluated. ``pods`` are all members.
    """

    keys: tuple[GangKey, ...]
    nodes: frozenset[str] = frozenset()
    blocked: Pod | None = None
    verdict: Unschedulable | None = None
    pods: Sequence[Pod] = ()


@dataclass(slots=True)
class GroupCycle:
    """Group cycles of an engine. ``_told`` has the last rejection of a group without numbers, and its time in monotonic seconds."""

    handle: Handle
    queue: GroupQueue
    binding: BindingCycle
    statuses: GroupStatuses
    after_refused: Callable[[Refusal], None] = lambda _refusal: None
    give_way: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    _told: LRUCache[tuple[GangKey, ...], tuple[object, float]] = field(default_factory=lambda: LRUCache(REMEMBERED))

    async def run(self, popped: PendingPod) -> None:
        """Schedule the group of a member. Afterwards every member is bound, gone, queued again, or waits for its group."""
        keys = self.queue.keys_of(popped)
        if not keys:
            self.handle.nominator.end_together(popped.uid)  # an incomplete group keeps no reservation
            return
        if any(it.deciding for key in keys for it in self.handle.pod_groups.gang(key).pending.values()):
            # A decision about the group is in progress. This member is tried afterwards.
            self.handle.queue.back_off(popped, self.handle.dependencies.clock() + AGAIN_SECONDS)
            return
        members = self.queue.members(keys)
        is_complete = not any(map(self.handle.pod_groups.missing, keys))
        try:
            cycles = await self._begin(keys, members)
            await asyncio.sleep(0)  # binds are sent in the next turn, concurrently with further decisions
            # Finish the started cycles concurrently.
            if cycles:
                async with asyncio.TaskGroup() as tasks:
                    for cycle in cycles:
                        tasks.create_task(cycle)
            if not is_complete:
                # Count a group whose gangs have got their minimal count in this cycle.
                groups = self.handle.pod_groups
                gangs = [groups.gang(key) for key in keys]
                if all(gang.scheduled for gang in gangs) and not any(map(groups.is_partial, keys)):
                    waited = self.handle.dependencies.clock() - min(gang.since for gang in gangs)
                    self.handle.metrics.groups.waited.add(waited)
            if cycles and any(map(self._waits_queued, members)):
                self.after_refused(Refusal(keys))  # for members beyond the minimal count, after the binds
        finally:
            for pending in members:  # no member is lost after an exception
                if self._waits(pending):
                    self.handle.queue.back_off(pending, self.handle.dependencies.clock() + 1.0)

    def _tell_waiting(self, keys: Iterable[GangKey], reason: str, message: str) -> None:
        for key in keys:
            self.statuses.tell(key, GroupStatus(reason, message, len(self.handle.pod_groups.gang(key).scheduled)))

    def _waits(self, pending: PendingPod) -> bool:
        handle = self.handle
        return handle.pending.get(pending.uid) is pending and pending.queued_in is None and not pending.binding

    def _waits_queued(self, pending: PendingPod) -> bool:
        return self.handle.pending.get(pending.uid) is pending and pending.backoff_until is None and not pending.binding

    async def _begin(self, keys: tuple[GangKey, ...], members: list[PendingPod]) -> list[Coroutine[Any, Any, None]]:
        """Decide, and start the binding cycles. At their first suspension the members are assumed."""
        handle, now = self.handle, self.handle.dependencies.clock()
        missing = {key: handle.pod_groups.missing(key) for key in keys}
        if not self._may_be_tried(keys, members, any(missing.values())):
            return []
        by_uid = {pending.uid: pending for pending in members}
        trial = ClusterTrial(
            handle,
            {uid: it.pod for uid, it in by_uid.items()},
            handle.pod_groups.nodes_of(keys),
            interruptible=True,
        )
        with trial.begun():
            group = Group(tuple(member_of(it) for it in members), missing, handle.pod_groups.levels(keys)[0])
            answer = await self._decide(trial, group, keys, members)
            if isinstance(answer, Refused) and trial.shared_claims:
                # Pods can share devices of a node on this node only: every node is tried as a domain.
                levels = (*group.levels, TopologyLevel(HOSTNAME))
                again = await self._decide(trial, replace(group, levels=levels), keys, members)
                answer = answer if isinstance(again, Refused) else again
            if answer is None:
                for pending in filter(self._waits, members):
                    handle.queue.back_off(pending, now + AGAIN_SECONDS)
                return []
            refusal = None
            if isinstance(answer, Refused):
                refusal = explain_rejection(handle, trial, group, answer, {uid: it.pod for uid, it in by_uid.items()})
        if isinstance(answer, Placed):
            cycles = self._assume(answer, by_uid, now, together=any(missing.values()))
            if cycles is not None:
                handle.metrics.groups.attempts[Result.SCHEDULED] += 1
                self._told.pop(keys, None)
                self._leave_over(answer, by_uid)
                return cycles
            refusal = GroupRejection("a node of the group changes; the group is tried again")
        if refusal is not None:
            self._refuse(keys, members, answer, refusal)
        for pending in members:
            handle.attempted(Result.UNSCHEDULABLE, pending.request_class, now)
        return []

    def _may_be_tried(self, keys: tuple[GangKey, ...], members: list[PendingPod], together: bool) -> bool:
        """Remove the members from the queue, and members in back-off from ``members``. Return whether the group may be decided on now."""
        handle, now = self.handle, self.handle.dependencies.clock()
        until = max((it.backoff_until for it in members if it.backoff_until is not None), default=now)
        if until > now and together:
            for pending in members:
                handle.queue.back_off(pending, until)
            return False
        members[:] = [it for it in members if it.backoff_until is None or it.backoff_until <= now]
        for pending in members:
            handle.queue.remove(pending)
            pending.attempts += 1
        specs = [handle.pod_groups.spec_of(key) for key in keys]
        if why := contradiction([it.pod for it in members], scheduled_pods(handle, keys), specs):
            handle.metrics.groups.attempts[Result.ERROR] += 1
            self._wait(keys, members, why)
            self._tell_waiting(keys, SCHEDULER_ERROR, why)
            return False
        return True

    async def _decide(
        self, trial: ClusterTrial, group: Group, keys: tuple[GangKey, ...], members: Sequence[PendingPod]
    ) -> Placed | Refused | None:
        """Decide in several turns. Nothing stays assumed between turns. Return ``None`` if the group or the cluster changed too much."""
        steps, moved, lost = decide_in_steps(trial, group), None, 0
        known = [(it, it.pod, it.request_class) for it in members]
        while True:
            try:
                steps.send(moved)
            except StopIteration as end:
                answer: Placed | Refused = end.value
                return answer
            suspended = trial.suspend()
            for pending in members:
                pending.deciding = True
            try:
                await self.give_way()
            finally:
                for pending in members:
                    pending.deciding = False
            is_same = all(self._waits(it) and it.pod is pod and it.request_class is same for it, pod, same in known)
            missing = {key: self.handle.pod_groups.missing(key) for key in keys}
            if not is_same or missing != group.missing or self.handle.stopping:
                return None
            if (moved := trial.resume(suspended)) is None:
                lost += 1
                if lost == RESTARTS:
                    return None
                trial.suspend()
                trial.resume(Suspended([], {}))
                steps = decide_in_steps(trial, group)

    def _assume(
        self, answer: Placed, by_uid: Mapping[str, PendingPod], began: float, *, together: bool
    ) -> list[Coroutine[Any, Any, None]] | None:
        """
        Start the binding cycles in the order of the decisions. If a cycle cannot start, undo all and return ``None``.

        On a kubelet-owned node, a pod may have to wait for the kubelet's verdict on pods in flight. Members that are bound ``together``
        cannot wait for each other. The trial has considered other pods in flight. The members are placed as decided unless another pod
        leaves unobserved at the same time. If members are not bound together, a member waits, and so do the next members on its node.
        """
        handle, started = self.handle, dict[str, Coroutine[Any, Any, None]]()
        for uid in answer.placements:
            handle.nominator.end(uid)  # replaced by the assumption
        gate = BindTogether(answer.placements) if together and len(answer.placements) > 1 else None
        used, waiting = set[str](), set[str]()
        for uid, placement in answer.placements.items():
            pending, node = by_uid[uid], placement.node
            if not together and node in used and self._is_kubelets(node):
                request_class = handle.classes.of(pending.pod) or pending.request_class
                if not isinstance(handle.selector.try_node(request_class, node), Placement):
                    waiting.add(node)
            if node in waiting:
                continue
            used.add(node)
            handle.queue.remove(pending)  # it may be queued again because a shared claim has changed
            cycle = self.binding.run(pending, placement, began, gate)
            handle.decisions.record(pending.pod.key, placement, dict)
            cycle.send(None)
            if not pending.binding:
                self._abort(started)
                return None
            started[uid] = cycle
        return list(started.values())

    def _abort(self, started: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        for cycle in reversed(list(started.values())):
            with suppress(StopIteration):
                cycle.throw(NotTogether("another member of the group can no longer be placed"))

    def _is_kubelets(self, node: str) -> bool:
        info = self.handle.cache.nodes.get(node)
        return info is not None and info.topology is not None and info.topology.owner is CpuOwner.KUBELET

    def _leave_over(self, answer: Placed, by_uid: Mapping[str, PendingPod]) -> None:
        """Queue the members beyond the minimal count that fit on no node. Each request class waits for its own events."""
        left = [by_uid[uid] for uid in answer.left]
        now = self.handle.dependencies.clock()
        classes = _by_class(left)
        most = max(FEWEST_EXPLAINED, EXPLAINED // max(1, len(classes)))
        for request_class, members in classes.items():
            verdict = verdict_on(self.handle, members[0].request_class, None, most)
            clipped = len(self.handle.cache.nodes) > most
            self.handle.queue.park(members[0], None if clipped else verdict, now)
            for pending in members:
                self.handle.queue.add(pending)
                self.handle.conditions.waits(pending, why_everywhere(verdict))
                self.handle.attempted(Result.UNSCHEDULABLE, request_class, now)

    def _refuse(
        self,
        keys: tuple[GangKey, ...],
        members: Sequence[PendingPod],
        answer: Placed | Refused,
        rejection: GroupRejection,
    ) -> None:
        why, verdict = rejection.message, None if rejection.clipped else rejection.verdict
        failed = answer.failed if isinstance(answer, Refused) else ""
        now = self.handle.dependencies.clock()
        blocking = next((it.queue_class for it in members if it.uid == failed), None)
        for request_class, pods in _by_class(members).items():
            # Other classes wait for any event: an event that helps another member may free resources for this member.
            self.handle.queue.park(pods[0], verdict if request_class is blocking else None, now)
            for pending in pods[1:]:
                self.handle.queue.add(pending)
        meter = self.handle.metrics
        meter.groups.attempts[Result.UNSCHEDULABLE] += 1
        for reason in () if rejection.verdict is None else reasons_of(rejection.verdict):
            meter.groups.rejections[reason.value] += 1
            meter.rejections[reason.value] += not rejection.clipped
        if verdict is not None and Reason.BIND_QUEUE in reasons_of(verdict):
            return  # the bind queue is shorter within milliseconds
        if isinstance(answer, Refused):
            blocked = next((it.pod for it in members if it.uid == failed), None)
            nodes = frozenset(it.node for it in answer.beside.values())
            self.after_refused(Refusal(keys, nodes, blocked, verdict, [it.pod for it in members]))
        placed = len(answer.beside) if isinstance(answer, Refused) else 0
        messages = frozenset(it.message for it in verdict.rejections.values()) if verdict is not None else why
        essence = (placed, len(members), messages)
        told = self._told.get(keys)
        if told is not None and told[0] == essence and now - told[1] < NEWS_SECONDS:
            why = ""
        else:
            self._told[keys] = (essence, now)
            self._tell_waiting(keys, UNSCHEDULABLE, why)
        for pending in members:
            if why or pending.untold:
                self.handle.conditions.waits(pending, why or members[0].message)

    def _wait(self, keys: tuple[GangKey, ...], members: Sequence[PendingPod], why: str) -> None:
        """Queue all members until any member changes."""
        self._told.pop(keys, None)
        now = self.handle.dependencies.clock()
        for pods in _by_class(members).values():
            self.handle.queue.park(pods[0], None, now)
            for pending in pods:
                self.handle.queue.add(pending)
                self.handle.conditions.waits(pending, why)


def _by_class(members: Iterable[PendingPod]) -> dict[RequestClass, list[PendingPod]]:
    found: dict[RequestClass, list[PendingPod]] = {}
    for pending in members:
        found.setdefault(pending.queue_class, []).append(pending)
    return found
