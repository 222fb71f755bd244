"""
Hints: sets of NUMA nodes that could serve a resource, as bit masks, their order, and the interface of hint providers.

Providers create hints, the merge chooses a hint, and policies admit pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import accumulate, combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from koord_numa.core.cpu_topology import MAX_NUMA, UNKNOWN_DISTANCE
from koord_numa.core.cpuset import members
from koord_numa.core.value_objects import ValueObject, value_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Hint(NamedTuple):
    """
    A set of NUMA nodes that could serve a resource, or the merged set for all resources.

    ``mask`` has bit i for NUMA node i. ``None`` is "any". ``preferred``: no smaller set could ever serve it.
    Koordinator adds ``unsatisfied`` (the request would not completely fit) and ``score`` (decides between equally
    narrow sets).
    """

    mask: int | None
    preferred: bool
    unsatisfied: bool = False
    score: int = 0


ANYWHERE: Final = Hint(None, preferred=True)
NOWHERE: Final = Hint(None, preferred=False, unsatisfied=True)


@lru_cache(maxsize=1024)
def mask_of_ids(numa_ids: tuple[int, ...]) -> int:
    """Return the mask of a machine's NUMA nodes. Cached, since there are few different tuples."""
    return mask_of(numa_ids)


def mask_of(numa_ids: Iterable[int]) -> int:
    """Return the mask of these NUMA nodes."""
    mask = 0
    for numa in numa_ids:
        mask |= 1 << numa
    return mask


numa_ids: Final = members
"""Return the NUMA nodes of a set, ascending."""


@lru_cache(maxsize=1024)
def masks_of_size(nodes: int, size: int) -> tuple[int, ...]:
    """Return all sets of ``size`` of ``nodes``, lexicographic in the ids: {0,1} {0,2} {1,2}. As bitmask.IterateBitMasks."""
    return tuple(sum(bits) for bits in combinations([1 << numa for numa in numa_ids(nodes)], size))


Distances = Mapping[tuple[int, int], int]
"""ACPI SLIT distance from the first to the second NUMA node. ``UNKNOWN_DISTANCE`` for absent pairs, as in ``CpuTopology``."""

# Below this number of sets, creating two arrays costs more than the plain sums.
_WORTH_A_MATRIX: Final = 64


def closest(masks: Sequence[int], distances: Distances) -> int:
    """
    Return the set with the smallest average distance, then the numerically smallest, of equally wide sets.

    The average is over all ordered pairs, including each NUMA node with itself (the kubelet's numa_info.go). For sets
    of the same size, sums have the same order as averages and are exact. Raises ``ValueError`` without any mask.
    """
    sums = _sums_by_matrix(masks, distances) if len(masks) > _WORTH_A_MATRIX else [spread(m, distances) for m in masks]
    return min(zip(sums, masks, strict=True))[1]


def spread(mask: int, distances: Distances) -> int:
    """Return the sum of the distances over all ordered pairs of NUMA nodes in the set, including each with itself."""
    # Most sets have one member.
    if mask and not mask & (mask - 1):
        numa = mask.bit_length() - 1
        return distances.get((numa, numa), UNKNOWN_DISTANCE)
    ids = numa_ids(mask)
    return sum([distances.get((a, b), UNKNOWN_DISTANCE) for a in ids for b in ids])


def spreads(masks: Sequence[int], distances: Distances) -> list[int]:
    """Return ``spread`` of each of these sets."""
    single = [mask.bit_length() - 1 for mask in masks if mask and not mask & (mask - 1)]
    if len(single) == len(masks):
        return [distances.get((numa, numa), UNKNOWN_DISTANCE) for numa in single]
    return [spread(mask, distances) for mask in masks]


def _sums_by_matrix(masks: Sequence[int], distances: Distances) -> list[int]:
    import numpy as np

    everything = 0
    for mask in masks:
        everything |= mask
    ids = list(numa_ids(everything))
    members = np.array([[mask >> numa & 1 for numa in ids] for mask in masks], dtype=np.int64)
    costs = np.array([[distances.get((a, b), UNKNOWN_DISTANCE) for b in ids] for a in ids], dtype=np.int64)
    # Shape (masks, ids) @ (ids, ids) = (masks, ids): row m has the distance from the members of m to every id. The
    # product keeps only members.
    sums: list[int] = ((members @ costs) * members).sum(axis=1).tolist()
    return sums


# Hint providers: their interface, and hints as a rule instead of a list.
#
# A counted resource accepts every set of NUMA nodes whose free amounts suffice.
#
# A provider handles one kind of resource. It does not see hints of other providers, and does not decide.

# A counted resource: it accepts every set of NUMA nodes whose free amounts add up to the needed amount.
#
# Sets are not enumerated: sixteen NUMA nodes have 65,535. Independent of policies and other resources.
Flags: TypeAlias = "NDArray[np.bool_]"

