"""The rows whose nodes a request names: by ``nodeName``, by ``nodeSelector``, by required node affinity. From columns, not node by node."""

import numpy as np

from koord_numa.core.objects.request import PodRequest
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.value_objects import replace
from koord_numa.engine.ranking.columns.label_columns import NAME_FIELD, LabelColumns
from koord_numa.engine.ranking.columns.node_numbers import Bools


def names_nodes(request: PodRequest) -> bool:
    """Does the request say anything about names or labels of nodes that must hold?"""
    demands = request.constraints
    return bool(demands.node_name or demands.node_selector or demands.node_terms is not None)


def of_any_node(ask: SchedulingRequest) -> SchedulingRequest:
    """The same without what it says about names and labels."""
    free = replace(ask.request.constraints, node_name="", node_selector=(), node_terms=None)
    return replace(ask, request=replace(ask.request, constraints=free))


class SelectedRows:
    """As ``core.fit.node_name`` and ``core.fit.node_affinity`` say of each node by itself; a mask ``bool[table rows]``."""

    def __init__(self, request: PodRequest, labels: LabelColumns) -> None:
        self._demands = request.constraints
        self._labels = labels
        self._known: tuple[tuple[int, int], Bools] | None = None  # the version of the labels

    def mask(self) -> Bools:
        """Computed again when a label or name that is looked at has changed on some row."""
        if self._known is None or self._known[0] != self._labels.version:
            mask = self._mask()
            # read after the mask is made
            self._known = (self._labels.version, mask)  # the first look makes columns, which is a version of its own
        return self._known[1]

    def _mask(self) -> Bools:
        demands, labels = self._demands, self._labels
        mask = labels.equal(demands.node_selector)
        if demands.node_terms is not None:
            mask &= labels.matching(demands.node_terms)
        if demands.node_name:
            mask &= labels.equal(((NAME_FIELD, demands.node_name),))
        return np.asarray(mask, dtype=np.bool_)
