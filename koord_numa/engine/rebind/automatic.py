"""Rebinds without a request: by policy, to end double holds, and deletion of finished RebindResources."""

import asyncio
from collections import deque
from datetime import UTC, datetime
from logging import getLogger
from typing import Final

from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.rebind.from_ledger import Defaults, DoubleHold, replacement_cpus
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, Threshold, improvement, ledger_after, plan_rebind
from koord_numa.core.scheduling.evaluate import evaluate
from koord_numa.core.scheduling.request import scheduling_request
from koord_numa.core.state.inventory import Inventory
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.conflicting_writers import HELD_TWICE
from koord_numa.engine.containment import Subject
from koord_numa.engine.ranking.selector import profile_of
from koord_numa.engine.rebind.context import RebindPorts, layout_of_node, rebind_subject
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError, Conflict, Gone
from koord_numa.settings import BackoffSettings, RebindMode, RebindPolicySettings, RepairDoubleHolds

log = getLogger(__name__)

LOOK_SECONDS: Final = 1.0
DELETION_RETRY: Final = BackoffSettings(initial=1.0, max=300.0)


class FinishedRebinds:
    """``run`` looks once a second."""

    def __init__(self, scheduler: Scheduler, controller: RebindController, ports: RebindPorts) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._ports = ports
        self._failures: dict[str, tuple[int, float]] = {}  # uid -> failures in a row, when the next try is due

    async def run(self) -> None:
        """Delete what is due until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Delete every RebindResource whose time is over."""
        known = self._controller.known()
        # Failures of objects that are gone go with them.
        self._failures = {uid: state for uid, state in self._failures.items() if uid in {each.uid for each in known}}
        for request in known:
            with self._scheduler.handle.quarantine.contained(rebind_subject(request)):
                if _is_due(request, self._ports.wall()) and self._may_try(request):
                    await self._delete(request)

    def _may_try(self, request: RebindRequest) -> bool:
        _, due = self._failures.get(request.uid, (0, 0.0))
        dependencies = self._scheduler.dependencies
        return dependencies.lease.fresh() and dependencies.clock() >= due

    async def _delete(self, request: RebindRequest) -> None:
        try:
            await self._ports.writer.delete_rebind(request)
        except (Gone, Conflict):
            return  # another object by now, or none: the watch will tell
        except ClusterError as error:
            failures = self._failures.get(request.uid, (0, 0.0))[0] + 1
            dependencies = self._scheduler.dependencies
            due = dependencies.clock() + DELETION_RETRY.pause(failures, dependencies.random())
            self._failures[request.uid] = (failures, due)
            log.warning("RebindResource %s cannot be deleted now: %s", request.name, error)


def _is_due(request: RebindRequest, now: float) -> bool:
    return (
        request.is_answered
        and not request.deleting
        and request.ttl is not None
        and bool(request.updated)
        and now >= request.updated + request.ttl
    )


REPAIR_RETRY: Final = BackoffSettings(initial=2.0, max=60.0)
LOCKED: Final = "a double hold is being repaired"


