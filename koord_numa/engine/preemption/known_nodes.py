"""What trying nodes out for the pods of one class has shown, for as long as the nodes do not change. It asks nothing itself."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.preempt.victims import PreemptionCandidate, Rank

Found = tuple[Rank, PreemptionCandidate]


@dataclass(slots=True)
class KnownNodes:
    """
    What was found for one class: the nodes on which evictions may help, with their free milli-CPU, the emptiest first; ``helpful`` are
    those of them of which that is known, the others have to be asked; and what came of trying one out.

    All of it holds as of a ``position`` in the journal of changed nodes, except for ``unsettled`` nodes: what was found of them may become
    wrong without a change of the node, as when the bind of a pod is confirmed, which can be evicted from then on. With them are the uids
    of their pods whose bind was not confirmed when they were looked at; ``None``: they have to be looked at again. ``refused`` are
    nodes on which no eviction helps by the ``verdict`` of that time. ``rebuilt`` are nodes that were tried out with a rebuilt state of
    their kubelets too.
    """

    position: int | None = None
    unsettled: dict[str, frozenset[str] | None] = field(default_factory=dict)
    tried: dict[str, Found | None] = field(default_factory=dict)
    helpful: set[str] = field(default_factory=set)
    rebuilt: set[str] = field(default_factory=set)
    refused: dict[str, None] = field(default_factory=dict)
    verdict: Unschedulable | None = None
    _room: dict[str, int] = field(default_factory=dict)
    _emptiest: list[tuple[int, str]] = field(default_factory=list)  # sorted: a plan costs what changed, not what exists

    def __iter__(self) -> Iterator[str]:
        """Nodes on which evictions may help: those with most CPU free first, then by name. Nodes may be dismissed meanwhile."""
        return (name for _, name in self._emptiest[:])

    def add(self, node: str, room: int) -> None:
        """Evictions may help on this node, which was not known."""
        self._room[node] = room
        # Negative, as most CPU free comes first.
        insort(self._emptiest, (-room, node))

    def forget(self, node: str) -> None:
        """Nothing is known of this node any more."""
        self.tried.pop(node, None)
        self.refused.pop(node, None)
        self.rebuilt.discard(node)
        self.unsettled.pop(node, None)
        self.dismiss(node)

    def dismiss(self, node: str) -> None:
        """No eviction helps on this node, until it is added again."""
        self.helpful.discard(node)
        room = self._room.pop(node, None)
        if room is not None:
            del self._emptiest[bisect_left(self._emptiest, (-room, node))]

    def resolvable_by_now(self, verdict: Unschedulable) -> list[str]:
        """Nodes that were passed over by an older verdict, and by this one need not be: they may have changed before it and not since."""
        if verdict is self.verdict:
            return []
        found = ((name, verdict.rejections.get(name)) for name in self.refused)
        return [name for name, rejection in found if rejection is not None and rejection.resolvable]

    def clear(self) -> None:
        """Nothing is known of any node."""
        self.tried.clear()
        self.refused.clear()
        self.helpful.clear()
        self.rebuilt.clear()
        self.unsettled.clear()
        self._room.clear()
        self._emptiest.clear()
