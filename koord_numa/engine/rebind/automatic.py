"""Automatic rebinds: RebindResources by policy, repair of double holds, and deletion of finished RebindResources."""

import asyncio
from collections import deque
from datetime import UTC, datetime
from logging import getLogger
from typing import Final

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.rebind.from_ledger import Defaults, DoubleHold, replacement_cpus
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, RebindRequest, Threshold, improvement, ledger_after, plan_rebind
from koord_numa.core.scheduling.filters import evaluate
from koord_numa.core.scheduling.request import scheduling_request
from koord_numa.core.state.inventory import Inventory
from koord_numa.engine.binding.assumed_pods import HELD_TWICE
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import Subject
from koord_numa.engine.ranking import profile_of
from koord_numa.engine.rebind.context import RebindPorts, layout_of_node, rebind_subject
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError, Conflict, Gone
from koord_numa.settings import BackoffSettings, RebindMode, RebindPolicySettings, RepairDoubleHolds

log = getLogger(__name__)

LOOK_SECONDS: Final = 1.0
DELETION_RETRY: Final = BackoffSettings(initial=1.0, max=300.0)


class FinishedRebinds:
    """Deletion of finished RebindResources whose TTL has expired. ``run`` checks once a second."""

    def __init__(self, scheduler: Scheduler, controller: RebindController, ports: RebindPorts) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._ports = ports
        self._failures: dict[str, tuple[int, float]] = {}  # uid -> consecutive failures, time of the next attempt

    async def run(self) -> None:
        """Delete expired RebindResources until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Delete every RebindResource whose TTL has expired."""
        known = self._controller.known()
        # Failures of deleted objects are dropped.
        self._failures = {uid: state for uid, state in self._failures.items() if uid in {each.uid for each in known}}
        for request in known:
            with self._scheduler.handle.quarantine.contained(rebind_subject(request)):
                if (
                    request.is_answered
                    and not request.deleting
                    and request.ttl is not None
                    and bool(request.updated)
                    and self._ports.wall() >= request.updated + request.ttl
                ) and self._may_try(request):
                    await self._delete(request)

    def _may_try(self, request: RebindRequest) -> bool:
        _, due = self._failures.get(request.uid, (0, 0.0))
        dependencies = self._scheduler.dependencies
        return dependencies.lease.fresh() and dependencies.clock() >= due

    async def _delete(self, request: RebindRequest) -> None:
        try:
            await self._ports.writer.delete_rebind(request)
        except (Gone, Conflict):
            return  # deleted or replaced meanwhile: the watch will report it
        except ClusterError as error:
            failures = self._failures.get(request.uid, (0, 0.0))[0] + 1
            dependencies = self._scheduler.dependencies
            due = dependencies.clock() + DELETION_RETRY.pause(failures, dependencies.random())
            self._failures[request.uid] = (failures, due)
            log.warning("RebindResource %s cannot be deleted now: %s", request.name, error)


REPAIR_RETRY: Final = BackoffSettings(initial=2.0, max=60.0)
LOCKED: Final = "a double hold is being repaired"


