"""
Pods in flight: bound to the node, and the kubelet's verdict on them is not known yet.

A pod in flight may be on another NUMA node than predicted if a pod on a lower NUMA node left unseen. The next pod is
placed only if that cannot matter: the placements are certain, or the pod fits for all of them, or all these pods are of
equal size. Otherwise it waits for the verdict, a matter of seconds. Example: NUMA node 0 has 1 CPU and 1 GPU free, node
1 has 8 CPUs and 2 GPUs. Pod a (2 CPUs) is predicted on node 1, then pod b (1 CPU, 1 GPU) on node 0. If a pod on node 0
left, a is on node 0 and b on node 1, and a pod of 2 GPUs fits on no NUMA node.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

from koord_numa.core.cpuset import members
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
"""A number above every NUMA ID."""


class PodsInFlight(Exception):
    """The verdict on a pod depends on the unknown placement of pods in flight."""


@dataclass(slots=True)
class InFlightPods:
    """
    The pods in flight of one node.

    ``arrivals`` start with the first pod without a verdict, in the order of their binds, with the states before them.
    ``after`` are the states after all of them. ``verdicts`` are known verdicts by uid.
    """

    arrivals: Sequence[Arrival]
    after: Sequence[Hypothesis]
    verdicts: Mapping[str, bool]
    _may_move: bool | None = field(default=None, init=False)

    def matters_to(self, request: PodRequest) -> bool:
        """Return whether the kubelet may reject the pod because one of these pods is on another NUMA node than foreseen."""
        if not asks_managers(request, self.arrivals[0].before[0].state.node):
            return False
        return self.may_move() and not (self.all_equal(request) or self.leaves_room(request))

    def may_move(self) -> bool:
        """Return whether one of these pods may be on another NUMA node, because a pod has left and no event has shown it yet."""
        if self._may_move is None:
            uids = [each.uid for each in self.arrivals if self.verdicts.get(each.uid) is not False]
            self._may_move = any(_may_move(one, uids) for one in self.after)
        return self._may_move

    def all_equal(self, request: PodRequest) -> bool:
        """Return whether the pod and all of these arrivals have equal requests, each aligned as one unit to one NUMA node."""
        first = self.arrivals[0].before[0]
        node, place = first.state.node, everything(request)
        if first.sharing.keys() & place.devices.keys() or not _counts_places(node):
            return False
        # By identity: equal pods share their request object.
        requests = {id(each): each for each in (request, *self._requests())}.values()
        if not all(_is_one_unit(each, node) and everything(each) == place for each in requests):
            return False
        # A pod that is larger than every NUMA node has no placement on a single NUMA node.
        empty = KubeletState.empty(node).managers
        return any(fits_on(node, empty, numa, place) for numa in node.machine.numa_ids)

    def _requests(self) -> Iterator[PodRequest]:
        return (each.request for each in self.arrivals)

    def leaves_room(self, request: PodRequest) -> bool:
        """Return whether the pod is admitted for all placements of these arrivals."""
        return all(self._leaves_room(one, request) for one in self.arrivals[0].before)

    def _leaves_room(self, one: Hypothesis, request: PodRequest) -> bool:
        # Rejected pods hold nothing.
        coming = [each.request for each in self.arrivals if self.verdicts.get(each.uid) is not False]
        kept, node = together(map(everything, coming)), one.state.node
        # A memory block of several NUMA nodes groups them, which matters to a pod that asks for memory.
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
    Return the hypotheses with the nominated pods, for which the node is being freed, and the pods in flight, if any.

    ``nominees`` are requests by uid.
    """
    arrivals: list[Arrival] = []
    if belief is not None and hypotheses and has_places(hypotheses[0].state.node):
        # A pod that was seen gone holds nothing, whether the kubelet admitted it or not.
        # Copies, because a replay of the belief writes the states before arrivals.
        there = [each for each in belief.arrivals if each.uid not in belief.left]
        arrivals += [each.copy() for each in dropwhile(lambda each: each.known is not None, there)]
    for uid, request in nominees.items():
        if arrivals:
            arrivals.append(Arrival(uid, request, 0.0, before=hypotheses))
        hypotheses = admitted(hypotheses, uid, request)
    if belief is None or not arrivals:
        return hypotheses, None
    return hypotheses, InFlightPods(arrivals, hypotheses, dict(belief.fates))


def one_more(
    hypotheses: list[Hypothesis], in_flight: InFlightPods | None, uid: str, request: PodRequest
) -> tuple[list[Hypothesis], InFlightPods | None]:
    """Return a result of ``expecting`` with another nominated pod."""
    after = admitted(hypotheses, uid, request)
    if in_flight is None:
        return after, None
    arrivals = [*in_flight.arrivals, Arrival(uid, request, 0.0, before=hypotheses)]
    return after, InFlightPods(arrivals, after, in_flight.verdicts)


def expecting_on_each(hypotheses: list[Hypothesis], nominees: Mapping[str, PodRequest]) -> list[Hypothesis]:
    """Return the hypotheses with the nominated pods, each unchanged by a pod that its kubelet rejects."""
    for uid, request in nominees.items():
        hypotheses = [after for one in hypotheses for after in admitted([one], uid, request) or [one]]
    return hypotheses


def has_places(node: KubeletNode) -> bool:
    """Return whether a pod may have several placements on this node: it has several NUMA nodes and aligns pods or binds memory."""
    return len(node.machine.numa_ids) > 1 and (node.aligns or node.pins_memory)


