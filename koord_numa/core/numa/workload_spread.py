"""
Spreading or packing the pods of one workload over the NUMA nodes or sockets of a node (annotation ``numa-spread``).

A domain is a set of NUMA nodes as a mask. A pod counts in every domain that it touches. The rule compares sets of NUMA nodes that could
hold the pod; which sets these are is not its matter.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.request import NumaSpread
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import NumaSpreadMode, NumaSpreadScope
from koord_numa.core.selectors import selects
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import numa_mask
from koord_numa.core.value_objects import ValueObject

MAX_POINTS: Final = 100
MAX_KEPT: Final = 64
"""Counts that one ledger keeps. Bounds what pods with ever new selectors can fill; a pod has one selector."""
_STEP: Final = 25
"""Points that each further pod in the same domain costs a node."""


class WorkloadSpread(ValueObject, gc=False):
    """What a pod asks for, and how many pods that its selector picks are in each domain of the node."""

    spread: NumaSpread
    counts: tuple[tuple[int, int], ...] = ()  # by domain: its NUMA nodes, and the pods

    def allows(self, mask: int) -> bool:
        """
        Whether ``DoNotSchedule`` permits the set.

        Spread: afterwards no domain of the pod has two pods more than another domain. Pack: every domain of the pod has such pods already,
        if any domain has.
        """
        if not self.spread.required:
            return True
        if self.spread.mode is NumaSpreadMode.PACK:
            return all(count for _, count in self._touched(mask)) or not any(count for _, count in self.counts)
        after = [(domain, count + bool(domain & mask)) for domain, count in self.counts]
        fewest = min((count for _, count in after), default=0)
        return all(count - fewest <= 1 for domain, count in after if domain & mask)

    def best(self, masks: list[int]) -> list[int]:
        """The sets that meet the wish best, in their order."""
        if len(masks) < 2 or not self.counts:
            return masks
        costs = [self._cost(mask) for mask in masks]
        least = min(costs)
        return [mask for mask, cost in zip(masks, costs, strict=True) if cost == least]

    def points(self, mask: int) -> int:
        """Score from 0 to 100 how well this set of NUMA nodes spreads or packs the workload."""
        touched = [count for _, count in self._touched(mask)]
        if not touched:
            return 0
        if self.spread.mode is NumaSpreadMode.PACK:
            return MAX_POINTS if all(touched) else 0
        return max(0, MAX_POINTS - _STEP * max(touched))

    def refusal(self) -> Rejection:
        """The node has room for the pod, and not where its wish permits it."""
        verb = "pack" if self.spread.mode is NumaSpreadMode.PACK else "spread"
        what = "sockets" if self.spread.scope is NumaSpreadScope.SOCKET else "NUMA nodes"
        here = ", ".join(f"{count} on NUMA node {_ids(domain)}" for domain, count in self.counts)
        return Rejection(
            Reason.NUMA_SPREAD,
            f"node(s) cannot {verb} the pods of the workload over {what} (numa-spread)",
            detail=f"pods that the selector picks: {here or 'none'}; the pod does not fit where it would have to go",
        )

    def _touched(self, mask: int) -> list[tuple[int, int]]:
        return [(domain, count) for domain, count in self.counts if domain & mask]

    def _cost(self, mask: int) -> tuple[int, int]:
        touched = [count for _, count in self._touched(mask)]
        if self.spread.mode is NumaSpreadMode.PACK:
            return sum(not count for count in touched), -min(touched, default=0)
        return max(touched, default=0), sum(touched)


def workload_spread(
    spread: NumaSpread, inventory: Inventory, ledger: Ledger, wanted: Iterable[str] = ()
) -> WorkloadSpread:
    """
    Count the pods of the node that the selector picks. ``wanted`` are the resources of the pod.

    A domain without any of a resource that the pod needs could never take the pod, and is not compared with the others.
    """
    known: dict[Any, WorkloadSpread] = ledger.derived.setdefault("numa_spread", {})
    key = (spread, inventory.numa_ids, tuple(wanted))
    if key not in known:
        if len(known) >= MAX_KEPT:
            known.clear()
        masks = [
            numa_mask(holding, inventory.machine)
            for holding in ledger
            if holding.request is not None
            and holding.request.namespace == spread.namespace
            and selects(spread.selector, dict(holding.request.labels))
        ]
        able = [domain for domain in _domains(spread.scope, inventory) if _offers(inventory, domain, key[2])]
        counts = tuple((domain, sum(bool(mask & domain) for mask in masks)) for domain in able)
        known[key] = WorkloadSpread(spread, counts)
    return known[key]


def _domains(scope: NumaSpreadScope, inventory: Inventory) -> list[int]:
    """The domains of a node as masks. The PCIe roots of a NUMA node cannot be told apart by a choice of NUMA nodes."""
    machine = inventory.machine
    ids = inventory.numa_ids
    if scope is not NumaSpreadScope.SOCKET or machine is None:
        return [1 << numa for numa in ids]
    sockets: dict[int, int] = {}
    for numa in ids:
        socket = _socket(machine, numa)
        sockets[socket] = sockets.get(socket, 0) | 1 << numa
    return [sockets[socket] for socket in sorted(sockets)]


def _socket(machine: CpuTopology, numa: int) -> int:
    here = machine.numa_bits.get(numa, 0)
    return min((socket for socket, bits in machine.socket_bits.items() if bits & here), default=0)


def _offers(inventory: Inventory, domain: int, wanted: Iterable[str]) -> bool:
    totals: Mapping[str, Any] = inventory.totals
    places = [at for at, numa in enumerate(inventory.numa_ids) if domain >> numa & 1]
    return all(any(totals[name][at] for at in places) for name in wanted if name in totals)


def _ids(domain: int) -> str:
    return ", ".join(map(str, numa_ids(domain)))
