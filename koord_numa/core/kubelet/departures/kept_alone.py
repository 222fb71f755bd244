"""
Is a pod admitted wherever pods on their way come to be, because some NUMA node is left alone?

Theory. *Strict policies.* A container that fits one NUMA node of the empty machine gets all that it holds from one: its preferred hints
are of one NUMA node, and others are refused (``policy_restricted.go``, ``policy_single_numa_node.go``). In scope ``pod`` that is so for
the pod. So pods on their way leave less on as many NUMA nodes at most as they have containers, wherever each of these goes and whichever
pods left before. Where more than that have room for a whole pod without regular init containers, one of them still has, and the pod is
admitted (``room.py``). Amounts alone may tell less: what comes may leave too little on each, if it is spread over all of them.

Example: five NUMA nodes are empty, and two containers are on their way: a pod that asks for all the memory of one is admitted.

*Best-effort*, with bound memory, as long as no more than a few pods have left unseen. Containers are aligned one by one, and the merged
hint has one NUMA node where CPUs and devices need one and memory may be bound to one: of hints that are not preferred best-effort takes
one that is no wider (``HintMerger`` in policy.go of the kubelet's topologymanager), and that NUMA node alone is such a hint, with all NUMA
nodes for CPUs and devices. Memory for a hint of one NUMA node is bound there, or to a set around it that the manager itself has offered;
only parts of groups with two NUMA nodes and more are refused (``departures/anywhere.py``). So the pod is admitted where the node has the
CPUs and devices, and some NUMA node has the memory and is in no group.

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

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.departures.anywhere import hints_anywhere, widest, with_reuse
from koord_numa.core.kubelet.departures.least_cpus import with_least_free
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import (
    STRICT,
    Bound,
    asks_managers,
    everything,
    fits_on,
    some_fits,
    suffices,
    together,
)
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, ManagerState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace

STAYING: Final = 3
"""A NUMA node to which the memory of so many pods is bound keeps some of it: a yes has to hold with any one gone, and does with any two."""


def has_room_kept_alone(
    request: PodRequest, one: Hypothesis, coming: Sequence[PodRequest], left: Collection[str]
) -> bool:
    """
    Is the pod admitted wherever these come to be before it, under best-effort without any two of the pods that this state has?

    ``left`` are pods that have left by now, perhaps after those came.
    """
    node, table = one.state.node, one.state.managers.memory
    if node.config.topology_policy in STRICT:
        return _has_more_places(request, one, coming)
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


def _has_more_places(request: PodRequest, one: Hypothesis, coming: Sequence[PodRequest]) -> bool:
    """Have more NUMA nodes all that the pod asks for than these can take something of?"""
    node, wanted = one.state.node, everything(request)
    if node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket:
        return False
    if any(container.kind is ContainerKind.INIT for container, _ in pod_demand(request).containers):
        return False
    # A device near several NUMA nodes is missing on each of them, and one near none on no NUMA node.
    pools = [(name, pool) for name, pool in node.devices.items() if name in wanted.devices]
    if any(name in one.sharing or not pool.hosts for name, pool in pools):
        return False
    managers = with_least_free(one)
    if managers.memory is not None and not managers.memory.knows(wanted.memory or ()):
        return False
    taking = [each for each in coming if asks_managers(each, node)]
    if not all(_takes_single_places(each, node) for each in taking):
        return False
    places = sum(1 for numa in node.machine.numa_ids if fits_on(node, managers, numa, wanted))
    return places > sum(len(each.containers) for each in taking)


def _takes_single_places(request: PodRequest, node: KubeletNode) -> bool:
    """Would each container fit one NUMA node of the empty machine, in scope ``pod`` all of them together?"""
    parts = [part for _, part in pod_demand(request).containers]
    if node.config.topology_scope is KubeletScope.POD:
        parts = [everything(request)]
    empty = KubeletState.empty(node).managers
    return all(any(fits_on(node, empty, numa, part) for numa in node.machine.numa_ids) for part in parts)


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
