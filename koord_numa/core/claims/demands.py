"""Checked claims as input of the search, with classes and limits, and the figures for rejections: matching and free devices."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from koord_numa.core.cel import CompileError
from koord_numa.core.claims.inventory import Device, NumaByRoot
from koord_numa.core.claims.pools import (
    Candidate,
    CapacityShortage,
    ClaimError,
    NodeDevices,
    Pool,
    Selectors,
    capacity_shortage,
    room_for,
)
from koord_numa.core.objects.claims import (
    MAX_RESULTS,
    AllocationMode,
    ClaimToAllocate,
    Classes,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceTaint,
    DeviceUsage,
    Features,
)
from koord_numa.core.value_objects import ValueObject, replace, value_field


class SelectorRows(ValueObject):
    """The selectors of a class and of a request, in evaluation order."""

    claim: ClaimToAllocate
    device_class: DeviceClass
    demand: DeviceRequirements
    run: Selectors

    def select(self, device: Device) -> bool:
        """
        Return whether all selectors match the device.

        Raises ``ClaimError`` at the first selector that cannot be evaluated.
        """
        for expressions in (self.device_class.selectors, self.demand.selectors):
            for at, expression in enumerate(expressions):
                answer = self.run.answer(device, expression or "")
                # A failing selector is an error of the claim instead of a mismatch.
                if answer is False:
                    return False
                if answer is not True:
                    where = (
                        f"class {self.device_class.name}"
                        if expressions is self.device_class.selectors
                        else f"claim {self.claim}"
                    )
                    kind = "compile" if isinstance(answer, CompileError) else "runtime"
                    raise ClaimError(f"{where}: selector #{at}: CEL {kind} error: {answer}")
        return True

    def expressions(self) -> Iterator[str]:
        """Yield all selectors in evaluation order."""
        for expression in (*self.device_class.selectors, *self.demand.selectors):
            yield expression or ""

    def excludes_driver(self, driver: str) -> bool:
        """
        Return whether the leading selectors exclude every device of the driver by the driver name alone.

        Devices and pools of such a driver are not evaluated, so their errors do not affect the request.
        """
        for expression in self.expressions():
            answer = self.run.driver_answer(expression, driver)
            # The loop ends at the first selector that depends on more than the driver: later selectors may not be
            # reached.
            if answer is not True:
                return answer is False
        return False


def count_devices(device_class: DeviceClass, node: NodeDevices, usage: DeviceUsage) -> tuple[int, int]:
    """
    Return the numbers of allocated devices and of all devices that the class selects.

    As noderesources ``calculateDRAResourceTotals``. Both are 0 when an expression of the class fails, because upstream
    then omits the resource from the score.
    """
    selectors = SelectorRows(
        ClaimToAllocate("", ""), device_class, DeviceRequirements("", device_class.name), node.selectors
    )
    try:
        pools = [pool for pool in node.pools if not selectors.excludes_driver(pool.id.driver)]
        devices = [candidate.device for pool in pools for candidate in pool.candidates()]
        selected = [device for device in devices if selectors.select(device)]
    except ClaimError:
        return 0, 0
    return sum(usage.in_use(it.id) or usage.shared_by_some(it.id) for it in selected), len(selected)


class Alternative(ValueObject):
    """
    One way to satisfy a request.

    ``count`` devices are needed. ``every`` lists the devices for the mode ``All`` and is None otherwise.
    """

    request: DeviceRequest
    index: int
    demand: DeviceRequirements
    device_class: DeviceClass
    selectors: SelectorRows
    count: int
    every: tuple[Candidate, ...] | None = None

    @property
    def result_name(self) -> str:
        """The request name in results."""
        return self.request.result_name(self.index)


class Prepared(ValueObject):
    """All claims with the alternatives of their requests."""

    claims: tuple[ClaimToAllocate, ...]
    alternatives: tuple[tuple[tuple[Alternative, ...], ...], ...]  # by claim and request
    prioritized: frozenset[tuple[int, int]]  # claim and request of prioritized lists

    def every_alternative(self) -> Iterator[Alternative]:
        """Yield the alternatives of all requests of all claims."""
        for requests in self.alternatives:
            for alternatives in requests:
                yield from alternatives

    def concerned_by(self, pool: Pool) -> bool:
        """Return whether the pool may hold a device for any request."""
        return any(concerns(pool, alternative.selectors) for alternative in self.every_alternative())


class Setting(ValueObject):
    """The context of a decision: device classes of the cluster, devices of one node, and device usage."""

    classes: Classes
    node: NodeDevices
    usage: DeviceUsage


def prepare(claims: Sequence[ClaimToAllocate], setting: Setting) -> Prepared:
    """Check the claims and resolve their classes. Raises ``ClaimError`` with the message of kube-scheduler."""
    prepared: list[tuple[tuple[Alternative, ...], ...]] = []
    for claim in claims:
        requests = tuple(
            tuple(_alternative(claim, request, index, setting) for index in range(len(request.alternatives)))
            for request in claim.spec.requests
        )
        # Sum of the smallest alternatives: if it exceeds the limit, no choice is valid.
        least = sum(min((it.count for it in alternatives), default=0) for alternatives in requests)
        if least > MAX_RESULTS:
            raise ClaimError(
                f"claim {claim}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
            )
        for at, constraint in enumerate(claim.spec.constraints):
            if constraint.attribute is None or (constraint.distinct and setting.node.features.stable_allocator):
                raise ClaimError(f"claim {claim}, constraint #{at}: empty constraint (unsupported constraint type?)")
        prepared.append(requests)
    prioritized = frozenset(
        (at, number)
        for at, claim in enumerate(claims)
        for number, request in enumerate(claim.spec.requests)
        if request.prioritized
    )
    return Prepared(tuple(claims), tuple(prepared), prioritized)


def _where(claim: ClaimToAllocate, demand: DeviceRequirements) -> str:
    return f"claim {claim}, request {demand.name}"


def _alternative(claim: ClaimToAllocate, request: DeviceRequest, index: int, setting: Setting) -> Alternative:
    demand = request.alternatives[index]
    for at, selector in enumerate(demand.selectors):
        if selector is None:
            raise ClaimError(
                f"{_where(claim, demand)}, selector #{at}: CEL expression empty (unsupported selector type?)"
            )
    _check_gates(claim, request, demand, setting.node.features)
    if not demand.device_class:
        raise ClaimError(f"{_where(claim, demand)}: missing device class name (unsupported request type?)")
    device_class = setting.classes.get(demand.device_class)
    if device_class is None:
        raise ClaimError(
            f"{_where(claim, demand)}: could not retrieve device class {demand.device_class}: "
            f'deviceclass.resource.k8s.io "{demand.device_class}" not found'
        )
    if device_class.problem:
        raise ClaimError(
            f"{_where(claim, demand)}: device class {device_class.name} cannot be read: {device_class.problem}"
        )
    selectors = SelectorRows(claim, device_class, demand, setting.node.selectors)
    # The mode is kept as written, because the message contains an unknown mode.
    if demand.mode == AllocationMode.EXACT_COUNT:
        return Alternative(request, index, demand, device_class, selectors, demand.count)
    if demand.mode != AllocationMode.ALL:
        raise ClaimError(f"{_where(claim, demand)}: unsupported count mode {demand.mode}")
    every = _every(claim, selectors, setting)
    return Alternative(request, index, demand, device_class, selectors, len(every), every)


def _check_gates(
    claim: ClaimToAllocate, request: DeviceRequest, demand: DeviceRequirements, features: Features
) -> None:
    if request.prioritized and not features.prioritized_list:
        raise ClaimError(
            f"claim {claim}, request {request.name}: has subrequests, but the DRAPrioritizedList feature is disabled"
        )
    if demand.admin_access and not features.admin_access:
        raise ClaimError(
            f"claim {claim}, request {demand.name}: admin access is requested, but the feature is disabled"
        )
    # The stable allocator does not know the field and ignores it.
    if demand.capacity is not None and not features.consumable_capacity and not features.stable_allocator:
        kind = "subrequest" if request.prioritized else "request"
        raise ClaimError(
            f"claim {claim}, {kind} {demand.name}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
        )


def _every(claim: ClaimToAllocate, selectors: SelectorRows, setting: Setting) -> tuple[Candidate, ...]:
    """
    Return all devices that the request selects.

    Raises ``ClaimError`` for an incomplete or invalid pool, because a missing device might be selected.
    """
    node, demand = setting.node, selectors.demand
    found: list[Candidate] = []
    for pool in node.pools:
        if not concerns(pool, selectors):
            continue
        if pool.incomplete:
            raise ClaimError(
                f"{_where(claim, demand)}: asks for all devices, but resource pool {pool.id} is currently being updated"
            )
        if pool.invalid:
            raise ClaimError(
                f"{_where(claim, demand)}: asks for all devices, but resource pool {pool.id} is currently invalid"
            )
        selected = (it for it in pool.candidates() if selectors.select(it.device) and offered(it, node))
        found.extend(it for it in selected if room_for(it.device, demand, setting.usage, node.features, {}) is not None)
    return tuple(found)


def concerns(pool: Pool, selectors: SelectorRows) -> bool:
    """
    Return whether the pool may hold a device for the request.

    Upstream counts every pool of the cluster with counters.
    """
    return not pool.foreign and not selectors.excludes_driver(pool.id.driver)


def offered(candidate: Candidate, node: NodeDevices) -> bool:
    """
    Return whether this node can use the device.

    Devices may select their nodes individually. Devices with binding conditions need the feature gate.
    """
    device = candidate.device
    if device.binding_conditions and not node.features.binding_conditions:
        return False
    return not candidate.slice.per_device or device.nodes.includes(node.name, node.labels)


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
        """True if enough devices are free for this request, without the other requests."""
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
