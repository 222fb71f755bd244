"""
Frees one node for one pod: names the node in the pod's status and evicts the victims, as long as that is right.

Everything is checked once more before each request. What fails raises; what then becomes of the nomination is for the executor to say.
"""

import asyncio
from contextlib import suppress
from logging import getLogger
from typing import Final

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.preempt.victims import protected, violating
from koord_numa.engine.handle import Handle
from koord_numa.engine.preemption.evaluator import Evaluator
from koord_numa.engine.queue.nominator import Nomination
from koord_numa.ports import ClusterError, Conflict, Gone, NotLeader

log = getLogger(__name__)

PREEMPTED: Final = "Preempted"


class Evictor:
    """For one nomination at a time."""

    def __init__(self, handle: Handle, evaluator: Evaluator) -> None:
        self._handle = handle
        self._evaluator = evaluator

    async def free(self, nomination: Nomination) -> None:
        """Raises ``ClusterError``: ``Gone`` when the pod waits no longer, ``Conflict`` when the node has changed."""
        self._check(nomination)
        # The status first: readers of it see for which pod the victims go.
        seen = await self.nominate(nomination.pod.key, nomination.node)
        if seen.node or seen.deleting or seen.gated or seen.finished:
            # What its status says of the node is not true any more.
            with suppress(ClusterError):
                await self._handle.dependencies.binder.nominate(nomination.pod.key, "")
            raise Gone(f"pod {nomination.pod.key} waits no longer")
        await self._evict(nomination)

    async def nominate(self, pod: PodKey, node: str) -> Pod:
        """Name the node in the pod's status (an empty one: none) together with the condition that is due; returns the pod as it is then."""
        with self._handle.conditions.lent(pod.uid) as why:
            return await self._handle.dependencies.binder.nominate(pod, node, why)

    async def withdraw(self, pod: PodKey) -> None:
        """What a status says about a node that is not kept any more does no harm; that of a pod that is bound is left alone."""
        if not self._handle.dependencies.lease.fresh() or not self.still_waits(pod):
            return
        try:
            await self.nominate(pod, "")
        except ClusterError as error:
            log.info("the nomination of pod %s cannot be taken back now: %s", pod, error)

    def still_waits(self, pod: PodKey) -> bool:
        """Does the pod wait for a node, and is no bind of it under way?"""
        pending = self._handle.pending.get(pod.uid)
        return pending is not None and not pending.binding

    async def _evict(self, nomination: Nomination) -> None:
        """
        Evict the victims. Those under a budget come first, one by one: if the API server refuses one, the others are spared. The others are
        evicted together, as by kube-scheduler.
        """
        victims = nomination.candidate.victims
        budgets = self._evaluator.disruption_budgets()
        # Only a plan that is allowed to break budgets has any that are broken.
        broken = violating(victims, budgets) if nomination.candidate.violations else frozenset()
        unprotected = []
        for victim in victims:
            if not protected(victim, budgets):
                unprotected.append(victim)
                continue
            # Before every single eviction: each is a request, and the node may change meanwhile.
            self._check(nomination)
            await self._evict_one(nomination, victim, broken)
        if not unprotected:
            return
        self._check(nomination)
        ends = await asyncio.gather(
            *(self._evict_one(nomination, victim, broken) for victim in unprotected), return_exceptions=True
        )
        # After all have ended: an exception must not leave evictions running unseen.
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _evict_one(self, nomination: Nomination, victim: Pod, broken: frozenset[str]) -> None:
        handle = self._handle
        message = f"Preempted by pod {nomination.pod.key.uid} on node {nomination.node}"
        with suppress(Gone):
            if victim.key.uid in broken:
                # An eviction would be refused; kube-scheduler deletes all of its victims.
                await handle.dependencies.binder.delete(victim.key)
            else:
                await handle.dependencies.binder.evict(victim.key, message)
            handle.dependencies.recorder.event(victim.key, warning=False, reason=PREEMPTED, message=message)
            handle.metrics.victims += 1
        self._evaluator.note_evicted(nomination.node, victim.key.uid)

    def _check(self, nomination: Nomination) -> None:
        """The last look before an eviction. Raises ``NotLeader``, ``Gone`` or ``Conflict`` when it must not happen."""
        handle, pod = self._handle, nomination.pod
        if not handle.dependencies.lease.fresh():
            raise NotLeader("the lease is not held any more")
        if handle.nominator.of(pod.key.uid) is not nomination or not self.still_waits(pod.key):
            raise Gone(f"pod {pod.key} needs no room any more")
        if not self._evaluator.still_confirms(nomination):
            raise Conflict(f"node {nomination.node} has changed: to evict these pods is not right any more")