_WIDEST_KEPT: Final = 10
"""Maximum NUMA nodes for a cached matrix of sets. A table of 8 NUMA nodes takes 20 microseconds with it and 100 without."""

_EXACT: Final = 2**56
"""Amounts below this fit into a 64-bit sum over 64 NUMA nodes. Larger amounts are added as Python integers."""


@value_object
class Counted:
    """
    Accepts the sets within ``free`` that contain ``covering`` and whose free amounts reach ``needed``.

    ``covering`` are mandatory NUMA nodes, such as those of a pod's reusable init CPUs. Amounts are not negative. An
    instance that accepts no set is false, like an empty list of hints.
    """

    free: Mapping[int, int]  # NUMA id -> free amount; ineligible NUMA nodes are absent
    needed: int
    covering: int = 0
    nodes: int = field(init=False, compare=False)

    # The instance is frozen, so the derived mask is set directly. It is read for every evaluated mask.
    def __post_init__(self) -> None:
        nodes = 0
        for numa in self.free:
            nodes |= 1 << numa
        object.__setattr__(self, "nodes", nodes)

    def __bool__(self) -> bool:
        return self.accepts(self.nodes)

    def accepts(self, mask: int) -> bool:
        """Return whether this set of NUMA nodes could serve the request now."""
        if mask & ~self.nodes or self.covering & ~mask or not mask:
            return False
        return sum(free for numa, free in self.free.items() if mask >> numa & 1) >= self.needed

    @property
    def narrowest(self) -> int:
        """Return the size of the smallest set that could serve the request now, 0 if there is none."""
        if not self:
            return 0
        # Mandatory NUMA nodes count even if they add nothing. Only the others are chosen, largest first.
        taken = [free for numa, free in self.free.items() if self.covering >> numa & 1]
        others = sorted((free for numa, free in self.free.items() if not self.covering >> numa & 1), reverse=True)
        missing, size = self.needed - sum(taken), len(taken)
        for free in others:
            if missing <= 0 and size:
                break
            missing -= free
            size += 1
        return size

    def table(self, ids: Sequence[int]) -> Flags:
        """Return whether each set is accepted. Entry s is the set of the NUMA nodes ``ids[i]`` with bit i in s. 2^len(ids) entries."""
        import numpy as np

        width = len(ids)
        if 0 <= self.needed < _EXACT and width <= _WIDEST_KEPT and ids == tuple(range(width)):
            masks, members = _masks_of(width)
            frees = [min(self.free.get(numa, 0), self.needed) for numa in ids]
            within = (masks & ~(self.nodes & (1 << width) - 1) == 0) & (masks & self.covering == self.covering)
            accepted: Flags = within & (members @ np.array(frees, dtype=np.int64) >= self.needed)
            accepted[0] = False
            return accepted
        # Beyond int64 the dtype is ``object``: Python integers are exact, only slower.
        exact = 0 <= self.needed < _EXACT
        sums = np.zeros(1, dtype=np.int64 if exact else object)
        allowed = np.ones(1, dtype=np.bool_)
        for numa in ids:
            # Amounts above the need are irrelevant, and limiting them keeps sums small.
            free = min(self.free.get(numa, 0), max(self.needed, 0))
            sums = np.concatenate((sums, sums + free))
            without = not self.covering >> numa & 1
            allowed = np.concatenate((allowed & without, allowed & (numa in self.free)))
        result: Flags = allowed & (sums >= self.needed).astype(np.bool_)
        # The empty set reaches a need of 0 but is not a set of NUMA nodes.
        if not self.covering & ~sum(1 << numa for numa in ids):
            result[0] = False
            return result
        return np.zeros_like(result)


