"""
Makes one placement true, and does not return before it is known whether it is.

Theory: a bind whose answer was lost may still be carried out later. So it is read back, and while the pod has no node the
*same* bind is asked again: of two equal requests one wins and the other is a conflict, which the next read explains. The
caller holds the CPUs throughout.

Who may bind to a node: one after the other, in the order of the decisions. It knows only names of nodes.

What is foreseen of a kubelet's choice rests on everybody who was placed there before; two pods that overtake one another may both get
other NUMA nodes than was foreseen, or none.
"""

import asyncio
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.engine.queue.scheduling_queue import pause
from koord_numa.ports import ClusterError, Conflict, Dependencies, NotLeader, Unavailable, UnknownOutcome
from koord_numa.settings import Settings


class NodeLeft(ClusterError):
    """The chosen node was cordoned or deleted between the decision and the bind."""


class Elsewhere(Conflict):
    """The bind did not happen and will not: look at the pod again."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds pods, one call each, and settles lost answers."""

    outside: Dependencies
    settings: Settings

    async def bind(self, pod: Pod, placement: Placement) -> None:
        """
        Bind and annotate. Returns when the pod is known to be on its node.

        Raises ``NodeLeft``, ``NotLeader``, and every ``ClusterError`` of the port but ``UnknownOutcome``.
        """
        if not await self.outside.binder.node_takes_pods(placement.node):
            raise NodeLeft(f"node {placement.node} was cordoned or deleted meanwhile")
        try:
            await self._ask(pod, placement)
        except UnknownOutcome:
            await self._settle(pod, placement)

    async def _ask(self, pod: Pod, placement: Placement) -> None:
        if not self.outside.lease.fresh():
            raise NotLeader("the lease is not held any more")
        await self.outside.binder.bind(pod.key, placement.node, self.outside.annotate(pod, placement))

    async def _settle(self, pod: Pod, placement: Placement) -> None:
        for attempt in count(1):
            await self.outside.sleep(pause(self.settings.api_backoff, attempt, self.outside.random()))
            try:
                if await self._is_there(pod, placement):
                    return
                await self._ask(pod, placement)
            except Elsewhere:
                raise
            except (Conflict, Unavailable, UnknownOutcome):
                continue
            return

    async def _is_there(self, pod: Pod, placement: Placement) -> bool:
        """Did the first request arrive? Raises ``Elsewhere`` when somebody else gave the pod another node, ``Gone`` when it is gone."""
        seen = await self.outside.binder.read_pod(pod.key)
        if seen.node and seen.node != placement.node:
            raise Elsewhere(f"pod {pod.key} was bound to {seen.node} by somebody else")
        if not seen.node and (seen.deleting or seen.gated):
            raise Elsewhere(f"pod {pod.key} can no longer be bound")
        return bool(seen.node)


class NodeBindLocks:
    """A line of waiting binds for every node that has one."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def at(self, node: str) -> asyncio.Lock:
        """To be held during a bind. Whoever asks first is served first; a line that nobody stands in is forgotten."""
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        return lock
