"""
The best complete placement among rows that are asked in the order of their scores, when the last rules may lower a score.

Theory: a row's key is the most that it can be worth. Completing a placement (devices for resource claims) tells what it is worth; rows
whose keys are below the best complete one need not be asked. So many complete placements are compared at most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.evaluate import score_parts
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.columns.name_order import SPACE
from koord_numa.engine.ranking.score_bounds import NO

COMPARED: Final = 32
"""Of nodes whose score falls when devices for resource claims are chosen, so many are compared."""


@dataclass(slots=True)
class Settled:
    """The best complete placement so far, by its key; ``count`` of them were compared."""

    charge: Callable[[int], None]  # told what was spent, in nodes asked; may end this part of the decision
    key: int = NO
    placement: Placement | None = None
    count: int = 0

    def note(self, key: int, placement: Placement) -> None:
        """Keep the placement if it is better; of equal keys, which nodes never have, the first."""
        self.count += 1
        if self.placement is None or key > self.key:
            # Never below ``NO``, which ends the search: a complete placement counts however little it is worth.
            self.key, self.placement = max(key, NO), placement


class LateRules:
    """The rules that are asked of the best rows only. ``refusals`` are those of the last decision, by node."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, cluster: ClusterFilters) -> None:
        self._ask = ask
        self._rules = rules
        self._cluster = cluster
        self.refusals: dict[str, Rejection] = {}

    def refuse_early(self, seen: NodeSnapshot | None) -> tuple[bool, bool]:
        """Does a node refuse the pod whatever else it says, and has that been found out just now?"""
        refusal, is_new = (None, False) if seen is None else self._cluster.refuse_early(seen)
        if refusal is None or seen is None:
            return False, False
        # Remembered by node, so that ``explain`` can tell of rows that were never placed.
        self.refusals[seen.node.name] = refusal
        return True, is_new

    def settle(self, seen: NodeSnapshot, placement: Placement, key: int, best: Settled) -> bool:
        """Complete the placement and note it where it is the best so far; returns whether the search can end."""
        # Devices may move the pod to other NUMA nodes, so that its points are counted again.
        settled = self._cluster.settle(seen, placement)
        if isinstance(settled, Rejection):
            self.refusals[seen.node.name] = settled
            best.charge(self._cluster.spent())
            return False
        if settled is not placement:
            # Keys are points times ``SPACE`` plus the rank of the name, which stays.
            key -= SPACE * (self._points(seen, placement) - self._points(seen, settled))
        best.note(key, settled)
        # So many complete placements were compared: the best of them is taken.
        return best.count == COMPARED

    def _points(self, seen: NodeSnapshot, placement: Placement) -> int:
        return sum(score_parts(self._ask, seen, placement, self._rules).values())
