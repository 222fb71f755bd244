"""
The states after pods have left unseen, one or several, for pods whose memory may be bound to several NUMA nodes.

Theory. Where a policy does not keep it to one the memory manager refuses hints that cut through a group of NUMA nodes which a block ties
together. Groups come and go with pods, so that more room may be a refusal in any direction. Not all sets of pods
can be tried: each pod is, all together, and then ``MOST_TRIED`` sets of two and more.

Example: NUMA nodes of 8, 8 and 12 GiB, a pod holds 1 GiB of node 0. A pod of 13 GiB gets nodes 1 and 2. Should the first one have left, it
gets nodes 0 and 1, where an init container of 6 GiB and an app of 12 have no room beside each other.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import chain, islice
from typing import Final

from koord_numa.core.kubelet.departures.one_away import holding
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature, released
from koord_numa.core.kubelet.inference.variants import one_of_each_kind
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, PodDemand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.room import fits_on
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope

MOST_TRIED: Final = 40
"""So many sets of several pods are tried."""

SEVERAL: Final = 2
"""Pods at least."""


def binds_freely(demand: PodDemand, node: KubeletNode) -> bool:
    """Is memory of the pod bound of which the policy does not say that it comes from one NUMA node?"""
    policy = node.config.topology_policy
    if not node.pins_memory or policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if not any(part.memory for _, part in demand.containers):
        return False
    by_pod = node.config.topology_scope is KubeletScope.POD
    units = [demand.pod] if by_pod else [part for _, part in demand.containers]
    return policy is not KubeletPolicy.RESTRICTED or not all(_fits_one(unit, node) for unit in units)


def _fits_one(unit: ContainerDemand, node: KubeletNode) -> bool:
    """May restricted align it on one NUMA node?"""
    empty = KubeletState.empty(node).managers
    return any(fits_on(node, empty, numa, unit) for numa in node.machine.numa_ids)


def with_several_away(one: Hypothesis) -> Iterator[Hypothesis]:
    """
    All pods away, then two and more; of pods of one kind so many as leave, whichever they are. At most ``MOST_TRIED`` of these sets.
    """
    everyone = frozenset(holding(one))
    if len(everyone) < SEVERAL:
        return
    known: set[Signature] = set()
    without = {frozenset[str](): one}
    waiting = [frozenset[str]()]
    sets = chain([everyone], _several(one, everyone, without, waiting))
    for away in islice(sets, MOST_TRIED):
        if away not in without:
            without[away] = reduce(released, sorted(away), one)
        after = without[away]
        if (room := after.room) not in known:
            known.add(room)
            yield after


def _several(
    one: Hypothesis, everyone: frozenset[str], without: dict[frozenset[str], Hypothesis], waiting: list[frozenset[str]]
) -> Iterator[frozenset[str]]:
    """Sets of two and more that are not all, smaller ones first; what is left ``without`` each."""
    for away in waiting:
        for uid in one_of_each_kind(without[away], (uid for uid in holding(one) if uid not in away)):
            more = away | {uid}
            if more not in without and more != everyone:
                without[more] = released(without[away], uid)
                waiting.append(more)
                if len(more) >= SEVERAL:
                    yield more
