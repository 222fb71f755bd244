"""
Where one pod goes: every node is asked in turn, and the best of those that say yes is taken. Pure; it holds and changes nothing.

``evaluate`` is the whole rule for one node: predicates from the cheapest to the dearest, then what the node would give, then a score.
Callers may remember its answers for as long as the candidate does not change, except for pods that ``looks_around``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.allocate import allocate_demand, demand_of
from koord_numa.core.allocation.demand import AllocationDemand
from koord_numa.core.allocation.options import AllocateOptions
from koord_numa.core.fit.node_affinity import fits_node_affinity, preferred_weight
from koord_numa.core.fit.node_name import fits_node_name
from koord_numa.core.fit.pod_affinity import Neighbourhood, fits_pod_affinity, pod_preference
from koord_numa.core.fit.ports import fits_ports
from koord_numa.core.fit.resources import fits_resources
from koord_numa.core.fit.spread import SpreadView, crowding, fits_spread
from koord_numa.core.fit.taints import fits_taints, fits_unschedulable, soft_taints
from koord_numa.core.fit.volumes import Storage, fits_volumes, refuse_claims
from koord_numa.core.inventory import Inventory
from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.unsupported_policies import refuse_promises
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.kubelet.worst_case_alignment import refuse_unsure
from koord_numa.core.ledger import Ledger
from koord_numa.core.node import Node
from koord_numa.core.node_snapshot import NodeSnapshot
from koord_numa.core.pod_resources import effective_requests, kube_qos
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import CPU, MEMORY, ResourceList
from koord_numa.core.score.composite import score_fewest, score_node
from koord_numa.core.score.device_reserve import score_sparing
from koord_numa.core.score.node_resources import MAX_SCORE, score_filling
from koord_numa.core.score.numa_scores import Strategy
from koord_numa.core.score.placed import Placed
from koord_numa.core.score.zones import score_zones
from koord_numa.core.verdicts import Alignment, Placement, Reason, Rejection, Unschedulable
from koord_numa.core.vocabulary import NodeScoring, ScoringType

TAINT_STEP: Final = 10
"""Points lost for every PreferNoSchedule taint that the pod does not tolerate."""


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """How much each part of a score counts."""

    resources: int = 1
    devices: int = 5
    numa: int = 1
    node_affinity: int = 2
    taints: int = 3
    pod_affinity: int = 2
    spread: int = 2


@dataclass(frozen=True, slots=True)
class Profile:
    """The configuration of one scheduler name, as decisions need it. ``node_scoring`` is the method of the ``numa`` part."""

    allocate: AllocateOptions = field(default_factory=AllocateOptions)
    node_scoring: NodeScoring = NodeScoring.FEWEST_NUMA_NODES
    scoring: ScoringType = ScoringType.MOST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})
    parts: ScoreWeights = ScoreWeights()


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """
    One pod's request, its effective amounts, and what it demands where CPUs are ours to give, by the rules of its scheduler name.

    ``neighbours`` and ``spread`` are what other pods mean for it, ``storage`` what is known of volumes, where it cares.
    """

    request: PodRequest
    amounts: ResourceList
    demand: AllocationDemand | Rejection
    neighbours: Neighbourhood | None = None
    spread: SpreadView | None = None
    storage: Storage | None = None


@dataclass(frozen=True, slots=True)
class ScoredPlacement:
    """A node takes the pod: how good that is, and what the pod gets."""

    score: int
    placement: Placement


def ask_of(request: PodRequest, rules: Profile) -> SchedulingRequest:
    """What a pod asks for, apart from what depends on other pods."""
    return SchedulingRequest(request, effective_requests(request), demand_of(request, rules.allocate))


def depends_on_other_pods(request: PodRequest) -> bool:
    """Does the answer of a node depend on anything but the node: on pods elsewhere, on volumes?"""
    demands = request.constraints
    return bool(
        demands.affinity
        or demands.anti_affinity
        or demands.preferred_affinity
        or demands.preferred_anti_affinity
        or demands.spread
        or demands.claims
    )


def decide(ask: SchedulingRequest, candidates: Iterable[NodeSnapshot], rules: Profile) -> Placement | Unschedulable:
    """
    The placement on the best node, or every node's reason why not.

    The highest score wins; equal scores go to the node whose name comes first. This is the only tie-break between nodes.
    """
    if refusal := refuse_everywhere(ask):
        return Unschedulable({candidate.node.name: refusal for candidate in candidates})
    best: tuple[int, str] | None = None
    chosen: Placement | None = None
    rejections: dict[str, Rejection] = {}
    for candidate in candidates:
        answer = evaluate(ask, candidate, rules)
        name = candidate.node.name
        if isinstance(answer, Rejection):
            rejections[name] = answer
        elif best is None or (-answer.score, name) < best:
            best, chosen = (-answer.score, name), answer.placement
    return chosen if chosen is not None else Unschedulable(rejections)


def refuse_everywhere(ask: SchedulingRequest) -> Rejection | None:
    """What stands against a pod whatever the node: demands that nobody here can honour are refused, never ignored."""
    demands = ask.request.constraints
    if demands.unsupported:
        why = "; ".join(demands.unsupported)
        return Rejection(Reason.UNSUPPORTED, f"koord-numa does not support: {why}", resolvable=False)
    return refuse_claims(ask.request, ask.storage or Storage(known=False)) if demands.claims else None


def evaluate(ask: SchedulingRequest, candidate: NodeSnapshot, rules: Profile) -> ScoredPlacement | Rejection:
    """Does this node take the pod, how well, and with what?"""
    rejection = fits_objects(ask.request, candidate.node) or _fits_now(ask, candidate)
    if rejection is not None:
        return rejection
    offered = _offered(ask, candidate)
    if isinstance(offered, Rejection):
        return offered
    return ScoredPlacement(score(ask, candidate, offered, rules), offered)


def fits_objects(request: PodRequest, node: Node) -> Rejection | None:
    """The part that depends on the Node object alone: its name, cordon, taints and labels."""
    if node.problem:
        return Rejection(Reason.BAD_NODE, "node(s) had malformed labels or annotations", node.problem, resolvable=False)
    return (
        fits_node_name(request, node)
        or fits_unschedulable(request, node)
        or fits_taints(request, node)
        or fits_node_affinity(request, node)
    )


def _fits_now(ask: SchedulingRequest, candidate: NodeSnapshot) -> Rejection | None:
    if candidate.barred is not None:
        return candidate.barred
    if isinstance(candidate.offer, Rejection):
        return candidate.offer
    request, node, ledger = ask.request, candidate.node, candidate.ledger
    return (
        fits_ports(request, candidate.ports)
        or fits_resources(ask.amounts, candidate.allocatable, ledger.amounts, len(ledger))
        or fits_around(ask, node)
    )


def fits_around(ask: SchedulingRequest, node: Node) -> Rejection | None:
    """The part that depends on what is elsewhere: volumes and other pods."""
    rejection = None
    if ask.request.constraints.claims and ask.storage is not None:
        rejection = fits_volumes(ask.request, node, ask.storage)
    if rejection is None and ask.spread is not None:
        rejection = fits_spread(ask.request, node, ask.spread)
    if rejection is None and ask.neighbours is not None:
        rejection = fits_pod_affinity(ask.request, node, ask.neighbours)
    return rejection


def _offered(ask: SchedulingRequest, candidate: NodeSnapshot) -> Placement | Rejection:
    """What the node gives: CPUs that we choose, or a kubelet's admission, in so far as it can be foreseen."""
    offer = candidate.offer
    if isinstance(offer, Rejection):
        return offer
    if isinstance(offer, Inventory):
        return _chosen(ask, offer, candidate.ledger)
    if promised := refuse_promises(ask.request, offer.state.node.config):
        return promised
    admission = would_admit(ask.request, offer)
    if isinstance(admission, Rejection):
        return admission
    if admission.mask is None:
        alignment = Alignment.NOT_ATTEMPTED
    else:
        alignment = Alignment.ALIGNED if admission.mask.bit_count() == 1 else Alignment.UNALIGNED
    return Placement(
        node=candidate.node.name,
        numa=admission.numa,
        mask=admission.mask,
        alignment=alignment,
        note=admission.note,
    )


