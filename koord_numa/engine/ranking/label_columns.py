"""Node labels and images in NumPy columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cachetools import LRUCache

from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.objects.images import Image, PodImages
from koord_numa.core.objects.node import Node
from koord_numa.core.score.node_scores import LEAST, MAX_SCORE, MOST
from koord_numa.core.selectors import meets
from koord_numa.engine.ranking.node_numbers import Bools, Ints, longer

ABSENT: Final = 0
"""The id of "this node has no such label" in every column."""

NAME_FIELD: Final = "metadata.name"
"""The only field that node selector terms may name (``matchFields``)."""

MOST_COLUMNS: Final = 1024
"""Any user may invent keys in a pod. With more of them the older half is dropped, and made again when it is asked for."""

SPARE: Final = 1024
"""Values that no row has any more, such as names of nodes that are gone, and that are not worth a sweep."""


@dataclass(slots=True)
class LabelColumn:
    """One label key. ``ids[row]`` is the row's value as an id, ``ABSENT`` without the label; ``values[id]`` is the value."""

    key: str
    ids: Ints
    values: list[str | None] = field(default_factory=lambda: [None])
    version: int = 0  # grows when the value of any row changes
    _id_of: dict[str, int] = field(default_factory=dict)

    def write(self, row: int, value: str | None) -> None:
        """Set the value of one row, ``None`` without the label."""
        found = ABSENT if value is None else self._id_of.get(value)
        if found is None:
            if len(self.values) > 2 * len(self.ids) + SPARE:
                self._drop_unused()
            found = self._id_of[str(value)] = len(self.values)
            self.values.append(value)
        # The version grows only for a real change, so that heartbeats of nodes keep what was derived.
        if self.ids[row] != found:
            self.ids[row] = found
            self.version += 1

    def _drop_unused(self) -> None:
        """Values come and go for ever: those that no row has are forgotten, and the others numbered again."""
        used = np.union1d(self.ids, [ABSENT])
        renumbered = np.zeros(len(self.values), dtype=np.int64)
        renumbered[used] = np.arange(len(used))
        self.ids = renumbered[self.ids]
        self.values = [self.values[number] for number in used.tolist()]
        self._id_of = {value: number for number, value in enumerate(self.values) if value is not None}
        self.version += 1

    def id_of(self, value: str) -> int | None:
        """The id of a value that some row has or had."""
        return self._id_of.get(value)

    @property
    def present(self) -> Bools:
        """Which rows have the label at all."""
        present: Bools = self.ids != ABSENT
        return present

    def sums(self, amounts: Ints) -> Ints:
        """``amounts`` (one per row) summed over the rows of each value; index it with ids. ``ABSENT`` sums to 0."""
        # ``bincount`` adds by id in one pass; it returns floats with weights, exact up to 2**53 pods.
        summed = np.bincount(self.ids, weights=amounts, minlength=len(self.values)).astype(np.int64)
        summed[ABSENT] = 0
        return summed

    def meeting(self, requirement: Requirement) -> Bools:
        """Which rows meet a requirement on this key."""
        table = np.zeros(len(self.values), dtype=np.bool_)
        if requirement.operator is Operator.IN:
            # IN is the usual operator: a look-up by value instead of a test of every value.
            table[[found for value in requirement.values if (found := self._id_of.get(value)) is not None]] = True
        else:
            for number, value in enumerate(self.values):
                labels = {} if value is None else {self.key: value}
                table[number] = meets(labels, (requirement,))
        # bool[values] spread to bool[table rows].
        return table[self.ids]


