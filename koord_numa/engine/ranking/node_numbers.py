"""Numbers and classes of all nodes in NumPy columns, one row per node."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.cpus.kubelet_options import ARCHITECTURE, STATIC_CPUS, CoreEvidence, core_rule, likely_config
from koord_numa.core.kubelet import core_rule_of
from koord_numa.core.objects.node import KubeletConfig, Node, Taint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.resources import CPU, MEMORY, PODS
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo


class RowWriter:
    """Writer for the columns ``first`` to ``last`` of a contiguous table ``int64[rows, lines]``. A replaced table needs a new writer."""

    def __init__(self, table: NDArray[np.int64], first: int = 0, last: int | None = None) -> None:
        lines = table.shape[1]
        self._memory = table.data.cast("B")
        self._pack_into = Struct(f"{(lines if last is None else last) - first}q").pack_into
        self._row, self._first = lines * table.itemsize, first * table.itemsize

    def write(self, row: int, values: Iterable[int]) -> None:
        """Write one value per line. Raises ``struct.error`` for a wrong number of values and for values outside 64 bits."""
        self._pack_into(self._memory, row * self._row + self._first, *values)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct values in ascending order."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: NDArray[np.int64] = ordered[first]
    return found


SPACE: Final = 1 << 40
"""Exclusive upper bound of the numbers, which start at 1."""


class NameOrder:
    """Order-preserving numbers for a changing set of names. ``epoch`` changes when all names are renumbered."""

    def __init__(self) -> None:
        self.epoch = 0
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._unplaced: set[str] = set()

    def add(self, name: str) -> None:
        """Add a name. It is numbered at the first call of ``number``, so that many names can be added at once."""
        # Deferred: thousands of nodes at startup are numbered by one sort.
        if name not in self._numbers:
            self._unplaced.add(name)

    def discard(self, name: str) -> None:
        """Remove a name. The numbers of the other names do not change."""
        self._unplaced.discard(name)
        if self._numbers.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def number(self, name: str) -> int:
        """Return the number of a name that was added. Numbers have the order of the names."""
        if self._unplaced:
            self._place()
        return self._numbers[name]

    def _place(self) -> None:
        arrivals, self._unplaced = sorted(self._unplaced), set()
        # Many additions to few names would halve the gaps repeatedly: renumber all names at once.
        if len(arrivals) > 16 + len(self._names) // 8:
            self._spread(arrivals)
            return
        for index, name in enumerate(arrivals):
            place = bisect_left(self._names, name)
            low = self._numbers[self._names[place - 1]] if place else 0
            high = self._numbers[self._names[place]] if place < len(self._names) else SPACE
            # There is no free number between the neighbors.
            if high - low < 2:
                self._spread(arrivals[index:])
                return
            self._names.insert(place, name)
            # The midpoint: 2**40 allows 40 consecutive additions at the same place.
            self._numbers[name] = (low + high) // 2

    def _spread(self, arrivals: list[str]) -> None:
        self._names = sorted({*self._names, *arrivals})
        # ``+ 1`` leaves space before the first and after the last name.
        step = SPACE // (len(self._names) + 1)
        self._numbers = {name: step * (index + 1) for index, name in enumerate(self._names)}
        self.epoch += 1


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNLIMITED: Final = 1 << 50

FIRST_RESOURCES: Final = (CPU, MEMORY, PODS)
"""Resources of every node, in the first lines."""

DIVISORS: Final = slice(0, 2)
"""Lines of allocatable CPU and memory, 1 where the node has none, because free amounts are divided by them."""
SPARES: Final = 2
"""Line of the percentage of the least used device, minus 100: 0 without devices."""
FREE: Final = 3
"""First line of the free amounts of each resource, times 100. Where no pod may be placed, 0 pods are free."""
COMMON: Final = slice(0, FREE + 2)
"""Lines that most scores need: the lines above, and free CPU and memory."""


class NodeNumbers:
    """
    Table of amounts: ``rows[row, line]``.

    ``resources`` maps a resource to its line after ``FREE``. ``places`` maps a resource of NUMA nodes to its index. ``counts`` is the
    largest number of NUMA nodes of a row. ``reach[place, row, count - 1]`` is the sum of the free amounts of the ``count`` emptiest NUMA
    nodes, a view of the same table. ``version`` is incremented when lines move.
    """

    def __init__(self, rows: int) -> None:
        self.resources: dict[str, int] = {name: line for line, name in enumerate(FIRST_RESOURCES)}
        self.places: dict[str, int] = {CPU: 0, MEMORY: 1}
        self.counts = 1
        self.version = 0
        self._set(self._empty(rows))

    @property
    def first_reach(self) -> int:
        """First line of the NUMA nodes."""
        return FREE + len(self.resources)

    def grow(self, rows: int) -> None:
        """Add rows up to this number."""
        grown = self._empty(rows)
        grown[: len(self.rows)] = self.rows
        self._set(grown)

    def add_resource(self, resource: str) -> None:
        """Add a line for a resource of whole nodes, with nothing free."""
        line = self.first_reach
        self.resources[resource] = len(self.resources)
        self._set(np.insert(self.rows, line, 0, axis=1))
        self.version += 1

    def make_room(self, free: Mapping[str, Sequence[int]]) -> None:
        """Add lines for resources that no NUMA node had before, and for a larger number of NUMA nodes."""
        if free.keys() <= self.places.keys() and max(map(len, free.values()), default=0) <= self.counts:
            return
        whole, reach, counts = self.rows[:, : self.first_reach], self.reach, self.counts
        for name in sorted(free):
            self.places.setdefault(name, len(self.places))
        self.counts = max(counts, *map(len, free.values()))
        grown = self._empty(len(whole))
        grown[:, : self.first_reach] = whole
        self._set(grown)
        self.reach[: len(reach), :, :counts] = reach
        # New columns repeat the last sum, because missing NUMA nodes add nothing.
        self.reach[: len(reach), :, counts:] = reach[:, :, counts - 1 :]
        self.version += 1

    def _set(self, rows: Ints) -> None:
        self.rows = rows
        # The amounts of whole nodes that pods change are adjacent and written together.
        self.whole = RowWriter(rows, SPARES, self.first_reach)
        by_count = rows[:, self.first_reach :].reshape(len(rows), self.counts, len(self.places))
        self.reach = by_count[:, ::-1].transpose(2, 0, 1)

    def _empty(self, rows: int) -> Ints:
        numbers: Ints = np.zeros((rows, self.first_reach + len(self.places) * self.counts), dtype=np.int64)
        numbers[:, DIVISORS] = 1
        numbers[:, self.first_reach :] = UNLIMITED
        return numbers


def longer(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return a copy of the columns with this number of rows. New rows are zero."""
    grown = np.zeros((*values.shape[:-1], rows), dtype=values.dtype)
    grown[..., : values.shape[-1]] = values
    return grown


