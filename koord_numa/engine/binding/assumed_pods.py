"""
Follow-up of binds: rejections by kubelets, ends of node back-offs, binds without a watch event, and conflicting writers.

It corrects the cache and reports. It makes no placements.
"""

from asyncio import Semaphore, gather
from collections import Counter
from collections.abc import Callable
from logging import getLogger
from typing import Final

from cachetools import LRUCache

from koord_numa.core.explain import bare_amount
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.from_ledger import DoubleHold, double_holds
from koord_numa.core.resources import CPU, MEMORY, NOTHING
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import AssumedPod
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.ranking import NodeTable
from koord_numa.ports import DELETED, ClusterError, Gone

# Detection of conflicting writers: CPUs held twice, and binds and resource-status that this scheduler did not write.
#
# Conflicts are reported on nodes and pods, as metrics and in the log. Nothing is repaired here.
#
# A bind by this process is in ``handle.placed``. After leading for longer than the lease duration no earlier leader can write, so every
# other own pod that newly appears on a node was bound by another writer. A resource-status that changes while the node is not locked by
# a rebind was also written by another. A standby reports nothing, because it observes the leader's writes.

log = getLogger(__name__)

HELD_TWICE: Final = "CPUsHeldTwice"
FOREIGN_BIND: Final = "BoundByAnotherWriter"
FOREIGN_STATUS: Final = "ResourceStatusChanged"
OVERCOMMITTED: Final = "Overcommitted"

GUARDED: Final = (CPU, MEMORY)
"""Resources whose requests are compared with the allocatable amount of the node."""

RECENT: Final = 300.0
"""Seconds for which ``warnings`` includes the last foreign write."""


