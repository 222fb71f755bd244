"""What a refused claim finds on a node, in numbers: devices that its requests select, and how many of those are free."""

from collections.abc import Iterable, Iterator, Sequence

from koord_numa.core.claims.objects.claim import ClaimToAllocate, Classes, DeviceDemand
from koord_numa.core.claims.objects.pools import Pool
from koord_numa.core.claims.search.inventory import Device, NumaByRoot
from koord_numa.core.claims.search.node_devices import NodeDevices
from koord_numa.core.claims.search.selection import ClaimError, SelectorRows
from koord_numa.core.claims.search.usage import DeviceUsage


def numbers_of(claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage) -> str:
    """``claim gpu, request r: 2 of 8 devices match, 1 free (NUMA 1: 1)`` for each request; empty when nothing can be said."""
    return "; ".join(_sentences(claims, classes, node, usage))


def runs_short(claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage) -> bool:
    """
    Are fewer devices free, by their drivers alone, than some request wants? Then no search is needed to refuse the node.

    A no is certain, up to the sentence: a search might have met a broken expression first.
    """
    for claim in claims:
        for request in claim.spec.requests:
            demand = request.alternatives[0]
            device_class = classes.get(demand.device_class)
            # Prioritized lists, ``All`` and admin access are not counted by number of free devices.
            if request.prioritized or device_class is None or demand.mode == "All" or demand.admin_access:
                continue
            selectors = SelectorRows(claim, device_class, demand)
            pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
            # An unusable pool would be an error and not a shortage.
            if all(pool.usable for pool in pools) and not _has_free(pools, demand.count, usage):
                return True
    return False


def _has_free(pools: Iterable[Pool], count: int, usage: DeviceUsage) -> bool:
    for pool in pools:
        for each in pool.local:
            for device in each.devices:
                # A shared device may have room however many use it.
                if device.shared or not usage.in_use(device.id):
                    count -= 1
                    if count <= 0:
                        return True
    return count <= 0


def _sentences(
    claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage
) -> Iterator[str]:
    for claim in claims:
        for request in claim.spec.requests:
            for index, demand in enumerate(request.alternatives):
                device_class = classes.get(demand.device_class)
                if device_class is not None:
                    where = claim.title(request.result_name(index))
                    yield f"{where}: {_numbers(SelectorRows(claim, device_class, demand), demand, node, usage)}"


def _numbers(selectors: SelectorRows, demand: DeviceDemand, node: NodeDevices, usage: DeviceUsage) -> str:
    pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
    devices = [candidate.device for pool in pools for candidate in pool.candidates()]
    try:
        matching = [device for device in devices if selectors.select(device)]
    except ClaimError as error:
        return str(error)
    free = [device for device in matching if not usage.in_use(device.id)]
    wanted = "all" if demand.mode == "All" else str(demand.count)
    unusable = sum(not pool.usable for pool in pools)
    broken = f", {unusable} of {len(pools)} pools incomplete or invalid" if unusable else ""
    return f"{wanted} wanted, {len(matching)} of {len(devices)} devices match, {len(free)} free{_by_numa(free, node.numa_by_root)}{broken}"


def _by_numa(devices: Sequence[Device], roots: NumaByRoot) -> str:
    counts: dict[int, int] = {}
    for device in devices:
        numa = device.numa(roots)
        if numa is not None:
            counts[numa] = counts.get(numa, 0) + 1
    return f" ({', '.join(f'{count} on NUMA {numa}' for numa, count in sorted(counts.items()))})" if counts else ""
