"""
Finds out what it takes to have a waiting pod somewhere: tries nodes out, one by one, and remembers where that was in vain.

It changes nothing and makes no request. What it found may be old as soon as another task had a turn: ``confirms`` looks again.
"""

import asyncio
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.objects.workloads import DisruptionBudget
from koord_numa.core.preempt.dry_run import EvictionTerms, PreemptionNode, answer_of
from koord_numa.core.preempt.victims import (
    PreemptionCandidate,
    may_help,
    protected,
    rank,
    select_victims_on_node,
    still_right,
)
from koord_numa.core.resources import CPU
from koord_numa.core.scheduling.evaluate import refuse_everywhere
from koord_numa.core.scheduling.request import SchedulingRequest, depends_on_other_pods
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.handle import Handle
from koord_numa.engine.preemption.freed_devices import FreedDevices
from koord_numa.engine.preemption.freeing import NodesBeingFreed
from koord_numa.engine.preemption.known_nodes import Found, KnownNodes
from koord_numa.engine.queue.nominator import Nomination
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.settings import Budgets

CHUNK: Final = 64
"""So many nodes are glanced at before others get their turn."""
REMEMBERED: Final = 64
"""Of so many classes it is remembered what trying nodes out has shown."""

_LACKS_DEVICES: Final = frozenset({Reason.RESOURCE_CLAIMS, Reason.CLAIM_ALIGNMENT})

SYSTEM_CRITICAL: Final = 2_000_000_000
"""The least priority of ``system-cluster-critical`` and ``system-node-critical`` pods (``scheduling.SystemCriticalPriority``)."""


@dataclass(frozen=True, slots=True)
class Asking:
    """For whom room is to be made, and by what rules."""

    pod: Pod
    request_class: RequestClass
    ask: SchedulingRequest
    terms: EvictionTerms


