"""How many CPUs of a node are free, and how scattered: what the metrics of nodes are made of. It changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import Inventory
from koord_numa.engine.cache.node_info import NodeInfo


@dataclass(frozen=True, slots=True)
class FreeCpus:
    """Of one node, in whole CPUs: free in all, most free on one NUMA node, and the size of its largest NUMA node."""

    free: int
    largest: int
    size: int

    @property
    def fragmentation(self) -> float:
        """0 where the free CPUs fill one NUMA node as far as they can, near 1 where they are scattered over many."""
        # No more than the size of a NUMA node can be free together: that is the best case, not all free CPUs.
        together = min(self.free, self.size)
        return 1 - self.largest / together if together else 0.0


class FreeCpuCache:
    """Free CPUs per node, counted again only for nodes that changed: a scrape must not hold up decisions."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NodeInfo, int, FreeCpus | None]] = {}

    def of(self, nodes: Mapping[str, NodeInfo]) -> dict[str, FreeCpus]:
        """By node, without those that have no topology; in the order of their names."""
        self._known = {name: self._current(name, nodes[name]) for name in sorted(nodes)}
        return {name: found for name, (_, _, found) in self._known.items() if found is not None}

    def _current(self, name: str, record: NodeInfo) -> tuple[NodeInfo, int, FreeCpus | None]:
        known = self._known.get(name)
        # The revision grows with every change that a decision could notice.
        if known is not None and known[0] is record and known[1] == record.revision:
            return known
        return record, record.revision, free_cpus(record)


def free_cpus(record: NodeInfo) -> FreeCpus | None:
    """By CPU ids where we choose them, by the published zones where a kubelet does; ``None`` without a topology."""
    topology = record.topology
    if topology is None:
        return None
    offer = record.inventory
    if isinstance(offer, Inventory) and offer.machine is not None:
        machine, usable = offer.machine, offer.cpus
        parts = [CpuSet(machine.numa_bits[numa]) & usable for numa in machine.numa_ids]
        left = [len(part - record.ledger.cpus) for part in parts]
        return FreeCpus(sum(left), max(left, default=0), max(map(len, parts), default=0))
    left = [zone.available.get(CPU, 0) // MILLI for zone in topology.zones]
    sizes = [zone.allocatable.get(CPU, 0) // MILLI for zone in topology.zones]
    return FreeCpus(sum(left), max(left, default=0), max(sizes, default=0))
