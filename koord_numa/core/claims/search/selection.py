"""Which devices a request selects: CEL selectors of its class and its own, each evaluated once for a device."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.cel.values import CompileError
from koord_numa.core.claims.objects.claim import ClaimToAllocate, DeviceClass, DeviceDemand
from koord_numa.core.claims.search.budget import ClaimError, Selectors
from koord_numa.core.claims.search.inventory import Device


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
