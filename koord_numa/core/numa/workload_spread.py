"""
Spread or pack the pods of a workload over the NUMA nodes or sockets of a node (annotation ``numa-spread``).

A domain is a set of NUMA nodes as a mask. A pod counts in every domain that it uses. The rule compares sets of NUMA
nodes that could hold the pod, which other modules determine.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.constraints import selects
from koord_numa.core.objects.request import NumaSpread
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import NumaSpreadMode, NumaSpreadScope
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import numa_mask
from koord_numa.core.value_objects import ValueObject

MAX_POINTS: Final = 100
MAX_KEPT: Final = 64
"""Maximum counts per ledger. Bounds the memory for pods with many different selectors. A pod has one selector."""
_STEP: Final = 25
"""Points that each further pod in the same domain subtracts from the score of a node."""


class WorkloadSpread(ValueObject, gc=False):
    """The spread of a pod, and the number of pods in each domain of the node that its selector matches."""

    spread: NumaSpread
    counts: tuple[tuple[int, int], ...] = ()  # by domain: its NUMA nodes, and the pods

    def allows(self, mask: int) -> bool:
        """
        Return whether ``DoNotSchedule`` permits the set.

        Spread: with the pod, none of its domains has two pods more than another domain. Pack: every domain of the pod
        has matching pods, if any domain has.
        """
        if not self.spread.required:
            return True
        if self.spread.mode is NumaSpreadMode.PACK:
            return all(count for _, count in self._touched(mask)) or not any(count for _, count in self.counts)
        after = [(domain, count + bool(domain & mask)) for domain, count in self.counts]
        fewest = min((count for _, count in after), default=0)
        return all(count - fewest <= 1 for domain, count in after if domain & mask)

    def best(self, masks: list[int]) -> list[int]:
        """Return the best sets for the mode, in their order."""
        if len(masks) < 2 or not self.counts:
            return masks
        costs = [self._cost(mask) for mask in masks]
        least = min(costs)
        return [mask for mask, cost in zip(masks, costs, strict=True) if cost == least]

    def points(self, mask: int) -> int:
        """Return a score from 0 to 100 of how well this set of NUMA nodes spreads or packs the workload."""
        touched = [count for _, count in self._touched(mask)]
        if not touched:
            return 0
        if self.spread.mode is NumaSpreadMode.PACK:
            return MAX_POINTS if all(touched) else 0
        return max(0, MAX_POINTS - _STEP * max(touched))

    def refusal(self) -> Rejection:
        """Return a rejection: the node has room for the pod, but not on NUMA nodes that its spread permits."""
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
    Count the pods of the node that the selector matches. ``wanted`` are the resources of the pod.

    A domain without any amount of a resource that the pod needs is not compared, since it could never hold the pod.
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
    """Return the domains of a node as masks. PCIe roots of a NUMA node are not distinguished by a choice of NUMA nodes."""
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
