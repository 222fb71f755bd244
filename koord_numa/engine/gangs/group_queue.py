"""
Members of groups in the scheduling queue, and the eviction of gangs that cannot be completed.

Members are queued when their group is complete. Until then their status has the reason. In the queue, every request class of a group is a
separate class, so that an event that helps any member activates the group. The position of a group is that of its first member. All members
that are tried leave the queue together (``group_cycle``).
"""

from logging import getLogger
from typing import Final

from koord_numa.core.objects.gangs import Dialect, GangKey, PodGroup
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.gangs.pod_groups import COMPLETED
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue import PendingPod
from koord_numa.ports import DELETED, ClusterError


class GroupQueue(MutableObject):
    """Queue of groups of an engine. ``_stale`` are gangs whose members report an outdated number of members."""

    handle: Handle
    _open: set[GangKey] = value_field(default_factory=set)  # gangs whose members are queued
    _partial: set[GangKey] = value_field(
        default_factory=set
    )  # gangs in ``_open`` with some, but too few, scheduled members
    _stale: dict[GangKey, int] = value_field(
        default_factory=dict
    )  # with the number of waiting members when last checked

    def observe(self, pending: PendingPod) -> None:
        """Process a new or changed pending pod. Pods without a gang are ignored."""
        ref = pending.pod.request.gang
        if ref is None:
            return
        groups = self.handle.pod_groups
        if (left := groups.add_pending(pending)) is not None:
            self.changed(left)
        if ref.problem:
            self._hold_back(pending, ref.problem)
            return
        keys, why = groups.group(ref.key)
        if why:
            self._close(ref.key)
            self._hold_back(pending, why)
        elif ref.key in self._open:
            self._queue(pending, keys)
        else:
            for key in keys:
                self._admit(key, keys)

    def changed(self, key: GangKey) -> None:
        """Process a change of a gang other than a new or changed pending member."""
        if not self.handle.pod_groups.gang(key).pending:
            self._open.discard(key)
            self._partial.discard(key)
            self._stale.pop(key, None)
            return
        keys, why = self.handle.pod_groups.group(key)
        if why:
            self._close(key)
        elif key in self._open:
            # The position of members depends on whether the gang is partial.
            is_partial = self.handle.pod_groups.is_partial(key)
            if is_partial == (key in self._partial):
                return
            (self._partial.add if is_partial else self._partial.discard)(key)
            for pending in list(self.handle.pod_groups.gang(key).pending.values()):
                if pending.queued_in is not None and pending.backoff_until is None:
                    self._queue(pending, keys)
        else:
            for each in keys:
                self._admit(each, keys)

    def forget(self, uid: str) -> None:
        """Process the end of a pod's wait."""
        key = self.handle.pod_groups.remove_pending(uid)
        if key is not None and key in self._open:
            self.changed(key)

    def observe_group(self, event: str | None, group: PodGroup) -> None:
        """Process an added, changed or deleted PodGroup."""
        self.handle.pod_groups.observe(event, group)
        if group.spec.claims:
            self._reclassify(group.key)
        self._reconsider(group.key)

    def replace_groups(self, dialect: Dialect, groups: list[PodGroup]) -> None:
        """Replace the PodGroups of a dialect by this complete list."""
        for key in self.handle.pod_groups.replace(dialect, groups):
            self._reclassify(key)
            self._reconsider(key)

    def _reclassify(self, key: GangKey) -> None:
        """Update the request classes of members, because claims may have been created for the group."""
        for pending in list(self.handle.pod_groups.gang(key).pending.values()):
            request_class = self.handle.classes.of(pending.pod)
            if pending.pod.resource_claims and request_class is not None and not pending.binding:
                self.handle.queue.remove(pending)
                pending.request_class = request_class

    def observe_completed(self, event: str | None, pod: Pod) -> None:
        """Process a pod that has succeeded, or the deletion of its object."""
        groups = self.handle.pod_groups
        key = groups.forget_completed(pod.key.uid) if event == DELETED else groups.note_completed(pod)
        if key is not None:
            self.changed(key)

    def replace_completed(self, pods: list[Pod]) -> None:
        """Replace the members that have succeeded by this complete list."""
        uids = {pod.key.uid for pod in pods}
        for uid in self.handle.pod_groups.completed:
            if uid not in uids and (key := self.handle.pod_groups.forget_completed(uid)) is not None:
                self.changed(key)
        for pod in pods:
            self.observe_completed(None, pod)

    def tick(self) -> None:
        """Report the current number of members to waiting members when the number is stable. Called once a second."""
        self.handle.pod_groups.settle(self.handle.cache.assumed)
        for key, count in list(self._stale.items()):
            gang = self.handle.pod_groups.gang(key)
            if len(gang.pending) != count:
                self._stale[key] = len(gang.pending)
                continue
            del self._stale[key]
            why = self.handle.pod_groups.group(key)[1]
            for pending in list(gang.pending.values()) if why else ():
                if pending.queued_in is None and not pending.binding:
                    self._hold_back(pending, why)

    def keys_of(self, pending: PendingPod) -> tuple[GangKey, ...]:
        """Return the gangs that are decided on with a member. If it may not be tried, report the reason to it and return none."""
        ref = pending.pod.request.gang
        if ref is None or ref.problem:
            return ()
        keys, why = self.handle.pod_groups.group(ref.key)
        if not why:
            return keys
        self._close(ref.key)
        self._hold_back(pending, why)
        return ()

    def message(self, pending: PendingPod) -> str:
        """Return the message of another member of the gang, for a member that was created later."""
        ref = pending.pod.request.gang
        others = () if ref is None else self.handle.pod_groups.gang(ref.key).pending.values()
        return next((it.message for it in others if it.message and not it.provisional), "")

    def members(self, keys: tuple[GangKey, ...]) -> list[PendingPod]:
        """Return the pending members of these gangs that may be tried, in the order in which they were queued."""
        found = (it for key in keys for it in self.handle.pod_groups.gang(key).pending.values())
        ready = [it for it in found if not (it.binding or it.deciding or it.pod.problem or self._is_broken(it))]
        return sorted(ready, key=lambda pending: (pending.order, pending.uid))

    def _is_broken(self, pending: PendingPod) -> bool:
        ref = pending.pod.request.gang
        return ref is None or bool(ref.problem)

    def _reconsider(self, key: GangKey) -> None:
        """Queue or remove the members of the gang and of its group again. Members that still wait get a new message."""
        groups = self.handle.pod_groups
        keys = groups.group(key)[0]
        for each in sorted({key, *keys}, key=str):
            # Removed from the queue first, so that members whose class waits for an event are tried again.
            self._close(each)
            self.changed(each)
            if each not in self._open and groups.gang(each).pending:
                self._stale[each] = len(groups.gang(each).pending)

    def _admit(self, key: GangKey, keys: tuple[GangKey, ...]) -> None:
        self._open.add(key)
        self._stale.pop(key, None)
        for pending in list(self.handle.pod_groups.gang(key).pending.values()):
            if not (pending.binding or pending.deciding or pending.pod.problem or self._is_broken(pending)):
                self._queue(pending, keys)

    def _queue(self, pending: PendingPod, keys: tuple[GangKey, ...]) -> None:
        handle = self.handle
        # The remaining members of a partial group come first, before other pods take their resources.
        first = any(handle.pod_groups.is_partial(key) for key in keys)
        pending.group_class = handle.classes.of_group(pending.request_class, keys, first=first)
        handle.queue.add(pending)

    def _close(self, key: GangKey) -> None:
        """Remove the members of an incomplete gang from the queue. They get a new message at one of the next ticks."""
        pending = self.handle.pod_groups.gang(key).pending
        self._stale.setdefault(key, len(pending))
        if key in self._open:
            self._open.discard(key)
            for each in list(pending.values()):
                if not each.binding:
                    self.handle.queue.remove(each)

    def _hold_back(self, pending: PendingPod, why: str) -> None:
        self.handle.queue.remove(pending)
        self.handle.conditions.waits(pending, why)


