"""
Preemption for groups of pods: plan on the whole cluster, nominate every member, then evict.

A group is evaluated after its cycle was refused, never in the cycle that binds. The plan runs in the background on copies of the nodes and
is confirmed in the current state before every eviction. The nominated nodes keep the room until all awaited pods have left; then the group
is tried first.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from math import inf
from typing import Final

from koord_numa.core.objects.claims import Allocation
from koord_numa.core.objects.gangs import GangKey, TopologyLevel
from koord_numa.core.preempt.dry_run import PreemptionNode
from koord_numa.core.preempt.groups import GroupCandidate, GroupEvictions, Preemptor
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.resources import CPU, PODS, ResourceList, add
from koord_numa.core.scheduling.gangs import Domain, Group
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import AssumedClaim
from koord_numa.engine.gangs.group_report import HOSTNAME
from koord_numa.engine.gangs.trial import ClusterTrial, member_of
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.preemption.evaluator import CHUNK, Evaluator, Evictor
from koord_numa.engine.queue import Nomination, PendingPod, RequestClass
from koord_numa.ports import ClusterError, Forbidden

log = getLogger(__name__)

Keys = tuple[GangKey, ...]

PLANS: Final = 3
"""Maximum number of plans for a group if the chosen nodes change meanwhile; then the group pauses."""
NEVER: Final = "preemption: not eligible due to preemptionPolicy=Never."
PROTECTED: Final = "preemption: every choice of victims would violate a PodDisruptionBudget."
SHOWN: Final = 3
"""Maximum number of victims named in the message of the waiting pods."""


class GroupPlan(ValueObject):
    """Candidate of a group with the nominations of its members."""

    keys: Keys
    candidate: GroupCandidate
    nominations: tuple[Nomination, ...]

    @property
    def name(self) -> str:
        """Names of the gangs."""
        return ", ".join(map(str, self.keys))

    @property
    def message(self) -> str:
        """``preemption: 2 node(s) are being freed for 4 pods of the group, 3 pod(s) are evicted: default/a, ...``."""
        nodes = {placement.node for placement in self.candidate.placements.values()}
        names = sorted(str(victim.key) for victim in self.candidate.victims)
        others = set().union(*self.candidate.awaited.values()) - {victim.key.uid for victim in self.candidate.victims}
        text = f"preemption: {len(nodes)} node(s) are being freed for {len(self.nominations)} pods of the group"
        if names:
            text += (
                f", {len(names)} pod(s) are evicted: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
            )
        if others:
            text += f", {len(others)} pod(s) are leaving anyway"
        return f"{text}."


@dataclass(slots=True)
class GroupPreemption:
    """
    Groups to evaluate. ``_due`` has the nodes on which members could be placed by the last decision, by group.

    ``_hopeless`` are groups that no eviction helped; they are evaluated again when nodes change. ``_paused`` has the times at which
    groups are evaluated again.
    """

    handle: Handle
    evaluator: Evaluator
    evictor: Evictor
    wake: Callable[[], None]
    requeue: Callable[[Iterable[Nomination]], None]
    _due: dict[Keys, frozenset[str]] = field(default_factory=dict)
    _hopeless: dict[Keys, frozenset[str]] = field(default_factory=dict)
    _paused: dict[Keys, float] = field(default_factory=dict)
    _changed: bool = False

    def __bool__(self) -> bool:
        return bool(self._due)

    def consider(self, keys: Keys, beside: Iterable[str] = ()) -> None:
        """Queue a refused group. ``beside`` are the nodes on which members could be placed."""
        if self.handle.settings.preemption.enabled:
            self._due[keys] = frozenset(beside)
            self.wake()

    def consider_gang(self, key: GangKey) -> None:
        """Queue the group of this gang."""
        self.consider(self.handle.pod_groups.group(key)[0])

    def nodes_changed(self) -> None:
        """Record that evictions may help now."""
        self._changed = bool(self._hopeless)

    def look_again(self) -> None:
        """Queue groups whose pauses ended or whose members have gone and, when nodes have changed, groups that nothing helped before."""
        now, groups = self.handle.dependencies.clock(), self.handle.pod_groups
        for key in {it.pod.request.gang.key: None for it in self.handle.nominator if it.pod.request.gang is not None}:
            keys, is_incomplete = groups.group(key)
            if is_incomplete:
                self._due.setdefault(keys, frozenset())  # it keeps no room
        for keys in [keys for keys, until in self._paused.items() if until <= now]:
            del self._paused[keys]
            self._due.setdefault(keys, frozenset())
        if self._changed:
            self._changed = False
            for keys, beside in self._hopeless.items():
                self._due.setdefault(keys, beside)
            self._hopeless.clear()

    @property
    def priority(self) -> int:
        """Priority of the group that is served next."""
        return self._priority(self._first())

    async def serve_next(self) -> None:
        """Evaluate the group of the highest priority."""
        keys = self._first()
        beside = self._due.pop(keys)
        members = self._members(keys)
        if not members:
            return
        with self.handle.quarantine.contained(subject_of(members[0].pod)):
            await self._serve(keys, members, beside)

    async def _serve(self, keys: Keys, members: list[PendingPod], beside: frozenset[str]) -> None:
        handle = self.handle
        nominations = [it for member in members if (it := handle.nominator.of(member.uid)) is not None]
        is_complete = not handle.pod_groups.group(keys[0])[1]
        if is_complete and any(handle.queue.is_active(member.queue_class) for member in members):
            return  # the group is being retried
        if nominations:
            if is_complete and self._goes_on(nominations):
                return
            await self.take_back(nominations)
        if not is_complete:
            return
        if not self._may_preempt(keys, members):
            self._say(members, NEVER)
            return
        if keys in self._paused:
            return
        for _ in range(PLANS):
            candidate = await self._plan(keys, members, beside)
            if candidate is None or not self.evaluator.may_violate(members[0].pod, candidate.violations):
                self._nothing_helps(keys, members, beside, candidate)
                return
            plan = self._nominated(keys, candidate)
            if plan is not None and self.confirms(plan):
                await self._carry_out(plan)
                return
        self._pause(keys, handle.settings.backoff.initial)

    def _may_preempt(self, keys: Keys, members: Iterable[PendingPod]) -> bool:
        specs = map(self.handle.pod_groups.spec_of, keys)
        return all(it.pod.preempts for it in members) and all(spec is None or spec.preempts for spec in specs)

    async def foresee(self, keys: Keys, beside: Iterable[str] = ()) -> tuple[str, GroupPlan | None]:
        """
        Return the message for a refused group and its plan. Nothing is executed.

        ``beside`` are the nodes on which members could be placed.
        """
        members = self._members(keys)
        is_incomplete = bool(self.handle.pod_groups.group(keys[0])[1])
        if not members or is_incomplete or self.evaluator.budgets is None:
            return "", None
        if not self._may_preempt(keys, members):
            return NEVER, None
        candidate = await self._plan(keys, members, frozenset(beside))
        if candidate is None or not self.evaluator.may_violate(members[0].pod, candidate.violations):
            return "" if candidate is None else PROTECTED, None
        by_uid = {it.uid: it for it in members}
        plan = _plan_of(keys, candidate, [by_uid[uid] for uid in candidate.placements])
        return plan.message, plan

    def _goes_on(self, nominations: Sequence[Nomination]) -> bool:
        """Return whether it is still worth waiting for the nodes that are being freed."""
        nominator, patience = self.handle.nominator, self.handle.settings.preemption.topology_patience_seconds
        if any(nominator.is_due(it.pod.key.uid) for it in nominations):
            return True
        if any(it.cleared is None for it in nominations):
            # Until all have left; a node that is gone or cordoned ends the plan.
            return all(self._is_usable(it) for it in nominations)
        return any(nominator.may_still_fit(it, patience) for it in nominations)

    def _is_usable(self, nomination: Nomination) -> bool:
        info = self.handle.cache.nodes.get(nomination.node)
        candidate = None if info is None else info.candidate()
        return candidate is not None and not candidate.node.unschedulable

    def _members(self, keys: Keys) -> list[PendingPod]:
        pending = (it for key in keys for it in self.handle.pod_groups.gang(key).pending.values())
        waiting = [it for it in pending if not (it.binding or it.deciding or it.pod.problem)]
        return sorted(waiting, key=lambda it: (it.order, it.uid))

    def _first(self) -> Keys:
        return min(self._due, key=lambda keys: (-self._priority(keys), [str(key) for key in keys]))

    def _priority(self, keys: Keys) -> int:
        pending = (it for key in keys for it in self.handle.pod_groups.gang(key).pending.values())
        return max((it.pod.request.priority for it in pending), default=0)

    # Plan.

    async def _plan(self, keys: Keys, members: Sequence[PendingPod], beside: frozenset[str]) -> GroupCandidate | None:
        handle = self.handle
        levels = handle.pod_groups.levels(keys)[0]
        needed = self._needed(keys, members)
        scheduled = handle.pod_groups.nodes_of(keys)
        trial = ClusterTrial(handle, {it.uid: it.pod for it in needed}, scheduled)
        if trial.shared_claims:
            # Which devices will be shared is not known yet. On one node, all members can use them.
            levels = (*levels, TopologyLevel(HOSTNAME))
        keys_of_levels = [level.key for level in levels if level.required] or [level.key for level in levels]
        within = None
        if keys_of_levels:
            within = frozenset(node for domain in trial.domains(keys_of_levels) for node in domain.nodes)
        nodes = await self._nodes(members, needed, beside, within)
        if not nodes:
            return None
        plan = self._evictions(nodes, needed, trial.domains)
        counts: dict[GangKey, int] = {}
        classes = self._classes(needed)
        group_members = tuple(replace(member_of(it), kind=kind) for it, kind in zip(needed, classes, strict=True))
        for member in group_members:
            counts[member.gang] = counts.get(member.gang, 0) + 1
        steps = plan.find(Group(group_members, counts, levels))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: GroupCandidate | None = end.value
                return found
            await asyncio.sleep(0)

    def _needed(self, keys: Keys, members: Sequence[PendingPod]) -> list[PendingPod]:
        """Return as many members as their gangs lack; a single member of gangs that lack none."""
        missing = {key: self.handle.pod_groups.missing(key) for key in keys}
        if not any(missing.values()):
            return list(members[:1])
        found = []
        # The smallest of a gang need the fewest evictions; members that others follow come first.
        for member, pending in sorted(
            ((member_of(it), it) for it in members), key=lambda it: (-it[0].size[0], it[0].size)
        ):
            if missing.get(member.gang, 0) > 0:
                missing[member.gang] -= 1
                found.append(pending)
        return found

    async def _nodes(
        self,
        members: Sequence[PendingPod],
        needed: Sequence[PendingPod],
        beside: frozenset[str],
        within: frozenset[str] | None,
    ) -> dict[str, PreemptionNode]:
        """
        Return the candidate nodes: where members could be placed by the last decision, then those whose victims have the lowest priority,
        then those with the most free CPU.

        At most ``candidateNodes``, or two for each member.
        """
        handle = self.handle
        most = max(handle.settings.preemption.candidate_nodes, 2 * len(needed))
        wanted = [each.amounts for each in {it.request_class for it in needed}]
        priority = min(it.pod.request.priority for it in needed)
        found: list[tuple[bool, float, int, str]] = []
        for number, (name, info) in enumerate(list(handle.cache.nodes.items())):
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
            if info.node is None or (within is not None and name not in within):
                continue
            needed_priority = _needed_priority(info, wanted, priority)
            if name in beside or needed_priority is not None:
                order = -inf if needed_priority is None else needed_priority
                found.append((name not in beside, order, -info.free.get(CPU, 0), name))
        names = [name for _, _, _, name in sorted(found)[:most]]
        return self._copies(names, members)

    def _copies(self, names: Iterable[str], members: Sequence[PendingPod]) -> dict[str, PreemptionNode]:
        own = frozenset(it.uid for it in members)
        found = ((name, self.evaluator.group_node(members[0].pod, own, name)) for name in names)
        return {name: node for name, node in found if node is not None}

    def _evictions(
        self,
        nodes: Mapping[str, PreemptionNode],
        members: Sequence[PendingPod],
        domains: Callable[[Sequence[str]], Sequence[Domain]] = lambda _keys: (),
    ) -> GroupEvictions:
        selector = self.handle.selector
        own = frozenset(it.uid for it in members)
        by_class: dict[RequestClass, Preemptor] = {}
        preemptors = {}
        for pending, request_class in zip(members, self._classes(members), strict=True):
            known = by_class.get(request_class)
            if known is None:
                known = by_class[request_class] = Preemptor(
                    pending.pod,
                    selector.requirements_now(request_class),
                    self.evaluator.terms(pending.pod, request_class, own),
                    partial(self._may_use, request_class),
                )
            preemptors[pending.uid] = replace(known, pod=pending.pod)
        return GroupEvictions(nodes, preemptors, domains)

    def _classes(self, members: Sequence[PendingPod]) -> list[RequestClass]:
        """
        Return the request classes of the members.

        Of members that share a claim without devices, the first allocates them, and the others need none.
        """
        handle, found = self.handle, list[RequestClass]()
        shared = ClusterTrial(handle, {it.uid: it.pod for it in members}).shared_claims
        assumed, taken = handle.selector.claims.assumed, set[str]()
        try:
            for pending in members:
                pod, gang = pending.pod, pending.pod.request.gang
                own = [it.uid for it in handle.resource_claims.claims_of(pod) if it.uid in shared] if shared else []
                known = None if taken.isdisjoint(own) else handle.classes.of(pod)
                found.append(known or pending.request_class)
                for uid in own:
                    if uid not in assumed:
                        taken.add(uid)
                        assumed[uid] = AssumedClaim(Allocation(), pod.key.uid, None if gang is None else gang.key)
        finally:
            for uid in taken:
                del assumed[uid]
        return found

    def _may_use(self, request_class: RequestClass, node: str) -> bool:
        return not self.handle.selector.bars_of(request_class)(node)

    # Execution.

    def _nominated(self, keys: Keys, candidate: GroupCandidate) -> GroupPlan | None:
        """Return the plan with nominations that are not started yet; ``None`` when a member does not wait any more."""
        pending = [self.handle.pending.get(uid) for uid in candidate.placements]
        members = [it for it in pending if it is not None and not it.binding]
        return _plan_of(keys, candidate, members) if len(members) == len(pending) else None

    def confirms(self, plan: GroupPlan) -> bool:
        """Return whether it is still valid to evict the victims that have not been evicted yet, in the current state."""
        members = [self.handle.pending.get(it.pod.key.uid) for it in plan.nominations]
        waiting = [it for it in members if it is not None]
        if len(waiting) < len(members):
            return False
        nodes = self._copies(plan.candidate.awaited, waiting)
        return len(nodes) == len(plan.candidate.awaited) and self._evictions(nodes, waiting).confirms(plan.candidate)

    async def _carry_out(self, plan: GroupPlan) -> None:
        """Reserve the amounts, publish, and evict; displaced pods of lower priority lose their nominations."""
        handle, candidate = self.handle, plan.candidate
        displaced = [it for key in candidate.displaced for it in handle.nominator.end_together(key.uid)]
        handle.nominator.begin(*plan.nominations)
        self.requeue(displaced)
        members = [it for each in plan.nominations if (it := handle.pending.get(each.pod.key.uid)) is not None]
        self._say(members, plan.message)
        try:
            await self.evaluator.freeing.settled()
            for ended in displaced:
                await self.evictor.withdraw(ended.pod.key)
            await self.evictor.free_group(plan.nominations, candidate, partial(self.confirms, plan), plan.name)
        except ClusterError as error:
            handle.metrics.preemptions[type(error).__name__] += 1
            log.info("preemption for group %s failed: %s", plan.name, error)
            await self.take_back(plan.nominations)
            if isinstance(error, Forbidden):
                for member in members:
                    handle.conditions.warn(member.pod.key, f"koord-numa lacks the permission to {error.rule}")
            self._pause(plan.keys, handle.settings.parked_retry_seconds if isinstance(error, Forbidden) else None)
            return
        except Exception:
            # A bug about this group: nothing may be reserved for evictions that are not requested.
            await self.take_back(plan.nominations)
            self._pause(plan.keys)
            raise
        handle.metrics.preemptions["nominated"] += 1
        handle.metrics.victims_each.add(len(candidate.victims))
        for member in members:
            member.preemption_failures = 0

    async def take_back(self, nominations: Iterable[Nomination]) -> None:
        """End nominations of members and clear their status, where they still wait."""
        ended = [it for it in nominations if self.handle.nominator.of(it.pod.key.uid) is it]
        for nomination in ended:
            self.handle.nominator.end(nomination.pod.key.uid)
        self._say([it for each in ended if (it := self.handle.pending.get(each.pod.key.uid)) is not None], "")
        for nomination in ended:
            await self.evictor.withdraw(nomination.pod.key)

    def _nothing_helps(
        self, keys: Keys, members: Sequence[PendingPod], beside: frozenset[str], candidate: GroupCandidate | None
    ) -> None:
        for member in members:
            self.handle.nominator.end(member.uid)  # a nomination in its status from before a restart
        self._hopeless[keys] = beside
        self.handle.metrics.preemptions["nothing helps" if candidate is None else "protected"] += 1
        self._say(members, "" if candidate is None else PROTECTED)
        if candidate is not None:
            self._pause(keys)

    def _pause(self, keys: Keys, seconds: float | None = None) -> None:
        """Evaluate the group again after ``seconds``, by default after a pause that grows with the failures."""
        handle, members = self.handle, self._members(keys)
        if not members:
            return
        members[0].preemption_failures += 1
        if seconds is None:
            seconds = handle.settings.backoff.pause(members[0].preemption_failures, handle.dependencies.random())
        self._paused[keys] = handle.dependencies.clock() + seconds

    def _say(self, members: Iterable[PendingPod], remark: str) -> None:
        """Set the remark about preemption in the messages of members."""
        for member in members:
            if member.remark != remark:
                member.remark = remark
                if member.reason:
                    self.handle.conditions.waits(member, member.reason)


def _plan_of(keys: Keys, candidate: GroupCandidate, members: Sequence[PendingPod]) -> GroupPlan:
    """Return the plan with nominations that are not started yet. The members are those of the candidate, in its order."""
    uids, nominations = tuple(candidate.placements), []
    for member, placement in zip(members, candidate.placements.values(), strict=True):
        awaited = candidate.awaited.get(placement.node, frozenset())
        here = PreemptionCandidate(placement.node, placement, awaited=awaited, claims=candidate.claims)
        nominations.append(Nomination(member.pod, member.request_class, here, together=uids))
    return GroupPlan(keys, candidate, tuple(nominations))


def _needed_priority(info: NodeInfo, wanted: Iterable[ResourceList], priority: int) -> float | None:
    """
    Return the priority up to which pods have to leave, by amounts, so that one of these requests fits; ``None`` when evictions do not help.

    Negative infinity if free amounts or terminating pods suffice.
    """
    holdings = info.counted.holdings
    leaving = [(-inf if pod.deleting else pod.request.priority, uid) for uid, pod in info.pods.items()]
    free: ResourceList = info.free
    for value, uid in [(-inf, ""), *sorted(it for it in leaving if it[0] < priority)]:
        if (holding := holdings.get(uid)) is not None:
            free = add(free, {**holding.amounts, PODS: 1})
        if any(all(free.get(name, 0) >= amount for name, amount in amounts.items()) for amounts in wanted):
            return value
    return None
