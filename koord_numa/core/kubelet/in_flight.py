"""
Pods in flight: bound to the node, and the kubelet's verdict on them is not known yet.

Such a pod may be on another NUMA node than foreseen if a pod below has left and no event has shown it yet. A pod that is decided on
now is placed only if that cannot matter: the pods in flight are sure of their place, or the pod has room wherever they are, or it is
equal to all of them. Otherwise it waits for the verdict, which comes within seconds.

Example: NUMA node 0 has 1 CPU and 1 GPU free, node 1 has 8 CPUs and 2 GPUs. Pod a (2 CPUs) is in flight and foreseen on node 1, pod b
(1 CPU, 1 GPU) after it on node 0. If a pod on node 0 has left, a is on node 0 and b on node 1, and a pod of 2 GPUs fits nowhere.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.arrivals import Arrival
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.bounds import (
    STRICT,
    asks_managers,
    everything,
    fits_on,
    has_room_whoever_leaves,
    may_hold,
    most_room,
    together,
)
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis, released
from koord_numa.core.kubelet.replay import admitted
from koord_numa.core.kubelet.state import Grant, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import replace

MANY: Final = 1 << 30
"""More NUMA nodes than there are."""


class PodsInFlight(Exception):
    """The place of pods in flight matters to the pod and is not known."""


@dataclass(slots=True)
class InFlightPods:
    """
    ``arrivals`` start with the first pod without a verdict, in the order of their binds, with the states before them. ``after`` are the
    states after all of them. ``verdicts`` are known verdicts by uid.
    """

    arrivals: Sequence[Arrival]
    after: Sequence[Hypothesis]
    verdicts: Mapping[str, bool]
    _may_move: bool | None = field(default=None, init=False)

    def matters_to(self, request: PodRequest) -> bool:
        """Return whether the kubelet may reject the pod because one of these pods is on another NUMA node than foreseen."""
        if not asks_managers(request, self.arrivals[0].before[0].state.node):
            return False
        return not (self.all_equal(request) or self.leaves_room(request)) and self.may_move()

    def may_move(self) -> bool:
        """Return whether a departure that no event has shown may have changed the place of any of these pods."""
        if self._may_move is None:
            uids = [each.uid for each in self.arrivals if self.verdicts.get(each.uid) is not False]
            self._may_move = any(_may_move(one, uids) for one in self.after)
        return self._may_move

    def all_equal(self, request: PodRequest) -> bool:
        """Do the pod and all of these arrivals take one place each, of equal size and on one NUMA node?"""
        first = self.arrivals[0].before[0]
        node, place = first.state.node, everything(request)
        if first.sharing.keys() & place.devices.keys() or not _counts_places(node):
            return False
        # By identity: pods of one kind share their request.
        requests = {id(each): each for each in (request, *self._requests())}.values()
        if not all(_is_one_unit(each, node) and everything(each) == place for each in requests):
            return False
        # What is larger than any NUMA node is nothing that places can be counted of.
        empty = KubeletState.empty(node).managers
        return any(fits_on(node, empty, numa, place) for numa in node.machine.numa_ids)

    def _requests(self) -> Iterator[PodRequest]:
        return (each.request for each in self.arrivals)

    def leaves_room(self, request: PodRequest) -> bool:
        """Is the pod admitted wherever these arrivals are?"""
        return all(self._leaves_room(one, request) for one in self.arrivals[0].before)

    def _leaves_room(self, one: Hypothesis, request: PodRequest) -> bool:
        # What the kubelet has refused holds nothing.
        coming = [each.request for each in self.arrivals if self.verdicts.get(each.uid) is not False]
        kept, node = together(map(everything, coming)), one.state.node
        # Memory that spans NUMA nodes ties them together, which matters to a pod that wants some.
        binds = node.pins_memory and everything(request).memory
        if binds and not all(
            _stays_on_one(everything(each), node) or has_room_whoever_leaves(each, one, kept) for each in coming
        ):
            return False
        return has_room_whoever_leaves(request, one, kept)


def expecting(
    belief: Belief | None, hypotheses: list[Hypothesis], nominees: Mapping[str, PodRequest]
) -> tuple[list[Hypothesis], InFlightPods | None]:
    """
    Return the hypotheses with these pods, by uid, for which the node is being freed, and the pods in flight if there are any.
    """
    arrivals: list[Arrival] = []
    if belief is not None and hypotheses and has_places(hypotheses[0].state.node):
        # Copies, as a belief writes the states before them when it replays.
        # A pod that was seen gone holds nothing, whether the kubelet admitted it or not.
        there = [each for each in belief.arrivals if each.uid not in belief.left]
        arrivals += [each.copy() for each in dropwhile(lambda each: each.known is not None, there)]
    for uid, request in nominees.items():
        if arrivals:
            arrivals.append(Arrival(uid, request, 0.0, before=hypotheses))
        hypotheses = admitted(hypotheses, uid, request)
    if belief is None or not arrivals:
        return hypotheses, None
    return hypotheses, InFlightPods(arrivals, hypotheses, dict(belief.fates))


def has_places(node: KubeletNode) -> bool:
    """May a pod be in several places on this node? Not on one NUMA node, nor where nothing is tied to any."""
    return len(node.machine.numa_ids) > 1 and (node.aligns or node.pins_memory)


def _counts_places(node: KubeletNode) -> bool:
    """Does the kubelet keep a pod that fits on one NUMA node to one, and choose it by amounts alone?"""
    strict = node.config.topology_policy in (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)
    return strict and not (node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket)


def _is_one_unit(request: PodRequest, node: KubeletNode) -> bool:
    """Is the pod aligned as one, and does it hold at once all that it ever holds?"""
    parts = pod_demand(request).containers
    if node.config.topology_scope is not KubeletScope.POD:
        return len(parts) == 1
    return all(container.kind is not ContainerKind.INIT for container, _ in parts)


def _stays_on_one(demand: ContainerDemand, node: KubeletNode) -> bool:
    """Is the pod's memory on one NUMA node, wherever that is? Where none fits now, other policies put it on several."""
    if not demand.memory or node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return True
    # Restricted takes no more NUMA nodes than the pod would need on the empty node.
    restricted = node.config.topology_policy is KubeletPolicy.RESTRICTED
    empty = KubeletState.empty(node).managers
    return restricted and any(fits_on(node, empty, numa, demand) for numa in node.machine.numa_ids)