log = getLogger(__name__)

INCOMPLETE: Final = "GangIncomplete"


class PartialGangs(MutableObject):
    """
    Partial gangs, with some bound members that cannot be completed. ``_since`` has the monotonic time at which a gang was first partial.

    The API server may reject single binds, for example by an admission webhook, or a node may be lost between two binds. The remaining
    members are placed first. By default the bound members stay, as in kube-scheduler. A gang that had its minimal count once is never
    evicted, because its members were lost later.
    """

    handle: Handle
    _since: dict[GangKey, float] = value_field(default_factory=dict)

    async def evict_overdue(self) -> None:
        """Evict the members of gangs that stay incomplete. Called once a second."""
        handle, now = self.handle, self.handle.dependencies.clock()
        groups = handle.pod_groups
        incomplete = [key for key in groups if groups.is_partial(key) and not groups.gang(key).satisfied]
        self._since = {key: self._since.get(key, now) for key in incomplete}
        settings = handle.settings.partial_gangs
        for key, since in list(self._since.items()) if settings.evict else ():
            if now - since >= settings.after_seconds and handle.dependencies.lease.fresh():
                self._since[key] = now  # evictions that fail are retried after the same time
                for pod in self._bound(key):
                    await self._evict(key, pod)

    def _bound(self, key: GangKey) -> list[Pod]:
        cache = self.handle.cache
        uids = (uid for uid, node in self.handle.pod_groups.gang(key).scheduled.items() if node != COMPLETED)
        found = (cache.pod(uid) for uid in uids if uid not in cache.assumed)
        return [pod for pod in found if pod is not None and not pod.deleting and not pod.mirror]

    async def _evict(self, key: GangKey, pod: Pod) -> None:
        """Evict a member, subject to its PodDisruptionBudgets. A failure is logged."""
        handle = self.handle
        message = f"Evicted because gang {key} cannot be completed"
        try:
            await handle.dependencies.binder.evict(pod.key, message)
        except ClusterError as error:
            log.info("pod %s of the incomplete gang %s is not evicted: %s", pod.key, key, error)
            return
        handle.dependencies.recorder.event(pod.key, warning=True, reason=INCOMPLETE, message=message)