class ConflictingWriters:
    """Conflicts of one scheduler. ``double_holds`` and ``overcommitted`` are current, by node; ``foreign`` counts writes by kind."""

    def __init__(self, handle: Handle) -> None:
        self.double_holds: dict[str, tuple[DoubleHold, ...]] = {}
        self.overcommitted: dict[str, str] = {}
        self.foreign: Counter[str] = Counter({FOREIGN_BIND: 0, FOREIGN_STATUS: 0})
        self._handle = handle
        self._ours = frozenset(handle.settings.scheduler_names)
        self._leading_since: float | None = None
        self._last: tuple[float, str] | None = None

    def tick(self) -> None:
        """Update since when this process has been leading. Called once a second."""
        if not self._handle.dependencies.lease.fresh():
            self._leading_since = None
        elif self._leading_since is None:
            self._leading_since = self._handle.dependencies.clock()

    def node_changed(self, info: NodeInfo) -> None:
        """Check the node for double holds and overcommitment."""
        # Called for every change of a node. Nearly all nodes have no conflict, now or before.
        name, ledger, node = info.name, info.ledger, info.node
        held, there = ledger.amounts, NOTHING if node is None else node.allocatable
        # Upper bound: more than allocatable if all pods count, which is not always so.
        if (
            held.get(CPU, 0) > there.get(CPU, 0)
            or held.get(MEMORY, 0) > there.get(MEMORY, 0)
            or name in self.overcommitted
        ):
            self._check_overcommit(info)
        # Without shared CPUs, now or before, there is nothing to compare.
        if ledger.more or name in self.double_holds:
            known, found = self.double_holds.get(info.name, ()), double_holds(info.ledger)
            for conflict in found:
                if conflict not in known:
                    self._report_double_hold(info.name, conflict)
            if found:
                self.double_holds[info.name] = found
            else:
                del self.double_holds[info.name]

    def _check_overcommit(self, info: NodeInfo) -> None:
        """Report requests that exceed the node's resources because another scheduler placed pods concurrently."""
        over = _beyond(info)
        if not over:
            self.overcommitted.pop(info.name, None)
            return
        foreign = sum(pod.scheduler not in self._ours for pod in info.pods.values())
        # All pods foreign or none: a single scheduler that overcommits is not a race between two schedulers.
        if info.name in self.overcommitted or not foreign or foreign == len(info.pods):
            return  # reported already, or not caused by two schedulers
        parts = ", ".join(
            f"{name} {bare_amount(name, asked, up=True)} of {bare_amount(name, there)}" for name, asked, there in over
        )
        text = f"requests exceed allocatable: {parts}; {foreign} of {len(info.pods)} pods belong to other schedulers"
        self.overcommitted[info.name] = text
        log.warning("node %s: %s", info.name, text)
        if self._handle.dependencies.lease.fresh():
            self._handle.dependencies.recorder.node_event(info.name, warning=True, reason=OVERCOMMITTED, message=text)

    def pod_observed(self, event: str | None, pod: Pod) -> None:
        """Check a pod with a node. Call it before the cache processes this version of the pod."""
        handle, uid = self._handle, pod.key.uid
        if event == DELETED or pod.finished or pod.scheduler not in self._ours:
            return
        if not self._leads_for_long():
            return
        # Unknown: the pod newly appears on its node, and an own bind would be in ``placed``.
        known = handle.cache.pod(uid)
        if known is None:
            if uid not in handle.placed:
                self._report(FOREIGN_BIND, pod.key, f"bound to {pod.node} by another writer than this scheduler")
            return
        info = handle.cache.nodes[handle.cache.node_of[uid]]
        # Assumed pods and pods on locked nodes are changed by this scheduler.
        if uid in handle.cache.assumed or info.locked or known.assignment == pod.assignment:
            return
        before, after = (str(it.assignment.cpus) if it.assignment else "" for it in (known, pod))
        if before != after:
            text = f"resource-status was changed by another writer: CPUs {before or 'none'} → {after or 'none'}"
            self._report(FOREIGN_STATUS, pod.key, text)

    def warnings(self) -> list[str]:
        """Return a sentence for each current double hold and overcommitted node, and the last foreign write of the last minutes."""
        found = [f"node {name}: {conflict}" for name, each in sorted(self.double_holds.items()) for conflict in each]
        found += [f"node {name}: {text}" for name, text in sorted(self.overcommitted.items())]
        if self._last is not None and self._handle.dependencies.clock() - self._last[0] < RECENT:
            found.append(self._last[1])
        return found

    def _leads_for_long(self) -> bool:
        since = self._leading_since
        clock = self._handle.dependencies.clock
        # Longer than the lease duration: a write of the former leader has arrived or failed by then.
        return since is not None and clock() - since > self._handle.settings.lease.duration

    def _report_double_hold(self, node: str, conflict: DoubleHold) -> None:
        log.error("node %s: %s", node, conflict)
        if not self._handle.dependencies.lease.fresh():
            return
        recorder = self._handle.dependencies.recorder
        recorder.node_event(node, warning=True, reason=HELD_TWICE, message=str(conflict))
        for pod in (conflict.older, conflict.younger):
            recorder.event(pod, warning=True, reason=HELD_TWICE, message=str(conflict))

    def _report(self, kind: str, pod: PodKey, text: str) -> None:
        self.foreign[kind] += 1
        self._last = (self._handle.dependencies.clock(), f"pod {pod}: {text}")
        log.warning("pod %s: %s", pod, text)
        if self._handle.dependencies.lease.fresh():
            self._handle.dependencies.recorder.event(pod, warning=True, reason=kind, message=text)


def _beyond(info: NodeInfo) -> list[tuple[str, int, int]]:
    """Return the resources with requests above the allocatable amount: name, requested, allocatable."""
    if info.node is None:
        return []
    held, there = info.counted.amounts, info.node.allocatable
    return [(name, held.get(name, 0), there.get(name, 0)) for name in GUARDED if held.get(name, 0) > there.get(name, 0)]


REMEMBERED_REJECTIONS: Final = 20_000
"""Maximum number of remembered rejected pods. They stay in the API for a long time; each is counted once."""


