"""Figures for a rejection by claims: matching and free devices, capacities, and attribute values under constraints."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from koord_numa.core.claims.demands import SelectorRows
from koord_numa.core.claims.inventory import Device, NumaByRoot
from koord_numa.core.claims.pools import CapacityShortage, ClaimError, NodeDevices, Pool, capacity_shortage
from koord_numa.core.objects.claims import (
    AllocationMode,
    ClaimToAllocate,
    Classes,
    DeviceConstraint,
    DeviceTaint,
    DeviceUsage,
)
from koord_numa.core.value_objects import ValueObject, replace, value_field

SHOWN_VALUES: Final = 4
"""Maximum attribute values that are listed for one request."""


def numbers_of(claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage) -> str:
    """
    Return the figures of each request, followed by those of the constraints.

    A request reads ``claim gpu, request r: 1 wanted, 2 of 8 devices match, 1 free (1 on NUMA 1)``.
    """
    return "; ".join(_sentences(claims, classes, node, usage))


def runs_short(claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage) -> bool:
    """
    Sufficient condition for a rejection without a search: the drivers of a request have fewer free devices than it
    needs.

    Only the sentence may differ: a search might first find a broken expression.
    """
    for claim in claims:
        for request in claim.spec.requests:
            demand = request.alternatives[0]
            device_class = classes.get(demand.device_class)
            # The number of free devices says nothing about prioritized lists, ``All`` and admin access.
            if request.prioritized or device_class is None or demand.mode == "All" or demand.admin_access:
                continue
            selectors = SelectorRows(claim, device_class, demand, node.selectors)
            pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
            # An unusable pool is an error instead of a shortage.
            if all(pool.usable for pool in pools) and not _has_free(pools, demand.count, usage):
                return True
    return False


def _has_free(pools: Iterable[Pool], count: int, usage: DeviceUsage) -> bool:
    for pool in pools:
        for each in pool.local:
            for device in each.devices:
                # A shared device may have free capacity however many allocations use it.
                if device.shared or not usage.in_use(device.id):
                    count -= 1
                    if count <= 0:
                        return True
    return count <= 0


def _sentences(
    claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage
) -> Iterator[str]:
    for claim in claims:
        findings = list(_findings(claim, classes, node, usage))
        yield from map(str, findings)
        # If a request alone has too few devices, the constraints are not the cause.
        if all(finding.suffices for finding in findings):
            yield from (_constraint(it, findings) for it in claim.spec.constraints if it.attribute)


class Finding(ValueObject):
    """The devices that match one request, or one alternative, on a node."""

    title: str
    request: str
    result_name: str
    count: int | None = None  # None for all devices
    devices: int = 0
    matching: Sequence[Device] = ()
    free: Sequence[Device] = ()
    notes: Sequence[str] = ()  # reasons why matching devices are not free, and the number of unusable pools
    numa_by_root: NumaByRoot = value_field(default_factory=dict)
    error: str = ""

    @property
    def suffices(self) -> bool:
        """Whether enough devices are free for the request alone."""
        wanted = len(self.matching) if self.count is None else self.count
        return not self.error and len(self.free) >= wanted

    def __str__(self) -> str:
        if self.error:
            return f"{self.title}: {self.error}"
        wanted = "all" if self.count is None else str(self.count)
        counts = f"{wanted} wanted, {len(self.matching)} of {self.devices} devices match, {len(self.free)} free"
        return ", ".join([f"{self.title}: {counts}{_by_numa(self.free, self.numa_by_root)}", *self.notes])


def _findings(claim: ClaimToAllocate, classes: Classes, node: NodeDevices, usage: DeviceUsage) -> Iterator[Finding]:
    for request in claim.spec.requests:
        for index, demand in enumerate(request.alternatives):
            device_class = classes.get(demand.device_class)
            if device_class is not None:
                result_name = request.result_name(index)
                asked = Finding(claim.title(result_name), request.name, result_name)
                yield _find(asked, SelectorRows(claim, device_class, demand, node.selectors), node, usage)


def _find(asked: Finding, selectors: SelectorRows, node: NodeDevices, usage: DeviceUsage) -> Finding:
    demand = selectors.demand
    count = None if demand.mode == AllocationMode.ALL else demand.count
    try:
        pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
        devices = [candidate.device for pool in pools for candidate in pool.candidates()]
        matching = [device for device in devices if selectors.select(device)]
    except ClaimError as error:
        return replace(asked, error=str(error))
    free: list[Device] = []
    tainted: list[DeviceTaint] = []
    shortages: list[CapacityShortage] = []
    for device in matching:
        if demand.admin_access:
            free.append(device)
        elif usage.in_use(device.id) or (usage.shared_by_some(device.id) and not device.shared):
            continue
        elif node.features.device_taints and (taint := demand.first_untolerated(device.taints)):
            tainted.append(taint)
        elif shortage := capacity_shortage(device, demand, usage, node.features):
            shortages.append(shortage)
        else:
            free.append(device)
    notes = []
    if tainted:
        notes.append(f"{len(tainted)} with taints that are not tolerated ({', '.join(sorted(set(map(str, tainted))))})")
    if shortages:
        closest = max(shortages, key=lambda shortage: (shortage.permitted, shortage.left))
        notes.append(f"{len(shortages)} without the capacity ({closest})")
    if unusable := sum(not pool.usable for pool in pools):
        notes.append(f"{unusable} of {len(pools)} pools incomplete or invalid")
    return replace(
        asked,
        count=count,
        devices=len(devices),
        matching=matching,
        free=free,
        notes=notes,
        numa_by_root=node.numa_by_root,
    )


def _constraint(constraint: DeviceConstraint, findings: Sequence[Finding]) -> str:
    """
    Return the attribute values of the free devices of each request.

    Example: ``matchAttribute numaNode: nic has 0 (1 free), gpu has 1 (2 free)``.
    """
    kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
    concerned = [it for it in findings if constraint.concerns(it.request, it.result_name)]
    values = ", ".join(f"{it.result_name} has {_values(constraint, it.free)}" for it in concerned)
    return f"{kind} {constraint.attribute}: {values}"


def _values(constraint: DeviceConstraint, devices: Sequence[Device]) -> str:
    counts: dict[str, int] = {}
    for device in devices:
        found = device.attribute(constraint.attribute or "")
        text = "+".join(str(value) for value in found.values) if found is not None else ""
        counts[text or "no value"] = counts.get(text or "no value", 0) + 1
    shown = [f"{text} ({count} free)" for text, count in sorted(counts.items())[:SHOWN_VALUES]]
    return " or ".join(shown) + (" or others" if len(counts) > SHOWN_VALUES else "")


def _by_numa(devices: Sequence[Device], roots: NumaByRoot) -> str:
    counts: dict[int, int] = {}
    for device in devices:
        numa = device.numa(roots)
        if numa is not None:
            counts[numa] = counts.get(numa, 0) + 1
    return f" ({', '.join(f'{count} on NUMA {numa}' for numa, count in sorted(counts.items()))})" if counts else ""
