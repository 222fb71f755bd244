"""
Detection of conflicting writers: CPUs held twice, and binds and resource-status that this scheduler did not write.

Conflicts are reported on nodes and pods, as metrics and in the log. Nothing is repaired here.

A bind by this process is in ``handle.placed``. After leading for longer than the lease duration no earlier leader can write, so every other
own pod that newly appears on a node was bound by another writer. A resource-status that changes while the node is not locked by a rebind
was also written by another. A standby reports nothing, because it observes the leader's writes.
"""

from collections import Counter
from logging import getLogger
from typing import Final

from koord_numa.core.explain import bare_amount
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.from_ledger import DoubleHold, double_holds
from koord_numa.core.resources import CPU, MEMORY, NOTHING
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.handle import Handle
from koord_numa.ports import DELETED

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
            self._compare_holdings(info)

    def _compare_holdings(self, info: NodeInfo) -> None:
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
