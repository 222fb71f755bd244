"""How many devices of a class a node has, and how many of them are allocated: what an extended resource by claim counts for in scores."""

from koord_numa.core.claims.objects.claim import ClaimToAllocate, DeviceClass, DeviceDemand
from koord_numa.core.claims.search.budget import ClaimError
from koord_numa.core.claims.search.node_devices import NodeDevices
from koord_numa.core.claims.search.selection import SelectorRows
from koord_numa.core.claims.search.usage import DeviceUsage


def count_devices(device_class: DeviceClass, node: NodeDevices, usage: DeviceUsage) -> tuple[int, int]:
    """
    Allocated ones, and all: devices that the class selects (noderesources ``calculateDRAResourceTotals``).

    Both are 0 where an expression of the class fails, as upstream leaves the resource out of the score then.
    """
    selectors = SelectorRows(ClaimToAllocate("", ""), device_class, DeviceDemand("", device_class.name), node.selectors)
    try:
        pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
        devices = [candidate.device for pool in pools for candidate in pool.candidates()]
        selected = [device for device in devices if selectors.select(device)]
    except ClaimError:
        return 0, 0
    return sum(usage.in_use(it.id) or usage.shared_by_some(it.id) for it in selected), len(selected)
