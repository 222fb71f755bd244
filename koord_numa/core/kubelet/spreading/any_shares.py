"""Nodes on which CPUs of several NUMA nodes may come in any shares of these, as far as it is known."""

from typing import Final

from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.vocabulary import KubeletPolicy

UNPACKED: Final = ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores")
"""Options of the CPU manager with which CPUs of several NUMA nodes are not just packed into one after the other."""


def may_deal_over_numa(node: KubeletNode) -> bool:
    """May CPUs come in any shares, and a pod be refused for that? With best-effort only for memory that is bound."""
    if not (node.distributes_across_numa or not node.is_published or splits_unknown(node)):
        return False
    policy = node.config.topology_policy
    return policy in STRICT or (policy is KubeletPolicy.BEST_EFFORT and node.pins_memory)


def splits_unknown(node: KubeletNode) -> bool:
    """
    Do CPUs of several NUMA nodes come in shares that no packing NUMA node by NUMA node explains, by an option that is published?

    ``prefer-align-cpus-by-uncorecache`` looks for a cache that holds the whole need on each NUMA node before it packs, and
    ``distribute-cpus-across-cores`` takes one CPU of each core in turn (``takeUncoreCache`` and ``takeRemainingCpusSpread`` of
    cpu_assignment.go): with two NUMA nodes of 5 free CPUs containers of 1 and 4 may get 1 of the one and 4 of the other. As caches and
    cores are not published every share is possible, so each is tried.
    """
    return any(node.config.cpu_options.get(name, False) for name in UNPACKED)
