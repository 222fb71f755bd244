"""
Finds out what it takes to have a waiting pod somewhere: tries nodes out, one by one, and remembers where that was in vain.

It changes nothing and talks to nobody. What it found may be old as soon as somebody else had a turn: ``confirms`` looks again.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from cachetools import LRUCache

from koord_numa.core.budgets import DisruptionBudget
from koord_numa.core.preempt.dry_run import EvictionTerms
from koord_numa.core.preempt.node import PreemptionNode
from koord_numa.core.preempt.pick_node import choose
from koord_numa.core.preempt.victims import PreemptionCandidate, may_help, select_victims_on_node, still_right
from koord_numa.core.request import Pod
from koord_numa.core.scheduling.evaluate import refuse_everywhere
from koord_numa.core.verdicts import Unschedulable
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.cache.topology_lag import speaks_of_others
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue.request_class import RequestClass

CHUNK: Final = 64
"""So many nodes are glanced at before others get their turn."""
REMEMBERED: Final = 64
"""Of so many classes it is remembered which nodes were tried out in vain."""

State = tuple[int, int, int]
"""A node's revision, and how many pods are leaving it and assumed there: while all are the same, so is what can be freed."""


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
        self._useless: LRUCache[RequestClass, dict[str, State]] = LRUCache(maxsize=REMEMBERED)

    def observe_budget(self, event: str | None, budget: DisruptionBudget) -> None:
        """A PodDisruptionBudget came, changed or went."""
        if self.budgets is None:
            return
        place = (budget.namespace, budget.name)
        if event == DELETED:
            self.budgets.pop(place, None)
        else:
            self.budgets[place] = budget

    def forget_the_gone(self) -> None:
        """Victims that have left need not be remembered."""
        self.evicted.intersection_update(self._handle.cache.node_of)

    async def plan(
        self, pod: Pod, klass: RequestClass, verdict: Unschedulable, only: Collection[str] | None = None
    ) -> PreemptionCandidate | None:
        """
        The best of those nodes (or ``only`` of these) that were refused for something that evictions can lift.

        No more than ``candidateNodes`` are tried out: of those whose amounts would suffice, the ones with most CPU free, then by name.
        """
        ask, terms = self._handle.selector.ask_now(klass), self.terms(klass)
        everywhere = refuse_everywhere(ask)
        if everywhere is not None and not everywhere.resolvable:
            return None
        useless: dict[str, State] = {} if ask.neighbours or ask.spread else self._useless.setdefault(klass, {})
        promising = []
        for number, name in enumerate(verdict.rejections if only is None else sorted(only)):
            if number % CHUNK == 0:
                await asyncio.sleep(0)
            rejection = verdict.rejections.get(name)
            site = self._site(pod, klass, name) if rejection is not None and rejection.resolvable else None
            if site is not None and useless.get(name) != self._state_of(site) and may_help(ask, site):
                promising.append((-site.seen.room, name))
        found = []
        for _, name in sorted(promising)[: self._handle.settings.preemption.candidate_nodes]:
            await asyncio.sleep(0)
            site = self._site(pod, klass, name)
            clearance = None if site is None else select_victims_on_node(ask, site, terms)
            if clearance is not None:
                found.append(clearance)
            elif site is not None:
                useless[name] = self._state_of(site)
        return choose(found)

    def repeats(self, pod: Pod, klass: RequestClass, clearance: PreemptionCandidate) -> bool:
        """Does the same node, in the state of this moment, give the same answer?"""
        site = self._site(pod, klass, clearance.node)
        ask = self._handle.selector.ask_now(klass)
        return site is not None and select_victims_on_node(ask, site, self.terms(klass)) == clearance

    def confirms(self, pod: Pod, klass: RequestClass, clearance: PreemptionCandidate) -> bool:
        """Is it still right to evict those victims who have not been evicted yet?"""
        site = self._site(pod, klass, clearance.node)
        ask = self._handle.selector.ask_now(klass)
        return site is not None and still_right(ask, site, self.terms(klass), clearance)

    def _site(self, pod: Pod, klass: RequestClass, node: str) -> PreemptionNode | None:
        """
        The node, if what is known of it can be trusted and nothing bars it for this class.

        Who has been evicted counts as leaving, though the watch may not have shown it yet.
        """
        record = self._handle.cache.nodes.get(node)
        if record is None or self._handle.selector.bars_of(klass)(node):
            return None
        if speaks_of_others(record) or self._is_outdated(record):
            return None
        assumed = self._handle.cache.assumed
        site = record.site_for(pod, frozenset(uid for uid in record.pods if uid in assumed))
        if site is None or not site.trusted:
            return None
        if self.evicted.isdisjoint(site.pods):
            return site
        there = {uid: replace(it, deleting=it.deleting or uid in self.evicted) for uid, it in site.pods.items()}
        return replace(site, pods=there)

    def _is_outdated(self, record: NodeInfo) -> bool:
        known = self.outdated.get(record.name)
        if known is not None and known != record.version:
            del self.outdated[record.name]
        return known is not None and known == record.version

    def terms(self, klass: RequestClass) -> EvictionTerms:
        """The rules of the class, and the budgets of this moment."""
        budgets = [budget for _, budget in sorted((self.budgets or {}).items())]
        return EvictionTerms(self._handle.selector.rules_of(klass), budgets, self._handle.cache.index.namespaces)

    def _state_of(self, site: PreemptionNode) -> State:
        record = self._handle.cache.nodes[site.seen.node.name]
        return record.revision, sum(pod.deleting for pod in site.pods.values()), len(site.assumed)
