"""
The volume filters for one request and all rows of the node table at once. Arrays have one element per row.

The scalar filters in ``core.fit`` are the specification. What label terms decide (bound volumes, zones, allowed topologies, published
capacity) is one vector operation a term; only rows that are left are asked one by one, and only by the rules that need it: existing
volumes that the pod may take, nodes with attach limits, and nodes where disks are in use.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from koord_numa.core.fit.volume_binding import NO_VOLUME, WRONG_NODE, fits_volume_binding
from koord_numa.core.fit.volumes import (
    NO_ZONE,
    SUCCESSORS,
    TOPOLOGY_LABELS,
    fits_volume_limits,
    fits_volume_restrictions,
)
from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import Storage
from koord_numa.engine.ranking.columns.node_numbers import Bools
from koord_numa.engine.ranking.columns.node_table import NodeTable

_Refusals = Iterator[tuple[Bools, Rejection]]
_Check = Callable[[PodRequest, Node, Storage], Rejection | None]

_NOWHERE: Final = tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in TOPOLOGY_LABELS)


def volume_refusals(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Which rows refuse the pod for its volumes, and why, a rule at a time. ``refuse_claims`` must have had no objection."""
    # bool[table rows]: which rows no rule has refused yet, so that costly rules are asked of these only.
    left = np.ones(columns.labels.rows, dtype=np.bool_)
    if request.constraints.disks:
        yield from _asked(request, storage, columns, _rows(columns, storage.on_node, left), fits_volume_restrictions)
    for refused, rejection in _bound(request, storage, columns):
        left &= ~refused
        yield refused, rejection
    if storage.csi_nodes:
        yield from _asked(request, storage, columns, _rows(columns, storage.csi_nodes, left), fits_volume_limits)
    if any(not storage.claims[request.namespace, name].bound for name in request.constraints.claims):
        left &= _chosen(request, storage, columns)
        # Named apart, as its reason is not about the node: another node was chosen for the claim.
        if not left.all():
            yield (
                ~left,
                Rejection(
                    Reason.VOLUME, NO_VOLUME, "a claim of the pod is being bound for another node", resolvable=False
                ),
            )
        # Unbound claims look for volumes node by node; the rows that are left are few where label terms decide first.
        yield from _asked(request, storage, columns, _rows(columns, columns.row_of, left), fits_volume_binding)


def _bound(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Bound volumes, by node affinity and by zone."""
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        volume = storage.volumes.get(claim.volume) if claim.bound else None
        if volume is None:
            continue
        detail = f"volume {volume.name} of claim {name}"
        if volume.node_terms is not None:
            refused = ~columns.labels.matching(volume.node_terms)
            yield refused, Rejection(Reason.VOLUME, WRONG_NODE, detail, resolvable=False)
        if volume.zones:
            refused = ~columns.labels.matching(zone_terms(volume.zones))
            yield refused, Rejection(Reason.VOLUME_ZONE, NO_ZONE, detail, resolvable=False)


def _chosen(request: PodRequest, storage: Storage, columns: NodeTable) -> Bools:
    """The rows that are left when claims are being bound for one node already: that node's, or all."""
    left = np.ones(columns.labels.rows, dtype=np.bool_)
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        node = "" if claim.bound else storage.node_of(claim)
        if node:
            # A claim that is bound for a node which is gone leaves no row.
            only = np.zeros_like(left)
            if (row := columns.row_of.get(node)) is not None:
                only[row] = True
            left &= only
    return left


def _rows(columns: NodeTable, by_node: Mapping[str, object], left: Bools) -> list[int]:
    """The rows of these nodes, as far as they are left."""
    rows = [row for name in by_node if (row := columns.row_of.get(name)) is not None]
    return [row for row in rows if left[row]]


def _asked(request: PodRequest, storage: Storage, columns: NodeTable, rows: list[int], check: _Check) -> _Refusals:
    """Ask these rows one by one; rows that give the same sentence share the rejection of the first."""
    found: dict[str, tuple[Bools, Rejection]] = {}
    for row in rows:
        info = columns.records[row]
        if info is None or info.node is None:
            continue
        rejection = check(request, info.node, storage)
        if rejection is None:
            continue
        # One rejection a sentence: details differ by node, and the first stands for all.
        if rejection.message not in found:
            found[rejection.message] = (np.zeros(columns.labels.rows, dtype=np.bool_), rejection)
        found[rejection.message][0][row] = True
    yield from found.values()


# The same few zones for thousands of volumes.
@lru_cache(maxsize=4096)
def zone_terms(zones: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[NodeTerm, ...]:
    """The nodes that are in the zone and region that a volume's labels name, as ``fits_volume_zone`` decides it, as node terms."""
    alternatives: list[tuple[Requirement, ...]] = [()]
    for key, values in zones:
        named: list[tuple[Requirement, ...]] = [(Requirement(key, Operator.IN, values),)]
        successor = SUCCESSORS.get(key)
        # A node with the old label only is in the zone; with the successor too that one decides.
        if successor is not None:
            named.append((Requirement(key, Operator.DOES_NOT_EXIST), Requirement(successor, Operator.IN, values)))
        alternatives = [(*former, *more) for former in alternatives for more in named]
    return (NodeTerm(labels=_NOWHERE), *(NodeTerm(labels=each) for each in alternatives))
