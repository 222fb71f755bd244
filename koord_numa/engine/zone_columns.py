"""
What NUMA nodes have free, in NumPy columns: per resource an array ``(rows, NUMA nodes)``. Generous, never too small.

Free amounts are those that no recorded NUMA amount covers; what is held without a known NUMA node is not subtracted. A resource
that a node does not publish per NUMA node counts as unlimited there.
"""

from collections.abc import Mapping, Sequence
from enum import IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.amounts import CPU, NOTHING, Amounts
from koord_numa.core.inventory import STATIC, Inventory
from koord_numa.core.node import Topology
from koord_numa.core.vocabulary import KubeletPolicy, NodeBindPolicy, NumaPolicy
from koord_numa.engine.node_record import NodeRecord

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNLIMITED: Final = 1 << 50


class Ground(IntFlag):
    """What decides whether pods are aligned on a node."""

    ZONES = 1  # NUMA nodes are published and ours to align on
    WANTS = 2  # the node names a NUMA policy
    SINGLE = 4  # ... and accepts one NUMA node only
    PINS = 8  # every pod with whole CPUs may get its own
    KUBELET = 16  # a kubelet decides


NOTHING_HELD: Final[Mapping[int, Amounts]] = {}

GROUNDS: Final = 32
"""So many combinations there are."""


class Zones:
    """
    Per row: free amounts by NUMA node, and the ground for alignment. Of what a kubelet has only CPUs are listed, where it hands them
    out itself.
    """

    def __init__(self, rows: int) -> None:
        self.free: dict[str, Ints] = {}
        self.width = 1
        self.ground: Ints = np.zeros(rows, dtype=np.int64)

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self.ground = longer(self.ground, rows)
        for resource, values in self.free.items():
            self.free[resource] = _unlimited(rows, self.width)
            self.free[resource][: len(values)] = values

    def write(self, row: int, record: NodeRecord) -> None:
        """Bring one row up to date. No inventory at all means that a kubelet chooses."""
        offer = record.inventory
        for values in self.free.values():
            values[row] = 0
            values[row, 0] = UNLIMITED
        if isinstance(offer, Inventory):
            self.ground[row] = _ground(offer)
            if offer.zones:
                self._write_free(row, offer.zones, record.booked.numa)
        elif offer is None and record.topology is not None:
            self.ground[row] = self._write_kubelet(row, record, record.topology)
        else:
            self.ground[row] = 0

    def fewest(self, rows: Ints, resource: str, amount: int) -> Ints:
        """At least so many NUMA nodes are needed to find this amount free; one more than there are where it is not."""
        values = self.free[resource][rows]
        if bool((values.max(axis=1) >= amount).all()):
            return np.ones(len(rows), dtype=np.int64)
        # A NUMA node may owe more than it has (CPUs reserved under pods); it takes nothing from what others have free.
        sums = np.cumsum(-np.sort(-np.maximum(values, 0), axis=1), axis=1)
        short: Ints = (sums < amount).sum(axis=1)
        return 1 + short

    def _write_kubelet(self, row: int, record: NodeRecord, topology: Topology) -> Ground:
        kubelet = topology.kubelet
        if kubelet.cpu_policy in (None, STATIC) and any(zone.allocatable.get(CPU) for zone in topology.zones):
            held: dict[int, int] = {}
            for uid in record.unpublished:
                for numa, amounts in record.ledger.holdings[uid].numa:
                    held[numa] = held.get(numa, 0) + amounts.get(CPU, 0)
            zones = [(z.numa, {CPU: z.available.get(CPU, 0) - held.get(z.numa, 0)}) for z in topology.zones]
            self._write_free(row, zones, NOTHING_HELD)
        single = kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
        return Ground.KUBELET | (Ground.SINGLE if single else Ground(0))

    def _write_free(self, row: int, zones: Sequence[tuple[int, Amounts]], held: Mapping[int, Amounts]) -> None:
        if len(zones) > self.width:
            self._widen(len(zones))
        for resource in {name for _, amounts in zones for name in amounts}:
            values = self.free.get(resource)
            if values is None:
                values = self.free[resource] = _unlimited(len(self.ground), self.width)
            free = [amounts.get(resource, 0) - held.get(numa, NOTHING).get(resource, 0) for numa, amounts in zones]
            values[row, : len(free)] = free

    def _widen(self, width: int) -> None:
        for resource, values in self.free.items():
            self.free[resource] = np.zeros((len(values), width), dtype=np.int64)
            self.free[resource][:, : self.width] = values
        self.width = width


def _ground(offer: Inventory) -> Ground:
    ground = Ground.ZONES if offer.zones else Ground(0)
    if offer.policy is not NumaPolicy.NONE:
        ground |= Ground.WANTS
    if offer.policy is NumaPolicy.SINGLE_NUMA_NODE:
        ground |= Ground.SINGLE
    if offer.static_kubelet or offer.bind is not NodeBindPolicy.NONE:
        ground |= Ground.PINS
    return ground


def longer(values: NDArray[Any], size: int) -> NDArray[Any]:
    """The same column with room for more rows, which are zero."""
    grown = np.zeros((size, *values.shape[1:]), dtype=values.dtype)
    grown[: len(values)] = values
    return grown


def _unlimited(rows: int, width: int) -> Ints:
    values = np.zeros((rows, width), dtype=np.int64)
    values[:, 0] = UNLIMITED
    return values
