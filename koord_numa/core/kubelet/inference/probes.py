"""
The states in which a pod must be admitted for a yes: every hypothesis, each way in which it may be otherwise, with pods that may have left.

Theory. For a pod whose containers need nothing of one another, more room never turns a yes into a no: every unit keeps a NUMA node set that
fits, and one that is at least as narrow. So the states with the least room decide. An init container with CPUs or devices of its own breaks
that: the kubelet puts it on the lowest NUMA node with room, later containers must include that NUMA node while they have not taken its
share over (generateCPUTopologyHints, generateDeviceTopologyHints), and a NUMA node that becomes free below may hold the init container
and not the rest. So do several kinds of resources in containers that are aligned one by one: the first may move for a device and take CPUs
that its new NUMA node alone had. For such pods any number of pods that run may have left, unseen (``more_room``).
More room for pods in flight may be less for a pod that comes after them (``in_flight``).

Example: two NUMA nodes of 16 CPUs; NUMA node 0 is full, a pod there holds 4. ``init 4, app 10`` fits on NUMA node 1. Should the pod of 4
have left, the init container goes to NUMA node 0, the app needs 10 CPUs around it, and under single-numa-node the pod is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, product
from typing import Final

from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.budget import TooManyWays
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.departures.less_room import binds_freely, hides_memory, is_confined, takes_turns
from koord_numa.core.kubelet.departures.one_away import with_one_away, without_leaving
from koord_numa.core.kubelet.enough_room import has_room_in_all_ways, has_room_whoever_leaves
from koord_numa.core.kubelet.in_flight import PodsInFlight
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature
from koord_numa.core.kubelet.inference.replay import orders
from koord_numa.core.kubelet.inference.socket_cpus import packs_sockets
from koord_numa.core.kubelet.inference.unlocated import without
from koord_numa.core.kubelet.inference.variants import device_layouts, variants
from koord_numa.core.kubelet.room import everything, has_room
from koord_numa.core.kubelet.spreading.shares import Shares, shares_of
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.kubelet.visible_room import Sight
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import ValueObject, replace

FEW: Final = 16
"""Number of states after which amounts are compared first, which is cheaper and tells less about the place of the pod."""


class Probe(ValueObject):
    """A state to be asked, in one order of taking over init containers' CPUs, and in these shares. ``options`` is assumed in it."""

    state: KubeletState
    trust: Trust
    reuse: CpuReuse
    options: tuple[str, ...] = ()
    shares: Shares = ()