class Evaluator:
    """
    Plans for one pod at a time. ``budgets`` are ``None`` until they are known; ``evicted`` are the uids of victims that may still be
    counted; ``outdated`` has, by node, the version of a topology that did not follow when pods left.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.budgets: dict[tuple[str, str], DisruptionBudget] | None = None
        self.evicted: set[str] = set()
        self.outdated: dict[str, str] = {}
        self.freeing = NodesBeingFreed()
        self._known: LRUCache[RequestClass, KnownNodes] = LRUCache(maxsize=REMEMBERED)

    def observe_budget(self, event: str | None, budget: DisruptionBudget) -> None:
        """A PodDisruptionBudget came, changed or went."""
        # Before the first list every pod might be protected: nothing is known, nothing remembered.
        if self.budgets is None:
            return
        self._known.clear()
        place = (budget.namespace, budget.name)
        if event == DELETED:
            self.budgets.pop(place, None)
        else:
            self.budgets[place] = budget

    def replace_budgets(self, budgets: Iterable[DisruptionBudget]) -> None:
        """All PodDisruptionBudgets that exist."""
        self._known.clear()
        self.budgets = {(budget.namespace, budget.name): budget for budget in budgets}

    def forget_the_gone(self) -> None:
        """Victims that have left need not be remembered."""
        # By what was evicted and not by what is there: that would be every pod of the cluster.
        nodes, claims = self._handle.cache.node_of, self._handle.selector.claims
        # Claims lose their devices after their pods have left.
        self.evicted = {uid for uid in self.evicted if uid in nodes or any(True for _ in claims.reserved_for(uid))}

    async def plan(
        self, pod: Pod, request_class: RequestClass, verdict: Unschedulable, only: Collection[str] | None = None
    ) -> PreemptionCandidate | None:
        """
        The best of those nodes (or ``only`` of these) that were refused for something that evictions can lift.

        No more than ``candidateNodes`` are tried out: of those whose amounts would suffice, the ones with most CPU free, then by name.
        What was found of a node is remembered until the node changes, so the pods of one class share it.
        """
        ask, terms = self._handle.selector.requirements_now(request_class), self.terms(pod, request_class)
        # Refused everywhere for what evictions cannot lift: no node needs a look.
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
            # Its victims are counted as leaving once their evictions are accepted.
            if name in self.freeing:
                await self.freeing.wait_for(name)
            if name not in known.tried:
                # One node's trial takes milliseconds: the scheduling loop must go on between two.
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
        Try out the nodes again whose kubelets' states were followed, each with a state that is rebuilt from what is published.

        The first state that helps is kept. It may place the pod without evictions, and then the class is tried again.
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
        """Put the nodes that have changed where their free CPU puts them, apart from those on which no eviction can help."""
        changed, position = self._handle.selector.changed_since(known.position)
        if changed is None:
            known.clear()
            changed = list(verdict.rejections)
        elif known.unsettled:
            # Nodes whose answer may change without an event of the node: asked again when binds there were confirmed.
            again = (name for name, assumed in known.unsettled.items() if assumed != self._assumed_on(name))
            changed = list(dict.fromkeys((*changed, *sorted(again))))
        changed += known.resolvable_by_now(verdict)
        for number, name in enumerate(changed):
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
            known.forget(name)
            rejection = verdict.rejections.get(name)
            if rejection is None or not rejection.resolvable:
                known.refused[name] = None  # no eviction helps there, as far as this verdict tells
                continue
            record = self._handle.cache.nodes.get(name)
            seen = None if record is None else record.candidate()
            if record is not None and seen is not None:
                own = record.nominees.get(pod.key.uid)  # what is kept for this very pod is free for it
                known.add(name, seen.room + (0 if own is None else own.holding.amounts.get(CPU, 0)))
        # Only now: an exception leaves all nodes to be looked at again.
        known.position, known.verdict = position, verdict

    async def _candidates(self, known: KnownNodes, asking: Asking, asked: Container[str]) -> list[str]:
        """Of the nodes asked for those to try out, in the order in which they are compared."""
        chosen: list[str] = []
        glances = 0
        # Looked up once: a plan goes over a hundred nodes by default.
        nodes, most = self._handle.cache.nodes, self._handle.settings.preemption.candidate_nodes
        for name in known:
            if name not in asked or name not in nodes:
                continue
            # The emptiest come first, so that few nodes are glanced at for a class, however many there are.
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
        """Nothing is remembered for a class whose answers depend on more than the node."""
        # An answer that depends on other nodes, or on claims, becomes wrong without a change of this one.
        if ask.neighbours or ask.spread or ask.storage or request_class.claims is not None:
            return KnownNodes()
        return self._known.setdefault(request_class, KnownNodes())

    def repeats(self, pod: Pod, request_class: RequestClass, candidate: PreemptionCandidate) -> bool:
        """Does the same node, in the state of this moment, give the same answer?"""
        ask = self._handle.selector.requirements_now(request_class)
        known = self._known_of(request_class, ask)
        changed, _ = self._handle.selector.changed_since(known.position)
        found = known.tried.get(candidate.node)
        # The very object that was found, in an unchanged node.
        if changed is not None and candidate.node not in changed and found is not None and found[1] is candidate:
            return True
        node = self._preemption_node(pod, request_class, candidate.node)
        return node is not None and select_victims_on_node(ask, node, self.terms(pod, request_class)) == candidate

    def may_carry_out(self, pod: Pod, candidate: PreemptionCandidate) -> bool:
        """No budget is broken, or the settings let this pod break one as the last resort."""
        budgets = self._handle.settings.preemption.budgets
        critical = pod.request.priority >= SYSTEM_CRITICAL
        breaks = budgets is Budgets.LIKE_KUBE_SCHEDULER or (budgets is Budgets.BREAK_FOR_SYSTEM_CRITICAL and critical)
        return not candidate.violations or breaks

    def note_evicted(self, node: str, uid: str) -> None:
        """This pod of the node is leaving from now on, though the watch may not have shown it yet."""
        self.evicted.add(uid)
        self._forget(node)

    def note_outdated(self, node: str, version: str) -> None:
        """The node's topology did not follow when pods left: as long as it stays at this version, no pod is evicted there."""
        self.outdated[node] = version
        self._forget(node)

    def _forget(self, node: str) -> None:
        for known in self._known.values():
            known.forget(node)
            known.unsettled[node] = None

    def concerns_its_node_alone(self, nomination: Nomination) -> bool:
        """Is the plan right whatever becomes of plans for other nodes: no rule counts pods elsewhere, and no budget covers a victim?"""
        budgets = self.disruption_budgets()
        covered = any(protected(victim, budgets) for victim in nomination.candidate.victims)
        return _looks_at_its_node_alone(nomination.request_class) and not covered

    def still_confirms(self, nomination: Nomination) -> bool:
        """As ``confirms``, asked again only when the node has changed since, or when more than the node matters."""
        info = self._handle.cache.nodes.get(nomination.node)
        if info is None:
            return False
        alone = _looks_at_its_node_alone(nomination.request_class)
        # Nothing that the answer depends on has changed, apart from bars, which time may lift.
        if alone and nomination.confirmed == info.revision:
            return not self._handle.selector.bars_of(nomination.request_class)(nomination.node)
        if not self.confirms(nomination.pod, nomination.request_class, nomination.candidate):
            return False
        nomination.confirmed = info.revision
        return True

    def confirms(self, pod: Pod, request_class: RequestClass, candidate: PreemptionCandidate) -> bool:
        """Is it still right to evict those victims who have not been evicted yet?"""
        node = self._preemption_node(pod, request_class, candidate.node)
        ask = self._handle.selector.requirements_now(request_class)
        return node is not None and still_right(ask, node, self.terms(pod, request_class), candidate)

    def _preemption_node(self, pod: Pod, request_class: RequestClass, name: str) -> PreemptionNode | None:
        """
        The node, if what is known of it can be trusted and nothing bars it for this class.

        Who has been evicted counts as leaving, though the watch may not have shown it yet.
        """
        record = self._handle.cache.nodes.get(name)
        if record is None or self._handle.selector.bars_of(request_class)(name):
            return None
        if record.unreported.speaks_of_others(record.topology) or self._is_outdated(record):
            return None
        # Assumed pods may turn out not to be there: they are no victims.
        node = record.site_for(pod, self._assumed_on(name))
        if node is None or not node.trusted:
            return None
        if self.evicted.isdisjoint(node.pods):
            return node
        # Evicted already: it counts as leaving, so that it costs nothing more.
        there = {uid: replace(it, deleting=it.deleting or uid in self.evicted) for uid, it in node.pods.items()}
        return replace(node, pods=there)

    def _assumed_on(self, name: str) -> frozenset[str]:
        """Uids of the node's pods whose bind is not confirmed."""
        record, assumed = self._handle.cache.nodes.get(name), self._handle.cache.assumed
        return frozenset(() if record is None else (uid for uid in record.pods if uid in assumed))

    def _with_devices(self, pod: Pod, verdict: Unschedulable, asked: Collection[str]) -> frozenset[str]:
        """Return those of the nodes that lack more than devices, or have pods of lower priority with devices."""
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
            # Another version: the topology has followed, so that the mark is over.
            del self.outdated[record.name]
        return known is not None and known == record.version

    def disruption_budgets(self) -> list[DisruptionBudget]:
        """The budgets of this moment, by name."""
        return [budget for _, budget in sorted((self.budgets or {}).items())]

    def terms(self, pod: Pod, request_class: RequestClass) -> EvictionTerms:
        """The rules for a pod of the class, and the budgets of this moment."""
        return EvictionTerms(
            self._handle.selector.profile_of(request_class),
            self.disruption_budgets(),
            self._handle.cache.index.namespaces,
            FreedDevices.of(self._handle, pod, request_class, self.evicted),
        )


def _looks_at_its_node_alone(request_class: RequestClass) -> bool:
    return (
        not request_class.pickers and not depends_on_other_pods(request_class.request) and request_class.claims is None
    )