class DoubleHoldRepair:
    """Repair of the double holds that ``ConflictingWriters`` has detected, as configured."""

    def __init__(self, scheduler: Scheduler, ports: RebindPorts) -> None:
        self.repaired = 0
        self._scheduler = scheduler
        self._ports = ports
        self._failures: dict[DoubleHold, tuple[int, float]] = {}  # attempts so far, time of the next attempt

    async def run(self) -> None:
        """Check once a second until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Try to repair every double hold that is due."""
        scheduler = self._scheduler
        conflicts = {each: node for node, found in scheduler.writers.double_holds.items() for each in found}
        # Double holds that have ended are dropped.
        self._failures = {each: state for each, state in self._failures.items() if each in conflicts}
        how = scheduler.settings.repair_double_holds
        if how is RepairDoubleHolds.OFF or not scheduler.ready:
            return
        for conflict, node in conflicts.items():
            tries, due = self._failures.get(conflict, (0, 0.0))
            if scheduler.dependencies.clock() < due or not scheduler.dependencies.lease.fresh():
                continue
            pause = REPAIR_RETRY.pause(tries + 1, scheduler.dependencies.random())
            # Back off from the first attempt on, even if this attempt raises an exception.
            self._failures[conflict] = (tries + 1, scheduler.dependencies.clock() + pause)
            pod = self._chosen(conflict)
            if pod is None or pod.uid not in scheduler.cache.node_of:
                continue
            try:
                with scheduler.handle.quarantine.contained(Subject("node", node, node)):
                    await (
                        self._evict(pod, conflict)
                        if how is RepairDoubleHolds.EVICT
                        else self._move(pod, node, conflict)
                    )
            except ClusterError as error:
                log.warning("the double hold of %s on node %s cannot be repaired now: %s", pod, node, error)

    def _chosen(self, conflict: DoubleHold) -> PodKey | None:
        """Return the younger pod, or the older pod if another scheduler owns the younger. Pods of other schedulers are not changed."""
        ours = self._scheduler.settings.scheduler_names
        # The younger pod first; if another scheduler owns it, the older pod may be moved.
        for key in (conflict.younger, conflict.older):
            pod = self._scheduler.cache.pod(key.uid)
            if pod is not None and pod.scheduler in ours and not pod.deleting:
                return key
        return None

    async def _evict(self, pod: PodKey, conflict: DoubleHold) -> None:
        await self._scheduler.dependencies.binder.evict(pod, str(conflict))
        self._done(pod, f"evicted, because {conflict}")

    async def _move(self, pod: PodKey, node: str, conflict: DoubleHold) -> None:
        """Move the pod to other CPUs. Raises every ``ClusterError`` of the writer; the next check retries from the current state."""
        cache = self._scheduler.cache
        info = cache.nodes[node]
        if info.locked:
            return  # a rebind holds the node; retried after it
        self._scheduler.lock_node(node, LOCKED)
        try:
            # Read from the server: its CPUs are changed only if they are the CPUs of the double hold.
            revision = await self._ports.writer.read_pod(pod)
            self._count(revision.pod)
            held = info.ledger.holdings.get(pod.uid)
            if held is None or not held.cpus & info.ledger.shared or not isinstance(info.inventory, Inventory):
                return
            cpus = replacement_cpus(info.inventory, info.booked, pod.uid, self._defaults())
            if cpus is None:
                self._tell(pod, f"{conflict}; there are not enough other CPUs on node {node}", warning=True)
                return
            await self._ports.writer.patch_cpus(revision, cpus)
            # Counted from a read, so that no decision uses the CPUs before the watch shows them.
            self._count((await self._ports.writer.read_pod(pod)).pod)
            self._done(pod, f"CPUs {held.cpus} → {cpus}, because {conflict}")
        finally:
            self._unlock(node)

    def _unlock(self, node: str) -> None:
        """Unlock the node, unless a rebind has locked it meanwhile."""
        info = self._scheduler.cache.nodes.get(node)
        if info is not None and info.locked == LOCKED:
            self._scheduler.unlock_node(node)

    def _count(self, seen: Pod) -> None:
        """Count the pod as read, unless the watch has reported its deletion meanwhile: no later event would remove it."""
        if seen.key.uid in self._scheduler.cache.node_of:
            self._scheduler.cache.observe_pod(None, seen)

    def _defaults(self) -> Defaults:
        profile = self._scheduler.settings.profiles[0]
        return Defaults(profile.default_cpu_bind_policy, profile.single_numa_node_exclusive)

    def _done(self, pod: PodKey, text: str) -> None:
        self.repaired += 1
        log.info("pod %s: %s", pod, text)
        self._tell(pod, text, warning=False)

    def _tell(self, pod: PodKey, text: str, *, warning: bool) -> None:
        self._scheduler.dependencies.recorder.event(pod, warning=warning, reason=HELD_TWICE, message=text)


HOUR: Final = 3600.0

NODES_A_ROUND: Final = 20
"""Maximum number of nodes to plan for per interval. A plan takes up to a second of CPU time."""

CLASSES: Final = 10
"""Maximum number of request classes of waiting pods that are evaluated on a plan."""