class Question:
    """
    One pod asked about on one node.

    Once all probes are through: ``elsewhere`` are the NUMA nodes, as a mask, on which the pod may be in states that were not asked, as
    amounts told that the kubelet admits it there.
    """

    def __init__(self, request: PodRequest, view: KubeletView) -> None:
        self.elsewhere = 0
        self._request, self._view = request, view
        self._demand = pod_demand(request)
        # In these orders CPUs of init containers may be taken over.
        self._orders = orders(request, view.state.node)
        self._first: Hypothesis | None = None
        self._seen: Sight | None = None
        self._number = 0
        self._known: set[Signature] = set()
        self._dealt_many = False

    def probes(self) -> Iterator[Probe]:
        """Yield the states to be asked, each once, the likeliest first. Raise ``TooManyWays`` where there are too many."""
        for probe in self._all():
            self._number += 1
            yield probe

    def _all(self) -> Iterator[Probe]:
        """Raises ``TooManyWays``."""
        request, view, node = self._request, self._view, self._view.state.node
        confined = is_confined(self._demand, node)
        for one in self._likely():
            yield from self._each_way(one)
        if node.ids_are_real:
            return  # so is the state
        if view.in_flight is not None and view.in_flight.matters_to(request):
            raise PodsInFlight
        turns = view.unfollowed and not confined and takes_turns(self._demand, node)
        # Pods that are not known may have left unseen, with any amount of room.
        if turns and not all(_fits_one_numa(one, request) for one in view.rooms or view.hypotheses):
            raise TooManyWays
        for one in self._with_pods_away(view.hypotheses, confined=confined):
            yield from self._each_way(one)
        if confined and view.upper is not None:
            yield from [Probe(view.upper.state, Trust.INFERRED, order) for order in self._orders]

    def _likely(self) -> Iterator[Hypothesis]:
        # ``rooms`` has one state for each way in which room is left: the others answer alike.
        for one in self._view.rooms or self._view.hypotheses:
            for after in self._surely_gone(one) if one.leaving else (one,):
                yield from self._however_dealt(after)

    def _however_dealt(self, one: Hypothesis) -> Iterator[Hypothesis]:
        """The hypothesis and its variants, without those that CPUs are dealt out in where these are too many and amounts tell of all."""
        # Where one has had too many others mostly have: the bound costs less than to count them again.
        if self._dealt_many and one.spread and has_room_whoever_leaves(self._request, one):
            self.elsewhere |= self._view.state.node.machine.numa_mask
            return
        try:
            yield from variants(one, self._request, all_ways=True)
        except TooManyWays:
            if not has_room_whoever_leaves(self._request, one):
                raise
            self._dealt_many = True
            self.elsewhere |= self._view.state.node.machine.numa_mask

    def _surely_gone(self, one: Hypothesis) -> list[Hypothesis]:
        """
        For a state in which pods are gone whose places are not known.

        What they held is counted there, which is less room than there is: where that is too little, the pod is asked with them gone from
        each place where they may have been.
        """
        ways = variants(one, self._request)
        try:
            if all(map(self._admits, ways)):
                return [one]
            gone = without(one, one.leaving)
            return [replace(after, state=replace(after.state, requested=one.state.requested)) for after in gone]
        except TooManyWays:
            return [one]

    def _admits(self, one: Hypothesis) -> bool:
        answers = (dry_run(one.state, self._request, one.trust, order) for order in self._orders)
        return all(isinstance(answer, DryRunAdmitted) for answer in answers)

    def _each_way(self, one: Hypothesis) -> Iterator[Probe]:
        """Of the hypothesis all states that the pod can tell apart from those that it was asked about."""
        if self._first is None:
            self._first = one
        elif not self._is_new(self._sight.of(one.state), one):
            return
        if self._told(one, has_room_in_all_ways):
            return
        for laid, order in product(device_layouts(one, self._request), self._orders):
            yield Probe(laid.state, one.trust, order, one.options)
            for shares in self._shares(laid, order):
                yield Probe(laid.state, one.trust, order, one.options, shares)

    def _shares(self, laid: Hypothesis, order: CpuReuse) -> Iterator[Shares]:
        """Of options that are unlikely only the likeliest way is looked at: what they refuse is explored."""
        return iter(()) if laid.options else shares_of(laid.state, self._request, laid.trust, order)

    @property
    def _sight(self) -> Sight:
        """Made for the second state: most pods are asked about one, which there is nothing to compare with."""
        if self._seen is None:
            self._seen = Sight(self._request, self._view.state.node)
            if self._first is not None:
                self._is_new(self._seen.of(self._first.state), self._first)
        return self._seen

    def _is_new(self, seen: Signature, one: Hypothesis) -> bool:
        key = (seen, one.trust, one.options)
        if key in self._known:
            return False
        self._known.add(key)
        return True

    def _told(self, one: Hypothesis, told: Callable[[PodRequest, Hypothesis], bool]) -> bool:
        """Do amounts tell of this state? Asked where many states were: they do not say where the pod comes to."""
        if self._number < FEW or not told(self._request, one):
            return False
        self.elsewhere |= self._view.state.node.machine.numa_mask
        return True

    def _with_pods_away(self, states: Iterable[Hypothesis], *, confined: bool) -> Iterator[Hypothesis]:
        """What is left where pods may have gone, for a pod to which that matters: whichever pods left, equal room answers alike."""
        request, demand, node = self._request, self._demand, self._view.state.node
        states = [one for one in states if one.leaving or one.unlocated or one.state.pods]
        if not states:
            return  # no pod of any is known, so none can go
        by_turns, hidden = takes_turns(demand, node), hides_memory(demand, node)
        for one in sorted(states, key=lambda one: bool(one.options)):
            if self._told(one, has_room_whoever_leaves):
                continue
            # What fits one NUMA node as a whole needs nothing of any other.
            matters = confined or hidden or (by_turns and not _fits_one_numa(one, request))
            # Memory groups come and go with pods, so that more room may be a refusal.
            matters = matters or (binds_freely(demand, node) and not has_room_whoever_leaves(request, one))
            more = with_one_away(one) if matters else without_leaving(one, demand)
            # What is left where a pod is gone may be where others are otherwise.
            more = chain.from_iterable(map(variants, more)) if one.spread and packs_sockets(node) else more
            for after in more:
                yield replace(after, state=replace(after.state, requested=one.state.requested))


def fits_in_every_state(request: PodRequest, view: KubeletView) -> bool:
    """Sufficient condition: amounts tell that the pod fits in every candidate state, whichever pods have left."""
    if view.in_flight is not None and view.in_flight.matters_to(request):
        return False
    return all(has_room_whoever_leaves(request, one) for one in view.hypotheses)


def _fits_one_numa(one: Hypothesis, request: PodRequest) -> bool:
    if one.spread or one.sharing.keys() & everything(request).devices.keys():
        return False  # where CPUs or shared devices are is not known
    return has_room(request, one.state.node, one.state.managers)
