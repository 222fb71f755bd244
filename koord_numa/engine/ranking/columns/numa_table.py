"""
Writes what NUMA nodes have free into the node numbers: the emptiest one, the two emptiest together and so on. Generous, never too small.

Free amounts are those that no recorded NUMA amount covers; what is held without a known NUMA node is not subtracted. A resource
that a node does not publish per NUMA node counts as unlimited there.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import STATIC, Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import numa_left
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.columns.node_numbers import UNLIMITED, Ints, NodeNumbers

REMEMBERED_SUMS: Final = 4096
"""Machines are alike, and so are pods: most amounts have been seen before on some row."""


class NumaTable:
    """Of what a kubelet has only CPUs are listed, where it hands them out itself."""

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        # By row, of which inventory and ledger it was written, and of which revision of the ledger's amounts on NUMA nodes.
        self._written: dict[int, tuple[Inventory, Ledger, int]] = {}
        # By row, what it was written of where a kubelet chooses.
        self._listed: dict[int, Mapping[str, list[int]]] = {}

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
            self._begin(row, free)
        self._put(row, free)

    def _write_listed(self, row: int, free: Mapping[str, list[int]]) -> None:
        """Of any other node. Most pods hold no CPUs of their own where a kubelet chooses."""
        self._written.pop(row, None)
        listed = self._listed.get(row)
        if listed == free:
            return
        self._listed[row] = free
        # Nothing but CPUs is listed.
        if listed is None or len(listed.get(CPU, ())) != len(free.get(CPU, ())):
            self._begin(row, free)
        self._put(row, free)

    def _begin(self, row: int, free: Mapping[str, list[int]]) -> None:
        """What the row lists may be new. Unlisted resources bound nothing: the row must stay an upper bound."""
        self._numbers.make_room(free)
        self._numbers.reach[:, row] = UNLIMITED

    def _put(self, row: int, free: Mapping[str, list[int]]) -> None:
        numbers = self._numbers
        for name, amounts in free.items():
            if amounts:
                numbers.reach[numbers.places[name], row] = _sums(tuple(amounts), numbers.counts)

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self._written.pop(row, None)
        self._listed.pop(row, None)


@lru_cache(maxsize=REMEMBERED_SUMS)
def _sums(amounts: tuple[int, ...], counts: int) -> Ints:
    """What the emptiest NUMA node has, what the two emptiest have together and so on: as many sums as are asked for."""
    emptiest = sorted(amounts, reverse=True)
    # A NUMA node may owe more than it has (CPUs reserved under pods); it takes nothing from what others have free.
    if emptiest[-1] < 0 or emptiest[0] > UNLIMITED:
        emptiest = [min(max(0, amount), UNLIMITED) for amount in emptiest]
    sums = [*accumulate(emptiest)]
    found = np.array(sums + sums[-1:] * (counts - len(sums)), dtype=np.int64)
    found.setflags(write=False)  # others have the same
    return found


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
    # May be below zero where pods that are not shown yet are charged; ``_sums`` cuts it.
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
