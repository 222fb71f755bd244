"""Sums of pod counts over topology domains, by row of the node table. Sums are remembered until a count or a label has changed."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from cachetools import LRUCache

from koord_numa.engine.ranking.columns.label_columns import LabelColumn, LabelColumns
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints
from koord_numa.engine.ranking.columns.pod_counts import Count, PodCounts, Weighing

REMEMBERED_SUMS: Final = 2048


class DomainSums:
    """What placed pods add up to around each node: ``counts`` by row, put together by the values of a label."""

    def __init__(self, counts: PodCounts, labels: LabelColumns) -> None:
        self.counts = counts
        self.labels = labels
        self._known: LRUCache[tuple[Weighing, str], tuple[tuple[Count, int, int, int], Ints]] = LRUCache(
            maxsize=REMEMBERED_SUMS
        )

    def of(self, weighing: Weighing, key: str) -> Ints:
        """By row, the weight of all pods in the row's domain of this topology key; 0 without the label. Not to be changed."""
        count, column = self.counts.count(weighing), self.labels.column(key)
        # Versions and not contents: comparing four integers tells whether any pod or label has changed.
        state = (count, count.version, column.version, len(column.ids))
        known = self._known.get((weighing, key))
        if known is not None and known[0] == state:
            return known[1]
        # ``column.sums`` is int64[values]; ids spread it to int64[table rows].
        summed: Ints = column.sums(count.rows)[column.ids]
        self._known[weighing, key] = (state, summed)
        return summed

    def per_domain(self, weighing: Weighing, column: LabelColumn, where: Bools) -> Ints:
        """By id of the column's values, the weight of the pods on those rows ``where`` they count."""
        # A boolean mask as factor: rows that do not count weigh 0.
        return column.sums(self.counts.count(weighing).rows * where)

    def present(self, keys: Iterable[str]) -> Bools:
        """Which rows have all of these labels. A new array."""
        found: Bools | None = None
        for key in sorted(keys):
            here = self.labels.column(key).present
            found = here if found is None else found & here
        return np.ones(self.labels.rows, dtype=np.bool_) if found is None else found
