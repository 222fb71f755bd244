"""
Do amounts alone tell that a pod is admitted in every state that a hypothesis stands for? Then none of these has to be asked.

Of devices that may be near several NUMA nodes as few, or as many, are counted near each as there may be (``sharing/layouts.py``). CPUs that
may be dealt out otherwise are missing on each NUMA node. More room may be worse for init containers (``managers/room.py``): where pods may
leave, NUMA nodes are taken to hold these that do so on the empty node.

Under best-effort, with containers aligned one by one, a container whose memory is bound is refused only where the node lacks CPUs or
devices, where no set of NUMA nodes has the memory, or where the merged hint, which is a part of such a set, cuts through a group of three
NUMA nodes or more. No such group comes to be where no hint needs more than two NUMA nodes and each NUMA node has the memory when empty. One
that has the memory keeps it, or shares it with the others of its group, so that some set has it wherever other pods are.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, pod_demand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.room import (
    NOTHING,
    Bound,
    at_most,
    everything,
    has_room_between,
    some_fits,
    suffices,
    together,
)
from koord_numa.core.kubelet.sharing.choices import unclear
from koord_numa.core.kubelet.sharing.layouts import Bounds, reaches_of
from koord_numa.core.kubelet.sharing.reach import Counts, without
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import replace

FEW: Final = 2
"""A part of so many NUMA nodes that is not all of them is one."""


def has_room_in_all_ways(request: PodRequest, one: Hypothesis) -> bool:
    """Whatever devices are near; CPUs are where they are."""
    least, most = _ends(request, one)
    return has_room_between(request, one.state.node, least, most) or has_room_anywhere(request, one)


def has_room_however_shared(request: PodRequest, one: Hypothesis) -> bool:
    """Which devices the pod gets, and near what, is open in more ways than can be asked: is it admitted all the same?"""
    return has_room_anywhere(request, one) and bool(unclear(one, pod_demand(request)))


def unclear_devices(request: PodRequest, states: Iterable[Hypothesis]) -> str:
    """Of which devices the pod may get some in more ways than can be asked, and be refused, in words; empty where there are none."""
    ways = (unclear(one, pod_demand(request)) for one in states if not has_room_anywhere(request, one))
    return next(filter(None, ways), "")


def has_room_whoever_leaves(request: PodRequest, one: Hypothesis, coming: ContainerDemand = NOTHING) -> bool:
    """Whatever devices are near, wherever CPUs are, whichever pods leave, and with ``coming`` taken from any NUMA nodes."""
    node = one.state.node
    least, _ = _ends(request, one)
    moving = sum(len(given.cpus) for uid in one.spread for given in one.state.pods[uid].grant.containers)
    kept = together([coming, ContainerDemand(cpus=moving, memory=None, devices={})])
    all_there = {name: one.sharing[name].counts for name in least.devices}
    if has_room_between(request, node, least, Bound(KubeletState.empty(node).managers, all_there), kept):
        return True
    return coming is NOTHING and has_room_anywhere(request, one)


def _ends(request: PodRequest, one: Hypothesis) -> tuple[Bound, Bound]:
    fewest: dict[str, Counts] = {}
    most: dict[str, Counts] = {}
    for name in one.sharing.keys() & at_most(request).devices.keys():
        free = without(one.sharing[name].counts, (reach.must for reach in reaches_of(one, name).values()))
        bounds = Bounds.of(one, name)
        fewest[name] = {numa: count - bounds.high[numa] for numa, count in free.items()}
        most[name] = {numa: count - bounds.low[numa] for numa, count in free.items()}
    return Bound(one.state.managers, fewest), Bound(one.state.managers, most)


def has_room_anywhere(request: PodRequest, one: Hypothesis, coming: Sequence[PodRequest] = ()) -> bool:
    """Does best-effort admit the pod whichever pods leave, and wherever these come to be before it?"""
    node, table = one.state.node, one.state.managers.memory
    if node.config.topology_policy is not KubeletPolicy.BEST_EFFORT or table is None:
        return False
    if node.ids_are_real or node.whole_cores is not None or node.config.topology_scope is not KubeletScope.CONTAINER:
        return False
    few = len(node.machine.numa_ids) <= FEW
    if not few and any(group.bit_count() > FEW for group in table.groups.values()):
        return False
    if not all(_finds_devices(each, node) and (few or _needs_few(each, one)) for each in (request, *coming)):
        return False
    kept = together(map(everything, coming))
    # A container gets the devices that init containers before it leave, whatever its hint; of their CPUs it may get others.
    wanted = replace(everything(request), devices=_with_reuse(request))
    if not (table.knows(wanted.memory or ()) and suffices(node, one.state.managers, wanted, kept)):
        return False
    memory = ContainerDemand(cpus=0, memory=wanted.memory, devices={})
    return some_fits(node, Bound(one.state.managers), memory, kept)


def _with_reuse(request: PodRequest) -> ResourceList:
    return {name: at_most(request).devices.get(name, 0) for name in everything(request).devices}


def _finds_devices(request: PodRequest, node: KubeletNode) -> bool:
    """May each device be near any NUMA node? Else a hint may have none in common with that of memory, and stand for all NUMA nodes."""
    pools = [node.devices[name] for name in everything(request).devices if name in node.devices]
    return all(pool.hosts in (0, node.machine.numa_mask) for pool in pools)


def _needs_few(request: PodRequest, one: Hypothesis) -> bool:
    """Does no container need more than two NUMA nodes, with those of init containers before it, wherever other pods are?"""
    parts = pod_demand(request).containers
    # Later containers stay near what init containers leave.
    init = together(part for container, part in parts if container.kind is ContainerKind.INIT)
    if max([init.cpus, *(part.cpus for _, part in parts)]) > FEW or max(init.devices.values(), default=0) > FEW:
        return False
    supply = list(one.state.managers.memory.supply.values()) if one.state.managers.memory is not None else []
    return all(
        max(part.devices.values(), default=0) <= FEW
        and all(amounts.get(kind, 0) >= amount for amounts in supply for kind, amount in (part.memory or {}).items())
        for _, part in parts
    )
