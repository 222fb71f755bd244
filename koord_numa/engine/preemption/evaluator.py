"""
Evaluation of preemption candidates for a waiting pod, and the eviction of the victims of a plan.

Dry runs on single nodes have cached results and make no requests. Results may be outdated after any other task has run: ``confirms``
checks them again. The evictor sets the nominated node in the pod's status and evicts as long as the plan is valid. Everything is checked
again before each request. Failures are raised; the executor decides about the nomination.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from logging import getLogger
from typing import Any, Final

from cachetools import LRUCache

from koord_numa.core.claims import MOST_STEPS, NO_SOLUTION
from koord_numa.core.objects.claims import Allocation, PoolId, ResourceClaim
from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.preempt.dry_run import ClaimId, EvictionTerms, PreemptionNode, Unit, answer_of
from koord_numa.core.preempt.groups import GroupCandidate
from koord_numa.core.preempt.victims import (
    PreemptionCandidate,
    Rank,
    may_help,
    protected,
    rank,
    select_victims_on_node,
    still_right,
    violating,
)
from koord_numa.core.resources import CPU
from koord_numa.core.scheduling.filters import refuse_everywhere
from koord_numa.core.scheduling.request import SchedulingRequest, depends_on_other_pods
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.late_check import ClaimCheck
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue import Nomination, RequestClass
from koord_numa.ports import ClusterError, Conflict, Gone, NotLeader
from koord_numa.settings import Budgets


class Limits(ValueObject):
    """Limits of the device searches while preemption is planned for a pod. A step takes about 2 us."""

    node: int = MOST_STEPS
    """Steps on a node for all sets of victims together: as many as a decision may take there."""
    plan: int = 5 * MOST_STEPS
    """Steps on all nodes together; later nodes are skipped."""


LIMITS: Final = Limits()


class Freeable(ValueObject):
    """Claim with devices of a node, and the UIDs of all pods that use it."""

    claim: ResourceClaim
    users: frozenset[str]


class EvictionFreedDevices:
    """``core.preempt.dry_run.FreedDevices`` for one plan. ``evicted`` are UIDs of evicted pods that may have left already."""

    def __init__(
        self, handle: Handle, own: Collection[str], ask: SchedulingRequest, check: ClaimCheck, evicted: Collection[str]
    ) -> None:
        self._handle = handle
        self._lister: ClaimLister = handle.selector.claims
        self._own = own  # UIDs of the preemptor, or of all pods of its group
        self._ask = ask
        self._check = check
        self._evicted = evicted
        self._node: PreemptionNode | None = None
        self._freeable: tuple[Freeable, ...] = ()
        self._left = 0  # steps on this node
        self._spent = 0  # steps on all nodes

    @classmethod
    def of(
        cls, handle: Handle, own: Collection[str], request_class: RequestClass, evicted: Collection[str]
    ) -> "EvictionFreedDevices | None":
        """Return the devices for a pod of this class; ``None`` without claims."""
        check = handle.selector.claims_for(request_class)
        ask = handle.selector.requirements_now(request_class) if check is not None else None
        return None if check is None or ask is None else cls(handle, own, ask, check, evicted)

    def place(
        self,
        node: PreemptionNode,
        seen: NodeSnapshot,
        placement: Placement,
        gone: Collection[str],
        taken: Sequence[Allocation] = (),
    ) -> Placement | Rejection:
        """Return the placement with devices when the pods ``gone`` have left. Devices reserved for the pod itself are free for it."""
        self._turn_to(node)
        if self._left <= 0:
            return Rejection(Reason.RESOURCE_CLAIMS, NO_SOLUTION, "the search for victims reached its limit")
        with self._without(gone, taken):
            answer, steps = self._check.try_out(self._ask, seen, placement)
        self._left -= steps + 1
        self._spent += steps + 1
        return answer

    def awaited(self, node: PreemptionNode, gone: Collection[str]) -> frozenset[ClaimId]:
        """Return the claims that lose their devices when these pods have left."""
        self._turn_to(node)
        return frozenset((it.claim.namespace, it.claim.name, it.claim.uid) for it in self._freed(gone))

    def may_suffice(self, node: PreemptionNode, gone: Collection[str]) -> bool:
        """Necessary condition: the node has enough devices when these pods have left."""
        self._turn_to(node)
        with self._without(gone):
            return not self._check.falls_short(node.seen)

    def _without(self, gone: Collection[str], taken: Sequence[Allocation] = ()) -> AbstractContextManager[None]:
        """Free the devices that these pods, and the pod itself, hold or have reserved. ``taken`` count as held."""
        kept = (allocation for uid in {*self._own, *gone} for allocation in self._lister.kept_for(uid))
        freed = (it.claim.allocation for it in self._freed(gone) if it.claim.allocation is not None)
        return self._lister.set_aside([*kept, *freed], taken)

    def _turn_to(self, node: PreemptionNode) -> None:
        if self._node is not node:
            self._node, self._freeable = node, tuple(self._freeable_on(node))
            self._left = LIMITS.node if self._spent < LIMITS.plan else 0

    def _freed(self, gone: Collection[str]) -> list[Freeable]:
        away = frozenset(gone)
        return [it for it in self._freeable if all(uid in away or self._has_left(uid) for uid in it.users)]

    def _has_left(self, uid: str) -> bool:
        """Return whether the pod is neither on a node nor waiting: its reservation is about to be removed."""
        return uid not in self._handle.cache.node_of and uid not in self._handle.pending

    def _freeable_on(self, node: PreemptionNode) -> list[Freeable]:
        """Return the claims that hold devices of the node and that evictions there may free."""
        named: dict[tuple[str, str], set[str]] = {}  # pods of the node by the claims that they name, reserved or not
        for uid, pod in node.pods.items():
            for entry in pod.resource_claims:
                if name := self._handle.resource_claims.name_of(pod, entry):
                    named.setdefault((pod.key.namespace, name), set()).add(uid)
        pools = {pool.id for pool in self._lister.pools_of(node.seen.node)}
        claims = {
            claim.uid: claim for uid in (*node.pods, *sorted(self._evicted)) for claim in self._lister.reserved_for(uid)
        }
        return [
            Freeable(claim, frozenset(claim.reserved_for).union(named.get((claim.namespace, claim.name), ())))
            for claim in claims.values()
            if _has_device_in(claim, pools) and self._is_given_up(claim)
        ]

    def _is_given_up(self, claim: ResourceClaim) -> bool:
        """Return whether the claim loses its devices when its users have left."""
        if claim.other_consumers or claim.uid in self._lister.assumed or not (claim.protected or claim.extended):
            return False
        # A pod that waits for the claim may reserve it before it loses its devices.
        waiting = self._handle.resource_claims.users((claim.namespace, claim.name))
        return not any(uid in self._handle.pending for uid in waiting)


def _has_device_in(claim: ResourceClaim, pools: Collection[PoolId]) -> bool:
    allocation = claim.allocation
    return allocation is not None and any(
        PoolId(it.device.driver, it.device.pool) in pools for it in allocation.results if not it.admin_access
    )


NODES: Final = 16
"""Maximum number of nodes that are freed concurrently."""


class NodesBeingFreed:
    """Tasks that free nodes, at most one per node. The task handles its own errors."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, node: str) -> bool:
        return node in self._tasks

    async def start(self, node: str, free: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start the task when the node is not being freed and the limit permits; return after the start."""
        while node in self._tasks or len(self._tasks) >= NODES:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        self._tasks[node] = asyncio.create_task(self._run(node, free))

    async def wait_for(self, node: str) -> None:
        """Return when the node is not being freed."""
        while (task := self._tasks.get(node)) is not None:
            await asyncio.wait([task])

    async def settled(self) -> None:
        """Return when no node is being freed."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def cancel(self) -> None:
        """Cancel all tasks. An eviction that was requested may still happen."""
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, node: str, free: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # Here instead of a done callback: when the task has ended, its node is free.
        try:
            await free()
        finally:
            del self._tasks[node]


Found = tuple[Rank, PreemptionCandidate]


class KnownNodes(MutableObject):
    """
    Cached preemption results of a request class.

    The iteration yields the nodes on which evictions may help, those with the most free CPU first. ``helpful`` are the yielded nodes that
    were checked. ``tried`` has the results of dry runs by node.

    Results are valid for a ``position`` in the journal of changed nodes, except for ``unsettled`` nodes, whose results may change without a
    change of the node, for example when a bind is confirmed and the pod can be evicted. The values are the UIDs of their pods with
    unconfirmed binds; ``None`` requires a new check. ``refused`` are nodes on which no eviction helps according to ``verdict``.
    ``rebuilt`` are nodes that were also tried with a rebuilt state of their kubelets.
    """

    position: int | None = None
    unsettled: dict[str, frozenset[str] | None] = value_field(default_factory=dict)
    tried: dict[str, Found | None] = value_field(default_factory=dict)
    helpful: set[str] = value_field(default_factory=set)
    rebuilt: set[str] = value_field(default_factory=set)
    refused: dict[str, None] = value_field(default_factory=dict)
    verdict: Unschedulable | None = None
    _room: dict[str, int] = value_field(default_factory=dict)
    _emptiest: list[tuple[int, str]] = value_field(
        default_factory=list
    )  # sorted, so that a plan costs what changed and not what exists

    def __iter__(self) -> Iterator[str]:
        """Iterate over the nodes on which evictions may help: most free CPU first, then by name. Nodes may be dismissed meanwhile."""
        return (name for _, name in self._emptiest[:])

    def add(self, node: str, room: int) -> None:
        """Add a node on which evictions may help."""
        self._room[node] = room
        # Negative, so that the most free CPU comes first.
        insort(self._emptiest, (-room, node))

    def forget(self, node: str) -> None:
        """Drop all results of a node."""
        self.tried.pop(node, None)
        self.refused.pop(node, None)
        self.rebuilt.discard(node)
        self.unsettled.pop(node, None)
        self.dismiss(node)

    def dismiss(self, node: str) -> None:
        """Exclude a node where no eviction helps, until it is added again."""
        self.helpful.discard(node)
        room = self._room.pop(node, None)
        if room is not None:
            del self._emptiest[bisect_left(self._emptiest, (-room, node))]

    def resolvable_by_now(self, verdict: Unschedulable) -> list[str]:
        """Return the nodes that an older verdict excluded and this verdict does not. They may have changed before it and not since."""
        if verdict is self.verdict:
            return []
        found = ((name, verdict.rejections.get(name)) for name in self.refused)
        return [name for name, rejection in found if rejection is not None and rejection.resolvable]

    def clear(self) -> None:
        """Drop all results."""
        self.tried.clear()
        self.refused.clear()
        self.helpful.clear()
        self.rebuilt.clear()
        self.unsettled.clear()
        self._room.clear()
        self._emptiest.clear()


CHUNK: Final = 64
"""Number of nodes that are checked before other tasks run."""
REMEMBERED: Final = 64
"""Maximum number of classes with cached results."""

_LACKS_DEVICES: Final = frozenset({Reason.RESOURCE_CLAIMS, Reason.CLAIM_ALIGNMENT})

SYSTEM_CRITICAL: Final = 2_000_000_000
"""Minimum priority of ``system-cluster-critical`` and ``system-node-critical`` pods (``scheduling.SystemCriticalPriority``)."""


class Asking(ValueObject):
    """Preemptor with its class, request, and eviction terms."""

    pod: Pod
    request_class: RequestClass
    ask: SchedulingRequest
    terms: EvictionTerms


class Evaluator:
    """
    Preemption planner, for one pod at a time.

    ``budgets`` is ``None`` until the budgets are listed. ``evicted`` are the UIDs of victims that may still be counted. ``outdated`` has,
    by node, the version of a topology that did not follow when pods left.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.budgets: dict[tuple[str, str], DisruptionBudget] | None = None
        self.evicted: set[str] = set()
        self.outdated: dict[str, str] = {}
        self.freeing = NodesBeingFreed()
        self._known: LRUCache[RequestClass, KnownNodes] = LRUCache(maxsize=REMEMBERED)
        self._groups = 0  # revision of the PodGroups of the cached results

    def observe_budget(self, event: str | None, budget: DisruptionBudget) -> None:
        """Process an added, changed or deleted PodDisruptionBudget."""
        # Before the first list any pod may be protected: there are no results to drop.
        if self.budgets is None:
            return
        self._known.clear()
        place = (budget.namespace, budget.name)
        if event == DELETED:
            self.budgets.pop(place, None)
        else:
            self.budgets[place] = budget

    def replace_budgets(self, budgets: Iterable[DisruptionBudget]) -> None:
        """Replace the PodDisruptionBudgets by this complete list."""
        self._known.clear()
        self.budgets = {(budget.namespace, budget.name): budget for budget in budgets}

    def forget_the_gone(self) -> None:
        """Drop the victims that have left."""
        # Iterates over the evicted pods, because the cached pods are all pods of the cluster.
        nodes, claims = self._handle.cache.node_of, self._handle.selector.claims
        # Claims lose their devices after their pods have left.
        self.evicted = {uid for uid in self.evicted if uid in nodes or any(True for _ in claims.reserved_for(uid))}

    async def plan(
        self, pod: Pod, request_class: RequestClass, verdict: Unschedulable, only: Collection[str] | None = None
    ) -> PreemptionCandidate | None:
        """
        Return the best candidate among the nodes (only ``only`` if given) with rejections that evictions can resolve.

        At most ``candidateNodes`` nodes get a dry run: of those with sufficient amounts, the nodes with the most free CPU, then by name.
        Results are cached until the node changes, so that the pods of a class share them.
        """
        ask, terms = self._handle.selector.requirements_now(request_class), self.terms(pod, request_class)
        # Rejected everywhere for reasons that evictions cannot resolve.
        everywhere = refuse_everywhere(ask)
        if everywhere is not None and not everywhere.resolvable:
            return None
        known = self._known_of(request_class, ask)
        await self._look_at_changed(known, pod, verdict)
        asked: Collection[str] = verdict.rejections if only is None else verdict.rejections.keys() & only
        if request_class.claims is not None:
            asked = self._with_devices(pod, verdict, asked)
        best: Found | None = None
        asking = Asking(pod, request_class, ask, terms)
        for name in await self._candidates(known, asking, asked):
            # Its victims count as terminating once their evictions are accepted.
            if name in self.freeing:
                await self.freeing.wait_for(name)
            if name not in known.tried:
                # A dry run takes milliseconds: the scheduling loop runs in between.
                await asyncio.sleep(0)
                node = self._preemption_node(pod, request_class, name)
                candidate = None if node is None else select_victims_on_node(ask, node, terms)
                known.tried[name] = None if candidate is None else (rank(candidate), candidate)
            found = known.tried[name]
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            best = await self._found_after_rebuilding(known, asking, asked)
        return None if best is None else best[1]

    async def _found_after_rebuilding(self, known: KnownNodes, asking: Asking, asked: Container[str]) -> Found | None:
        """
        Repeat the dry runs with a kubelet state that is rebuilt from published data, on nodes with a tracked state.

        The first state that helps is kept. It may allow a placement without evictions; then the class is retried.
        """

        def helps() -> bool:
            node = self._preemption_node(asking.pod, asking.request_class, name)
            if node is None:
                return False
            candidate = select_victims_on_node(asking.ask, node, asking.terms)
            if candidate is not None:
                known.tried[name] = rank(candidate), candidate
                return True
            return not isinstance(answer_of(asking.ask, node.seen, asking.terms.rules), Rejection)

        for name in [name for name, found in known.tried.items() if found is None]:
            if name in asked and name not in known.rebuilt and name not in self.freeing:
                await asyncio.sleep(0)
                known.rebuilt.add(name)
                if self._handle.cache.rebuild_where(name, helps):
                    return known.tried.get(name)
        return None

    async def _look_at_changed(self, known: KnownNodes, pod: Pod, verdict: Unschedulable) -> None:
        """Update the changed nodes in the order of free CPU, without nodes where no eviction can help."""
        changed, position = self._handle.selector.changed_since(known.position)
        if changed is None:
            known.clear()
            changed = list(verdict.rejections)
        elif known.unsettled:
            # Nodes whose result may change without an event: checked again when binds there were confirmed.
            again = (name for name, assumed in known.unsettled.items() if assumed != self._assumed_on(name))
            changed = list(dict.fromkeys((*changed, *sorted(again))))
        changed += known.resolvable_by_now(verdict)
        for number, name in enumerate(changed):
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
            known.forget(name)
            rejection = verdict.rejections.get(name)
            if rejection is None or not rejection.resolvable:
                known.refused[name] = None  # no eviction helps there, by this verdict
                continue
            record = self._handle.cache.nodes.get(name)
            seen = None if record is None else record.candidate()
            if record is not None and seen is not None:
                own = record.nominees.get(pod.key.uid)  # amounts reserved for this pod are free for it
                known.add(name, seen.room + (0 if own is None else own.holding.amounts.get(CPU, 0)))
        # Set last: after an exception all nodes are processed again.
        known.position, known.verdict = position, verdict

    async def _candidates(self, known: KnownNodes, asking: Asking, asked: Container[str]) -> list[str]:
        """Return the nodes for dry runs among those asked for, in the order of comparison."""
        chosen: list[str] = []
        glances = 0
        # Read once: a plan iterates over a hundred nodes by default.
        nodes, most = self._handle.cache.nodes, self._handle.settings.preemption.candidate_nodes
        for name in known:
            if name not in asked or name not in nodes:
                continue
            # Emptiest first, so that few nodes are checked for a class, however many there are.
            if name not in known.helpful:
                glances += 1
                if glances % CHUNK == 0:
                    await asyncio.sleep(0)
                if not self._may_help(known, asking, name):
                    continue
            chosen.append(name)
            if len(chosen) == most:
                break
        return chosen

    def _may_help(self, known: KnownNodes, asking: Asking, name: str) -> bool:
        node = self._preemption_node(asking.pod, asking.request_class, name)
        if node is not None and node.assumed:
            known.unsettled[name] = node.assumed
        if node is None or not may_help(asking.ask, node, asking.terms.devices):
            known.dismiss(name)
            return False
        known.helpful.add(name)
        return True

    def _known_of(self, request_class: RequestClass, ask: SchedulingRequest) -> KnownNodes:
        """Return the cached results of the class; empty for classes that depend on more than the node."""
        if self._groups != self._handle.pod_groups.revision:  # pods may be disrupted together by now
            self._groups = self._handle.pod_groups.revision
            self._known.clear()
        # A result that depends on other nodes or on claims may become invalid without a change of this node.
        if ask.neighbours or ask.spread or ask.storage or request_class.claims is not None:
            return KnownNodes()
        return self._known.setdefault(request_class, KnownNodes())

    def repeats(self, pod: Pod, request_class: RequestClass, candidate: PreemptionCandidate) -> bool:
        """Return whether the node gives the same candidate in the current state."""
        ask = self._handle.selector.requirements_now(request_class)
        known = self._known_of(request_class, ask)
        changed, _ = self._handle.selector.changed_since(known.position)
        found = known.tried.get(candidate.node)
        # The same cached object, and the node is unchanged.
        is_known = changed is not None and candidate.node not in changed and found is not None and found[1] is candidate
        if is_known and not self._evicts_elsewhere(candidate):
            return True
        node = self._preemption_node(pod, request_class, candidate.node)
        return node is not None and select_victims_on_node(ask, node, self.terms(pod, request_class)) == candidate

    def may_carry_out(self, pod: Pod, candidate: PreemptionCandidate) -> bool:
        """Return whether no budget is violated, or the settings permit this pod to violate budgets as the last resort."""
        return self.may_violate(pod, candidate.violations)

    def may_violate(self, pod: Pod, violations: int) -> bool:
        """Return whether the pod may preempt others although ``violations`` PodDisruptionBudgets are violated."""
        budgets = self._handle.settings.preemption.budgets
        critical = pod.request.priority >= SYSTEM_CRITICAL
        breaks = budgets is Budgets.LIKE_KUBE_SCHEDULER or (budgets is Budgets.BREAK_FOR_SYSTEM_CRITICAL and critical)
        return not violations or breaks

    def note_evicted(self, node: str, uid: str) -> None:
        """Record that this pod of the node is terminating, though the watch may not have shown it yet."""
        self.evicted.add(uid)
        self._forget(self._handle.cache.node_of.get(uid, node))

    def note_outdated(self, node: str, version: str) -> None:
        """Exclude a node whose topology did not follow when pods left, until it has another version."""
        self.outdated[node] = version
        self._forget(node)

    def _forget(self, node: str) -> None:
        for known in self._known.values():
            known.forget(node)
            known.unsettled[node] = None

    def concerns_its_node_alone(self, nomination: Nomination) -> bool:
        """
        Return whether the plan is independent of plans for other nodes: no rule counts pods of other nodes, and no budget covers a victim.
        """
        budgets = self.disruption_budgets()
        covered = any(protected(victim, budgets) for victim in nomination.candidate.victims)
        alone = _looks_at_its_node_alone(nomination.request_class) and not self._evicts_elsewhere(nomination.candidate)
        return alone and not covered

    def _evicts_elsewhere(self, candidate: PreemptionCandidate) -> bool:
        """Return whether pods of other nodes are disrupted together with pods of this node."""
        return any(victim.key.uid not in candidate.awaited for victim in candidate.victims)

    def still_confirms(self, nomination: Nomination) -> bool:
        """Return the same as ``confirms``, evaluated only if the node has changed or more than the node matters."""
        info = self._handle.cache.nodes.get(nomination.node)
        if info is None:
            return False
        alone = self.concerns_its_node_alone(nomination)
        # Nothing relevant has changed, except for bars, which may expire.
        if alone and nomination.confirmed == info.revision:
            return not self._handle.selector.bars_of(nomination.request_class)(nomination.node)
        if not self.confirms(nomination.pod, nomination.request_class, nomination.candidate):
            return False
        nomination.confirmed = info.revision
        return True

    def confirms(self, pod: Pod, request_class: RequestClass, candidate: PreemptionCandidate) -> bool:
        """Return whether it is still valid to evict the victims that have not been evicted yet."""
        node = self._preemption_node(pod, request_class, candidate.node)
        ask = self._handle.selector.requirements_now(request_class)
        return node is not None and still_right(ask, node, self.terms(pod, request_class), candidate)

    def _preemption_node(self, pod: Pod, request_class: RequestClass, name: str) -> PreemptionNode | None:
        """
        Return the node, if it is trusted and not barred for this class.

        Evicted pods count as terminating, though the watch may not have shown it yet.
        """
        return None if self._handle.selector.bars_of(request_class)(name) else self.group_node(pod, (), name)

    def group_node(self, pod: Pod, group: Collection[str], name: str) -> PreemptionNode | None:
        """Return the node, if it is trusted, for preemption by this pod or by the pods ``group`` (UIDs) together."""
        record = self._handle.cache.nodes.get(name)
        if record is None:
            return None
        if record.unreported.speaks_of_others(record.topology) or self._is_outdated(record):
            return None
        # Assumed pods may not be bound: they are no victims.
        node = record.site_for(pod, self._assumed_on(name), group, self._units_on(record))
        if node is None or not node.trusted:
            return None
        if self.evicted.isdisjoint(node.pods):
            return node
        # Already evicted: counts as terminating and has no further cost.
        there = {uid: self._as_evicted(it) for uid, it in node.pods.items()}
        return replace(node, pods=there)

    def _as_evicted(self, pod: Pod) -> Pod:
        """Return the pod, terminating if it was evicted."""
        return replace(pod, deleting=True) if pod.key.uid in self.evicted and not pod.deleting else pod

    def _units_on(self, record: NodeInfo) -> Mapping[str, Unit]:
        """Return the pods that are disrupted together with pods of this node, by UID of the latter."""
        groups, cache = self._handle.pod_groups, self._handle.cache
        found: dict[str, Unit] = {}
        for uid, pod in record.pods.items() if groups.disrupts_together else ():
            if pod.request.gang is not None and uid not in found and (uids := groups.unit_of(pod)):
                unit = tuple(self._as_evicted(it) for other in uids if (it := cache.pod(other)) is not None)
                found |= {it.key.uid: unit for it in unit}
        return found

    def _assumed_on(self, name: str) -> frozenset[str]:
        """Return the UIDs of the node's pods with unconfirmed binds, and of pods that are disrupted together with such pods."""
        record, assumed, groups = (
            self._handle.cache.nodes.get(name),
            self._handle.cache.assumed,
            self._handle.pod_groups,
        )
        if record is None:
            return frozenset()
        found = frozenset(uid for uid in record.pods if uid in assumed)
        if not groups.disrupts_together:
            return found
        together = (uid for uid, pod in record.pods.items() if any(other in assumed for other in groups.unit_of(pod)))
        return found.union(together)

    def _with_devices(self, pod: Pod, verdict: Unschedulable, asked: Collection[str]) -> frozenset[str]:
        """Return the nodes that lack more than devices, or have pods of lower priority with devices."""
        nodes, node_of = self._handle.cache.nodes, self._handle.cache.node_of
        found = {
            node
            for uid in self._handle.selector.claims.consumers
            # Pods that have left are not counted: their claims wake the class when they lose their devices.
            if (node := node_of.get(uid)) is not None and nodes[node].pods[uid].request.priority < pod.request.priority
        }
        return frozenset(
            [name for name in asked if name in found or verdict.rejections[name].reason not in _LACKS_DEVICES]
        )

    def _is_outdated(self, record: NodeInfo) -> bool:
        known = self.outdated.get(record.name)
        if known is not None and known != record.version:
            # Another version: the topology has followed.
            del self.outdated[record.name]
        return known is not None and known == record.version

    def disruption_budgets(self) -> list[DisruptionBudget]:
        """Return the current budgets by name."""
        return [budget for _, budget in sorted((self.budgets or {}).items())]

    def terms(self, pod: Pod, request_class: RequestClass, group: Collection[str] = ()) -> EvictionTerms:
        """Return the eviction terms for a pod of the class, or the pods ``group`` (UIDs), with the current budgets."""
        return EvictionTerms(
            self._handle.selector.profile_of(request_class),
            self.disruption_budgets(),
            self._handle.cache.index.namespaces,
            EvictionFreedDevices.of(self._handle, group or (pod.key.uid,), request_class, self.evicted),
        )


def _looks_at_its_node_alone(request_class: RequestClass) -> bool:
    return (
        not request_class.pickers and not depends_on_other_pods(request_class.request) and request_class.claims is None
    )


log = getLogger(__name__)

PREEMPTED: Final = "Preempted"
WRITES: Final = 16
"""Maximum number of concurrent nominations of a group."""


class Evictor:
    """Evictor for one nomination at a time."""

    def __init__(self, handle: Handle, evaluator: Evaluator) -> None:
        self._handle = handle
        self._evaluator = evaluator

    async def free(self, nomination: Nomination) -> None:
        """Free the node. Raises ``ClusterError``: ``Gone`` when the pod does not wait any more, ``Conflict`` when the node has changed."""
        self._check(nomination)
        # The status first, so that users see for which pod the victims are evicted.
        await self._nominate_waiting(nomination)
        candidate = nomination.candidate
        message = f"Preempted by pod {nomination.pod.key.uid} on node {nomination.node}"
        await self._evict(candidate.victims, candidate.violations, partial(self._check, nomination), message)

    async def _nominate_waiting(self, nomination: Nomination) -> None:
        """Write the nominated node. Raises ``Gone`` when the pod does not wait any more."""
        seen = await self.nominate(nomination.pod.key, nomination.node)
        if seen.node or seen.deleting or seen.gated or seen.finished:
            # The nominated node in its status is not valid any more.
            with suppress(ClusterError):
                await self._handle.dependencies.binder.nominate(nomination.pod.key, "")
            raise Gone(f"pod {nomination.pod.key} no longer waits")

    async def free_group(
        self, nominations: Sequence[Nomination], candidate: GroupCandidate, confirms: Callable[[], bool], group: str
    ) -> None:
        """Free the nodes of a group. Raises ``ClusterError`` as ``free``."""

        def check() -> None:
            self._check_waiting(nominations)
            if not confirms():
                raise Conflict(f"the nodes for group {group} have changed: these evictions are no longer valid")

        check()
        for start in range(0, len(nominations), WRITES):
            some = nominations[start : start + WRITES]
            ends = await asyncio.gather(*(self._nominate_waiting(it) for it in some), return_exceptions=True)
            _raise_first(ends)
        await self._evict(candidate.victims, candidate.violations, check, f"Preempted by group {group}")

    async def nominate(self, pod: PodKey, node: str) -> Pod:
        """Write the nominated node (empty: none) to the pod's status together with a due condition. Return the updated pod."""
        with self._handle.conditions.lent(pod.uid) as why:
            return await self._handle.dependencies.binder.nominate(pod, node, why)

    async def withdraw(self, pod: PodKey) -> None:
        """Clear the nominated node in the status of a waiting pod. A failure is logged, because an outdated nomination is harmless."""
        if not self._handle.dependencies.lease.fresh() or not self.still_waits(pod):
            return
        try:
            await self.nominate(pod, "")
        except ClusterError as error:
            log.info("the nomination of pod %s cannot be removed now: %s", pod, error)

    def still_waits(self, pod: PodKey) -> bool:
        """Return whether the pod waits for a node and is not being bound."""
        pending = self._handle.pending.get(pod.uid)
        return pending is not None and not pending.binding

    async def _evict(self, victims: Sequence[Pod], violations: int, check: Callable[[], None], message: str) -> None:
        """
        Evict the victims. ``check`` raises ``ClusterError`` when they must not be evicted any more.

        Victims under a budget are evicted first and sequentially: if the API server rejects an eviction, the other pods are spared. The
        others are evicted concurrently, as in kube-scheduler.
        """
        budgets = self._evaluator.disruption_budgets()
        # Budgets are only violated by a plan that is allowed to.
        broken = violating(victims, budgets) if violations else frozenset()
        unprotected = []
        for victim in victims:
            if not protected(victim, budgets):
                unprotected.append(victim)
                continue
            # Before each eviction: the node may change during the requests.
            check()
            await self._evict_one(victim, broken, message)
        if not unprotected:
            return
        check()
        _raise_first(
            await asyncio.gather(
                *(self._evict_one(victim, broken, message) for victim in unprotected), return_exceptions=True
            )
        )

    async def _evict_one(self, victim: Pod, broken: frozenset[str], message: str) -> None:
        handle = self._handle
        with suppress(Gone):
            if victim.key.uid in broken:
                # An eviction would be rejected; kube-scheduler deletes all its victims.
                await handle.dependencies.binder.delete(victim.key)
            else:
                await handle.dependencies.binder.evict(victim.key, message)
            handle.dependencies.recorder.event(victim.key, warning=False, reason=PREEMPTED, message=message)
            handle.metrics.victims += 1
        self._evaluator.note_evicted(victim.node, victim.key.uid)

    def _check(self, nomination: Nomination) -> None:
        """Check the nomination before an eviction. Raises ``NotLeader``, ``Gone`` or ``Conflict`` when it must not happen."""
        self._check_waiting((nomination,))
        if not self._evaluator.still_confirms(nomination):
            raise Conflict(f"node {nomination.node} has changed: these evictions are no longer valid")

    def _check_waiting(self, nominations: Iterable[Nomination]) -> None:
        handle = self._handle
        if not handle.dependencies.lease.fresh():
            raise NotLeader("the lease is no longer held")
        for nomination in nominations:
            pod = nomination.pod.key
            if handle.nominator.of(pod.uid) is not nomination or not self.still_waits(pod):
                raise Gone(f"pod {pod} no longer needs room")


def _raise_first(ends: Iterable[object]) -> None:
    """Raise the first exception of finished tasks. All have ended: none may go on unobserved."""
    for end in ends:
        if isinstance(end, BaseException):
            raise end
