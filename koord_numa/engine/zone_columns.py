"""
What NUMA nodes have free, in NumPy columns: per resource an array ``(rows, NUMA nodes)``. Generous, never too small.

Free amounts are those that no recorded NUMA amount covers; what is held without a known NUMA node is not subtracted. A resource
that a node does not publish per NUMA node counts as unlimited there.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.amounts import CPU, NOTHING, Amounts
from koord_numa.core.inventory import STATIC, Inventory
from koord_numa.core.vocabulary import KubeletPolicy, NodeBindPolicy, NumaPolicy
from koord_numa.engine.node_record import NodeRecord

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNLIMITED: Final = 1 << 50


class Zones:
    """
    Per row: free amounts by NUMA node, and what decides whether pods are aligned there.

    ``published``: ours to align. ``wants``: the node names a policy. ``single``: it is SingleNUMANode. ``pins``: every pod with
    whole CPUs may get its own. ``kubelet``: a kubelet decides; of what it has only CPUs are listed, where it hands them out itself.
    """

    def __init__(self, rows: int) -> None:
        self.free: dict[str, Ints] = {}
        self.width = 1
        self.published: Bools = np.zeros(rows, dtype=np.bool_)
        self.wants: Bools = np.zeros(rows, dtype=np.bool_)
        self.single: Bools = np.zeros(rows, dtype=np.bool_)
        self.pins: Bools = np.zeros(rows, dtype=np.bool_)
        self.kubelet: Bools = np.zeros(rows, dtype=np.bool_)

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        for name in ("published", "wants", "single", "pins", "kubelet"):
            setattr(self, name, longer(getattr(self, name), rows))
        for resource, values in self.free.items():
            self.free[resource] = _unlimited(rows, self.width)
            self.free[resource][: len(values)] = values

    def write(self, row: int, record: NodeRecord) -> None:
        """Bring one row up to date. No inventory at all means that a kubelet chooses."""
        offer = record.inventory
        self.kubelet[row] = offer is None
        for values in self.free.values():
            values[row] = 0
            values[row, 0] = UNLIMITED
        if not isinstance(offer, Inventory):
            self.published[row] = False
            self.single[row] = self.kubelet[row] and self._write_kubelet(row, record)
            return
        self.published[row] = bool(offer.zones)
        self.wants[row] = offer.policy is not NumaPolicy.NONE
        self.single[row] = offer.policy is NumaPolicy.SINGLE_NUMA_NODE
        self.pins[row] = offer.static_kubelet or offer.bind is not NodeBindPolicy.NONE
        if offer.zones:
            self._write_free(row, [(numa, amounts) for numa, amounts in offer.zones], record.ledger.numa)

    def fewest(self, rows: Ints, resource: str, amount: int) -> Ints:
        """At least so many NUMA nodes are needed to find this amount free; one more than there are where it is not."""
        values = self.free.get(resource)
        if values is None:
            return np.ones(len(rows), dtype=np.int64)
        sums = np.cumsum(-np.sort(-values[rows], axis=1), axis=1)
        short: Ints = (sums < amount).sum(axis=1)
        return 1 + short

    def _write_kubelet(self, row: int, record: NodeRecord) -> bool:
        """The kubelet's own CPUs; is one NUMA node all it accepts?"""
        topology = record.topology
        if topology is None:
            return False
        kubelet = topology.kubelet
        listed = any(zone.allocatable.get(CPU) for zone in topology.zones)
        if listed and kubelet.cpu_policy in (None, STATIC):
            held: dict[int, dict[str, int]] = {}
            for uid in sorted(record.unpublished):
                for numa, amounts in record.ledger.holdings[uid].numa:
                    here = held.setdefault(numa, {CPU: 0})
                    here[CPU] += amounts.get(CPU, 0)
            self._write_free(row, [(zone.numa, {CPU: zone.available.get(CPU, 0)}) for zone in topology.zones], held)
        return kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE

    def _write_free(self, row: int, zones: list[tuple[int, Amounts]], held: Mapping[int, Amounts]) -> None:
        if len(zones) > self.width:
            self._widen(len(zones))
        for resource in {name for _, amounts in zones for name in amounts}:
            values = self.free.get(resource)
            if values is None:
                values = self.free[resource] = _unlimited(len(self.published), self.width)
            free = [amounts.get(resource, 0) - held.get(numa, NOTHING).get(resource, 0) for numa, amounts in zones]
            values[row, : len(free)] = free

    def _widen(self, width: int) -> None:
        for resource, values in self.free.items():
            self.free[resource] = np.zeros((len(values), width), dtype=np.int64)
            self.free[resource][:, : self.width] = values
        self.width = width


def longer(values: NDArray[Any], size: int) -> NDArray[Any]:
    """The same column with room for more rows, which are zero."""
    grown = np.zeros(size, dtype=values.dtype)
    grown[: len(values)] = values
    return grown


def _unlimited(rows: int, width: int) -> Ints:
    values = np.zeros((rows, width), dtype=np.int64)
    values[:, 0] = UNLIMITED
    return values