class AssumedPods:
    """Follow-up of the binds of one engine. ``observe_bound`` processes pods that were read from the server."""

    def __init__(
        self, handle: Handle, table: NodeTable, node_backoff: NodeBackoff, observe_bound: Callable[[Pod], None]
    ) -> None:
        self._handle = handle
        self._table = table
        self._node_backoff = node_backoff
        self._observe_bound = observe_bound
        self._rejected: LRUCache[str, bool] = LRUCache(maxsize=REMEMBERED_REJECTIONS)
        self._distrusted: dict[str, str] = {}
        self._device_conflicts: dict[str, str] = {}  # by node, the message that was reported

    def note_rejection(self, pod: Pod, *, counts: bool) -> None:
        """
        Process the rejection of an own pod by a kubelet: the node backs off for such pods.

        Rejections found at startup are old and do not count (``counts`` is false).
        """
        handle, uid = self._handle, pod.key.uid
        # A pod of an earlier process has no class: it is derived from the pod without its node.
        request_class = handle.placed.get(uid) or handle.classes.of(_as_it_waited(pod))
        if request_class is None or uid in self._rejected:
            return
        # Before the count: rejections found at startup must not count later either.
        self._rejected[uid] = True
        if not counts:
            return
        handle.metrics.refusals[pod.reason] += 1
        self._node_backoff.refused(pod.node, request_class, pod.reason, handle.dependencies.clock())
        self._changed(pod.node)
        why = f"the kubelet answered {pod.reason} to {pod.key}; such pods avoid this node for a while"
        handle.dependencies.recorder.node_event(pod.node, warning=True, reason="KubeletRefusal", message=why)

    def say_cpu_conflict(self, record: NodeInfo) -> None:
        """Report CPUs of a node with two owners or of unknown pods, once per message. Called for every change of a node."""
        has_kubelet_pods = record.topology is not None and bool(record.topology.kubelet_pods)
        if record.name not in self._distrusted and not has_kubelet_pods and not record.unknown_cpus:
            return
        why = record.distrust
        # Reported when the message changes, not with every event of the node.
        if self._distrusted.get(record.name, "") == why:
            return
        if why:
            self._distrusted[record.name] = why
            self._handle.dependencies.recorder.node_event(
                record.name,
                warning=True,
                reason="CPUsUnknown" if why == record.unknown_cpus else "TwoCPUOwners",
                message=why,
            )
        else:
            del self._distrusted[record.name]

    def say_device_conflict(self, record: NodeInfo) -> None:
        """Report devices by id that are not known or held twice, once per message. Called for every change of a node."""
        offer = record.devices
        if offer is None and record.name not in self._device_conflicts:
            return
        conflict = "" if offer is None else offer.conflict(record.ledger)
        why = ("" if offer is None else offer.problem) or conflict
        if self._device_conflicts.get(record.name, "") == why:
            return
        if not why:
            del self._device_conflicts[record.name]
            return
        self._device_conflicts[record.name] = why
        self._handle.dependencies.recorder.node_event(
            record.name,
            warning=True,
            reason="DeviceConflict" if why == conflict else "DevicesUnknown",
            message=why,
        )

    def end_node_backoffs(self) -> list[str]:
        """End the expired back-offs and return the names of their nodes."""
        now = self._handle.dependencies.clock()
        nodes = self._node_backoff.ended(now)
        for name in nodes:
            # The rows of these nodes are outdated although the nodes have not changed.
            self._changed(name)
        if nodes:
            self._handle.queue.wake(ClusterEvent.BACKOFF_ENDED, now)
        return nodes

    async def read_back_overdue(self) -> None:
        """Read the pods whose bind was confirmed long ago and that no event has shown since."""
        before = self._handle.dependencies.clock() - self._handle.settings.settle_seconds
        # Concurrently: with slow responses, sequential reads would take minutes.
        reads = Semaphore(self._handle.settings.bind_concurrency)
        await gather(*(self._read_back_contained(each, reads) for each in self._handle.cache.overdue(before)))

    async def _read_back_contained(self, assumption: AssumedPod, reads: Semaphore) -> None:
        # Contained: a pod that cannot be read must not affect the others.
        with self._handle.quarantine.contained(subject_of(assumption.pod)):
            async with reads:
                await self._read_back(assumption)

    async def _read_back(self, assumption: AssumedPod) -> None:
        """Read one pod. If it was deleted before any event showed it, no later event would report that."""
        state, uid = self._handle.cache, assumption.pod.key.uid
        try:
            seen = await self._handle.dependencies.binder.read_pod(assumption.pod.key)
        except Gone:
            # Only for the same assumption: the pod may have been placed again during the read.
            if state.assumed.get(uid) is assumption:
                state.release(uid)
            return
        except ClusterError as error:
            log.info("pod %s cannot be read back now: %s", assumption.pod.key, error)
            return
        if state.assumed.get(uid) is assumption:
            self._observe_bound(seen)

    def _changed(self, node: str) -> None:
        record = self._handle.cache.nodes.get(node)
        if record is not None:
            self._table.changed(record)


def _as_it_waited(pod: Pod) -> Pod:
    """Return the pod without its node, so that it has the class of its siblings as far as possible."""
    constraints = replace(pod.request.constraints, node_name="")
    return replace(pod, request=replace(pod.request, constraints=constraints))
