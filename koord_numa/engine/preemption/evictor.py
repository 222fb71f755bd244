"""
Eviction of the victims on a node: sets the nominated node in the pod's status and evicts, as long as the plan is valid.

Everything is checked again before each request. Failures are raised; the executor decides about the nomination.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import Final

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.preempt.groups import GroupCandidate
from koord_numa.core.preempt.victims import protected, violating
from koord_numa.engine.handle import Handle
from koord_numa.engine.preemption.evaluator import Evaluator
from koord_numa.engine.queue import Nomination
from koord_numa.ports import ClusterError, Conflict, Gone, NotLeader

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
