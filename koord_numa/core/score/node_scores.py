"""Scores of nodes: allocation strategies for whole nodes and for NUMA zones, image locality, room beside devices, and normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Final, TypeAlias

from koord_numa.core.objects.node import Node, NodeResourceTopology, PodImages, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, KubeQos, NodeScoring, ScoringType
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, is_native
from koord_numa.core.score.least_numa_nodes import (
    PlacedPod,
    aligned_request,
    score_least_numa_nodes,
    score_placed_by_numa_nodes,
)
from koord_numa.core.value_objects import ValueObject, value_field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"

MAX_SCORE: Final = 100
MISSING: Final = -(1 << 40)
"""Raw score of a node that lacks a topology label of a preference. The final score is 0."""


def as_given(raw: Ints) -> Ints:
    """
    Return the raw scores, which already are 0 to 100 independent of other nodes (plugins without ``ScoreExtensions``).
    """
    return raw


def most_first(raw: Ints) -> Ints:
    """
    Normalize so that the highest raw score is 100. All scores are 0 if the highest is 0 (``DefaultNormalizeScore``).
    """
    import numpy as np

    highest = int(raw.max(initial=0))
    # Integer division, because DefaultNormalizeScore truncates.
    return raw * MAX_SCORE // highest if highest > 0 else np.zeros_like(raw)


def fewest_first(raw: Ints) -> Ints:
    """
    Normalize so that a raw score of 0 is 100 and the highest raw score is 0 (``DefaultNormalizeScore``, reversed).
    """
    return MAX_SCORE - most_first(raw)


def between_extremes(raw: Ints) -> Ints:
    """
    Normalize so that the lowest raw score is 0 and the highest 100.

    All are 0 if equal (``interpodaffinity/scoring.go``).
    """
    import numpy as np

    if not len(raw):
        return raw
    lowest, highest = int(raw.min()), int(raw.max())
    if lowest == highest:
        return np.zeros_like(raw)
    # Floating point as upstream, so that truncation gives the same result.
    return (MAX_SCORE * ((raw - lowest).astype(np.float64) / (highest - lowest))).astype(np.int64)


def least_crowded(raw: Ints) -> Ints:
    """
    Normalize so that the least crowded node is 100. Nodes with the raw score ``MISSING`` are 0.

    As ``podtopologyspread/scoring.go`` with ignored nodes. All labeled nodes are 100 if no node is crowded.
    """
    import numpy as np

    labelled = raw[raw != MISSING]
    if not len(labelled):
        # ``MISSING`` would be by far the lowest score and flatten the others, so it is excluded.
        return np.zeros_like(raw)
    lowest, highest = int(labelled.min()), int(labelled.max())
    # Inverted within the same range, as upstream: MaxNodeScore * (max + min - score)
    # max.
    points = np.full_like(raw, MAX_SCORE) if highest == 0 else MAX_SCORE * (highest + lowest - raw) // highest
    points[raw == MISSING] = 0
    return points


ALWAYS_SCORED: Final = (CPU, MEMORY)
"""Resources that always count. Other resources count only if the pod requests them (Koordinator's scorer)."""

FILLING: Final = frozenset({ScoringType.MOST_ALLOCATED, ScoringType.LEAST_ALLOCATED, ScoringType.BALANCED_ALLOCATION})
"""Strategies that evaluate the utilization."""

Weights = Mapping[str, int]


def score_filling(
    strategy: ScoringType, wanted: ResourceList, offer: ResourceList, held: ResourceList, weights: Weights
) -> int:
    """
    Return the score of a place with capacity ``offer`` and ``held`` amounts in use, after ``wanted`` is added.

    Most: utilization. Least: free share. Balanced: similarity of the resources' utilization. As the resource allocation
    scorers of Koordinator and kube-scheduler: the score of each resource is truncated, then the weighted mean is
    computed. ``LeastNUMANodes`` returns 0.
    """
    parts = [
        (weight, held.get(name, 0) + wanted.get(name, 0), capacity)
        for name, weight in weights.items()
        if (capacity := offer.get(name, 0)) > 0 and (name in ALWAYS_SCORED or counts(name, wanted))
    ]
    return score_parts(strategy, parts)


def counts(resource: str, wanted: ResourceList) -> bool:
    """Return whether the resource counts in the score of a pod that requests these amounts."""
    return resource in ALWAYS_SCORED or wanted.get(resource, 0) > 0


def score_parts(strategy: ScoringType, parts: Sequence[tuple[int, int, int]]) -> int:
    """Compute ``score_filling`` from the weight, the use and the (positive) capacity of each counted resource."""
    term = _TERMS.get(strategy)
    if term is None:
        # ``LeastNUMANodes`` ignores the utilization.
        is_balanced = strategy is ScoringType.BALANCED_ALLOCATION
        return _balance([min(1.0, used / capacity) for _, used, capacity in parts]) if is_balanced else 0
    points = share = 0
    for weight, used, capacity in parts:
        points += weight * term(used, capacity)
        share += weight
    # As upstream, each term and the mean are truncated.
    return points // share if share else 0


def _most(used: int, capacity: int) -> int:
    # Limited to the capacity: an overcommitted place counts as full.
    return used * MAX_SCORE // capacity if used < capacity else MAX_SCORE


def _least(used: int, capacity: int) -> int:
    return max(0, capacity - used) * MAX_SCORE // capacity


_TERMS: Final[Mapping[ScoringType, Callable[[int, int], int]]] = {
    ScoringType.MOST_ALLOCATED: _most,
    ScoringType.LEAST_ALLOCATED: _least,
}


def _balance(fractions: list[float]) -> int:
    """
    Return 100 for equal fractions, less by their standard deviation (kube-scheduler's ``balanced_allocation.go``).
    """
    if not fractions:
        return 0
    mean = sum(fractions) / len(fractions)
    deviation = sqrt(sum((fraction - mean) * (fraction - mean) for fraction in fractions) / len(fractions))
    return int((1 - deviation) * MAX_SCORE)


MIB: Final = 1 << 20

LEAST: Final = 23 * MIB
"""Minimum total image size. Smaller images are pulled quickly and count as 0."""

MOST: Final = 1000 * MIB
"""Maximum counted image size per container. Both limits are those of kube-scheduler."""


def score_images(node: Node, images: PodImages) -> int:
    """
    Return 0 for a node without the images (or with small images only), 100 for a node with large images that all nodes
    have.

    The size is that reported by the node itself. kube-scheduler uses the size of the node that first reported the name.
    """
    sizes = sizes_on(node, frozenset(images.names))
    return points(sum(scaled(sizes[name], images, name) for name in images.names if name in sizes), len(images.names))


def sizes_on(node: Node, wanted: frozenset[str]) -> Mapping[str, int]:
    """Return the sizes in bytes of the wanted images on the node, by the wanted name."""
    return {name: image.size for image in node.images for name in image.names if name in wanted}


def scaled(size: int, images: PodImages, name: str) -> int:
    """Return the size, scaled by the share of nodes that have the image (``scaledImageScore``)."""
    # Truncated like upstream's ``int64(float64(size) * spread)``.
    return int(size * (images.nodes.get(name, 0) / images.total)) if images.total else 0


def points(total: int, containers: int) -> int:
    """Return the total scaled size of all images as 0 to 100 (``calculatePriority``)."""
    most = MOST * containers
    # The limits scale with the number of containers, because image sizes are summed.
    return MAX_SCORE * (min(max(total, LEAST), most) - LEAST) // (most - LEAST) if containers else 0


def score_sparing(wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    """
    Return 100 if no device is stranded.

    Otherwise the score is lower by the difference in utilization, in percent of the node after the pod is added,
    between the more utilized of CPU and memory and the least used device.
    """
    devices = [_percent(name, wanted, offer, held) for name in offer if is_device(name) and offer[name] > 0]
    if not devices:
        return MAX_SCORE
    common = max((_percent(name, wanted, offer, held) for name in ALWAYS_SCORED if offer.get(name, 0) > 0), default=0)
    # The least used device has the most units that could be stranded.
    return MAX_SCORE - max(0, min(MAX_SCORE, common) - min(devices))


@lru_cache(maxsize=1024)
def is_device(resource: str) -> bool:
    """
    Return whether the resource is a device.

    Extended resources are hardware that only some nodes have. Koordinator's batch amounts are not hardware.
    """
    return not is_native(resource) and not resource.startswith(_NOT_HARDWARE)


# Prefixes of resources that a webhook or manager publishes for every node.
_NOT_HARDWARE: Final = ("kubernetes.io/", "koordinator.sh/")


def _percent(name: str, wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    return (held.get(name, 0) + wanted.get(name, 0)) * MAX_SCORE // offer[name]


Counted = tuple[tuple[str, int, int], ...]
"""Resources with their weight and requested amount."""


class Strategy(ValueObject):
    """A scoring type and a weight per resource."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = value_field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def score(self, capacity: ResourceList, used: ResourceList, wanted: ResourceList) -> int:
        """Return the score of ``wanted`` in a partly used capacity, 0 to 100."""
        return score_filling(self.type, wanted, capacity, used, self.weights)

    def counted(self, wanted: ResourceList) -> Counted:
        """Return the resources that count in the score of a pod with this request."""
        weights = self.weights.items()
        return tuple([(name, weight, wanted.get(name, 0)) for name, weight in weights if counts(name, wanted)])


def score_koordinator(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return the score 0 to 100 by the strategy, over the NUMA nodes of the pod's amounts, else over the whole node.

    For a pod with exclusive CPUs on NUMA nodes, all exclusive CPUs of the *node* count as taken, as in Koordinator's
    scoring.go. Its recorded scores depend on this.
    """
    capacity, taken = placed.scope
    if placed.placement.numa and placed.placement.cpus:
        own = MILLI * len(placed.ledger.cpus)
        # Replaced instead of added: the CPUs of the node's pods stand for the amounts taken on the NUMA nodes.
        taken = {**taken, CPU: amplify(own, placed.inventory.ratios.get(CPU))}
    return strategy.score(capacity, taken, placed.weighed(placed.amounts))


NUMA_STEP: Final = 10
"""
Points per NUMA node in the ``100 - 10 * numa`` of the pod-level NUMA policy proposal.

Full utilization earns as many points.
"""


def score_node(method: NodeScoring, placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return the score of a placement by a method, 0 to 100. 0 for every method if the NUMA nodes of the node are unknown.
    """
    return METHODS[method](placed, strategy) if placed.numa_total else 0


def score_fewest(placement: Placement) -> int:
    """Return 100 for one NUMA node, ``NUMA_STEP`` less for each further NUMA node, 0 without alignment."""
    if placement.mask is None:
        return 0
    # At least 0: more than ten NUMA nodes are equally bad.
    return max(0, MAX_SCORE - NUMA_STEP * (placement.numa_nodes - 1))


def score_orchestration(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return half of A + B: the fit of the NUMA nodes, and the share of the node's NUMA nodes with CPUs of the pod.

    Fine-grained CPU orchestration, "Score phase".
    """
    return (score_numa_topology(placed, strategy) + score_cpu_allocation(placed, strategy)) // 2


def score_numa_topology(placed: PlacedPod, strategy: Strategy) -> int:
    """Return A: the lowest score of any NUMA node that takes a part of the pod, 0 without alignment."""
    return min(
        (strategy.score(part.capacity, part.taken, placed.weighed(part.share)) for part in placed.parts), default=0
    )


def score_cpu_allocation(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return B: the share of the node's NUMA nodes that the pod uses, scored by the strategy. 0 without exclusive CPUs.

    Two of eight NUMA nodes score ``(8 - 2) * 100 // 8`` under LeastAllocated. A single fraction is always balanced.
    """
    if not placed.has_own_cpus:
        return 0
    involved, there = placed.numa_nodes, placed.numa_total
    if strategy.type is ScoringType.BALANCED_ALLOCATION:
        # The balanced strategy compares fractions of several resources, but here is only one.
        return MAX_SCORE
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return involved * MAX_SCORE // there
    return (there - involved) * MAX_SCORE // there


def score_pod_level(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return ``(100 - 10 * NUMA nodes) + 10 * utilization`` of the pod's place, including the pod.

    Fewer NUMA nodes always win. Among equal numbers the fuller place wins, so that single-NUMA pods are packed and
    others find room (pod-level NUMA topology policy, "Score"). A single NUMA node that the pod fills completely scores
    90 + 10. Only requested resources count, so the free memory is irrelevant for a pod without a memory request.
    """
    capacity, taken = placed.scope
    wanted = {name: amount for name, amount in placed.weighed(placed.amounts).items() if amount > 0}
    capacity = {name: amount for name, amount in capacity.items() if name in wanted}
    full = score_filling(ScoringType.MOST_ALLOCATED, wanted, capacity, taken, strategy.weights)
    # Full utilization earns as much as one NUMA node, so fewer NUMA nodes are never outweighed. Rounded up, because the
    # utilization is positive and truncation must not favor two full NUMA nodes.
    utilisation = -(-NUMA_STEP * full // MAX_SCORE) or 1
    return min(MAX_SCORE, max(0, MAX_SCORE - NUMA_STEP * placed.numa_nodes) + utilisation)


METHODS: Final[Mapping[NodeScoring, Callable[[PlacedPod, Strategy], int]]] = {
    NodeScoring.FEWEST_NUMA_NODES: lambda placed, _strategy: score_fewest(placed.placement),
    NodeScoring.CPU_ORCHESTRATION: score_orchestration,
    NodeScoring.KOORDINATOR: score_koordinator,
    NodeScoring.POD_LEVEL_POLICY: score_pod_level,
    NodeScoring.LEAST_NUMA_NODES: lambda placed, _strategy: score_placed_by_numa_nodes(placed),
}
_ZoneScore = Callable[[ResourceList, ResourceList, Weights], int]


def score_zones(
    pod: PodRequest, qos: KubeQos, topology: NodeResourceTopology | None, strategy: ScoringType, weights: Weights
) -> int:
    """
    Return the raw score of one node for one pod, 0 to 100.

    Pods that are not Guaranteed score 100 everywhere, nodes without topology 0. ``LeastNUMANodes`` applies to every
    kubelet policy, the other strategies only to single-numa-node.
    """
    if qos is not KubeQos.GUARANTEED:
        return MAX_SCORE
    if topology is None:
        return 0
    if strategy is ScoringType.LEAST_NUMA_NODES:
        return score_least_numa_nodes(pod, topology)
    if topology.kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return 0
    zone_score = _STRATEGIES[strategy]
    if topology.kubelet.topology_scope is KubeletScope.POD:
        return _node_score(zone_score, aligned_request(pod), topology.zones, weights)
    scores = [_node_score(zone_score, c.requests, topology.zones, weights) for c in pod.containers]
    # The mean over all containers, including init containers, as the plugin's containerScopeScore.
    return sum(scores) // len(scores) if scores else 0


def whole_units(resource: str, amount: int) -> int:
    """Return an amount in the unit of scores: whole CPUs, rounded up. Other resources are unchanged."""
    return -(-amount // MILLI) if resource == CPU else amount


def _node_score(zone_score: _ZoneScore, request: ResourceList, zones: Sequence[Zone], weights: Weights) -> int:
    # The minimum, because the kubelet may choose the worst zone that fits.
    return min((score for zone in zones if (score := zone_score(request, zone.available, weights))), default=0)


def _most_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: want * MAX_SCORE // have)


def _least_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: (have - want) * MAX_SCORE // have)


def _weighted(ask: ResourceList, free: ResourceList, weights: Weights, term: Callable[[int, int], int]) -> int:
    """
    Return the weighted mean over the resources that fit.

    The fit is decided on exact amounts, the terms use whole units.

    A resource without a weight does not count, as on nodes whose CPUs the scheduler owns. Upstream gives it the weight
    1.
    """
    score = share = 0
    for name, amount in ask.items():
        weight = weights.get(name, 0)
        # The weight of a resource that does not fit also counts, so that a zone without it scores lower.
        share += weight
        have = free.get(name, 0)
        if have > 0 and amount <= have:
            score += weight * min(MAX_SCORE, term(whole_units(name, amount), whole_units(name, have)))
    return score // share if share else 0


def _balanced_allocation(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    """Return the balance of the utilization of all resources: 1 minus the sample variance of the fractions."""
    fractions = [
        whole_units(name, amount) / whole_units(name, free[name]) if free.get(name, 0) > 0 else 1.0
        for name, amount in ask.items()
        if weights.get(name, 0)
    ]
    if any(fraction > 1 for fraction in fractions):
        return 0
    # The sample variance needs two values.
    if len(fractions) < 2:
        return MAX_SCORE  # a single resource is always balanced; upstream casts NaN here
    mean = sum(fractions) / len(fractions)
    variance = sum((fraction - mean) * (fraction - mean) for fraction in fractions) / (len(fractions) - 1)
    return int((1 - variance) * MAX_SCORE)


_STRATEGIES: Mapping[ScoringType, _ZoneScore] = {
    ScoringType.MOST_ALLOCATED: _most_allocated,
    ScoringType.LEAST_ALLOCATED: _least_allocated,
    ScoringType.BALANCED_ALLOCATION: _balanced_allocation,
}
