"""
Makes one placement true, and does not return before it is known whether it is.

Theory: a bind whose answer was lost may still be carried out later. So it is read back, and while the pod has no node the
*same* bind is asked again: of two equal requests one wins and the other is a conflict, which the next read explains. The
caller holds the CPUs throughout.
"""

from dataclasses import dataclass
from itertools import count

from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.engine.outside import Outside
from koord_numa.engine.queue import pause
from koord_numa.ports import ClusterError, Conflict, Unavailable, UnknownOutcome
from koord_numa.settings import Settings


class NotLeader(ClusterError):
    """The lease is not ours any more, or not for long enough: another replica may be deciding."""


class NodeLeft(ClusterError):
    """The chosen node was cordoned or deleted between the decision and the bind."""


class Elsewhere(Conflict):
    """The bind did not happen and will not: look at the pod again."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds pods, one call each, and settles lost answers."""

    outside: Outside
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
