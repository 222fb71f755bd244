"""One evaluation: the device, the variables, and the cost so far."""

from dataclasses import dataclass
from typing import Final

from koord_numa.core.cel.errors import CostExceededError
from koord_numa.core.cel.values.values import EMPTY_MAP, MapValue

COST_LIMIT: Final = 1_000_000
"""Units of one evaluation, as resource/v1 CELSelectorExpressionMaxCost."""


@dataclass(frozen=True, slots=True)
class CelDevice:
    """The variable ``device``, made once and read by every selector."""

    driver: str
    allow_multiple_allocations: bool = False
    attributes: MapValue = EMPTY_MAP  # domain -> name -> value
    capacity: MapValue = EMPTY_MAP  # domain -> name -> Quantity


class Frame:
    """Mutable state of one evaluation. ``cost`` counts units; what may be expensive is counted before it is done."""

    __slots__ = ("cost", "device", "variables")

    def __init__(self, device: CelDevice, variables: int) -> None:
        self.device = device
        self.cost = 0
        self.variables: list[object] = [None] * variables

    def check_cost(self) -> None:
        """Raise ``CostExceededError`` beyond the limit."""
        if self.cost > COST_LIMIT:
            raise CostExceededError("operation cancelled: actual cost limit exceeded")
