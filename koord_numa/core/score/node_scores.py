"""Score whole nodes: allocation strategies, image locality, room beside devices, and normalization to 0 to 100."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.objects.images import PodImages
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, is_native
from koord_numa.core.score.least_numa_nodes import Placed

Ints = NDArray[np.int64]

MAX_SCORE: Final = 100
MISSING: Final = -(1 << 40)
"""The raw score of a node that a preference cannot judge, because it lacks a topology label: it earns nothing."""


def as_given(raw: Ints) -> Ints:
    """Raw scores that are 0 to 100 by themselves, whatever other nodes offer (plugins without ``ScoreExtensions``)."""
    return raw


def most_first(raw: Ints) -> Ints:
    """100 for the highest raw score, the others in proportion; all 0 when none has any (``DefaultNormalizeScore``)."""
    highest = int(raw.max(initial=0))
    # Integer division, as DefaultNormalizeScore truncates.
    return raw * MAX_SCORE // highest if highest > 0 else np.zeros_like(raw)


def fewest_first(raw: Ints) -> Ints:
    """100 for a raw score of 0, less in proportion to the highest one (``DefaultNormalizeScore``, reversed)."""
    return MAX_SCORE - most_first(raw)


def between_extremes(raw: Ints) -> Ints:
    """0 for the lowest, 100 for the highest raw score; all 0 when they are equal (``interpodaffinity/scoring.go``)."""
    if not len(raw):
        return raw
    lowest, highest = int(raw.min()), int(raw.max())
    if lowest == highest:
        return np.zeros_like(raw)
    # Floating point as there, so that the truncated points are the same.
    return (MAX_SCORE * ((raw - lowest).astype(np.float64) / (highest - lowest))).astype(np.int64)


def least_crowded(raw: Ints) -> Ints:
    """
    100 for the least crowded node, the others by how far they are from the extremes; 0 where the raw score is ``MISSING``
    (``podtopologyspread/scoring.go``: ignored nodes). All labelled nodes earn 100 when none is crowded at all.
    """
    labelled = raw[raw != MISSING]
    if not len(labelled):
        # ``MISSING`` would be the lowest by far and flatten all other scores, so that it is left out first.
        return np.zeros_like(raw)
    lowest, highest = int(labelled.min()), int(labelled.max())
    # Inverted within the same range, as upstream: MaxNodeScore * (max + min - score) / max.
    points = np.full_like(raw, MAX_SCORE) if highest == 0 else MAX_SCORE * (highest + lowest - raw) // highest
    points[raw == MISSING] = 0
    return points


ALWAYS_SCORED: Final = (CPU, MEMORY)
"""These count even when the pod asks for none; other resources only when it asks for them (Koordinator's scorer)."""

FILLING: Final = frozenset({ScoringType.MOST_ALLOCATED, ScoringType.LEAST_ALLOCATED, ScoringType.BALANCED_ALLOCATION})
"""The strategies that say something about how full a place is."""

Weights = Mapping[str, int]


def score_filling(
    strategy: ScoringType, wanted: ResourceList, offer: ResourceList, held: ResourceList, weights: Weights
) -> int:
    """
    The score of a place that offers ``offer`` of which ``held`` is taken, once ``wanted`` is added.

    Most: how full; Least: how empty; Balanced: how alike the resources' fractions are. As Koordinator's and kube-scheduler's resource
    allocation scorers: each resource's score is truncated, then the weighted mean. ``LeastNUMANodes`` says nothing about
    filling: 0.
    """
    parts = [
        (weight, held.get(name, 0) + wanted.get(name, 0), capacity)
        for name, weight in weights.items()
        if (capacity := offer.get(name, 0)) > 0 and (name in ALWAYS_SCORED or counts(name, wanted))
    ]
    return score_parts(strategy, parts)


def counts(resource: str, wanted: ResourceList) -> bool:
    """Does this resource count in the score of a pod that wants these amounts?"""
    return resource in ALWAYS_SCORED or wanted.get(resource, 0) > 0


def score_parts(strategy: ScoringType, parts: Sequence[tuple[int, int, int]]) -> int:
    """As ``score_filling``, for the weight, the use and the (positive) capacity of each resource that counts."""
    term = _TERMS.get(strategy)
    if term is None:
        # ``LeastNUMANodes`` does not look at filling.
        is_balanced = strategy is ScoringType.BALANCED_ALLOCATION
        return _balance([min(1.0, used / capacity) for _, used, capacity in parts]) if is_balanced else 0
    points = share = 0
    for weight, used, capacity in parts:
        points += weight * term(used, capacity)
        share += weight
    # Truncated after the mean, and each term before it: both truncations are upstream's.
    return points // share if share else 0


def _most(used: int, capacity: int) -> int:
    # Cut at capacity: overcommitted places are full and not more than that.
    return used * MAX_SCORE // capacity if used < capacity else MAX_SCORE


def _least(used: int, capacity: int) -> int:
    return max(0, capacity - used) * MAX_SCORE // capacity


_TERMS: Final[Mapping[ScoringType, Callable[[int, int], int]]] = {
    ScoringType.MOST_ALLOCATED: _most,
    ScoringType.LEAST_ALLOCATED: _least,
}


def _balance(fractions: list[float]) -> int:
    """100 when all fractions are equal, less by their standard deviation (kube-scheduler's ``balanced_allocation.go``)."""
    if not fractions:
        return 0
    mean = sum(fractions) / len(fractions)
    deviation = sqrt(sum((fraction - mean) * (fraction - mean) for fraction in fractions) / len(fractions))
    return int((1 - deviation) * MAX_SCORE)


MIB: Final = 1 << 20

LEAST: Final = 23 * MIB
"""Images that add up to less than this are pulled at once, and count for nothing."""

MOST: Final = 1000 * MIB
"""What counts of one container at most; both bounds are kube-scheduler's."""


def score_images(node: Node, images: PodImages) -> int:
    """
    0 where the node has none of the images (or only small ones), 100 where it has all and they are large, on every node.

    A size is the node's own word; kube-scheduler takes that of the node which reported the name first.
    """
    sizes = sizes_on(node, frozenset(images.names))
    return points(sum(scaled(sizes[name], images, name) for name in images.names if name in sizes), len(images.names))


def sizes_on(node: Node, wanted: frozenset[str]) -> Mapping[str, int]:
    """The size in bytes of those of the wanted images that the node has, by the wanted name."""
    return {name: image.size for image in node.images for name in image.names if name in wanted}


def scaled(size: int, images: PodImages, name: str) -> int:
    """The size, scaled by the share of nodes that have the image (``scaledImageScore``)."""
    # Truncated like upstream's ``int64(float64(size) * spread)``.
    return int(size * (images.nodes.get(name, 0) / images.total)) if images.total else 0


def points(total: int, containers: int) -> int:
    """The scaled sizes of all images as 0 to 100 (``calculatePriority``)."""
    most = MOST * containers
    # Bounds scale with the number of containers, as the sizes of their images add up.
    return MAX_SCORE * (min(max(total, LEAST), most) - LEAST) // (most - LEAST) if containers else 0


def score_sparing(wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    """
    100 where no device is stranded, less by as many points as the fullest of CPU and memory is ahead of the least used device, in
    percent of the node, once the pod is added.
    """
    devices = [_percent(name, wanted, offer, held) for name in offer if is_device(name) and offer[name] > 0]
    if not devices:
        return MAX_SCORE
    common = max((_percent(name, wanted, offer, held) for name in ALWAYS_SCORED if offer.get(name, 0) > 0), default=0)
    # The least used device is the one at risk: it has the most units that could be stranded.
    return MAX_SCORE - max(0, min(MAX_SCORE, common) - min(devices))


@lru_cache(maxsize=1024)
def is_device(resource: str) -> bool:
    """Extended resources are pieces of hardware that only some nodes have; Koordinator's batch amounts are not."""
    return not is_native(resource) and not resource.startswith(_NOT_HARDWARE)


# Resources of these prefixes are amounts that a webhook or manager publishes for every node.
_NOT_HARDWARE: Final = ("kubernetes.io/", "koordinator.sh/")


def _percent(name: str, wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    return (held.get(name, 0) + wanted.get(name, 0)) * MAX_SCORE // offer[name]


Counted = tuple[tuple[str, int, int], ...]
"""Resources with their weight and how much is wanted."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A scoring type and a weight per resource."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def score(self, capacity: ResourceList, used: ResourceList, wanted: ResourceList) -> int:
        """How well ``wanted`` would sit in a capacity that is partly used: 0 to 100."""
        return score_filling(self.type, wanted, capacity, used, self.weights)

    def counted(self, wanted: ResourceList) -> Counted:
        """What counts in the score of a pod that wants so much."""
        weights = self.weights.items()
        return tuple([(name, weight, wanted.get(name, 0)) for name, weight in weights if counts(name, wanted)])


def score_koordinator(placed: Placed, strategy: Strategy) -> int:
    """
    0 to 100 by the strategy, over the NUMA nodes that the pod's amounts are on, else over the whole node.

    For a pod with own CPUs on NUMA nodes, all CPUs of the *node* that pods have for themselves count as taken there, as in
    Koordinator's scoring.go: its recorded scores depend on that.
    """
    capacity, taken = placed.scope
    if placed.placement.numa and placed.placement.cpus:
        own = MILLI * len(placed.ledger.cpus)
        # Replaced, not added: the CPUs of the node's pods stand for what the NUMA nodes have taken.
        taken = {**taken, CPU: amplify(own, placed.inventory.ratios.get(CPU))}
    return strategy.score(capacity, taken, placed.weighed(placed.amounts))
