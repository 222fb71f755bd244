"""Checked claims as input of the search: their classes, the devices of ``All`` requests, and the limits."""

from collections.abc import Iterator, Sequence

from koord_numa.core.cel import CompileError
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import Candidate, ClaimError, NodeDevices, Pool, Selectors, room_for
from koord_numa.core.objects.claims import (
    MAX_RESULTS,
    AllocationMode,
    ClaimToAllocate,
    Classes,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    DeviceUsage,
    Features,
)
from koord_numa.core.value_objects import ValueObject


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
