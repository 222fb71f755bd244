"""Node labels, images and devices in NumPy columns, and the bounds on the scores of a pod with device requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from cachetools import LRUCache

from koord_numa.core.devices import (
    UNUSED,
    DeviceDemand,
    DeviceMachine,
    DeviceUse,
    device_demand,
    fits_one_numa_node,
    partition_points,
)
from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement, meets
from koord_numa.core.objects.devices import GPU
from koord_numa.core.objects.node import Image, Node, PodImages
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.score.node_scores import LEAST, MAX_SCORE, MOST
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.node_numbers import Bools, Ints, distinct, longer

ABSENT: Final = 0
"""Id of a missing label in every column."""

NAME_FIELD: Final = "metadata.name"
"""The only field that node selector terms support (``matchFields``)."""

MOST_COLUMNS: Final = 1024
"""Maximum number of label columns. Users can put arbitrary keys into pods. Above it the older half is dropped and recomputed on demand."""

SPARE: Final = 1024
"""Number of unused values, such as names of deleted nodes, that a column tolerates before it is compacted."""


class LabelColumn(MutableObject):
    """Values of one label key. ``ids[row]`` is the id of the row's value, ``ABSENT`` without the label; ``values[id]`` is the value."""

    key: str
    ids: Ints
    values: list[str | None] = value_field(default_factory=lambda: [None])
    version: int = 0  # incremented when the value of any row changes
    _id_of: dict[str, int] = value_field(default_factory=dict)

    def write(self, row: int, value: str | None) -> None:
        """Set the value of one row, ``None`` without the label."""
        found = ABSENT if value is None else self._id_of.get(value)
        if found is None:
            if len(self.values) > 2 * len(self.ids) + SPARE:
                self._drop_unused()
            found = self._id_of[str(value)] = len(self.values)
            self.values.append(value)
        # The version changes only with the value, so that node heartbeats do not invalidate derived data.
        if self.ids[row] != found:
            self.ids[row] = found
            self.version += 1

    def _drop_unused(self) -> None:
        """Remove values that no row has and renumber the others. Bounds the memory while values change."""
        used = np.union1d(self.ids, [ABSENT])
        renumbered = np.zeros(len(self.values), dtype=np.int64)
        renumbered[used] = np.arange(len(used))
        self.ids = renumbered[self.ids]
        self.values = [self.values[number] for number in used.tolist()]
        self._id_of = {value: number for number, value in enumerate(self.values) if value is not None}
        self.version += 1

    def id_of(self, value: str) -> int | None:
        """Return the id of a value that some row has or had."""
        return self._id_of.get(value)

    @property
    def present(self) -> Bools:
        """Mask of the rows that have the label."""
        present: Bools = self.ids != ABSENT
        return present

    def sums(self, amounts: Ints) -> Ints:
        """Return ``amounts`` (one per row) summed over the rows of each value, indexed by id. The sum of ``ABSENT`` is 0."""
        # ``bincount`` adds by id in one pass. With weights it returns floats, which are exact up to 2**53 pods.
        summed = np.bincount(self.ids, weights=amounts, minlength=len(self.values)).astype(np.int64)
        summed[ABSENT] = 0
        return summed

    def meeting(self, requirement: Requirement) -> Bools:
        """Return the rows that meet a requirement on this key."""
        table = np.zeros(len(self.values), dtype=np.bool_)
        if requirement.operator is Operator.IN:
            # IN is the most frequent operator: look up its values instead of testing every value of the column.
            table[[found for value in requirement.values if (found := self._id_of.get(value)) is not None]] = True
        else:
            for number, value in enumerate(self.values):
                labels = {} if value is None else {self.key: value}
                table[number] = meets(labels, (requirement,))
        # bool[values] expanded to bool[table rows].
        return table[self.ids]


