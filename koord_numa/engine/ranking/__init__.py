"""
Choice of the node of a pod.

Nodes and pods are columns of NumPy arrays. Filters and upper bounds of scores are computed on the columns, and nodes are
then evaluated exactly in the order of their bounds.
"""

from koord_numa.engine.ranking.node_ranking import Undecided
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.selector import Limits, Listers, NodeSelection, profile_of

__all__ = ["Limits", "Listers", "NodeSelection", "NodeTable", "Undecided", "profile_of"]
