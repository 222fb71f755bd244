"""
Does best-effort admit a pod whose memory is bound wherever other pods are, those on their way too, and whichever have left?

Theory. Let containers be aligned one by one. One whose memory is bound is refused only where the node lacks CPUs or devices, where no set
of NUMA nodes that may be bound has the memory, or where the merged hint cuts through a group: it is a part of such a set of two NUMA nodes
or more and not all of it. A set that may be bound is one NUMA node alone, a group, or some NUMA nodes without blocks, of which any part may
be bound too: so only groups of three or more are cut through, and by hints of two or more. A hint is as wide as the most demanding resource
needs, if some merged hint is.

A new group comes to be of NUMA nodes without blocks alone, and only by a hint of several, or around one that lacks the memory. Where each
of them has, without blocks, what any container asks for, only the first is left: then memory needs one NUMA node, or a group, and CPUs and
devices tell how wide a hint is. So many CPUs are on so few NUMA nodes as where all free ones are dealt out evenly, beside those of init
containers, which later containers must include; each device is near some NUMA node.

- Where no hint needs more than two NUMA nodes, no group of three comes to be. One that was there before is not cut through either, once one
  of its NUMA nodes has been bound alone: as long as a block of the group is there that one has blocks, and is not bound with others again.
- Where no hint needs more than one, no group comes to be at all, and none is cut through, whatever groups there are.
- The last container of the pod comes after all of these. Where it finds no group of three that may be cut through, its hint cuts through
  none, however wide that is: it is the part of a set that may be bound, and so one NUMA node, a group of two, or NUMA nodes without blocks.
  Where it has too little memory, it is widened to that set, which has enough. What the container binds together no later one finds.

And some set has the memory: one NUMA node has it beside all that come. It is alone, or in a group of two that came to be since, which has
no less. If that was broken, the other one was without blocks then and is alone now. So where there are groups, or may be, each NUMA node
must have, without blocks, what the pod and all that come ask for together.

What a NUMA node has without blocks is what it supplies, less what blocks of several NUMA nodes may have left there: the kubelet gives such
a block back from the lowest NUMA node on, wherever it was taken from. Those of pods that come leave no more than these ask for.

*Pods aligned as one* (scope ``pod``). All containers get one hint, which is not merged again for what the first of them leave. Where no
NUMA node is in a group, and no pod that comes may need several, none ever is. The hint is one NUMA node then, or some without blocks. One
with blocks is in it only if it has alone what the pod holds at once; one without has, by itself, all that its containers ask for together.
So none of them lacks memory there, each is bound to just the hint, and a group that comes to be is the one that the next one finds. Memory
of a type that only init containers ask for is in no hint: where there is some nothing is told.

Example: NUMA nodes 2 and 4 to 6 are a group for a pod with four devices, and another pod has forced its memory onto NUMA node 2 alone. A
pod of one CPU is admitted wherever another one of one CPU is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import Bound, at_most, everything, some_fits, suffices, together
from koord_numa.core.kubelet.state import KubeletNode, MemoryTable
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList, total
from koord_numa.core.value_objects import replace

FEW: Final = 2
"""A part of so many NUMA nodes that is not all of them is one."""


def has_room_anywhere(request: PodRequest, one: Hypothesis, coming: Sequence[PodRequest] = ()) -> bool:
    """Does best-effort admit the pod whichever pods leave, and wherever these come to be before it?"""
    node, table = one.state.node, one.state.managers.memory
    if node.config.topology_policy is not KubeletPolicy.BEST_EFFORT or table is None:
        return False
    if node.ids_are_real or node.whole_cores is not None:
        return False
    pods = (request, *coming)
    if not all(hints_anywhere(each, node) for each in pods):
        return False
    kept = together(map(everything, coming))
    # A container gets the devices that init containers before it leave, whatever its hint; of their CPUs it may get others.
    wanted = replace(everything(request), devices=with_reuse(request))
    if not (table.knows(wanted.memory or ()) and suffices(node, one.state.managers, wanted, kept)):
        return False
    free = one.state.managers.cpus.bit_count() - wanted.cpus - kept.cpus
    amounts = total((wanted.memory or {}, kept.memory or {}))
    stays = _stays_in_one_hint if node.config.topology_scope is KubeletScope.POD else _cuts_no_group
    if not stays(pods, one, table, free, amounts):
        return False
    memory = ContainerDemand(cpus=0, memory=wanted.memory, devices={})
    return some_fits(node, Bound(one.state.managers), memory, kept)


def _cuts_no_group(
    pods: Sequence[PodRequest], one: Hypothesis, table: MemoryTable, free: int, amounts: ResourceList
) -> bool:
    """Of pods whose containers are aligned one by one, of which the first one is asked about."""
    node = one.state.node
    if len(node.machine.numa_ids) <= FEW:
        return True
    most = 1 if _may_be_cut(table) else FEW
    containers = [pod_demand(each).containers for each in pods]
    if most == FEW:
        containers[0] = containers[0][:-1]  # what the pod's last container binds is found by none of these
    most_wide = max(widest(each, node, free) for each in containers)
    if most_wide > most:
        return False
    grouped = most_wide > 1 or any(group.bit_count() > 1 for group in table.groups.values())
    return _has_each_without_blocks(one, table, amounts if grouped else _largest(pods))


def _stays_in_one_hint(
    pods: Sequence[PodRequest], one: Hypothesis, table: MemoryTable, free: int, amounts: ResourceList
) -> bool:
    """Of pods aligned as one, of which the first one is asked about."""
    if any(group.bit_count() > 1 for group in table.groups.values()):
        return False
    request, *coming = pods
    if (pod_demand(request).pod.memory or {}).keys() != (everything(request).memory or {}).keys():
        return False
    node, demands = one.state.node, [pod_demand(each) for each in coming]
    if any(widest([(each.containers[0][0], each.pod)], node, free) > 1 for each in demands):
        return False
    return _has_each_without_blocks(one, table, amounts)


def with_reuse(request: PodRequest) -> ResourceList:
    """The devices that the pod holds at most at once, where containers take over those of init containers."""
    return {name: at_most(request).devices.get(name, 0) for name in everything(request).devices}


def hints_anywhere(request: PodRequest, node: KubeletNode) -> bool:
    """
    May CPUs and devices be near any NUMA node? Else a hint may have none in common with that of memory, and stand for all NUMA nodes.
    """
    asked = everything(request)
    if asked.cpus and node.pins_cpus and not all(node.machine.numa_bits.get(numa) for numa in node.machine.numa_ids):
        return False  # some have memory only
    pools = [node.devices[name] for name in asked.devices if name in node.devices]
    return all(pool.hosts in (0, node.machine.numa_mask) for pool in pools)


def _may_be_cut(table: MemoryTable) -> bool:
    """Is there a group of three NUMA nodes or more, none of which has been bound alone since?"""
    wide = {group for group in table.groups.values() if group.bit_count() > FEW}
    return any(
        all(table.groups[numa] == group or not table.blocks[numa] for numa in members(group) if numa in table.groups)
        for group in wide
    )


def widest(containers: Iterable[tuple[Container, ContainerDemand]], node: KubeletNode, free: int) -> int:
    """
    On how many NUMA nodes one of them with memory may need its CPUs or devices at most, with those that init containers leave it.

    At least ``free`` CPUs are free beside all that the pods ask for.
    """
    numas = len(node.machine.numa_ids)
    most, cpus, devices = 0, 0, dict[str, int]()
    for container, part in containers:
        if part.memory:
            if part.cpus and node.pins_cpus:
                # More or less of what is left may have been taken over before.
                needed = ((left, max(0, part.cpus - left)) for left in range(cpus + 1))
                most = max(most, *(left + _fewest(missing, free + part.cpus, numas) for left, missing in needed))
            counts = ((name, count) for name, count in part.devices.items() if name in node.devices)
            most = max([most, *(max(count, devices.get(name, 0)) for name, count in counts)])
        if container.kind is ContainerKind.INIT:
            cpus, devices = cpus + part.cpus, total((devices, part.devices))
    return most


def _fewest(needed: int, free: int, numas: int) -> int:
    """So many NUMA nodes have the CPUs, however the free ones lie."""
    # Where there are fewer than that, the container is refused for them, wherever it is.
    each, more = divmod(max(needed, free), numas)
    return next(count for count in range(numas + 1) if count * each + min(count, more) >= needed)


def _largest(requests: Iterable[PodRequest]) -> ResourceList:
    """The most memory of each type that one of their containers asks for."""
    found: dict[str, int] = {}
    for request in requests:
        for _, part in pod_demand(request).containers:
            for kind, amount in (part.memory or {}).items():
                found[kind] = max(found.get(kind, 0), amount)
    return found


def _has_each_without_blocks(one: Hypothesis, table: MemoryTable, amounts: ResourceList) -> bool:
    """Has each NUMA node so much once none of the blocks is on it that are there now?"""
    short = [
        numa for numa, free in table.free.items() if any(free.get(kind, 0) < most for kind, most in amounts.items())
    ]
    if not short:
        return True
    alone = _bound_alone(one)
    return all(
        table.supply[numa].get(kind, 0) - max(0, table.held[numa].get(kind, 0) - alone.get((numa, kind), 0)) >= amount
        for numa in short
        for kind, amount in amounts.items()
    )


def _bound_alone(one: Hypothesis) -> Mapping[tuple[int, str], int]:
    """What pods hold of one NUMA node alone, by its id and type, which is free there once they are gone."""
    found: dict[tuple[int, str], int] = {}
    for pod in one.state.pods.values():
        for given in pod.grant.containers:
            # What init containers had has been given back, or is in the blocks of later ones.
            if given.kind is not ContainerKind.INIT:
                for block in given.memory:
                    if block.mask.bit_count() == 1:
                        key = (block.mask.bit_length() - 1, block.resource)
                        found[key] = found.get(key, 0) + block.amount
    return found
