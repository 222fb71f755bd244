"""Numbers and kinds of all nodes in NumPy columns, one row per node."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.kubelet.options import ARCHITECTURE, STATIC_CPUS, CoreEvidence, core_rule, likely_config
from koord_numa.core.kubelet.view import core_rule_of
from koord_numa.core.objects.node import KubeletConfig, Node, Taint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.resources import CPU, MEMORY, PODS
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo


class RowWriter:
    """Of one table, ``int64[rows, lines]`` without gaps, from ``first`` up to ``last``. A table that is replaced needs another writer."""

    def __init__(self, table: NDArray[np.int64], first: int = 0, last: int | None = None) -> None:
        lines = table.shape[1]
        self._memory = table.data.cast("B")
        self._pack_into = Struct(f"{(lines if last is None else last) - first}q").pack_into
        self._row, self._first = lines * table.itemsize, first * table.itemsize

    def write(self, row: int, values: Iterable[int]) -> None:
        """As many values as there are lines. Raises ``struct.error`` for more or fewer, and for what 64 bits do not hold."""
        self._pack_into(self._memory, row * self._row + self._first, *values)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values, ascending."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: NDArray[np.int64] = ordered[first]
    return found


SPACE: Final = 1 << 40
"""Numbers are from 1 to this, exclusively."""


class NameOrder:
    """A growing and shrinking set of names, each with its number. ``epoch`` changes when all numbers did."""

    def __init__(self) -> None:
        self.epoch = 0
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._unplaced: set[str] = set()

    def add(self, name: str) -> None:
        """Take a name in; it gets its number when one is asked for, so that many can come at once."""
        # Placed lazily: thousands of nodes at the start get their numbers in one sort.
        if name not in self._numbers:
            self._unplaced.add(name)

    def discard(self, name: str) -> None:
        """Forget a name; the numbers of the others stay."""
        self._unplaced.discard(name)
        if self._numbers.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def number(self, name: str) -> int:
        """The number of a name that was added. Smaller numbers belong to names that come first."""
        if self._unplaced:
            self._place()
        return self._numbers[name]

    def _place(self) -> None:
        arrivals, self._unplaced = sorted(self._unplaced), set()
        # Many arrivals beside few names would halve the gaps again and again: spread them all at once.
        if len(arrivals) > 16 + len(self._names) // 8:
            self._spread(arrivals)
            return
        for index, name in enumerate(arrivals):
            place = bisect_left(self._names, name)
            low = self._numbers[self._names[place - 1]] if place else 0
            high = self._numbers[self._names[place]] if place < len(self._names) else SPACE
            # No number is left between the neighbours.
            if high - low < 2:
                self._spread(arrivals[index:])
                return
            self._names.insert(place, name)
            # The middle: 2**40 leaves room for 40 arrivals at one place in a row.
            self._numbers[name] = (low + high) // 2

    def _spread(self, arrivals: list[str]) -> None:
        self._names = sorted({*self._names, *arrivals})
        # ``+ 1`` keeps room before the first and behind the last name.
        step = SPACE // (len(self._names) + 1)
        self._numbers = {name: step * (index + 1) for index, name in enumerate(self._names)}
        self.epoch += 1


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNLIMITED: Final = 1 << 50

FIRST_RESOURCES: Final = (CPU, MEMORY, PODS)
"""Every node has these, so they get the first lines, side by side."""

DIVISORS: Final = slice(0, 2)
"""How much CPU and memory is offered, 1 where none is, as what is free is divided by it."""
SPARES: Final = 2
"""The percent of the least used device, less 100: 0 without any."""
FREE: Final = 3
"""From here on what is free of each resource, a hundredfold. Where nothing may go no pods are free."""
COMMON: Final = slice(0, FREE + 2)
"""What most scores are made of: the lines above, and what is free of CPU and memory."""


class NodeNumbers:
    """
    ``rows[row, line]`` are the numbers. ``resources`` says which line after ``FREE`` a resource has, ``places`` its place among those of
    NUMA nodes, ``counts`` is the most NUMA nodes that a row may have. ``reach[place, row, count - 1]`` is what the ``count`` emptiest NUMA
    nodes have free together, a view of the same numbers. ``version`` grows when lines move.
    """

    def __init__(self, rows: int) -> None:
        self.resources: dict[str, int] = {name: line for line, name in enumerate(FIRST_RESOURCES)}
        self.places: dict[str, int] = {CPU: 0, MEMORY: 1}
        self.counts = 1
        self.version = 0
        self._set(self._empty(rows))

    @property
    def first_reach(self) -> int:
        """The first line of NUMA nodes."""
        return FREE + len(self.resources)

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        grown = self._empty(rows)
        grown[: len(self.rows)] = self.rows
        self._set(grown)

    def add_resource(self, resource: str) -> None:
        """A line for a resource of whole nodes, of which nothing is free so far."""
        line = self.first_reach
        self.resources[resource] = len(self.resources)
        self._set(np.insert(self.rows, line, 0, axis=1))
        self.version += 1

    def make_room(self, free: Mapping[str, Sequence[int]]) -> None:
        """Room for resources that no NUMA node had so far, and for more NUMA nodes, which have nothing."""
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
        # Wider rows repeat the last sum, as NUMA nodes that are not there add nothing.
        self.reach[: len(reach), :, counts:] = reach[:, :, counts - 1 :]
        self.version += 1

    def _set(self, rows: Ints) -> None:
        self.rows = rows
        # What pods change of whole nodes is side by side, and written at once.
        self.whole = RowWriter(rows, SPARES, self.first_reach)
        by_count = rows[:, self.first_reach :].reshape(len(rows), self.counts, len(self.places))
        self.reach = by_count[:, ::-1].transpose(2, 0, 1)

    def _empty(self, rows: int) -> Ints:
        numbers: Ints = np.zeros((rows, self.first_reach + len(self.places) * self.counts), dtype=np.int64)
        numbers[:, DIVISORS] = 1
        numbers[:, self.first_reach :] = UNLIMITED
        return numbers


def longer(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """The same columns with room for more rows, which are zero."""
    grown = np.zeros((*values.shape[:-1], rows), dtype=values.dtype)
    grown[..., : values.shape[-1]] = values
    return grown


MANY: Final = 256
"""Of so many changes it pays to leave out the rows that are there more than once."""


class Journal:
    """Keeps at least the last changes, as many as there are rows; who was here before them looks at everything."""

    def __init__(self) -> None:
        # With room for more. What is written is never changed, so that a view of it holds while the journal grows.
        self._rows: Ints = np.zeros(1024, dtype=np.int64)
        self._count = 0
        self._start = 0  # the position of the first one

    @property
    def position(self) -> int:
        """The position after the last change."""
        return self._start + self._count

    def add(self, row: int, rows: int) -> None:
        """This row changed, of so many that there are."""
        if self._count == len(self._rows):
            self._make_room(rows)
        self._rows[self._count] = row
        self._count += 1

    def changes_since(self, position: int) -> Ints | None:
        """
        The rows that changed since a position, in the order of their changes: one that changed twice may be there twice. ``None`` when that
        is too long ago to know. Not to be changed.
        """
        if position < self._start:
            return None
        rows = self._rows[position - self._start : self._count]
        return rows if len(rows) < MANY else distinct(rows)

    def _make_room(self, rows: int) -> None:
        # Half at once, so that cutting costs a constant share of the appends; readers behind the cut start over.
        if self._count > 4 * rows + 1024:
            cut = self._count // 2
            self._start += cut
            self._count -= cut
            self._rows = longer(self._rows[cut:], len(self._rows))
        else:
            self._rows = longer(self._rows, 2 * len(self._rows))


def _is_number(value: str) -> bool:
    """Time stamps, such as cluster-autoscaler writes into taints: other values of one taint would be as many classes."""
    return value.isdecimal()


def _without_number(taint: Taint) -> Taint:
    return replace(taint, value="0") if _is_number(taint.value) else taint


def compares_numbers(request: PodRequest) -> bool:
    """Does a toleration name a taint's value that is a number? Then the class of a node does not tell whether it is tolerated."""
    return any(_is_number(each.value) for each in request.constraints.tolerations)