class LabelColumns:
    """All columns. ``nodes`` yields every row with its node, for columns that are new; the columns grow with the table of nodes."""

    def __init__(self, rows: int, nodes: Callable[[], Iterator[tuple[int, Node]]]) -> None:
        self.rows = rows
        self._nodes = nodes
        self._columns: dict[str, LabelColumn] = {}
        self._first = 0  # the version of a new column, above those of all that were dropped
        self._dropped = 0  # what keeps the sum of versions growing when columns are dropped

    @property
    def version(self) -> tuple[int, int]:
        """Differs whenever a label that is looked at has changed on any row, or there are more rows."""
        return self.rows, self._dropped + sum(column.version for column in self._columns.values())

    def column(self, key: str) -> LabelColumn:
        """The column of a label key; ``metadata.name`` holds the names of the nodes."""
        found = self._columns.get(key)
        if found is None:
            if len(self._columns) >= MOST_COLUMNS:
                self._make_room()
            found = self._columns[key] = LabelColumn(key, np.zeros(self.rows, dtype=np.int64), version=self._first)
            # A new column is filled from all nodes once; afterwards only changed rows are written.
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
        """Bring one row up to date; ``None`` when it has no node."""
        for key, column in self._columns.items():
            column.write(row, None if node is None else _value(node, key))

    def grow(self, rows: int) -> None:
        """Make room for more rows, which have no labels yet."""
        self.rows = rows
        for column in self._columns.values():
            column.ids = longer(column.ids, rows)

    def matching(self, terms: Iterable[NodeTerm]) -> Bools:
        """Which rows match any of these node selector terms; an empty term matches none (as ``core.selectors.matches_term``)."""
        found = np.zeros(self.rows, dtype=np.bool_)
        for term in terms:
            if term.labels or term.fields:
                found |= self._matching_all(term)
        return found

    def equal(self, pairs: Iterable[tuple[str, str]]) -> Bools:
        """Which rows have all of these labels."""
        found = np.ones(self.rows, dtype=np.bool_)
        for key, value in pairs:
            column = self.column(key)
            known = column.id_of(value)
            # A value that no row ever had is no id: -1 matches none.
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
"""Of so many image names the sizes are kept by row, and of so many lists of images the points."""

Column = Ints
"""Bytes by row; 0 where the node has no image of that name."""


class ImageColumns:
    """``version`` grows when a node comes or goes, or the images of one change."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._images: dict[int, frozenset[Image]] = {}  # by row that has a node
        self._columns: LRUCache[str, Column] = LRUCache(maxsize=REMEMBERED_IMAGES)
        self._points: LRUCache[tuple[str, ...], tuple[int, Ints | None]] = LRUCache(maxsize=REMEMBERED_PODS)
        self._any = 0  # rows that have images at all
        self.version = 0

    def write(self, row: int, images: frozenset[Image] | None) -> None:
        """Bring one row up to date; ``None`` when it has no node."""
        former = self._images.get(row)
        if former == images:
            return
        self.version += 1
        # An integer count of rows, since with no images at all every pod is answered at once.
        self._any += bool(images) - bool(former)
        if images is None:
            del self._images[row]
        else:
            self._images[row] = images
        # The number of nodes has changed and with it every share, but no column has anything to write.
        if not images and not former:
            return
        sizes = {name: image.size for image in images or () for name in image.names}
        for name, column in self._columns.items():
            column[row] = sizes.get(name, 0)

    def grow(self, rows: int) -> None:
        """Make room for more rows, which have no images yet."""
        self._rows = rows
        for name in list(self._columns):
            self._columns[name] = longer(self._columns[name], rows)

    def points(self, names: tuple[str, ...]) -> Ints | None:
        """By row, the points for a pod with these images; ``None`` when no node has any. Not to be changed."""
        if not self._any or not names:
            return None
        known = self._points.get(names)
        if known is None or known[0] != self.version:
            known = self._points[names] = (self.version, self._count(names))
        return known[1]

    def seen_by(self, names: tuple[str, ...]) -> PodImages:
        """The same for one node after the other: on how many nodes each image is."""
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
            total += (column * share).astype(np.int64)  # truncated image by image, as there
        # Below the lower bound all points are 0, and a constant tells no nodes apart.
        if int(total.max()) <= LEAST:
            return None
        most = MOST * len(names)
        return MAX_SCORE * (total.clip(LEAST, most) - LEAST) // (most - LEAST)

    def _all(self, names: tuple[str, ...]) -> Mapping[str, Column]:
        """The columns of these names; missing ones are filled in one pass."""
        found = {name: column for name in set(names) if (column := self._columns.get(name)) is not None}
        missing = {name: np.zeros(self._rows, dtype=np.int64) for name in set(names) - found.keys()}
        if missing:
            by_image: dict[Image, list[Column]] = {}
            # Distinct images first: nodes share most of them.
            for image in set().union(*self._images.values()):
                if columns := [missing[name] for name in image.names if name in missing]:
                    by_image[image] = columns
            for row, images in self._images.items() if by_image else ():
                for image in images & by_image.keys():
                    for column in by_image[image]:
                        column[row] = image.size
            self._columns.update(missing)
        return found | missing