def _counts_places(node: KubeletNode) -> bool:
    """Return whether the kubelet keeps a pod that fits one NUMA node on a single NUMA node, and chooses it by amounts alone."""
    strict = node.config.topology_policy in (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)
    return strict and not (node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket)


def _is_one_unit(request: PodRequest, node: KubeletNode) -> bool:
    """Return whether the pod is aligned as one unit and holds all its resources at the same time."""
    parts = pod_demand(request).containers
    if node.config.topology_scope is not KubeletScope.POD:
        return len(parts) == 1
    return all(container.kind is not ContainerKind.INIT for container, _ in parts)


def _stays_on_one(demand: ContainerDemand, node: KubeletNode) -> bool:
    """
    Return whether the memory of the pod is on a single NUMA node.

    If none fits now, other policies than single-numa-node may bind it to several NUMA nodes.
    """
    if not demand.memory or node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return True
    # Restricted uses no more NUMA nodes than the pod needs on the empty node.
    restricted = node.config.topology_policy is KubeletPolicy.RESTRICTED
    empty = KubeletState.empty(node).managers
    return restricted and any(fits_on(node, empty, numa, demand) for numa in node.machine.numa_ids)


def _may_move(one: Hypothesis, uids: Sequence[str]) -> bool:
    """
    Return whether a departure from a lower NUMA node may have changed the placements of these pods in the hypothesis.

    A container takes the lowest NUMA node that fits, so more room there or above changes nothing.
    """
    pods, lowest = one.state.pods, one.state.node.machine.numa_ids[0]
    highest = max((_highest_place(pods[uid].grant if uid in pods else None) for uid in uids), default=lowest)
    if highest <= lowest:
        return False
    return bool(one.unlocated) or any(_lowest_place(one, uid) < highest for uid in pods if uid not in uids)


def _lowest_place(one: Hypothesis, uid: str) -> int:
    """Return the lowest NUMA node on which the pod holds anything, or ``MANY`` if it holds nothing."""
    mask = mask_of(one.state.pods[uid].grant, one.state.node)
    return members(mask)[0] if mask else MANY


def _highest_place(grant: Grant | None) -> int:
    """
    Return the NUMA node below which a departure must be to change this grant.

    It is ``MANY`` if a container has a hint that is not preferred or has several NUMA nodes, because such grants are
    not modeled here.
    """
    highest = 0
    for one in () if grant is None else grant.containers:
        hint = one.hint
        if hint is None or not hint.preferred or hint.mask is None or hint.mask.bit_count() != 1:
            return MANY
        highest = max(highest, members(hint.mask)[0])
    return MANY if grant is None else highest


def mask_of(grant: Grant, node: KubeletNode) -> int:
    """Return the mask of NUMA nodes on which the pod holds resources."""
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
"""Maximum number of states for which certain rejections are searched. Bounds the time."""


def refused_ones(belief: Belief | None) -> list[Arrival]:
    """Return the pods in flight that every state rejects, or an empty list if certain rejections cannot be found on this node."""
    if belief is None or not belief.arrivals or belief.lost or belief.overflow or belief.shortened:
        return []
    states = belief.hypotheses
    rejected = {it.uid for it in belief.arrivals if it.known is None}
    for one in states:
        rejected.difference_update(one.state.pods, one.unplaced, one.unlocated)
    refused = [it for it in belief.arrivals if it.uid in rejected] if rejected else []
    return refused if refused and len(states) <= MOST_STATES and all(_is_known(one) for one in states) else []


def not_counted(belief: Belief, refused: Sequence[Arrival], asked: Mapping[str, ResourceList]) -> dict[str, set[str]]:
    """
    Return, by uid, the resources of rejected pods whose amounts the kubelet certainly does not count.

    ``refused`` is a result of ``refused_ones``. ``asked`` are the requests, by uid, that the scheduler counts.
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
    """Return whether the placement of every pod is known, and the node has a strict policy without ``align-by-socket``."""
    node = one.state.node
    if node.config.topology_policy not in STRICT or node.static_options.align_by_socket:
        return False
    return not (one.spread or one.mixed or one.unplaced or one.unlocated or one.leaving or None in one.gone.values())


def _of_one_resource(
    states: Sequence[Hypothesis], refused: Sequence[Arrival], others: Collection[str], amounts: Mapping[str, int]
) -> list[str]:
    """
    Return the uids of the rejected pods that are certainly rejected together, the earliest pods first.

    ``amounts`` are the requested amounts of the resource by uid. The rejections hold even if all pods in flight have
    left, and all pods that request less of the resource than the returned pods together.
    """
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
    """Return whether a unit of the pod that is aligned together fits on no NUMA node."""
    demand, node = pod_demand(request), one.state.node
    in_pod_scope = node.config.topology_scope is KubeletScope.POD
    # If no NUMA nodes have memory for the whole pod, the memory manager has no hint, but may allocate per container.
    units = [replace(demand.pod, memory=None)] if in_pod_scope else [part for _, part in demand.containers]
    most = most_room(request, one)
    return any(
        not any(may_hold(node, most, numa, unit) for numa in node.machine.numa_ids)
        for unit in (_for_one_numa(unit, one) for unit in units)
    )


def _for_one_numa(unit: ContainerDemand, one: Hypothesis) -> ContainerDemand:
    """
    Return the demand of the unit for resources of which one NUMA node could have enough.

    Preferred hints for these resources have a single NUMA node.
    """
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