@dataclass(frozen=True, slots=True)
class NodeClass:
    """
    ``example`` is some node of the kind: its cordon, taints, features and problem are those of all. ``config`` is present where a kubelet
    chooses. Exclusive CPUs must then be a multiple of ``threads``: a pod that breaks this rule is refused there, or, where
    ``explores``, goes there to find out whether it holds.

    Otherwise ``zones`` tells whether NUMA nodes are published that are ours to align on, ``policy`` which NUMA policy the node names, and
    ``pins`` whether every pod with whole CPUs may get its own. ``aligns_by_default``: pods with CPUs of their own are aligned there by the
    configured policy.
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
        """The kind of one node."""
        offer, topology = record.inventory, record.topology
        if any(_is_number(taint.value) for taint in node.taints):
            # Values that are numbers (time stamps) would make every node a class of its own.
            node = replace(node, taints=tuple(_without_number(taint) for taint in node.taints))
        if isinstance(offer, Inventory):
            pins = offer.static_kubelet or offer.bind is not NodeBindPolicy.NONE
            aligns = bool(offer.zones) and not offer.never_aligned
            aligns = aligns and offer.strategy is not NumaAllocateStrategy.DISTRIBUTE_EVENLY
            return cls(node, zones=bool(offer.zones), policy=offer.policy, pins=pins, aligns_by_default=aligns)
        return cls(node, None if offer is not None or topology is None else likely_config(topology))

    @property
    def key(self) -> Hashable:
        """Equal for nodes of one kind."""
        node, config = self.example, self.config
        settings = config and (
            config.topology_policy,
            config.topology_scope,
            config.cpu_policy,
            tuple(sorted(config.cpu_options.items())),
        )
        own = self.zones, self.policy, self.pins, self.aligns_by_default
        # Whatever ``fits_node_object`` and the bounds read, and nothing else: names and labels are judged by row.
        return node.problem, node.unschedulable, node.taints, node.features, settings, self.threads, self.explores, *own

    def with_pods(self, record: NodeInfo) -> "NodeClass":
        """The kind that the pods make of this node which its kubelet has admitted: they may prove that no whole cores have to be kept."""
        node, topology = record.node, record.topology
        # Only a static CPU manager keeps whole cores.
        if self.config is None or self.config.cpu_policy != STATIC_CPUS or node is None or topology is None:
            return self
        history, architecture = record.history, node.labels.get(ARCHITECTURE, "")
        kept, frame = history.evidence.keeps_cores, history.frame
        evidence = CoreEvidence(record.admitted_counts(), kept)
        if frame is not None and frame.topology is topology:  # as a view sees it, which remembers the rule
            rule = core_rule_of(frame, architecture, evidence)
        else:
            rule = core_rule(topology.kubelet, topology.zones, architecture, evidence)
        threads = 1 if rule is None else rule.threads
        if threads == self.threads and self.explores == (not kept):
            return self
        return replace(self, threads=threads, explores=not kept)

    @property
    def wants_one(self) -> bool:
        """Does the node accept placements on a single NUMA node only, where it aligns at all?"""
        if self.config is not None:
            return self.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
        return self.zones and self.policy is NumaPolicy.SINGLE_NUMA_NODE
