"""
One configured scoring strategy: its type and how much each resource counts. The formulas are in ``node_resources.py``.

Koordinator's score of a node: how full the place gets that the pod is put in, be it the node or some NUMA nodes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList
from koord_numa.core.score.node_resources import counts, score_filling
from koord_numa.core.score.placed import Placed

Counted = tuple[tuple[str, int, int], ...]
"""Resources with their weight and how much is wanted."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A scoring type and a weight per resource."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def score(self, capacity: ResourceList, used: ResourceList, wanted: ResourceList) -> int:
        """How well ``wanted`` would sit in a capacity that is partly used: 0 to 100."""
        return score_filling(self.type, wanted, capacity, used, self.weights)

    def counted(self, wanted: ResourceList) -> Counted:
        """What counts in the score of a pod that wants so much."""
        weights = self.weights.items()
        return tuple([(name, weight, wanted.get(name, 0)) for name, weight in weights if counts(name, wanted)])


def score_koordinator(placed: Placed, strategy: Strategy) -> int:
    """
    0 to 100 by the strategy, over the NUMA nodes that the pod's amounts are on, else over the whole node.

    For a pod with own CPUs on NUMA nodes, all CPUs of the *node* that pods have for themselves count as taken there, as in
    Koordinator's scoring.go: its recorded scores depend on that.
    """
    capacity, taken = placed.scope
    if placed.placement.numa and placed.placement.cpus:
        own = MILLI * len(placed.ledger.cpus)
        # Replaced, not added: the CPUs of the node's pods stand for what the NUMA nodes have taken.
        taken = {**taken, CPU: amplify(own, placed.inventory.ratios.get(CPU))}
    return strategy.score(capacity, taken, placed.weighed(placed.amounts))
