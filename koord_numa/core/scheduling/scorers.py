"""
Table of all parts of a node's score: Score plugins of kube-scheduler and of NUMA placement.

A new scorer is a function and a row here. Settings (``scoreWeights``), dry runs and bounds (``engine/ranking/score_bounds``) read the rows.

*Absolute* scorers (``SCORERS``) give 0 to 100 points by the node only, cached until it changes. *Preferences* give a raw score, which
``normalize`` converts to 0 to 100 points over all nodes that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from koord_numa.core.allocation.demand import CpuUse
from koord_numa.core.allocation.numa_offers import has_preferred_shape, workload_spread
from koord_numa.core.devices import DeviceDemand, device_demand
from koord_numa.core.fit.node_filters import preferred_weight, soft_taints
from koord_numa.core.fit.pod_placement import crowding, pod_preference
from koord_numa.core.kubelet import KubeletView
from koord_numa.core.numa import mask_of_ids
from koord_numa.core.objects.devices import GPU
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Exclusivity, Placement, Rejection
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    KubeQos,
    NodeScoring,
    NumaAllocateStrategy,
    NumaExclusive,
    ScoringType,
)
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.score import node_scores
from koord_numa.core.score.least_numa_nodes import PlacedPod
from koord_numa.core.score.node_scores import MAX_SCORE
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.value_objects import ValueObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"

Score = Callable[[SchedulingRequest, NodeSnapshot, Placement, Profile], int]
"""Returns the points of a part of the score, 0 to 100."""

_EXCLUSIVITY_POINTS: Final = {Exclusivity.HONOURED: 100, Exclusivity.DOWNGRADED: 50, Exclusivity.BROKEN: 0}


class Scorer(ValueObject):
    """
    Part of the score that depends on one node only: 0 to 100 points.

    ``name`` is its key in ``scoreWeights``, ``plugin`` the public name of the rule. ``concerns`` is false for requests that get no points
    on any node.
    """

    name: str
    plugin: str
    weight: int
    score: Score
    concerns: Callable[[SchedulingRequest], bool] = lambda _: True


class Preference(ValueObject):
    """Part of the score that compares nodes: ``raw`` is a node's value, ``normalize`` compares the values of all nodes that fit."""

    name: str
    plugin: str
    weight: int
    raw: Callable[[SchedulingRequest, NodeSnapshot], int]
    normalize: Callable[[Ints], Ints]


