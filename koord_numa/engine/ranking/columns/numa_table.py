"""
What NUMA nodes have free, in NumPy columns: the emptiest one, the two emptiest together and so on. Generous, never too small.

Free amounts are those that no recorded NUMA amount covers; what is held without a known NUMA node is not subtracted. A resource
that a node does not publish per NUMA node counts as unlimited there.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.resources import CPU, MEMORY, MILLI
from koord_numa.core.state.inventory import STATIC, Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_sums import numa_left
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.columns.row_writer import RowWriter

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNLIMITED: Final = 1 << 50


class NumaTable:
    """
    ``reach[row, resource, count - 1]`` is what the ``count`` emptiest NUMA nodes of a row have free together, and the last number of each
    resource is unlimited: what is beyond all NUMA nodes. ``places`` says which resource is where. Of what a kubelet has only CPUs are
    listed, where it hands them out itself.

    Rows come first: a decision reads the few that changed, and all that a row says is then side by side in memory.
    """

    def __init__(self, rows: int) -> None:
        self.places: dict[str, int] = {CPU: 0, MEMORY: 1}
        self.reach: Ints = np.full((rows, len(self.places), 2), UNLIMITED, dtype=np.int64)
        self.counts = 1  # the most NUMA nodes that a row may have
        self._writer = RowWriter(self.reach.reshape(rows, -1))
        # By row, of which inventory and ledger it was written, and of which revision of the ledger's amounts on NUMA nodes.
        self._written: dict[int, tuple[Inventory, Ledger, int]] = {}
        # By row, what it was written of where a kubelet chooses.
        self._listed: dict[int, Mapping[str, list[int]]] = {}

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        grown = np.full((rows, *self.reach.shape[1:]), UNLIMITED, dtype=np.int64)
        grown[: len(self.reach)] = self.reach
        self.reach, self._writer = grown, RowWriter(grown.reshape(rows, -1))

    def repeated(self, wanted: Ints) -> Ints:
        """Amounts by row and resource as ``fewest`` compares them: each once for every number of ``reach``."""
        return np.repeat(wanted[:, :, None], self.reach.shape[2], axis=2)

    def further(self, rows: Ints, wanted: Ints, some: Sequence[int]) -> Ints:
        """
        At least so many NUMA nodes beside the first are needed to find these amounts (``repeated``) free; as many as there are where they
        are not. ``some`` are the resources, by their places, of which anything is wanted.
        """
        # By row and resource the first count that suffices, as ``reach`` does not fall along counts. Arrays of one shape, side by side in
        # memory, are compared in a fraction of the time that NumPy takes to broadcast.
        enough = (self.reach.take(rows, axis=0) < wanted).argmin(axis=2)
        first, *others = some
        # The resource that needs most NUMA nodes decides.
        further: Ints = enough[:, first]
        for place in others:
            np.maximum(further, enough[:, place], out=further)
        return further

    def lists_any(self, rows: Ints, wanted: Ints) -> Bools:
        """Whether NUMA nodes of these rows list any of the resources that are wanted there (``repeated``)."""
        # What the emptiest NUMA node has; an unlisted resource is unlimited there.
        listed: Bools = (self.reach.take(rows, axis=0)[:, :, 0] < UNLIMITED) & (wanted[:, :, 0] > 0)
        found: Bools = np.logical_or.reduce(listed, axis=1)
        return found

    def write(self, row: int, record: NodeInfo) -> None:
        """Bring one row up to date. No inventory at all means that a kubelet chooses."""
        offer = record.inventory
        if isinstance(offer, Inventory):
            self._write_left(row, offer, record.booked)
        else:
            self._write_listed(row, _listed(record) if offer is None else {})

    def _write_left(self, row: int, offer: Inventory, booked: Ledger) -> None:
        """Of a node whose CPUs the scheduler hands out. Many pods hold nothing of a NUMA node, and leave the row as it is."""
        written, revision = self._written.get(row), booked.numa_revision
        is_new = written is None or written[0] is not offer
        if written is not None and not is_new and written[2] == revision and written[1] is booked:
            return
        self._written[row] = offer, booked, revision
        free = numa_left(offer, booked)
        if is_new:  # else there has been room for the same resources and NUMA nodes before
            self._listed.pop(row, None)
            self._make_room(free)
        self._put(row, free)

    def _write_listed(self, row: int, free: Mapping[str, list[int]]) -> None:
        """Of any other node. Most pods hold no CPUs of their own where a kubelet chooses."""
        self._written.pop(row, None)
        if self._listed.get(row) == free:
            return
        self._listed[row] = free
        self._make_room(free)
        self._put(row, free)

    def _put(self, row: int, free: Mapping[str, list[int]]) -> None:
        # Unlisted resources bound nothing: the row must stay an upper bound.
        lines: list[int] = []
        width = self.counts
        for name in self.places:
            amounts = sorted(free[name], reverse=True) if name in free else []
            if not amounts:
                lines += [UNLIMITED] * (width + 1)
                continue
            # A NUMA node may owe more than it has (CPUs reserved under pods); it takes nothing from what others have free.
            if amounts[-1] < 0 or amounts[0] > UNLIMITED:
                amounts = [min(max(0, amount), UNLIMITED) for amount in amounts]
            lines += accumulate(amounts)
            if missing := width - len(amounts):
                lines += lines[-1:] * missing
            lines.append(UNLIMITED)
        self._writer.write(row, lines)

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self._written.pop(row, None)
        self._listed.pop(row, None)

    def _make_room(self, free: Mapping[str, Sequence[int]]) -> None:
        """Room for resources that no node had so far, and for more NUMA nodes, which have nothing."""
        if free.keys() <= self.places.keys() and max(map(len, free.values()), default=0) <= self.counts:
            return
        for name in sorted(free):
            self.places.setdefault(name, len(self.places))
        old = self.reach
        counts = self.counts
        width = max(counts, *map(len, free.values()))
        self.reach = np.full((len(old), len(self.places), width + 1), UNLIMITED, dtype=np.int64)
        self.reach[:, : old.shape[1], :counts] = old[:, :, :counts]
        # Wider rows repeat the last sum, as NUMA nodes that are not there add nothing.
        self.reach[:, : old.shape[1], counts:width] = old[:, :, counts - 1 : counts]
        self.counts, self._writer = width, RowWriter(self.reach.reshape(len(old), -1))


def _listed(record: NodeInfo) -> Mapping[str, list[int]]:
    """What each NUMA node has free where a kubelet chooses, by resource; resources that are not listed are unlimited."""
    topology = record.topology
    if topology is not None and _hands_out_cpus(topology):
        return {CPU: _kubelets_cpus(record, topology)}
    return {}


def _hands_out_cpus(topology: NodeResourceTopology) -> bool:
    # An unpublished policy may be the static one, as zones that list CPUs say.
    if topology.kubelet.cpu_policy not in (None, STATIC):
        return False
    return bool([zone for zone in topology.zones if zone.allocatable.get(CPU)])


def _kubelets_cpus(record: NodeInfo, topology: NodeResourceTopology) -> list[int]:
    # Of a kubelet that is followed the most that any hypothesis leaves free: the table must not be too small.
    followed = record.history.most_cpus()
    if followed is not None:
        return [MILLI * followed.get(zone.numa, 0) for zone in topology.zones]
    held = _hidden_cpus(record)
    # May be below zero where pods that are not shown yet are charged; ``_put`` cuts it.
    return [zone.available.get(CPU, 0) - held.get(zone.numa, 0) for zone in topology.zones]


def _hidden_cpus(record: NodeInfo) -> dict[int, int]:
    """Milli-CPU by NUMA id that pods hold which the topology does not show yet."""
    ledger = record.counted
    holdings = ledger.holdings
    # Pods that are surely gone hold nothing, whether the topology shows that yet or not.
    hidden = record.unpublished if ledger is record.ledger else record.unpublished & holdings.keys()
    if not hidden:
        return {}
    # The ledger has the sum of all pods, so that the fewer of hidden and shown ones are looked at.
    most = 2 * len(hidden) > len(holdings)
    held = {numa: amounts.get(CPU, 0) for numa, amounts in ledger.numa.items()} if most else {}
    if len(hidden) == len(holdings):
        return held
    few, sign = (holdings.keys() - hidden, -1) if most else (hidden, 1)
    for uid in few:
        for numa, amounts in holdings[uid].numa:
            held[numa] = held.get(numa, 0) + sign * amounts.get(CPU, 0)
    return held


def longer(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """The same columns with room for more rows, which are zero."""
    grown = np.zeros((*values.shape[:-1], rows), dtype=values.dtype)
    grown[..., : values.shape[-1]] = values
    return grown