MANY: Final = 256
"""Number of changes from which removing duplicate rows is worth its cost."""


class Journal:
    """Log of changed rows. Keeps at least as many changes as there are rows; older readers have to process all rows."""

    def __init__(self) -> None:
        # Written elements are never modified, so that views stay valid while the journal grows.
        self._rows: Ints = np.zeros(1024, dtype=np.int64)
        self._count = 0
        self._start = 0  # position of the first kept change

    @property
    def position(self) -> int:
        """Position after the last change."""
        return self._start + self._count

    def add(self, row: int, rows: int) -> None:
        """Record a change of this row. ``rows`` is the number of rows."""
        if self._count == len(self._rows):
            self._make_room(rows)
        self._rows[self._count] = row
        self._count += 1

    def changes_since(self, position: int) -> Ints | None:
        """
        Return the rows that changed since a position, in order and possibly with duplicates.

        Returns ``None`` when the position is not kept any more. The array is shared and read-only.
        """
        if position < self._start:
            return None
        rows = self._rows[position - self._start : self._count]
        return rows if len(rows) < MANY else distinct(rows)

    def _make_room(self, rows: int) -> None:
        # Half of the log at once, so that the cost of a cut is a constant share of the appends. Readers before the cut
        # start over.
        if self._count > 4 * rows + 1024:
            cut = self._count // 2
            self._start += cut
            self._count -= cut
            self._rows = longer(self._rows[cut:], len(self._rows))
        else:
            self._rows = longer(self._rows, 2 * len(self._rows))