class DoubleHoldRepair:
    """``run`` works on what ``ConflictingWriters`` has noticed, as configured."""

    def __init__(self, scheduler: Scheduler, ports: RebindPorts) -> None:
        self.repaired = 0
        self._scheduler = scheduler
        self._ports = ports
        self._failures: dict[DoubleHold, tuple[int, float]] = {}  # tries so far, and when the next is due

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Try to end every double hold that is due."""
        scheduler = self._scheduler
        conflicts = {each: node for node, found in scheduler.writers.double_holds.items() for each in found}
        # What has ended, by us or otherwise, is not counted any more.
        self._failures = {each: state for each, state in self._failures.items() if each in conflicts}
        how = scheduler.settings.repair_double_holds
        if how is RepairDoubleHolds.OFF or not scheduler.ready:
            return
        for conflict, node in conflicts.items():
            tries, due = self._failures.get(conflict, (0, 0.0))
            if scheduler.dependencies.clock() < due or not scheduler.dependencies.lease.fresh():
                continue
            pause = REPAIR_RETRY.pause(tries + 1, scheduler.dependencies.random())
            # The next try is due later from the first one on, also when this one raises.
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
        """The younger pod of ours: other schedulers' pods are left alone."""
        ours = self._scheduler.settings.scheduler_names
        # The younger first; if it is not ours, the older one may be moved.
        for key in (conflict.younger, conflict.older):
            pod = self._scheduler.cache.pod(key.uid)
            if pod is not None and pod.scheduler in ours and not pod.deleting:
                return key
        return None

    async def _evict(self, pod: PodKey, conflict: DoubleHold) -> None:
        await self._scheduler.dependencies.binder.evict(pod, str(conflict))
        self._done(pod, f"evicted, because {conflict}")

    async def _move(self, pod: PodKey, node: str, conflict: DoubleHold) -> None:
        """Raises every ``ClusterError`` of the writer; the next look tries again from what is true then."""
        cache = self._scheduler.cache
        info = cache.nodes[node]
        if info.locked:
            return  # a rebind works here; the next look comes after it
        self._scheduler.lock_node(node, LOCKED)
        try:
            # Read from the server: the CPUs that it has are changed only if they are those of the double hold.
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
            # Counted from the answer, so that no decision takes the CPUs before the watch shows them.
            self._count((await self._ports.writer.read_pod(pod)).pod)
            self._done(pod, f"CPUs {held.cpus} → {cpus}, because {conflict}")
        finally:
            self._unlock(node)

    def _unlock(self, node: str) -> None:
        """Unless a rebind has begun meanwhile, and locked the node for itself."""
        info = self._scheduler.cache.nodes.get(node)
        if info is not None and info.locked == LOCKED:
            self._scheduler.unlock_node(node)

    def _count(self, seen: Pod) -> None:
        """As it was read, unless the watch has told meanwhile that it is gone: nothing would ever tell again."""
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
"""So many nodes are planned for at most before the next interval: a plan is up to a second of arithmetic."""

CLASSES: Final = 10
"""So many kinds of waiting pods are tried on a plan."""


class AutomaticRebinds:
    """``run`` looks once an interval; ``look`` is one round of it."""

    def __init__(self, scheduler: Scheduler, controller: RebindController, ports: RebindPorts) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._ports = ports
        self._created: deque[float] = deque()  # times of the last hour, by the monotonic clock
        self._seen: dict[str, int] = {}  # node -> the revision of its ledger that was looked at
        self._last = ""  # the node that was looked at last

    @property
    def policy(self) -> RebindPolicySettings:
        """What is configured."""
        return self._scheduler.settings.rebind_policy

    async def run(self) -> None:
        """Look again and again, for as long as the process lives; returns at once when the policy is off."""
        while self.policy.mode is not RebindMode.OFF:
            await self._scheduler.dependencies.sleep(self.policy.interval_seconds)
            try:
                await self.look()
            except ClusterError as error:
                # The next interval tries again; a server that is away must not end the task.
                log.warning("no RebindResource could be created: %s", error)

    async def look(self) -> str:
        """Create at most one RebindResource; returns the name of its node, or nothing. Raises ``ClusterError``."""
        if not self._may_begin():
            return ""
        for name in self._in_turn()[:NODES_A_ROUND]:
            why, self._last = "", name
            with self._scheduler.handle.quarantine.contained(Subject("node", name, name)):
                why = await self._worth_while(name)
            # Planning took a while: what allowed it before may be over.
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
            # One rebind at a time, whatever it was asked by.
            and all(rebind.is_answered for rebind in self._controller.known())
        )

    def _in_turn(self) -> list[str]:
        names = sorted(self._scheduler.cache.nodes)
        # Goes on after the last node, so that every node has its turn whatever the names.
        return [name for name in names if name > self._last] + [name for name in names if name <= self._last]

    async def _worth_while(self, name: str) -> str:
        """Why the node should be rebound; empty when it should not. The same state of a node is looked at once."""
        info = self._scheduler.cache.nodes.get(name)
        # A pod that asks never to be rebound keeps the whole node as it is: plans rest on all pods.
        if info is None or any(pod.never_rebound for pod in info.pods.values()):
            return ""
        # Nothing has changed and no pod waits: the same plan would come out.
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
        """Which waiting pod would fit at the end of the plan and does not now."""
        seen = info.candidate()
        if seen is None:
            return ""
        after = seen.with_ledger(ledger_after(info.booked, layout, plan))
        tried = set()
        for pod in self._scheduler.waiting():
            profile = self._scheduler.settings.profile(pod.scheduler)
            # Pods that ask for the same would get the same answer.
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
