"""
Does best-effort admit a pod whose memory is bound, wherever pods on their way come to be, as long as no more than a few have left unseen?

Theory. Containers are aligned one by one, and the merged hint has one NUMA node where CPUs and devices need one and memory may be bound
to one: of hints that are not preferred best-effort takes one that is no wider (``HintMerger`` in policy.go of the kubelet's
topologymanager), and that NUMA node alone is such a hint, with all NUMA nodes for CPUs and devices. Memory for a hint of one NUMA node is
bound there, or to a set around it that the manager itself has offered; only parts of groups with two NUMA nodes and more are refused
(``departures/anywhere.py``). So the pod is admitted where the node has the CPUs and devices, and some NUMA node has the memory and is in
no group.

That one stays: a NUMA node comes into a group only without blocks, and while some pod's memory is bound there it has some. ``STAYING``
pods or more have to leave before it has none. What pods on their way are bound to, groups or not, makes no difference then: of these NUMA
nodes they take no more memory than they ask for, and of the node no more CPUs. A group to which such a NUMA node once belonged gives it
memory back and takes none.

Pods that are known to be gone may have left before those came or after, so that none of them counts as staying; but now their CPUs are
free.

Example: NUMA nodes 2 and 4 to 6 are a group for a pod with four devices, and another one with four devices is on its way, for which
others may be a group if pods have left. On NUMA node 1 three pods have memory, and there is more for all that come: a pod of one CPU is
admitted.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from koord_numa.core.kubelet.departures.anywhere import hints_anywhere, widest, with_reuse
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, pod_demand
from koord_numa.core.kubelet.managers.manager_state import ManagerState
from koord_numa.core.kubelet.managers.room import Bound, everything, some_fits, suffices, together
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace

STAYING: Final = 3
"""A NUMA node to which the memory of so many pods is bound keeps some of it: a yes has to hold with any one gone, and does with any two."""


def has_room_kept_alone(
    request: PodRequest, one: Hypothesis, coming: Sequence[PodRequest], left: Collection[str]
) -> bool:
    """
    Does best-effort admit the pod wherever these come to be before it, without any two of the pods that this state has?

    ``left`` are pods that have left by now, perhaps after those came.
    """
    node, table = one.state.node, one.state.managers.memory
    if node.config.topology_policy is not KubeletPolicy.BEST_EFFORT or table is None:
        return False
    if node.ids_are_real or node.whole_cores is not None or node.config.topology_scope is not KubeletScope.CONTAINER:
        return False
    # Of these it is not known which NUMA nodes their memory is bound to.
    if one.unplaced or one.unlocated or one.leaving or not hints_anywhere(request, node):
        return False
    kept, wanted = together(map(everything, coming)), everything(request)
    managers = _with_cpus_of(one, left)
    # A container gets the devices that init containers before it leave, whatever its hint; of their CPUs it may get others.
    wanted = replace(wanted, devices=with_reuse(request))
    if not (table.knows(wanted.memory or ()) and suffices(node, managers, wanted, kept)):
        return False
    if widest(pod_demand(request).containers, node, managers.cpus.bit_count() - wanted.cpus - kept.cpus) > 1:
        return False
    alone = [numa for numa, pods in _bound_alone(one, left).items() if pods >= STAYING]
    memory = ContainerDemand(cpus=0, memory=wanted.memory, devices={})
    return some_fits(node, Bound(one.state.managers), memory, kept, alone)


def _with_cpus_of(one: Hypothesis, left: Collection[str]) -> ManagerState:
    """The managers with the CPUs of these pods free."""
    managers, bits = one.state.managers, one.state.managers.cpus
    for uid in left:
        if (pod := one.state.pods.get(uid)) is not None:
            for given in pod.grant.containers:
                bits |= given.cpus.bits
    return ManagerState(bits, managers.devices, managers.memory)


def _bound_alone(one: Hypothesis, left: Collection[str]) -> Mapping[int, int]:
    """How many pods have memory of a NUMA node alone, by its id, beside those that have left."""
    found: dict[int, int] = {}
    for uid, pod in one.state.pods.items():
        if uid in left:
            continue
        # What init containers had has been given back, or is in the blocks of later ones.
        held = (given for given in pod.grant.containers if given.kind is not ContainerKind.INIT)
        masks = {block.mask for given in held for block in given.memory}
        for mask in masks:
            if mask.bit_count() == 1:
                numa = mask.bit_length() - 1
                found[numa] = found.get(numa, 0) + 1
    return found