def _is_number(value: str) -> bool:
    """Return whether a taint value is a number, such as the time stamps of cluster-autoscaler, which would make a class of every node."""
    return value.isdecimal()


def _without_number(taint: Taint) -> Taint:
    return replace(taint, value="0") if _is_number(taint.value) else taint


def compares_numbers(request: PodRequest) -> bool:
    """
    Return whether a toleration names a numeric taint value.

    Nodes of one class may have different numbers, so the class does not determine whether such a toleration matches.
    """
    return any(_is_number(each.value) for each in request.constraints.tolerations)


@dataclass(frozen=True, slots=True)
class NodeClass:
    """
    Properties that decide about admission and that nodes share.

    ``example`` is a node of the class: cordon, taints, features and problem are those of all nodes of the class. ``config`` is set on nodes
    whose kubelet allocates CPUs. Exclusive CPUs must then be a multiple of ``threads``. A pod that violates this rule is rejected there,
    or, if ``explores`` is set, placed there to test whether the rule applies.

    On other nodes ``zones`` is whether NUMA nodes are published on which the scheduler aligns pods, ``policy`` the NUMA policy of the node,
    and ``pins`` whether every pod with whole CPUs may get exclusive CPUs. ``aligns_by_default``: pods with exclusive CPUs are aligned by
    the configured policy.
    """

    example: Node
    config: KubeletConfig | None = None
    threads: int = 1
    explores: bool = False
    zones: bool = False
    policy: NumaPolicy = NumaPolicy.NONE
    pins: bool = False
    aligns_by_default: bool = False

    @classmethod
    def of(cls, record: NodeInfo, node: Node) -> Self:
        """Return the class of a node."""
        offer, topology = record.inventory, record.topology
        if any(_is_number(taint.value) for taint in node.taints):
            # Numeric values (time stamps) would make a separate class of every node.
            node = replace(node, taints=tuple(_without_number(taint) for taint in node.taints))
        if isinstance(offer, Inventory):
            pins = offer.static_kubelet or offer.bind is not NodeBindPolicy.NONE
            aligns = bool(offer.zones) and not offer.never_aligned
            aligns = aligns and offer.strategy is not NumaAllocateStrategy.DISTRIBUTE_EVENLY
            return cls(node, zones=bool(offer.zones), policy=offer.policy, pins=pins, aligns_by_default=aligns)
        return cls(node, None if offer is not None or topology is None else likely_config(topology))

    @property
    def key(self) -> Hashable:
        """Key that is equal for nodes of the same class."""
        node, config = self.example, self.config
        settings = config and (
            config.topology_policy,
            config.topology_scope,
            config.cpu_policy,
            tuple(sorted(config.cpu_options.items())),
        )
        own = self.zones, self.policy, self.pins, self.aligns_by_default
        # Exactly the fields that ``fits_node_object`` and the bounds read. Names and labels are evaluated by row.
        return node.problem, node.unschedulable, node.taints, node.features, settings, self.threads, self.explores, *own

    def with_pods(self, record: NodeInfo) -> "NodeClass":
        """
        Return the class of the node, given the pods that its kubelet has admitted.

        These pods may prove that the kubelet does not require whole cores.
        """
        node, topology = record.node, record.topology
        # Only the static CPU manager can require whole cores.
        if self.config is None or self.config.cpu_policy != STATIC_CPUS or node is None or topology is None:
            return self
        history, architecture = record.history, node.labels.get(ARCHITECTURE, "")
        kept, frame = history.evidence.keeps_cores, history.frame
        evidence = CoreEvidence(record.admitted_counts(), kept)
        if frame is not None and frame.topology is topology:  # as in a view, which caches the rule
            rule = core_rule_of(frame, architecture, evidence)
        else:
            rule = core_rule(topology.kubelet, topology.zones, architecture, evidence)
        threads = 1 if rule is None else rule.threads
        if threads == self.threads and self.explores == (not kept):
            return self
        return replace(self, threads=threads, explores=not kept)

    @property
    def wants_one(self) -> bool:
        """True if the node accepts aligned placements only on a single NUMA node."""
        if self.config is not None:
            return self.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
        return self.zones and self.policy is NumaPolicy.SINGLE_NUMA_NODE