def _may_move(one: Hypothesis, uids: Sequence[str]) -> bool:
    """
    Return whether the places of these pods may differ from this state, because a pod on a lower NUMA node has left.

    A container takes the lowest NUMA node that fits, so more room there or above changes nothing.
    """
    pods, lowest = one.state.pods, one.state.node.machine.numa_ids[0]
    highest = max((_highest_place(pods[uid].grant if uid in pods else None) for uid in uids), default=lowest)
    if highest <= lowest:
        return False
    return bool(one.unlocated) or any(_lowest_place(one, uid) < highest for uid in pods)


def _lowest_place(one: Hypothesis, uid: str) -> int:
    """The lowest NUMA node on which the pod holds anything."""
    mask = mask_of(one.state.pods[uid].grant, one.state.node)
    return members(mask)[0] if mask else MANY


def _highest_place(grant: Grant | None) -> int:
    """
    Return the NUMA node below which a departure must be to change this grant.

    Nothing is known of hints other than preferred ones of a single NUMA node.
    """
    highest = 0
    for one in () if grant is None else grant.containers:
        hint = one.hint
        if hint is None or not hint.preferred or hint.mask is None or hint.mask.bit_count() != 1:
            return MANY
        highest = max(highest, members(hint.mask)[0])
    return MANY if grant is None else highest


def mask_of(grant: Grant, node: KubeletNode) -> int:
    """The NUMA nodes of which a pod holds anything."""
    mask = 0
    for given in grant.containers:
        for numa, bits in node.machine.numa_bits.items():
            mask |= bool(given.cpus.bits & bits) << numa
        for block in given.memory:
            mask |= block.mask
        for resource, ids in given.devices.items():
            for device in node.devices[resource].devices:
                mask |= device.near if device.id in ids else 0
    return mask


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
