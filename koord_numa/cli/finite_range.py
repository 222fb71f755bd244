"""Numbers as options."""

from math import isfinite
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number within bounds; ``nan`` and ``inf``, which click lets pass where no bound forbids them, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of a text. Raises ``click.BadParameter``."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
