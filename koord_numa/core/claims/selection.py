"""Evaluate the CEL selectors of device requests within the budget of one decision."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.cel.values import CompileError
from koord_numa.core.claims.allocation import DeviceUsage
from koord_numa.core.claims.budget import ClaimError, Selectors
from koord_numa.core.claims.claim import ClaimToAllocate, DeviceClass, DeviceDemand
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import NodeDevices


@dataclass(frozen=True, slots=True)
class SelectorRows:
    """The selectors of a class and of a request, in the order in which they are evaluated."""

    claim: ClaimToAllocate
    device_class: DeviceClass
    demand: DeviceDemand
    run: Selectors

    def select(self, device: Device) -> bool:
        """Are all true for the device? Raises ``ClaimError`` at the first that cannot be evaluated."""
        for expressions in (self.device_class.selectors, self.demand.selectors):
            for at, expression in enumerate(expressions):
                answer = self.run.answer(device, expression or "")
                # A selector that fails is an error of the claim, and not a device that does not match.
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
        """All selectors in the order in which they are evaluated."""
        for expression in (*self.device_class.selectors, *self.demand.selectors):
            yield expression or ""

    def excludes_driver(self, driver: str) -> bool:
        """
        Do the leading selectors rule out every device of the driver by its name alone?

        Devices and pools of such a driver are not looked at: whatever is broken there does not concern the request.
        """
        for expression in self.expressions():
            answer = self.run.driver_answer(expression, driver)
            # The first selector that does not depend on the driver alone ends the look: what follows may not be reached.
            if answer is not True:
                return answer is False
        return False


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
