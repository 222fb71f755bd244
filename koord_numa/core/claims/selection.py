"""Evaluation of the CEL selectors of device requests within the budget of one decision."""

from collections.abc import Iterator

from koord_numa.core.cel.values import CompileError
from koord_numa.core.claims.allocation import DeviceUsage
from koord_numa.core.claims.budget import ClaimError, Selectors
from koord_numa.core.claims.claim import ClaimToAllocate, DeviceClass, DeviceRequirements
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import NodeDevices
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
