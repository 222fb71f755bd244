"""What each NUMA node of a node has left, whichever side owns its CPUs: for people and for tables. No decision is made by it."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.kubelet.state import KubeletState, free_on
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import CpuBindPolicy, NodeBindPolicy
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.state.numa_free import accounts


@dataclass(frozen=True, slots=True)
class NumaUsage:
    """One NUMA node: what it has for pods at all, and what is left of it. In our units."""

    numa: int
    total: ResourceList
    free: ResourceList


def rooms(candidate: NodeSnapshot) -> tuple[NumaUsage, ...]:
    """Every NUMA node of the node, ascending; none where no topology is published or the node takes no pods at all."""
    offer = candidate.offer
    if isinstance(offer, Rejection):
        return ()
    if isinstance(offer, KubeletView):
        return tuple(_kubelet_rooms(offer))
    return tuple(_own_rooms(offer, candidate.ledger))


def largest_aligned(candidate: NodeSnapshot) -> dict[str, int]:
    """
    The CPUs, memory and devices of the NUMA node with most CPUs left, then memory: the largest request that one could serve.

    CPUs are whole, in whole cores where the node gives nothing else, and no more than the node as a whole has left. Empty
    without a known NUMA node.
    """
    found = rooms(candidate)
    if not found:
        return {}
    unit = _unit(candidate)
    left = {name: amount - candidate.ledger.amounts.get(name, 0) for name, amount in candidate.allocatable.items()}

    def usable(room: NumaUsage) -> dict[str, int]:
        # The node as a whole may have less left than its NUMA nodes say: pods without NUMA amounts hold the rest.
        free = {name: max(0, min(amount, left.get(name, amount))) for name, amount in room.free.items()}
        return {**free, CPU: free.get(CPU, 0) // unit * unit}

    return max(map(usable, found), key=lambda free: (free[CPU], free.get(MEMORY, 0)))


def _own_rooms(inventory: Inventory, ledger: Ledger) -> Iterator[NumaUsage]:
    accounting = accounts(inventory, ledger)
    # Cores that are half taken serve no pod where cores are given whole.
    whole = accounting.takeable(CpuBindPolicy.FULL_PCPUS) if _whole_cores(inventory) and inventory.machine else None
    for at, numa in enumerate(accounting.numa_ids):
        free = {name: row[at] for name, row in accounting.free.items()}
        if whole is not None and CPU in free:
            free[CPU] = min(free[CPU], whole[at] * MILLI)
        yield NumaUsage(numa, {name: row[at] for name, row in accounting.total.items()}, free)


def _kubelet_rooms(view: KubeletView) -> Iterator[NumaUsage]:
    node = view.state.node
    empty = KubeletState.empty(node).managers
    for numa in node.machine.numa_ids:
        yield NumaUsage(numa, free_on(node, empty, numa), free_on(node, view.state.managers, numa))


def _whole_cores(inventory: Inventory) -> bool:
    return inventory.bind is NodeBindPolicy.FULL_PCPUS_ONLY


def _unit(candidate: NodeSnapshot) -> int:
    offer = candidate.offer
    if isinstance(offer, KubeletView):
        # A kubelet's node whose options are unknown counts in the cores that a pod would have to fill.
        return MILLI * max(1, offer.cores.threads)
    if isinstance(offer, Inventory) and offer.machine and _whole_cores(offer):
        return MILLI * max(1, offer.machine.threads_per_core)
    return MILLI