@lru_cache(maxsize=_WIDEST_KEPT + 1)
def _masks_of(width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all sets of ``width`` NUMA nodes as masks, and as rows of 0 and 1."""
    import numpy as np

    masks = np.arange(1 << width, dtype=np.int64)
    return masks, masks[:, None] >> np.arange(width) & 1


def fewest_that_reach(amounts: Mapping[int, int], needed: int) -> int:
    """Return the smallest number of NUMA nodes whose amounts reach ``needed``, or all if they do not. At least one."""
    gathered = 0
    for count, amount in enumerate(sorted(amounts.values(), reverse=True), start=1):
        gathered += amount
        if gathered >= needed:
            return count
    return len(amounts)


# Find sets of NUMA nodes that several counted resources accept, without lists per resource.
#
# Sets of one size at a time: the policies only need the narrowest size.

WIDEST_TABLE: Final = 16
"""Maximum NUMA nodes for a table of all sets (65,536)."""

STEPS: Final = 20_000
"""Maximum branches of the search above the table's limit. The sum condition is a knapsack problem in the worst case."""


def common_masks(families: Sequence[Counted], size: int) -> list[int]:
    """
    Return the sets of ``size`` NUMA nodes that all families accept, ascending. Needs at least one family.

    Above ``WIDEST_TABLE`` NUMA nodes, return only the numerically smallest set, or none if ``STEPS`` branches find
    none.
    """
    import numpy as np

    nodes = _shared_nodes(families)
    # An empty set holds nothing, and there are no sets above the number of shared NUMA nodes.
    if not 0 < size <= nodes.bit_count():
        return []
    ids = numa_ids(nodes)
    if len(ids) > WIDEST_TABLE:
        return _MaskSearch(families, ids).first(size)
    accepted = families[0].table(ids)
    for family in families[1:]:
        accepted = accepted & family.table(ids)
    found: list[int] = np.flatnonzero(accepted & (_sizes(len(ids)) == size)).tolist()
    # Tables are indexed by position. For ids 0…n-1 the position is the id.
    if ids == tuple(range(len(ids))):
        return found
    return [mask_of(ids[i] for i in numa_ids(mask)) for mask in found]


def _shared_nodes(families: Sequence[Counted]) -> int:
    nodes = families[0].nodes
    for family in families:
        nodes &= family.nodes
    return nodes


# One array per machine width, at most 65,536 bytes. Entry s is the number of bits of s.
@lru_cache(maxsize=WIDEST_TABLE + 1)
def _sizes(bits: int) -> NDArray[np.int8]:
    import numpy as np

    sizes = np.zeros(1, dtype=np.int8)
    for _ in range(bits):
        sizes = np.concatenate((sizes, sizes + np.int8(1)))
    return sizes


class _MaskSearch:
    """
    Depth-first search from the highest NUMA id down, exclusion before inclusion: the first set found is the smallest number.

    A branch is cut if the largest amounts of the remaining NUMA nodes are not enough for a resource.
    """

    def __init__(self, families: Sequence[Counted], ids: Sequence[int]) -> None:
        self.families, self.ids, self.steps = families, ids, STEPS
        self.covering = 0
        for family in families:
            self.covering |= family.covering
        amounts = [[family.free[numa] for numa in ids] for family in families]
        # largest[f][open][count]: the maximum that ``count`` of the first ``open`` NUMA nodes offer of resource f
        self.largest = [
            [list(accumulate(sorted(row[:end], reverse=True), initial=0)) for end in range(len(ids) + 1)]
            for row in amounts
        ]
        self.amounts = list(zip(*amounts, strict=True))

    def first(self, size: int) -> list[int]:
        # A NUMA node that must be covered but is not eligible excludes all sets.
        if self.covering & ~mask_of(self.ids):
            return []
        found = self._descend(len(self.ids), size, [family.needed for family in self.families])
        return [] if found is None else [found]

    def _descend(self, open_ids: int, size: int, missing: list[int]) -> int | None:
        # A limit of branches instead of time, so that the result is the same on every machine.
        self.steps -= 1
        if self.steps < 0 or size > open_ids:
            return None
        # Upper bound: no choice of ``size`` remaining NUMA nodes offers more than the ``size`` largest.
        if any(rows[open_ids][size] < rest for rows, rest in zip(self.largest, missing, strict=True)):
            return None
        if not open_ids:
            return 0
        highest = open_ids - 1
        bit = 1 << self.ids[highest]
        # Excluding high ids first finds the smallest number first, which upstream prefers.
        if not self.covering & bit:
            found = self._descend(highest, size, missing)
            if found is not None:
                return found
        if not size:
            return None
        rests = [rest - amount for rest, amount in zip(missing, self.amounts[highest], strict=True)]
        found = self._descend(highest, size - 1, rests)
        return None if found is None else found | bit


# Hints as a rule instead of a list: the sets of NUMA nodes that could serve a resource, and the preferred ones.
#
# The kubelet's managers enumerate every mask into a list of hints. A ``HintRule`` evaluates single masks, so a merge only
# evaluates the few masks that can win.

_LOOKED_AT: Final = 500
"""Above this number of masks of a size, masks are not evaluated one by one."""

EVERY_MASK: Final = 64
"""Maximum width of a set of NUMA nodes."""


class HintRule(ValueObject):
    """
    The hints of a resource over the NUMA nodes in ``nodes``.

    ``fits`` returns whether a mask could serve the request now. ``size`` is the smallest number of NUMA nodes that
    could serve it on an empty machine: fitting masks of exactly that size are preferred, and those of ``also``
    (``align-by-socket``). ``grows``: every superset of a fitting mask fits. ``candidates`` are the only masks that may
    fit, by size, if there are few. ``counted`` is equivalent to ``fits`` by arithmetic. A rule without a fitting mask
    is false, like the kubelet's empty list of hints.
    """

    nodes: int
    size: int
    fits: Callable[[int], bool]
    also: Callable[[int], bool] | None = None
    grows: bool = True
    candidates: Sequence[int] | None = None
    counted: Counted | None = None

    def __bool__(self) -> bool:
        # A rule that grows is satisfiable exactly if its widest mask is. Other rules need a search.
        if self.grows:
            return bool(self.nodes) and self.fits(self.nodes)
        for size in range(1, self.nodes.bit_count() + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    return True
        return False

    def prefers(self, mask: int) -> bool:
        """Return whether this mask is a preferred hint."""
        if mask & ~self.nodes or not mask:
            return False
        # ``fits`` last, since it may add amounts. The size is a single machine instruction.
        return (mask.bit_count() == self.size or (self.also is not None and self.also(mask))) and self.fits(mask)

    def preferred(self) -> Iterator[int]:
        """Return all preferred masks, narrowest first."""
        # ``also`` may include masks of any size, so all sizes are listed.
        if (also := self.also) is not None:
            sizes = range(1, self.nodes.bit_count() + 1)
            masks = (mask for size in sizes for mask in self._of_size(size) if size == self.size or also(mask))
            return (mask for mask in masks if self.fits(mask))
        if self.counted is not None and self._are_many(self.size):
            return iter(common_masks([self.counted], self.size))
        return (mask for mask in self._of_size(self.size) if self.fits(mask))

    def hints(self, widest: int = EVERY_MASK) -> Iterator[Hint]:
        """Yield the equivalent list, up to sets of ``widest`` NUMA nodes: by size, then lexicographic in the ids."""
        # The order of the kubelet's IterateBitMasks, on which ties depend.
        for size in range(1, min(widest, self.nodes.bit_count()) + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    yield Hint(mask, size == self.size or (self.also is not None and self.also(mask)))

    def _are_many(self, size: int) -> bool:
        """Return whether a table of all sums is cheaper than evaluating every mask of this size."""
        width = self.nodes.bit_count()
        return self.candidates is None and width <= WIDEST_TABLE and comb(width, size) > _LOOKED_AT

    def _of_size(self, size: int) -> Iterable[int]:
        if self.candidates is None:
            return masks_of_size(self.nodes, size)
        return [mask for mask in self.candidates if mask.bit_count() == size]

    @property
    def narrowest(self) -> int:
        """Return the size of the smallest mask that could serve the request now, 0 if there is none."""
        if self.counted is not None:
            return self.counted.narrowest
        # Rules without arithmetic are few and narrow: the first hint has the smallest size by the order above.
        return next((mask.bit_count() for mask, *_ in self.hints() if mask), 0)


IMPOSSIBLE: Final = HintRule(nodes=0, size=0, fits=lambda _: False)
"""No set of NUMA nodes is possible: the kubelet's empty list of hints."""


Takes = Sequence[Hint] | HintRule
"""One dimension of a merge: a list of hints, or a rule (the kubelet's managers)."""

Hints = Takes | None
"""Hints of a resource. ``None``: no preference. Empty: impossible on this node."""

Answer = Mapping[str, Hints] | None
"""Answer of a provider, by resource in merge order. ``None`` and ``{}`` mean no preference."""


def hints_of(takes: Takes, widest: int = MAX_NUMA) -> Iterable[Hint]:
    """Return the hints. Those of a rule are limited to ``widest`` NUMA nodes."""
    return takes.hints(widest) if isinstance(takes, HintRule) else takes


class ResourceHints(NamedTuple):
    """The hints of a resource in a merge. ``stated`` is the answer of its provider."""

    resource: str
    takes: Takes
    stated: Hints

    @property
    def impossible(self) -> bool:
        """Return whether no set of NUMA nodes can serve the resource."""
        return self.stated is not None and not self.stated


def resource_hints(answers: Iterable[Answer]) -> list[ResourceHints]:
    """
    Return one dimension per resource, in the order of the providers. A provider without an answer accepts any set.

    An impossible resource gives "any, not preferred", so that best-effort can admit the pod. As filterProvidersHints of
    the kubelet and of Koordinator's topologymanager/policy.go.
    """
    dimensions: list[ResourceHints] = []
    for answer in answers:
        # ``None`` and ``{}`` are equal: the kubelet tests ``len(hints) == 0`` first.
        if not answer:
            dimensions.append(ResourceHints("", (ANYWHERE,), None))
            continue
        for resource, stated in answer.items():
            # "No preference" prefers any set, "impossible" prefers none.
            takes = (ANYWHERE,) if stated is None else stated or (NOWHERE,)
            dimensions.append(ResourceHints(resource, takes, stated))
    return dimensions
