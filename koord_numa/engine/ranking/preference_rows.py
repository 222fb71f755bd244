"""Raw scores of the preferences of one request class, for all rows of the node table at once: the input of ``core.score.normalize``."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from koord_numa.core.fit.node_filters import soft_taints
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import PREFERENCES, Preference, spreads_by_default, weight_of
from koord_numa.core.score.node_scores import MISSING
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.columns.node_numbers import Ints
from koord_numa.engine.ranking.columns.node_table import NodeTable

Raw = tuple[Preference, int, Ints]
"""A preference, its weight, and its raw score by row."""

_ROWS: Final[Mapping[str, Preference]] = {row.name: row for row in PREFERENCES}


class PreferenceRows:
    """The preferences that can tell nodes apart for one request. ``cluster`` is ``None`` for a request that no other pod matters to."""

    def __init__(
        self, ask: SchedulingRequest, profile: Profile, columns: NodeTable, cluster: ClusterFilters | None
    ) -> None:
        self._request = ask.request
        self._by_default = spreads_by_default(ask.request)
        self._columns = columns
        self._cluster = cluster
        self._is_plain = cluster is None and not ask.request.constraints.preferred_nodes
        self._weights = {name: weight_of(row, profile) for name, row in _ROWS.items()}
        self._taints: tuple[int, Ints | None] = (-1, None)  # by kind of node; how many kinds there were
        self._affinity: tuple[tuple[int, int], Ints] | None = None  # by row; the version of the labels

    def raws(self, images: tuple[str, ...] = ()) -> list[Raw]:
        """Every preference with a weight that is not the same for all nodes without further look, for a pod with these images."""
        # A preference that cannot tell nodes apart is left out: it would add the same to all.
        taints, located = self._soft_taints(), self._columns.images.points(images)
        if self._is_plain and taints is None and located is None:
            return []  # as of most pods
        found = {"taints": taints, "node_affinity": self._node_affinity(), "images": located}
        if self._cluster is not None:
            found["pod_affinity"] = self._cluster.affinity.raw_scores()
            found["default_spread" if self._by_default else "spread"] = self._spread(self._cluster)
        return [
            (_ROWS[name], weight, raw)
            for name, raw in found.items()
            if raw is not None and (weight := self._weights[name])
        ]

    def _soft_taints(self) -> Ints | None:
        columns = self._columns
        known, by_kind = self._taints
        if known != columns.kinds_version:
            counts = [soft_taints(self._request, kind.example) for kind in columns.known_kinds]
            # ``None`` where no class has a soft taint that the pod does not tolerate, which is nearly always.
            by_kind = np.array(counts, dtype=np.int64) if any(counts) else None
            self._taints = (columns.kinds_version, by_kind)
        # int64[kinds] spread to int64[table rows].
        return None if by_kind is None else by_kind[columns.kinds]

    def _node_affinity(self) -> Ints | None:
        preferred = self._request.constraints.preferred_nodes
        if not preferred:
            return None
        labels = self._columns.labels
        if self._affinity is None or self._affinity[0] != labels.version:
            raw: Ints = np.zeros(labels.rows, dtype=np.int64)
            for each in preferred:
                # bool[table rows] times the weight: rows that match several terms add them up.
                raw += each.weight * labels.matching((each.term,))
            self._affinity = (labels.version, raw)
        return self._affinity[1]

    def _spread(self, cluster: ClusterFilters) -> Ints | None:
        crowd = cluster.spread.raw_scores()
        if crowd is None:
            return None
        raw, missing = crowd
        raw[missing] = MISSING
        return raw
