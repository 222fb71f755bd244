"""
Node labels in NumPy columns: which value of a label each row has, as a small integer, so that a condition on labels is judged once for
each distinct value and not once for each node.

A column exists for every key that a request has named lately; it is filled when it is first asked for and kept up to date afterwards.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.selectors import meets
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints, longer

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