def _chosen(ask: SchedulingRequest, offer: Inventory, ledger: Ledger) -> Placement | Rejection:
    """What we choose, unless the node's kubelet might have aligned the pod elsewhere or not at all."""
    if isinstance(ask.demand, Rejection):
        return ask.demand
    given = allocate_demand(ask.demand, offer, ledger)
    if offer.aligner is None or isinstance(given, Rejection):
        return given
    return refuse_unsure(ask.request, offer.aligner, ledger) or given


def score(ask: SchedulingRequest, candidate: NodeSnapshot, placement: Placement, rules: Profile) -> int:
    """The weighted sum of all parts. Parts are absolute, never relative to other nodes, so that a score can be remembered."""
    parts, node = rules.parts, candidate.node
    total = parts.numa * score_numa(ask, candidate, placement, rules)
    total += parts.node_affinity * score_node_affinity(ask.request, node)
    total += parts.taints * score_taints(ask.request, node)
    held = candidate.ledger.amounts
    total += parts.resources * score_filling(rules.scoring, ask.amounts, candidate.allocatable, held, rules.weights)
    total += parts.devices * score_sparing(ask.amounts, candidate.allocatable, held)
    return total + score_around(ask, node, rules)


def score_around(ask: SchedulingRequest, node: Node, rules: Profile) -> int:
    """What other pods add to the score of a node, or take away."""
    total = 0
    if ask.neighbours is not None:
        preference = pod_preference(node, ask.neighbours)
        total += rules.parts.pod_affinity * max(-MAX_SCORE, min(MAX_SCORE, preference))
    if ask.spread is not None:
        total += rules.parts.spread * max(0, MAX_SCORE - crowding(ask.request, node, ask.spread))
    return total


def score_numa(ask: SchedulingRequest, candidate: NodeSnapshot, placement: Placement, rules: Profile) -> int:
    """
    How well the placement sits on the node's NUMA nodes, 0 to 100, by the configured method.

    A kubelet's choice is not known, so under all methods but the default its node is scored by the published zones, as the
    scheduler-plugins' NodeResourceTopologyMatch does.
    """
    method, offer = rules.node_scoring, candidate.offer
    if method is NodeScoring.FEWEST_NUMA_NODES:
        return score_fewest(placement)
    if isinstance(offer, Inventory):
        placed = Placed(placement, ask.amounts, offer, candidate.ledger)
        return score_node(method, placed, Strategy(rules.scoring, rules.weights))
    topology = offer.topology if isinstance(offer, KubeletView) else None
    return score_zones(ask.request, kube_qos(ask.request), topology, rules.scoring, rules.weights)


def score_node_affinity(request: PodRequest, node: Node) -> int:
    """The share of the preferred terms' weights that the node earns, of 100."""
    wishes = request.constraints.preferred_nodes
    if not wishes:
        return 0
    return MAX_SCORE * preferred_weight(request, node) // sum(wish.weight for wish in wishes)


def score_taints(request: PodRequest, node: Node) -> int:
    """100, less for every soft taint that is not tolerated."""
    return max(0, MAX_SCORE - TAINT_STEP * soft_taints(request, node))
