"""
What of the pods on their way a kubelet does not count for the node as a whole, as it refuses them or others have left.

Theory. A kubelet counts the pods that it has admitted and that have not ended. A scheduler counts all that are bound and not known to be
gone. Take pods on their way that every state refuses, and ``sum``, what they ask for together of one resource. Should one of them be
admitted all the same, pods that no event has shown to be gone have left before it. Where all of them are refused however many pods leave
that ask for less than ``sum`` each, one has left that asks for as much, and that the scheduler still counts. So of this resource the
kubelet counts no more than the scheduler does without ``sum``: it refuses all of them, or one has left that makes up for them.

Under a strict policy a pod is refused of which a container has room on no NUMA node: each resource of which some NUMA node could have
enough when it is empty prefers hints of single NUMA nodes, and the merged hint must be preferred. More pods that leave mean more room for
that, whatever they do to other containers: so those that ask for less are taken away all at once, with all that are on their way.

Example: all exclusive CPUs of NUMA nodes 0 and 1 are in use, and no devices are free near others. A pod with one CPU and one device is on
its way. It is refused unless a pod leaves that has a CPU, or devices. If each that has any asks for a CPU at least, the pod's own CPU is
none that the kubelet counts, whatever it decides.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.enough_room import most_room
from koord_numa.core.kubelet.inference.arrivals import Arrival
from koord_numa.core.kubelet.inference.belief import Belief
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, released
from koord_numa.core.kubelet.room import STRICT, may_hold
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import replace

MOST_STATES: Final = 16
"""Of more states it would take too long to find out."""


def refused_ones(belief: Belief | None) -> list[Arrival]:
    """The pods on their way that every state refuses; none where the theory does not speak to the node."""
    if belief is None or not belief.arrivals or belief.lost or belief.overflow or belief.shortened:
        return []
    states = belief.hypotheses
    refused = [it for it in belief.arrivals if it.known is None and not any(one.has(it.uid) for one in states)]
    return refused if refused and len(states) <= MOST_STATES and all(_is_known(one) for one in states) else []


def not_counted(belief: Belief, refused: Sequence[Arrival], asked: Mapping[str, ResourceList]) -> dict[str, set[str]]:
    """
    By uid of these ``refused_ones`` the resources of which the kubelet surely counts as much less as they ask for.

    ``asked`` is what each pod asks for that the scheduler counts, by uid.
    """
    states, refused = belief.hypotheses, [each for each in refused if each.uid in asked]
    coming = dropwhile(lambda each: each.known is not None, belief.arrivals)
    found: dict[str, set[str]] = {}
    others = frozenset(each.uid for each in coming)
    for name in sorted({name for each in refused for name in asked[each.uid]}):
        amounts = {uid: each.get(name, 0) for uid, each in asked.items()}
        for uid in _of_one_resource(states, refused, others, amounts):
            found.setdefault(uid, set()).add(name)
    return found


def _is_known(one: Hypothesis) -> bool:
    """Is it known where every pod is, and does the theory speak to the node?"""
    node = one.state.node
    if node.config.topology_policy not in STRICT or node.static_options.align_by_socket:
        return False
    return not (one.spread or one.mixed or one.unplaced or one.unlocated or one.leaving or None in one.gone.values())


def _of_one_resource(
    states: Sequence[Hypothesis], refused: Sequence[Arrival], others: Collection[str], amounts: Mapping[str, int]
) -> list[str]:
    """As many of the refused pods, the first ones first, as the theory tells of together; ``amounts`` of the resource by uid."""
    chosen: list[Arrival] = []
    total = 0
    for each in refused:
        more = total + amounts[each.uid]
        less = {uid for one in states for uid in one.state.pods if uid in others or amounts.get(uid, 0) < more}
        emptied = [_without(one, less) for one in states]
        if more > total and all(_is_refused(it.request, one) for one in emptied for it in (*chosen, each)):
            chosen.append(each)
            total = more
    return [each.uid for each in chosen]


def _without(one: Hypothesis, uids: Collection[str]) -> Hypothesis:
    for uid in sorted(uids):
        one = released(one, uid)
    return one


def _is_refused(request: PodRequest, one: Hypothesis) -> bool:
    """Is there a part of the pod, aligned as a whole, that no NUMA node has room for?"""
    demand, node = pod_demand(request), one.state.node
    in_pod_scope = node.config.topology_scope is KubeletScope.POD
    # Of a whole pod that no NUMA nodes have memory for the memory manager has no hint, and may find some for each container.
    units = [replace(demand.pod, memory=None)] if in_pod_scope else [part for _, part in demand.containers]
    most = most_room(request, one)
    return any(
        not any(may_hold(node, most, numa, unit) for numa in node.machine.numa_ids)
        for unit in (_for_one_numa(unit, one) for unit in units)
    )


def _for_one_numa(unit: ContainerDemand, one: Hypothesis) -> ContainerDemand:
    """What the unit asks for of resources of which one NUMA node could have enough: their preferred hints are of single NUMA nodes."""
    node, memory = one.state.node, unit.memory or {}
    largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
    fits = any(all(here.get(kind, 0) >= amount for kind, amount in memory.items()) for here in node.memory.values())
    return ContainerDemand(
        cpus=unit.cpus if unit.cpus <= largest else 0,
        memory=memory if fits else None,
        devices={
            name: count
            for name, count in unit.devices.items()
            if name in node.devices and count <= _most_near_one(one, name)
        },
    )


def _most_near_one(one: Hypothesis, name: str) -> int:
    if name in one.sharing:
        return max(one.sharing[name].counts.values())
    return max((here.bit_count() for here in one.state.node.devices[name].on.values()), default=0)