class AutomaticRebinds:
    """Creation of RebindResources by policy. ``run`` checks once per interval; ``look`` is one check."""

    def __init__(self, scheduler: Scheduler, controller: RebindController, ports: RebindPorts) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._ports = ports
        self._created: deque[float] = deque()  # times of the last hour, by the monotonic clock
        self._seen: dict[str, int] = {}  # node -> revision of its ledger at the last check
        self._last = ""  # the node that was checked last

    @property
    def policy(self) -> RebindPolicySettings:
        """The configured policy."""
        return self._scheduler.settings.rebind_policy

    async def run(self) -> None:
        """Check periodically until cancelled. Return at once when the policy is off."""
        while self.policy.mode is not RebindMode.OFF:
            await self._scheduler.dependencies.sleep(self.policy.interval_seconds)
            try:
                await self.look()
            except ClusterError as error:
                # The next interval retries: an unavailable server must not end the task.
                log.warning("no RebindResource could be created: %s", error)

    async def look(self) -> str:
        """Create at most one RebindResource and return the name of its node, or an empty string. Raises ``ClusterError``."""
        if not self._may_begin():
            return ""
        for name in self._in_turn()[:NODES_A_ROUND]:
            why, self._last = "", name
            with self._scheduler.handle.quarantine.contained(Subject("node", name, name)):
                why = await self._worth_while(name)
            # Planning took time: the conditions may not hold any more.
            if why and self._may_begin():
                await self._ports.writer.create_rebind(name, why, dry_run=self.policy.mode is RebindMode.PROPOSE)
                self._created.append(self._scheduler.dependencies.clock())
                self._scheduler.metrics.rebinds.automatic[self.policy.mode.value] += 1
                log.info("RebindResource for node %s: %s", name, why)
                return name
        return ""

    def _may_begin(self) -> bool:
        scheduler = self._scheduler
        while self._created and self._created[0] <= scheduler.dependencies.clock() - HOUR:
            self._created.popleft()
        return (
            scheduler.ready
            and scheduler.dependencies.lease.fresh()
            and len(self._created) < self.policy.max_per_hour
            and not self.policy.is_quiet(datetime.fromtimestamp(self._ports.wall(), UTC).time())
            # At most one rebind at a time, manual ones included.
            and all(rebind.is_answered for rebind in self._controller.known())
        )

    def _in_turn(self) -> list[str]:
        names = sorted(self._scheduler.cache.nodes)
        # Continues after the last node, so that every node is checked regardless of its name.
        return [name for name in names if name > self._last] + [name for name in names if name <= self._last]

    async def _worth_while(self, name: str) -> str:
        """Return why the node should be rebound; empty if it should not. An unchanged node is planned once."""
        info = self._scheduler.cache.nodes.get(name)
        # A pod that excludes rebinds keeps the whole node unchanged, because plans involve all pods.
        if info is None or any(pod.never_rebound for pod in info.pods.values()):
            return ""
        # Unchanged and no pod waits: the plan would be the same.
        if self._seen.get(name) == info.booked.revision and not self._scheduler.waiting():
            return ""
        self._seen[name] = info.booked.revision
        layout = layout_of_node(self._scheduler.cache, name, self._scheduler.settings)
        if isinstance(layout, str):
            return ""
        plan = await asyncio.to_thread(plan_rebind, layout)
        if not plan:
            return ""
        least = Threshold(self.policy.min_crossings, self.policy.min_block)
        return self._fitting(info, layout, plan) or improvement(plan, least)

    def _fitting(self, info: NodeInfo, layout: NodeLayout, plan: RebindPlan) -> str:
        """Return which waiting pod would fit after the plan and does not fit now."""
        seen = info.candidate()
        if seen is None:
            return ""
        after = seen.with_ledger(ledger_after(info.booked, layout, plan))
        tried = set()
        for pod in self._scheduler.waiting():
            profile = self._scheduler.settings.profile(pod.scheduler)
            # Pods with equal requests have the same result.
            if profile is None or pod.request.class_key in tried:
                continue
            tried.add(pod.request.class_key)
            rules = profile_of(profile)
            ask = scheduling_request(pod.request, rules)
            if isinstance(evaluate(ask, seen, rules), Rejection) and not isinstance(
                evaluate(ask, after, rules), Rejection
            ):
                return f"pod {pod.key} would fit"
            if len(tried) == CLASSES:
                break
        return ""
