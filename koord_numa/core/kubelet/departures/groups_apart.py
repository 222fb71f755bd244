"""
The states before a pod on its way in which memory ties no NUMA nodes together any more, where a policy does not keep it to one.

Theory. Where a block spans NUMA nodes the memory manager gives memory of any of them from all of these together, so that a pod on its way
joins the group. Once all pods are gone whose memory is bound there, the pod may be bound to one of these NUMA nodes alone, and one that
needs several is refused then: no set of NUMA nodes may cut through what a block holds. One departure takes a group apart only where one pod
is in it. So each group of several pods is tried without all of them, and the node without all pods.

Example: two pods of 8 GiB, bound to NUMA nodes 0 and 1 of 12 GiB each, have left unseen. A pod of 1 GiB that came after them is on node 0
alone, and one of 15 GiB is refused that the rest of both nodes was foreseen for.
"""

from collections.abc import Iterator

from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.departures.one_away import holding
from koord_numa.core.kubelet.departures.some_away import SEVERAL, binds_freely
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.unlocated import without
from koord_numa.core.objects.request import PodRequest


def groups_apart(before: Hypothesis, request: PodRequest) -> Iterator[Hypothesis]:
    """Without the pods of each group of NUMA nodes, and without any, before a pod arrives whose memory may join one."""
    memory = before.state.managers.memory
    if memory is None or not binds_freely(pod_demand(request), before.state.node):
        return
    groups = sorted({mask for mask in memory.groups.values() if mask.bit_count() > 1})
    if not groups:
        return
    bound = {uid: _bound(before, uid) for uid in holding(before)}
    # Of unlocated pods it is not known whether they are in a group: they leave with those that are.
    sets = [before.unlocated.keys() | {uid for uid, mask in bound.items() if mask & group} for group in groups]
    for away in dict.fromkeys(map(frozenset, (*sets, before.unlocated.keys() | bound.keys()))):
        if len(away) >= SEVERAL:
            yield from without(before, sorted(away))


def _bound(one: Hypothesis, uid: str) -> int:
    """The NUMA nodes to which memory of the pod is bound."""
    mask = 0
    for container in one.state.pods[uid].grant.containers:
        for block in container.memory:
            mask |= block.mask
    return mask
