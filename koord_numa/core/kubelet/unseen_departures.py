"""
Where pods on their way may be other than foreseen, because a pod that runs has left and no event has shown it yet.

Theory. Which NUMA node a pod gets is foreseen with every pod in its place that is not seen gone. If one of them has left before the pod
reaches the kubelet, there is more room for that pod, and it may go elsewhere: what it takes there is missing for a pod that is decided on
now. So a yes must hold with any one pod gone before any of those arrivals whose verdict is not known, and under a strict policy also with
several that together leave room for a container of it on one NUMA node, before each of them. Only what departures change is replayed: where
the kubelet decides the same with a pod still there, that it leaves later stands for both, and so the fewest are taken away. A pod needs no
replay that has room even if all of those arrivals are on its NUMA node, nor one that is equal to all of them: each NUMA node has places for
so many of them, every one takes a place, and a departure takes none away.

Example: NUMA node 0 has 1 CPU and 1 GPU free, node 1 has 8 CPUs and 2 GPUs. Pod a (2 CPUs) is on its way and goes to NUMA node 1, pod b
(1 CPU, 1 GPU) after it to NUMA node 0. If a pod of 1 CPU on NUMA node 0 has left meanwhile, a is on NUMA node 0 and b on node 1, and a
pod of 2 GPUs that is decided on now finds them on no NUMA node.

Several at a time are found by the amounts that they leave of one NUMA node, as pairs would be quadratic. What is found for an arrival is
kept with it, so that the next pod on its way costs its own replay and not that of all. Where even that takes too many dry runs, the answer
waits for a verdict or a topology.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.budget import TooManyWays
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.enough_room import has_room_whoever_leaves
from koord_numa.core.kubelet.inference.arrivals import Arrival, Replayed, without_left
from koord_numa.core.kubelet.inference.belief import Belief
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature
from koord_numa.core.kubelet.inference.replay import admitted, arrive, foreseen
from koord_numa.core.kubelet.inference.unlocated import without
from koord_numa.core.kubelet.inference.variants import one_of_each_kind
from koord_numa.core.kubelet.room import STRICT, asks_managers, everything, fits_on, together
from koord_numa.core.kubelet.state import Grant, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace

MANY: Final = 1 << 30
"""More NUMA nodes than there are."""

_NOTHING_EARLIER: Final[Mapping[Signature, Hypothesis]] = {}
"""Before the first arrival there are no states in which one before it went elsewhere."""


@dataclass(slots=True)
class OnTheirWay:
    """
    ``arrivals`` are the pods from the first one on whose verdict is not known, with the states before them, in the order of their binds.

    ``left`` is when pods were seen gone, ``fates`` are verdicts that are known, by uid.
    """

    arrivals: Sequence[Arrival]
    left: Mapping[str, float]
    fates: Mapping[str, bool]
    _found: list[Hypothesis] | None = field(default=None, init=False)
    _too_many: bool = field(default=False, init=False)

    def matters_to(self, request: PodRequest) -> bool:
        """May the pod be refused because these arrivals are elsewhere? Where neither amounts nor equality rules it out."""
        if not asks_managers(request, self.arrivals[0].before[0].state.node):
            return False
        return not (self.all_equal(request) or self.leaves_room(request))

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
        coming = [each.request for each in self.arrivals if self.fates.get(each.uid) is not False]
        kept, node = together(map(everything, coming)), one.state.node
        # Memory that spans NUMA nodes ties them together, which matters to a pod that wants some.
        binds = node.pins_memory and everything(request).memory
        if binds and not all(
            _stays_on_one(everything(each), node) or has_room_whoever_leaves(each, one, kept) for each in coming
        ):
            return False
        return has_room_whoever_leaves(request, one, kept)

    def states(self) -> Sequence[Hypothesis]:
        """One state for each way in which room is left where a departure changes something. Raises ``TooManyWays``."""
        # Worked out at the first question and kept: the next ones are about the same moment.
        if self._too_many:
            raise TooManyWays
        if self._found is None:
            self._too_many = True
            self._found = list(self._replayed())
            self._too_many = False
        return self._found

    def _replayed(self) -> Iterator[Hypothesis]:
        # Equal room answers alike, whichever pods hold the rest.
        states = _NOTHING_EARLIER
        for each in self.arrivals:
            states = self._after(each, states)
        for one in states.values():
            yield from without_left(one, self.left)

    def _after(self, each: Arrival, earlier: Mapping[Signature, Hypothesis]) -> Mapping[Signature, Hypothesis]:
        """The states after the arrival; those of an earlier question where nothing that they follow from is another."""
        known, fate, left = each.replayed, self.fates.get(each.uid), frozenset(self.left)
        # By identity: a belief writes new lists where it replays.
        is_same = known.before is each.before and known.left == left
        if is_same and known.states is not None and known.earlier is earlier and known.fate == fate:
            return known.states
        if not is_same:
            known.states = None
            known.away = list(self._with_pods_away(each.before, each))
            known.before, known.left = each.before, left
        afterwards: dict[Signature, Hypothesis] = {}
        several = _follows_several(each.before)
        later = self._with_pods_away(earlier.values() if several else (), each)
        for one in (*earlier.values(), *known.away, *later):
            for after in self._next(one, each):
                # Of others that leave later it matters which are there.
                afterwards.setdefault((after.room, after.signature) if several else after.room, after)
        known.earlier, known.fate, known.states = earlier, fate, afterwards
        return afterwards

    def _with_pods_away(self, states: Iterable[Hypothesis], each: Arrival) -> Iterator[Hypothesis]:
        """These states before the arrival with as few pods gone as make the kubelet decide otherwise on it."""
        known: set[Signature] = set()
        rooms: set[Signature] = set()
        for before in states:
            if (room := before.room) in known:
                continue
            known.add(room)
            usual, grant = foreseen(before, each.request)
            highest = _highest_place(grant)
            for there in (gone for uid in self._may_matter(before, highest) for gone in without(before, [uid])):
                # Of what is open besides the likeliest is followed: all of it for every pod would multiply.
                gone = replace(there, loose={}, spread=frozenset()) if there.loose or there.spread else there
                # Where no other departure is followed it does not matter who holds what.
                if (room := there.room if _follows_several([before]) else gone.room) in rooms:
                    continue
                rooms.add(room)
                outcome, _ = foreseen(gone, each.request)
                if outcome != usual:
                    yield gone

    def _may_matter(self, before: Hypothesis, highest: int) -> Iterator[str]:
        """Of pods that hold anything below the highest NUMA node one of each kind: with the same place and the same requests."""
        below = (uid for uid in before.state.pods if uid not in self.left and _lowest_place(before, uid) < highest)
        yield from one_of_each_kind(before, below)
        tried: list[PodRequest] = []
        for uid, request in before.unlocated.items():
            if uid not in self.left and request not in tried:
                tried.append(request)
                yield uid

    def _next(self, one: Hypothesis, each: Arrival) -> Iterator[Hypothesis]:
        fate = self.fates.get(each.uid)
        for after in arrive(one, each.uid, each.request).values():
            if fate is None or after.has(each.uid) == fate:
                yield after


def expecting(
    belief: Belief | None, hypotheses: list[Hypothesis], nominees: Mapping[str, PodRequest]
) -> tuple[list[Hypothesis], OnTheirWay | None]:
    """
    The hypotheses with these pods, by uid, for which the node is being freed; and the arrivals of which it may matter that others have left
    unseen, ``None`` where there are none.
    """
    arrivals: list[Arrival] = []
    if belief is not None and hypotheses and has_places(hypotheses[0].state.node):
        coming = [*dropwhile(lambda each: each.known is not None, belief.arrivals)]
        # Copies, as a belief writes the states before them when it replays.
        arrivals += [each.copy() for each in coming]
        for each in belief.arrivals[: len(belief.arrivals) - len(coming)]:
            each.replayed = Replayed()  # nothing is asked about it any more
    for uid, request in nominees.items():
        if arrivals:
            arrivals.append(Arrival(uid, request, 0.0, before=hypotheses))
        hypotheses = admitted(hypotheses, uid, request)
    if belief is None or not arrivals:
        return hypotheses, None
    return hypotheses, OnTheirWay(arrivals, dict(belief.left), dict(belief.fates))


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


def _follows_several(states: Sequence[Hypothesis]) -> bool:
    """Are several departures followed? Under other policies they would be too many for what the kubelet may refuse there."""
    return bool(states) and states[0].state.node.config.topology_policy in STRICT


def _lowest_place(one: Hypothesis, uid: str) -> int:
    """The lowest NUMA node on which the pod holds anything."""
    mask = mask_of(one.state.pods[uid].grant, one.state.node)
    return members(mask)[0] if mask else MANY


def _highest_place(grant: Grant | None) -> int:
    """
    The NUMA node below which a departure must be to change this decision.

    A container takes the lowest NUMA node that fits: more room on that one or above changes nothing. Of other hints nothing is known.
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
