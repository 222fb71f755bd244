"""
The numbers of all nodes that requests are compared with, in one array: a row a node, and all that a row says side by side in memory.

Theory. A decision reads the few rows that changed, and each operation on them costs about the same for one row as for a hundred. So the
lines are in an order in which one comparison is enough: *the first line of a row that is below what a request wants* tells all that the
amounts say of the row.

1. What no request is compared with, and what percents are made of (``COMMON``, which reaches into the next part).
2. What is free of each resource on the whole node (``FREE``), a hundredfold, as percents are asked for, perhaps less than nothing. Below
   any of these: the request is refused.
3. What NUMA nodes have free of each resource: first all of them together, then all but the fullest one and so on, last the emptiest one by
   itself. Below the first of these: there is too little on any number of NUMA nodes. Below the next ones: all are needed, all but one, and
   so on. A resource that a node does not publish per NUMA node counts as ``UNLIMITED``.

Example. NUMA nodes have 4000, 3000 and 500 milli-CPU free: the lines are 7500, 7000, 4000. A request for 6000 is above the last line
only, so it needs two of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.resources import CPU, MEMORY, PODS
from koord_numa.engine.ranking.columns.row_writer import RowWriter

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
