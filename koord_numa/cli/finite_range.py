"""Number types for options."""

from math import isfinite
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number within bounds. Rejects ``nan`` and ``inf``, which click accepts without bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number. Raises ``click.BadParameter``."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