def score_numa(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> int:
    """
    Return the score of the placement's NUMA nodes, 0 to 100, by the configured method.

    A kubelet's choice is not known, so that under all methods but the default its node is scored by the published zones, as in
    NodeResourceTopologyMatch of the scheduler-plugins.
    """
    method, offer = profile.numa_method, seen.offer
    if method is NodeScoring.FEWEST_NUMA_NODES:
        return node_scores.score_fewest(placement)
    if isinstance(offer, Inventory):
        placed = PlacedPod(placement, ask.amounts, offer, seen.ledger)
        if (
            method is NodeScoring.LEAST_NUMA_NODES
            and not placed.mask
            and kube_qos(ask.request) is not KubeQos.GUARANTEED
        ):
            return (
                MAX_SCORE if placed.numa_total else 0
            )  # as on a kubelet's node: such a pod is not bound to NUMA nodes
        return node_scores.score_node(method, placed, node_scores.Strategy(profile.scoring, profile.weights))
    topology = offer.topology if isinstance(offer, KubeletView) else None
    strategy = ScoringType.LEAST_NUMA_NODES if method is NodeScoring.LEAST_NUMA_NODES else profile.scoring
    return node_scores.score_zones(ask.request, kube_qos(ask.request), topology, strategy, profile.weights)


def score_alignment(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """
    Return ``MAX_SCORE`` for CPUs on one NUMA node, one point less per additional NUMA node; 0 if the pod wants no exclusive CPUs.

    If the pod gets no exclusive CPUs there, or their NUMA nodes are unknown, they count as two NUMA nodes.
    """
    if not wants_own_cpus(ask):
        return 0
    count, offer = placement.numa_nodes, seen.offer
    if isinstance(offer, Inventory):
        mask, machine = placement.mask or 0, offer.machine
        mask = mask | machine.numa_of(placement.cpus) if placement.cpus and machine is not None else 0
        count = mask.bit_count()
    return alignment_points(count or UNKNOWN_NUMA_NODES)


UNKNOWN_NUMA_NODES: Final = 2
"""Number of NUMA nodes if unknown: worse than one, but only by one step, so that explicit user preferences decide."""


def alignment_points(numa_nodes: int) -> int:
    """Return the points of a placement on this number of NUMA nodes, 0 to 100."""
    return max(0, MAX_SCORE + 1 - numa_nodes)


def wants_own_cpus(ask: SchedulingRequest) -> bool:
    """Return whether the pod may get exclusive CPUs on some node and does not request spreading over NUMA nodes."""
    demand = ask.demand
    if isinstance(demand, Rejection) or demand.strategy is NumaAllocateStrategy.DISTRIBUTE_EVENLY:
        return False
    return demand.use is CpuUse.OWN or bool(demand.pinned)


def score_shape(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """
    Return ``MAX_SCORE`` for CPUs of the preferred shape, 0 where cores are split (FullPCPUs) or shared (SpreadByPCPUs).

    Also ``MAX_SCORE`` where the pod gets no exclusive CPUs, or a kubelet allocates them.
    """
    if not prefers_shape(ask):
        return 0
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    if machine is None or placement.bind_required or not placement.cpus:
        return MAX_SCORE
    return MAX_SCORE if has_preferred_shape(placement.bind, machine, placement.cpus) else 0


def prefers_shape(ask: SchedulingRequest) -> bool:
    """Return whether the pod may get exclusive CPUs and only prefers their shape."""
    demand = ask.demand
    if isinstance(demand, Rejection) or demand.required is not CpuBindPolicy.NONE:
        return False
    return demand.use is CpuUse.OWN or bool(demand.pinned)


def score_exclusivity(ask: SchedulingRequest, _seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """Return 100 if the pod's exclusivity is met, 50 if NUMANodeLevel became PCPULevel, 0 if it is broken or not requested."""
    # 0 for pods without a request: a constant does not change the order, and needs no bound.
    return _EXCLUSIVITY_POINTS[placement.exclusivity] if wants_exclusivity(ask) else 0


def wants_exclusivity(ask: SchedulingRequest) -> bool:
    """Return whether the pod requests exclusivity that a node may meet or not."""
    demand = ask.demand
    if isinstance(demand, Rejection):
        return False
    return demand.cpu_exclusive is not CpuExclusivePolicy.NONE or demand.numa_exclusive is NumaExclusive.PREFERRED


def score_numa_spread(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """Return a score from 0 to 100 for spreading or packing the workload inside the node; 0 on kubelet-owned nodes."""
    demand, offer = ask.demand, seen.offer
    if isinstance(demand, Rejection) or demand.spread is None or not isinstance(offer, Inventory):
        return 0
    # No set is chosen if the pod may use all NUMA nodes of the node.
    mask = placement.mask or mask_of_ids(offer.numa_ids)
    return workload_spread(demand.spread, offer, seen.ledger, demand.amounts).points(mask)


def wants_numa_spread(ask: SchedulingRequest) -> bool:
    """Return whether the pod has the annotation that spreads or packs its workload inside a node."""
    return ask.request.numa_spread is not None


def score_claims(ask: SchedulingRequest, _seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """
    Return the score of claim devices: distance to the pod's CPUs and memory, and alternatives of ``firstAvailable``; 0 without claims.

    Before devices are allocated every node has its maximum score (``place_devices``).
    """
    return placement.claim_points if wants_devices(ask) else 0


def score_partitions(ask: SchedulingRequest, _seen: NodeSnapshot, placement: Placement, _profile: Profile) -> int:
    """Return which share of the node's free GPU partitions remains, by value; 0 for pods without GPU requests."""
    return placement.device_points if wants_gpus(ask) else 0


def wants_gpus(ask: SchedulingRequest) -> bool:
    """Return whether the pod requests GPUs in Koordinator's terms."""
    demand = device_demand(ask.request)
    return isinstance(demand, DeviceDemand) and any(each.type == GPU for each in demand.types)


def wants_devices(ask: SchedulingRequest) -> bool:
    """Return whether devices have to be allocated for claims."""
    return ask.claims is not None and bool(ask.claims.to_allocate or ask.claims.extended)


def _filling(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> int:
    """
    Return the ``resources`` score. Devices by claim count like amounts (noderesources ``calculateResourceAllocatableRequest``).

    Before they are counted, which is done at allocation, the node has its maximum score.
    """
    wanted, there, held = ask.amounts, seen.allocatable, seen.ledger.amounts
    by_claim = ask.by_claim and scored_by_claim(ask.by_claim, profile)
    if by_claim:
        counts = {name: numbers for name, *numbers in placement.device_counts}
        if not by_claim <= counts.keys():
            return MAX_SCORE
        wanted = {**wanted, **{name: ask.by_claim[name] for name in by_claim}}
        held = {**held, **{name: counts[name][0] for name in by_claim}}
        there = {**there, **{name: counts[name][1] for name in by_claim}}
    return node_scores.score_filling(profile.scoring, wanted, there, held, profile.weights)


def scored_by_claim(resources: Iterable[str], profile: Profile) -> frozenset[str]:
    """Return the resources that count in the ``resources`` score of a node that serves them by claim."""
    return frozenset(resources) & profile.weights.keys() if profile.scoring in node_scores.FILLING else frozenset()


def _devices(ask: SchedulingRequest, seen: NodeSnapshot, _placement: Placement, _profile: Profile) -> int:
    return node_scores.score_sparing(ask.amounts, seen.allocatable, seen.ledger.amounts)


def _pod_affinity(ask: SchedulingRequest, seen: NodeSnapshot) -> int:
    return 0 if ask.neighbours is None else pod_preference(seen.node, ask.neighbours)


def _crowding(ask: SchedulingRequest, seen: NodeSnapshot) -> int:
    # Default constraints have a separate row, because their weight is lower.
    return 0 if ask.spread is None or spreads_by_default(ask.request) else crowding(ask.request, seen.node, ask.spread)


def _default_crowding(ask: SchedulingRequest, seen: NodeSnapshot) -> int:
    return crowding(ask.request, seen.node, ask.spread) if ask.spread and spreads_by_default(ask.request) else 0


def spreads_by_default(request: PodRequest) -> bool:
    """Return whether the pod's spread constraints are the configured defaults. A pod has either those or its own."""
    spread = request.constraints.spread
    return bool(spread) and spread[0].default


def _images(ask: SchedulingRequest, seen: NodeSnapshot) -> int:
    return 0 if ask.images is None else node_scores.score_images(seen.node, ask.images)


# For a pod with exclusive CPUs, alignment comes before the shape of its CPUs, and the shape before load. All parts that
# express load (resources, devices, the method of ``numa``, images, default spread) give at most 1,000 points, CPUs of the
# preferred shape 1,100, and each additional NUMA node costs 2,200. Explicit requests (exclusivity, claims, preferences)
# may outweigh a NUMA node. Whole GPU partitions are spared (1,000 points) before load, and after alignment.
SCORERS: Final = (
    Scorer("resources", "NodeResourcesFit", 1, _filling),
    Scorer("devices", "DeviceReserve", 5, _devices),
    Scorer("numa", "NodeNUMAResource", 1, score_numa),
    Scorer("alignment", "NodeNUMAResource", 2200, score_alignment, wants_own_cpus),
    Scorer("shape", "NodeNUMAResource", 11, score_shape, prefers_shape),
    Scorer("exclusivity", "NodeNUMAResource", 40, score_exclusivity, wants_exclusivity),
    Scorer("numa_spread", "NodeNUMAResource", 24, score_numa_spread, wants_numa_spread),
    Scorer("claims", "DynamicResources", 24, score_claims, wants_devices),
    Scorer("partitions", "DeviceShare", 10, score_partitions, wants_gpus),
)

# Preferences are explicit requests in pods and taints. By default they weigh 24 times as much as resource filling, so that
# bin-packing decides only among nodes with about equal preferences. Their ratio is that of kube-scheduler.
PREFERENCES: Final = (
    Preference(
        "node_affinity",
        "NodeAffinity",
        24,
        lambda ask, seen: preferred_weight(ask.request, seen.node),
        node_scores.most_first,
    ),
    Preference(
        "taints", "TaintToleration", 36, lambda ask, seen: soft_taints(ask.request, seen.node), node_scores.fewest_first
    ),
    Preference("pod_affinity", "InterPodAffinity", 24, _pod_affinity, node_scores.between_extremes),
    Preference("spread", "PodTopologySpread", 24, _crowding, node_scores.least_crowded),
    # Not requested by users: the weight relative to resource filling is that of kube-scheduler.
    Preference("default_spread", "PodTopologySpread", 2, _default_crowding, node_scores.least_crowded),
    Preference("images", "ImageLocality", 1, _images, node_scores.as_given),
)


def weight_of(row: Scorer | Preference, profile: Profile) -> int:
    """Return the weight of a row under a profile."""
    return profile.score_weights.get(row.name, row.weight)


def preference_points(
    ask: SchedulingRequest, fitting: Sequence[NodeSnapshot], profile: Profile
) -> dict[str, list[int]]:
    """Return the weighted points of each preference for the nodes that fit, in their order."""
    import numpy as np

    points = {}
    for row in PREFERENCES:
        # int64, one element per fitting node; ``normalize`` relies on integers to truncate as upstream.
        raw = np.array([row.raw(ask, seen) for seen in fitting], dtype=np.int64)
        points[row.name] = (weight_of(row, profile) * row.normalize(raw)).tolist()
    return points
