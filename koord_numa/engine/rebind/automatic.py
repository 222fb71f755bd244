"""
Rebinds without being asked (``rebindPolicy``): looks at one node after the other and creates a RebindResource where one is worth while.

    interval ──▶ leader, nothing under way, not in quiet hours, rate not used up ──▶ next node in the order of names ──▶ plan
             ──▶ a waiting pod would fit, or the node improves by the threshold ──▶ RebindResource (a dry run in mode Propose)

It moves nothing itself: what it creates is carried out, shown and limited like any other RebindResource.
"""

import asyncio
from collections import deque
from datetime import UTC, datetime
from logging import getLogger
from typing import Final

from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, Threshold, improvement, ledger_after, plan_rebind
from koord_numa.core.scheduling.evaluate import evaluate
from koord_numa.core.scheduling.request import scheduling_request
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import Subject
from koord_numa.engine.ranking.profiles import profile_of
from koord_numa.engine.rebind.context import RebindPorts
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.rebind.snapshot import layout_of_node
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError
from koord_numa.settings import RebindMode, RebindPolicySettings

log = getLogger(__name__)

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
