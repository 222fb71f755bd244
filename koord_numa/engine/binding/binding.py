"""
The bind: one call, in the right order, and settled when its answer is lost.

Theory of lost answers: a bind that timed out, or was answered by 500, may still be carried out. Nothing is given back before it is known
that it was not: the pod is read, the *same* bind is asked again a few times (of two equal requests one wins and the other is a conflict,
which the next read explains), and when the pod has no node although the last request can no longer arrive, the bind has not happened.
A pod that settles occupies no worker and no lock: one whose bind never succeeds costs others nothing but the CPUs it holds meanwhile.

Theory of the order: what is foreseen of a kubelet's choice rests on all pods that were placed there before. Two binds that overtake one
another may both get other NUMA nodes than was foreseen, or none, so they are sent one at a time, in the order of the decisions. A node
with a long line takes no further pods until the line is short.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from koord_numa.core.fit.node_filters import fits_unschedulable
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.engine.binding.pre_bind import PreBindStep
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.queue.backoff import pause
from koord_numa.ports import ClusterError, Conflict, Dependencies, Gone, NotLeader
from koord_numa.settings import Settings

REQUESTS: Final = 3
"""So often the same bind is asked while its outcome is unknown."""

ARRIVAL_SECONDS: Final = 15.0
"""A request that was not carried out this long after it was sent never will be: client and server have given it up by then."""

LONG_LINE: Final = 16
SHORT_LINE: Final = 4
"""Binds to one node that wait for their turn: from the one number on the node takes no more pods, from the other on it does again."""


def pre_bind_steps(*steps: PreBindStep | None) -> tuple[PreBindStep, ...]:
    """The rows of the PreBind stage, in the order in which they run; ``None`` for one that this process does not have."""
    return tuple(step for step in steps if step is not None)


class NodeLeft(ClusterError):
    """The chosen node was cordoned or deleted between the decision and the bind."""


class Elsewhere(Conflict):
    """The bind did not happen and will not: look at the pod again."""


class NotBound(ClusterError):
    """The outcome was unknown; now it is known that the bind was not carried out and will not be."""


OnTrouble = Callable[[ClusterError], None]
"""Told of every request of a bind whose outcome is unknown, while it is being settled."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds pods, one call each, and settles lost answers."""

    dependencies: Dependencies
    settings: Settings
    cache: Cache

    async def bind(self, pod: Pod, placement: Placement) -> None:
        """
        Bind and annotate with one request. Returns when the pod is known to be on its node.

        Raises ``NodeLeft``, ``NotLeader``, and every ``ClusterError`` of the port; after ``UnknownOutcome`` call ``settle``.
        """
        self._check_node(pod, placement.node)
        # The last look before the request: a leader that lost its lease must not bind beside the next one.
        if not self.dependencies.lease.fresh():
            raise NotLeader("the lease is not held any more")
        annotations = self.dependencies.annotate(pod, placement)
        await self.dependencies.binder.bind(pod.key, placement.node, annotations)

    async def settle(
        self, pod: Pod, placement: Placement, on_trouble: OnTrouble, most_requests: int = REQUESTS
    ) -> None:
        """
        Find out what became of a bind whose outcome is unknown, however long that takes. Returns when the pod is on its node.

        The bind is asked for again until it has been ``most_requests`` times.

        Raises ``NotBound``, ``Elsewhere`` and ``Gone``: each means that the pod holds nothing on the node.
        """
        clock, requests = self.dependencies.clock, 1
        last = clock()
        for attempt in count(1):
            backoff = pause(self.settings.api_backoff, attempt, self.dependencies.random())
            await self.dependencies.sleep(backoff)
            asked = clock()  # the answer may take long, and is as old as the question
            try:
                if await self._is_there(pod, placement):
                    return
            # What the pod's own state says ends the wait; everything else is asked again.
            except (Gone, Elsewhere):
                raise
            except ClusterError as error:
                on_trouble(error)  # also 401 and 403: not to be allowed to look says nothing about the bind
                continue
            # No further request: wait until the last one can no longer arrive.
            if requests >= most_requests or not self.dependencies.lease.fresh():
                if asked - last > ARRIVAL_SECONDS:
                    raise NotBound(f"the bind of pod {pod.key} to node {placement.node} was not carried out")
                continue
            requests, last = requests + 1, clock()
            try:
                await self.bind(pod, placement)
            except ClusterError as error:
                last = clock()
                on_trouble(error)
                continue
            return

    async def _is_there(self, pod: Pod, placement: Placement) -> bool:
        """Did a request arrive? Raises ``Elsewhere`` when another writer gave the pod another node, ``Gone`` when it is gone."""
        seen = await self.dependencies.binder.read_pod(pod.key)
        if seen.node and seen.node != placement.node:
            raise Elsewhere(f"pod {pod.key} was bound to {seen.node} by another scheduler")
        # A pod that is going or gated is refused by the API server, so that a late request cannot succeed either.
        if not seen.node and (seen.deleting or seen.gated):
            raise Elsewhere(f"pod {pod.key} can no longer be bound")
        return bool(seen.node)

    def _check_node(self, pod: Pod, name: str) -> None:
        """As the decision saw it: a pod that tolerates the cordon may go to a cordoned node."""
        info = self.cache.nodes.get(name)
        if info is None or info.node is None:
            raise NodeLeft(f"node {name} was deleted meanwhile")
        if rejection := fits_unschedulable(pod.request, info.node):
            raise NodeLeft(f"node {name}: {rejection.detail}")


class NodeBindLocks:
    """
    The lines of binds to nodes. ``on_length`` hears of a node whose line became long (true) or short again (false).

    A lock is held while a request is under way, not while its outcome is being settled: no request follows then.
    """

    def __init__(self, on_length: Callable[[str, bool], None]) -> None:
        # Weak: a lock lives as long as a task holds or awaits it.
        self._on_length = on_length
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lengths: Counter[str] = Counter()
        self._long: set[str] = set()

    def __len__(self) -> int:
        """How many nodes have a line."""
        return len(self._lengths)

    @asynccontextmanager
    async def at(self, node: str) -> AsyncIterator[None]:
        """To be held while a bind is sent. Who asks first is served first; an empty line is forgotten."""
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        # Counted before waiting, since those that wait are the line.
        self._joined(node)
        try:
            async with lock:
                yield
        finally:
            self._left(node)

    def _joined(self, node: str) -> None:
        self._lengths[node] += 1
        if self._lengths[node] >= LONG_LINE and node not in self._long:
            self._long.add(node)
            self._on_length(node, True)

    def _left(self, node: str) -> None:
        self._lengths[node] -= 1
        left = self._lengths[node]
        if not left:
            del self._lengths[node]
        # Two thresholds, so that a line around one of them does not open and close the node with every bind.
        if left <= SHORT_LINE and node in self._long:
            self._long.discard(node)
            self._on_length(node, False)
