"""
Notices what other writers do to pods and CPUs that this scheduler decides on: CPUs held twice, binds and resource-status not written here.

It says so, on the node, on the pods, as metrics and in the log, and repairs nothing.

Theory. A bind that this process made is in ``handle.placed``. Once it has led for longer than a lease lasts, no earlier leader can
write any more, so every pod of ours that newly appears on a node without being there was bound by another writer: a second
scheduler, or a person. A resource-status that changes outside of a rebind, whose node is locked, was written by another too.
A standby reports nothing of the kind: what it sees is the leader's work.
"""

from collections import Counter
from logging import getLogger
from typing import Final

from koord_numa.core.rebind.double_hold import DoubleHold, double_holds
from koord_numa.core.request import Pod, PodKey
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.handle import Handle
from koord_numa.ports import DELETED

log = getLogger(__name__)

HELD_TWICE: Final = "CPUsHeldTwice"
FOREIGN_BIND: Final = "BoundByAnotherWriter"
FOREIGN_STATUS: Final = "ResourceStatusChanged"

RECENT: Final = 300.0
"""Seconds for which ``warnings`` repeats the last foreign write."""


class ConflictingWriters:
    """One per scheduler. ``double_holds`` are those that exist, by node; ``foreign`` counts writes by kind."""

    def __init__(self, handle: Handle) -> None:
        self.double_holds: dict[str, tuple[DoubleHold, ...]] = {}
        self.foreign: Counter[str] = Counter({FOREIGN_BIND: 0, FOREIGN_STATUS: 0})
        self._handle = handle
        self._leading_since: float | None = None
        self._last: tuple[float, str] | None = None

    def tick(self) -> None:
        """Once a second: how long has this process been leading?"""
        if not self._handle.dependencies.lease.fresh():
            self._leading_since = None
        elif self._leading_since is None:
            self._leading_since = self._handle.dependencies.clock()

    def node_changed(self, info: NodeInfo) -> None:
        """Compare what pods hold on the node. Costs nothing while no CPU has two holders."""
        known = self.double_holds.get(info.name, ())
        if not (info.ledger.shared or known):
            return
        found = double_holds(info.ledger)
        for conflict in found:
            if conflict not in known:
                self._report_double_hold(info.name, conflict)
        if found:
            self.double_holds[info.name] = found
        else:
            del self.double_holds[info.name]

    def pod_observed(self, event: str | None, pod: Pod) -> None:
        """A pod with a node, before the cache counts it as it is now."""
        handle, uid = self._handle, pod.key.uid
        if event == DELETED or pod.finished or pod.scheduler not in handle.settings.scheduler_names:
            return
        if not self._leads_for_long():
            return
        known = handle.cache.pod(uid)
        if known is None:
            if uid not in handle.placed:
                self._report(FOREIGN_BIND, pod.key, f"bound to {pod.node} by another writer than this scheduler")
            return
        info = handle.cache.nodes[handle.cache.node_of[uid]]
        if uid in handle.cache.assumed or info.locked or known.assignment == pod.assignment:
            return
        before, after = (str(it.assignment.cpus) if it.assignment else "" for it in (known, pod))
        if before != after:
            text = f"resource-status was changed by another writer: CPUs {before or 'none'} → {after or 'none'}"
            self._report(FOREIGN_STATUS, pod.key, text)

    def warnings(self) -> list[str]:
        """What people should look at, a sentence each: CPUs held twice now, and the last foreign write of the last minutes."""
        found = [f"node {name}: {conflict}" for name, each in sorted(self.double_holds.items()) for conflict in each]
        if self._last is not None and self._handle.dependencies.clock() - self._last[0] < RECENT:
            found.append(self._last[1])
        return found

    def _leads_for_long(self) -> bool:
        since = self._leading_since
        clock = self._handle.dependencies.clock
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
