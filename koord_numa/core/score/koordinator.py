"""Koordinator's score of a node: how full the place gets that the pod is put in, be it the node or some NUMA nodes of it."""

from koord_numa.core.amounts import CPU, MILLI
from koord_numa.core.amplify import amplify
from koord_numa.core.score.placed import Placed
from koord_numa.core.score.strategy import Strategy


def score_koordinator(placed: Placed, strategy: Strategy) -> int:
    """
    0 to 100 by the strategy, over the NUMA nodes that the pod's amounts are on, else over the whole node.

    For a pod with own CPUs on NUMA nodes, all CPUs of the *node* that pods have for themselves count as taken there, as in
    Koordinator's scoring.go: its recorded scores depend on that.
    """
    capacity, taken = placed.scope
    if placed.placement.numa and placed.placement.cpus:
        own = MILLI * len(placed.ledger.cpus)
        taken = {**taken, CPU: amplify(own, placed.inventory.ratios.get(CPU))}
    return strategy.score(capacity, taken, placed.weighed(placed.amounts))
