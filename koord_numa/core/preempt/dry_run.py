"""
A node on trial: pods are sent away and let back in, and the real rules say each time whether the newcomer fits.

Nothing real changes, and no victim is chosen here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from koord_numa.core.fit.pod_affinity import Namespaces
from koord_numa.core.fit.resources import has_room
from koord_numa.core.kubelet.inference.unreported_pods import shown_where_foreseen
from koord_numa.core.kubelet.view import KubeletView, kubelet_view
from koord_numa.core.objects.budgets import DisruptionBudget
from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.preempt.followed_node import numa_of, without_pods
from koord_numa.core.preempt.node import ClaimId, PreemptionNode
from koord_numa.core.preempt.numa_release import Place, credited, locate
from koord_numa.core.preempt.without_pods import request_without
from koord_numa.core.scheduling.evaluate import ScoredPlacement, evaluate, refuse_everywhere
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, on_node
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.value_objects import replace


class FreedDevices(Protocol):
    """Devices for the claims of the newcomer, where the claims of pods that are away are free."""

    def place(
        self, node: PreemptionNode, seen: NodeSnapshot, placement: Placement, gone: Collection[str]
    ) -> Placement | Rejection:
        """Return the placement with devices when the pods ``gone``, by uid, have left, or why there are none."""

    def may_suffice(self, node: PreemptionNode, gone: Collection[str]) -> bool:
        """Necessary condition: the node has enough devices when these pods have left."""

    def awaited(self, node: PreemptionNode, gone: Collection[str]) -> frozenset[ClaimId]:
        """Return the claims that lose their devices when these pods have left."""


@dataclass(frozen=True, slots=True)
class EvictionTerms:
    """
    By what rules a pod is placed, which budgets are to be spared, and the labels of all namespaces.

    ``devices`` is ``None`` for a pod without claims.
    """

    rules: Profile
    budgets: Sequence[DisruptionBudget] = ()
    namespaces: Namespaces = field(default_factory=dict)
    devices: FreedDevices | None = None


def answer_of(ask: SchedulingRequest, candidate: NodeSnapshot, rules: Profile) -> ScoredPlacement | Rejection:
    """The whole rule: what stands against the pod everywhere, and what this node says."""
    return refuse_everywhere(ask) or evaluate(ask, candidate, rules)


class DryRun:
    """One pending pod on one node. ``gone`` are the uids of those who are away at the moment."""

    def __init__(self, ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms) -> None:
        self._ask = ask
        self._node = node
        self._terms = terms
        self._holdings: Mapping[str, Holding] = dict(node.seen.ledger.holdings)
        # A ledger of its own: it is changed for every try.
        self._ledger = Ledger.of(self._holdings.values())
        self._places: dict[str, Place | None] = {}
        # A dict for its order: pods are credited in the order in which they were sent away.
        self.gone: dict[str, None] = {}
        self._amounts = on_node(ask, node.seen.node).amounts
        self._known: tuple[Placement | None] | None = None  # the last answer, until a pod goes or comes back

    def is_movable(self, uid: str) -> bool:
        """Is it certain what this pod gives back when it goes? Always, where CPUs are ours to give."""
        return self._place(uid) is not None

    def send_away(self, uids: Iterable[str]) -> None:
        """As if these were not there."""
        self._known = None
        for uid in uids:
            self._ledger.release(uid)
            self.gone[uid] = None

    def let_back(self, uid: str) -> None:
        """As if this one had stayed."""
        self._known = None
        self._ledger.hold(self._holdings[uid])
        del self.gone[uid]

    def lacks_amounts_with(self, uid: str) -> bool:
        """
        Would amounts of the whole node not suffice for the newcomer if this one were back? Then it has to stay away, whatever other pods
        come back beside it: a filter that looks at nothing else (NodeResourcesFit) refuses the newcomer.
        """
        ledger, back = self._ledger, self._holdings[uid].amounts
        held = {name: ledger.amounts.get(name, 0) + back.get(name, 0) for name in self._amounts}
        return not has_room(self._amounts, self._node.seen.allocatable, held, len(ledger) + 1)

    def answer(self) -> Placement | None:
        """What the newcomer gets now; ``None`` when it does not fit, or when it cannot be known."""
        if self._known is None:
            self._known = (self._answer(),)
        return self._known[0]

    def _answer(self) -> Placement | None:
        candidate = self._candidate()
        if candidate is None:
            return None
        node, gone = self._node, [self._node.pods[uid] for uid in self.gone if uid in self._node.pods]
        ask = request_without(self._ask, node.seen.node, gone, self._terms.namespaces)
        verdict = answer_of(ask, candidate, self._terms.rules)
        if isinstance(verdict, Rejection):
            return None
        followed = self._followed(candidate)
        if followed is not None and isinstance(answer_of(ask, followed, self._terms.rules), Rejection):
            return None
        devices = self._terms.devices
        if devices is None:
            return verdict.placement
        placed = devices.place(node, candidate, verdict.placement, self.gone)
        return placed if isinstance(placed, Placement) else None

    def _candidate(self) -> NodeSnapshot | None:
        seen = replace(self._node.seen, ledger=self._ledger, ports=self._ports())
        # Where the scheduler chooses CPUs, releasing a holding says all; a kubelet's node has to be inferred again.
        if not isinstance(seen.offer, KubeletView):
            return seen
        topology = self._node.topology
        if topology is None:
            return None
        after = credited(topology, [place for uid in self.gone if (place := self._place(uid)) is not None])
        if after is None:
            return None
        # Not ``without_hidden``: the worst case would let a pod look unplaceable and its victims be evicted for nothing.
        hidden = [held for uid, held in self._ledger.holdings.items() if uid in self._node.unpublished]
        after = replace(after, zones=shown_where_foreseen(after.zones, hidden))
        return replace(seen, offer=kubelet_view(seen.node, after, self._ledger, (), seen.offer))

    def _followed(self, candidate: NodeSnapshot) -> NodeSnapshot | None:
        """As the decision after the evictions will see the node: by the states that its kubelet is followed into, where it is."""
        now = self._node.seen.offer
        if not isinstance(now, KubeletView) or not now.followed or not isinstance(candidate.offer, KubeletView):
            return None
        return replace(candidate, offer=without_pods(now, self.gone, candidate.offer))

    def _ports(self) -> tuple[HostPort, ...]:
        node = self._node
        # Without host ports in the request nothing asks for them.
        if not self._ask.request.constraints.host_ports:
            return node.seen.ports
        there = [*node.pods.items(), *((uid, nominee.pod) for uid, nominee in node.nominees.items())]
        return tuple(port for uid, pod in there if uid not in self.gone for port in pod.request.constraints.host_ports)

    def _place(self, uid: str) -> Place | None:
        """What NUMA nodes get back from a pod, in so far as the topology shows the pod at all."""
        node, offer = self._node, self._node.seen.offer
        # Pods that no topology shows are not in its amounts, so that nothing comes back from them.
        if not isinstance(offer, KubeletView) or uid in node.unpublished:
            return {}
        if uid not in self._places:
            topology, holding = node.topology, self._holdings[uid]
            numa = numa_of(offer, uid, [numa for numa, _ in holding.numa]) if offer.followed else None
            self._places[uid] = None if topology is None else locate(holding, topology, numa)
        return self._places[uid]
