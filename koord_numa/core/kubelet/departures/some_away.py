"""
The states after pods have left unseen, one or several, for pods whose memory may be bound to several NUMA nodes.

Theory. Where a policy does not keep it to one the memory manager refuses hints that cut through a group of NUMA nodes which a block ties
together. Groups come and go with pods, so that more room may be a refusal in any direction. Not all sets of pods
can be tried: each pod is, all together, and then ``MOST_TRIED`` sets of two and more.

Example: NUMA nodes of 8, 8 and 12 GiB, a pod holds 1 GiB of node 0. A pod of 13 GiB gets nodes 1 and 2. Should the first one have left, it
gets nodes 0 and 1, where an init container of 6 GiB and an app of 12 have no room beside each other.
"""

from collections.abc import Iterator
from itertools import chain, combinations, islice
from typing import Final

from koord_numa.core.kubelet.departures.one_away import holding
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature, released
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, PodDemand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.room import fits_on
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope

MOST_TRIED: Final = 40
"""So many sets of several pods are tried."""


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
    """All pods away, then two and more."""
    uids = [*holding(one)]
    known: set[Signature] = set()
    several = chain.from_iterable(combinations(uids, size) for size in range(2, len(uids)))
    without: dict[tuple[str, ...], Hypothesis] = {(): one}  # many sets begin alike
    for away in islice(chain([tuple(uids)], several), MOST_TRIED) if len(uids) > 1 else ():
        for count, uid in enumerate(away):
            if away[: count + 1] not in without:
                without[away[: count + 1]] = released(without[away[:count]], uid)
        after = without[away]
        if (room := after.room) not in known:
            known.add(room)
            yield after