class LabelColumns:
    """Columns of all label keys in use. ``nodes`` yields every row with its node, to fill new columns."""

    def __init__(self, rows: int, nodes: Callable[[], Iterator[tuple[int, Node]]]) -> None:
        self.rows = rows
        self._nodes = nodes
        self._columns: dict[str, LabelColumn] = {}
        self._first = 0  # version of a new column, above the versions of all dropped columns
        self._dropped = 0  # offset that keeps the sum of versions increasing when columns are dropped

    @property
    def version(self) -> tuple[int, int]:
        """Version that changes whenever a label in use changes on any row, or the table grows."""
        return self.rows, self._dropped + sum(column.version for column in self._columns.values())

    def column(self, key: str) -> LabelColumn:
        """Return the column of a label key; ``metadata.name`` holds the names of the nodes."""
        found = self._columns.get(key)
        if found is None:
            if len(self._columns) >= MOST_COLUMNS:
                self._make_room()
            found = self._columns[key] = LabelColumn(key, np.zeros(self.rows, dtype=np.int64), version=self._first)
            # A new column is filled from all nodes once. Afterwards only changed rows are written.
            for row, node in self._nodes():
                found.write(row, _value(node, key))
        return found

    def _make_room(self) -> None:
        _, before = self.version
        for key in list(self._columns)[: MOST_COLUMNS // 2]:
            self._first = max(self._first, self._columns.pop(key).version + 1)
        self._dropped = 0
        self._dropped = before + 1 - self.version[1]

    def write(self, row: int, node: Node | None) -> None:
        """Update one row; ``None`` when it has no node."""
        for key, column in self._columns.items():
            column.write(row, None if node is None else _value(node, key))

    def grow(self, rows: int) -> None:
        """Add rows without labels."""
        self.rows = rows
        for column in self._columns.values():
            column.ids = longer(column.ids, rows)

    def matching(self, terms: Iterable[NodeTerm]) -> Bools:
        """Return the rows that match any of these terms, as ``core.objects.constraints.matches_term``. An empty term matches none."""
        found = np.zeros(self.rows, dtype=np.bool_)
        for term in terms:
            if term.labels or term.fields:
                found |= self._matching_all(term)
        return found

    def equal(self, pairs: Iterable[tuple[str, str]]) -> Bools:
        """Return the rows that have all of these labels."""
        found = np.ones(self.rows, dtype=np.bool_)
        for key, value in pairs:
            column = self.column(key)
            known = column.id_of(value)
            # A value that no row ever had has no id: -1 matches no row.
            found &= column.ids == (-1 if known is None else known)
        return found

    def _matching_all(self, term: NodeTerm) -> Bools:
        found = np.ones(self.rows, dtype=np.bool_)
        for requirement in (*term.labels, *term.fields):
            found &= self.column(requirement.key).meeting(requirement)
        return found


def _value(node: Node, key: str) -> str | None:
    return node.name if key == NAME_FIELD else node.labels.get(key)


REMEMBERED_IMAGES: Final = 1024
REMEMBERED_PODS: Final = 256
"""Maximum number of cached columns of image sizes, and of cached scores for lists of images."""

Column = Ints
"""Bytes by row; 0 where the node does not have the image."""


class ImageColumns:
    """Image sizes by row and image scores. ``version`` is incremented when a node is added or removed, or its images change."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._images: dict[int, frozenset[Image]] = {}  # by row, for rows with a node
        self._columns: LRUCache[str, Column] = LRUCache(maxsize=REMEMBERED_IMAGES)
        self._points: LRUCache[tuple[str, ...], tuple[int, Ints | None]] = LRUCache(maxsize=REMEMBERED_PODS)
        self._any = 0  # number of rows with images
        self.version = 0

    def write(self, row: int, images: frozenset[Image] | None) -> None:
        """Update one row; ``None`` when it has no node."""
        former = self._images.get(row)
        if former == images:
            return
        self.version += 1
        # Number of rows with images. If it is 0, no pod needs image scores.
        self._any += bool(images) - bool(former)
        if images is None:
            del self._images[row]
        else:
            self._images[row] = images
        # Only the number of nodes has changed. It affects every share, but no column.
        if not images and not former:
            return
        sizes = {name: image.size for image in images or () for name in image.names}
        for name, column in self._columns.items():
            column[row] = sizes.get(name, 0)

    def grow(self, rows: int) -> None:
        """Add rows without images."""
        self._rows = rows
        for name in list(self._columns):
            self._columns[name] = longer(self._columns[name], rows)

    def points(self, names: tuple[str, ...]) -> Ints | None:
        """Return the score by row for a pod with these images; ``None`` when all scores are equal. The array is read-only."""
        if not self._any or not names:
            return None
        known = self._points.get(names)
        if known is None or known[0] != self.version:
            known = self._points[names] = (self.version, self._count(names))
        return known[1]

    def seen_by(self, names: tuple[str, ...]) -> PodImages:
        """Return the number of nodes that have each image, for scoring a single node."""
        columns = self._all(names) if self._any else {}
        return PodImages(
            names, len(self._images), {name: int(np.count_nonzero(column)) for name, column in columns.items()}
        )

    def _count(self, names: tuple[str, ...]) -> Ints | None:
        columns, nodes = self._all(names), len(self._images)
        total: Ints = np.zeros(self._rows, dtype=np.int64)
        for name in names:
            column = columns[name]
            share = int(np.count_nonzero(column)) / nodes
            total += (column * share).astype(np.int64)  # truncated for each image, as upstream
        # Up to the lower bound all scores are 0, and a constant does not distinguish nodes.
        if int(total.max()) <= LEAST:
            return None
        most = MOST * len(names)
        return MAX_SCORE * (total.clip(LEAST, most) - LEAST) // (most - LEAST)

    def _all(self, names: tuple[str, ...]) -> Mapping[str, Column]:
        """Return the columns of these names; missing columns are filled in one pass."""
        found = {name: column for name in set(names) if (column := self._columns.get(name)) is not None}
        missing = {name: np.zeros(self._rows, dtype=np.int64) for name in set(names) - found.keys()}
        if missing:
            by_image: dict[Image, list[Column]] = {}
            # Distinct images first, because nodes share most of their images.
            for image in set().union(*self._images.values()):
                if columns := [missing[name] for name in image.names if name in missing]:
                    by_image[image] = columns
            for row, images in self._images.items() if by_image else ():
                for image in images & by_image.keys():
                    for column in by_image[image]:
                        column[row] = image.size
            self._columns.update(missing)
        return found | missing


NO_OBJECT: Final = 0
"""State of a node without a Device object."""


class DeviceState(ValueObject, gc=False):
    """Devices of a machine and the holdings of pods. ``machine`` is ``None`` if they are not known."""

    machine: DeviceMachine | None
    use: DeviceUse = UNUSED


class DeviceColumn:
    """
    Number of the device state of each row: ``rows[row]``. Nodes in equal states have the same number, so that a cold class evaluates
    each state once.

    ``states`` has the state of each number. ``version`` is incremented when a number is reused.
    """

    def __init__(self, rows: int) -> None:
        self.rows: Ints = np.zeros(rows, dtype=np.int64)
        self.states: list[DeviceState | None] = [None]
        self.version = 0
        self._numbers: dict[DeviceState, int] = {}
        self._counts: list[int] = [0]
        self._vacant: list[int] = []

    def grow(self, rows: int) -> None:
        """Add rows up to this number."""
        self.rows = longer(self.rows, rows)

    def write(self, row: int, record: NodeInfo | None) -> None:
        """Update the state of a row; ``None`` for a row without a node."""
        offer = None if record is None else record.devices
        if offer is None or record is None:
            self._set(row, NO_OBJECT)
            return
        known = not offer.problem
        state = DeviceState(offer.machine, offer.use(record.booked)) if known else DeviceState(None)
        number = self._numbers.get(state)
        if number is None:
            number = self._number_for(state)
        self._set(row, number)

    def _number_for(self, state: DeviceState) -> int:
        if self._vacant:
            number = self._vacant.pop()
            self.states[number] = state
            self.version += 1
        else:
            number = len(self.states)
            self.states.append(state)
            self._counts.append(0)
        self._numbers[state] = number
        return number

    def _set(self, row: int, number: int) -> None:
        former = int(self.rows[row])
        if former == number:
            return
        self.rows[row] = number
        if number:
            self._counts[number] += 1
        if former:
            self._counts[former] -= 1
            if not self._counts[former] and (state := self.states[former]) is not None:
                del self._numbers[state]
                self._vacant.append(former)


class DeviceBounds:
    """
    Points of the ``partitions`` scorer by row, ``never`` where the devices reject the pod. ``ask`` must have device requests.

    The result for a state is that of ``core.devices`` without NUMA nodes, which ``evaluate`` computes first.
    """

    def __init__(self, ask: SchedulingRequest, column: DeviceColumn, weight: int, never: int) -> None:
        demand = device_demand(ask.request)
        if not isinstance(demand, DeviceDemand):
            raise TypeError("the request has no device requests")
        self._demand = demand
        self._column = column
        self._weight = weight if any(each.type == GPU for each in demand.types) else 0
        self._never = never
        self._version = column.version
        self._points: Ints = np.zeros(0, dtype=np.int64)
        self._aligned: Ints = np.zeros(0, dtype=np.int64)  # ``never`` if the devices of one NUMA node do not suffice
        self._known: set[int] = set()

    def points(self, rows: Ints, lists_all: np.ndarray, needs_one: np.ndarray) -> Ints:
        """
        Return the points of these rows.

        ``needs_one``: the devices have to be on a single NUMA node.

        ``lists_all``: the Node lists every requested device resource, which a node without a Device object has to.
        """
        numbers = self._column.rows[rows]
        self._learn(numbers)
        points: Ints = np.where(needs_one, self._aligned[numbers], self._points[numbers])
        points[(numbers == NO_OBJECT) & ~lists_all] = self._never
        return points

    def _learn(self, numbers: Ints) -> None:
        column = self._column
        if self._version != column.version:
            self._version = column.version
            self._known.clear()
        if len(self._points) < len(column.states):
            self._points = longer(self._points, 2 * len(column.states))
            self._aligned = longer(self._aligned, 2 * len(column.states))
        for number in distinct(numbers).tolist():
            if number not in self._known:
                self._known.add(number)
                state = column.states[number]
                self._points[number] = self._aligned[number] = points = self._points_of(state)
                if points != self._never and state is not None and state.machine is not None:
                    fits = fits_one_numa_node(state.machine, state.use, self._demand)
                    self._aligned[number] = points if fits else self._never

    def _points_of(self, state: DeviceState | None) -> int:
        if state is None:
            return self._never if self._demand.spec_matters else self._weight * 100
        points = -1 if state.machine is None else partition_points(state.machine, state.use, self._demand)
        return self._never if points < 0 else self._weight * points
