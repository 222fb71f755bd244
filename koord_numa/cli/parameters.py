"""Types of options, and commands whose help ends with examples."""

import re
from math import isfinite
from typing import Any, Final

import click


class FiniteRange(click.FloatRange):
    """A number within bounds. Rejects ``nan`` and ``inf``, which click accepts without bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number. Raises ``click.BadParameter``."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class DurationParameter(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A duration as in kubectl: ``30``, ``1.5s``, ``2m30s``; 0 for no limit. The value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the duration. Raises ``click.BadParameter``."""
        if isinstance(value, float):
            return value
        parts = _DURATION.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration such as 30s", param, ctx)
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)


Examples = tuple[tuple[str, str], ...]
"""Comments, each with the arguments of a command line."""


class Documented(click.Command):
    """A command whose help ends with examples, as in kubectl. ``examples`` omit the name of the program."""

    def __init__(self, *args: Any, examples: Examples = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples with the name of the program as it was started."""
        write_examples(self.examples, ctx, formatter)


def write_examples(examples: Examples, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the section ``Examples`` of a help text."""
    if not examples:
        return
    program = context.find_root().info_name
    with formatter.section("Examples"):
        for comment, arguments in examples:
            formatter.write(f"{'':{formatter.current_indent}}# {comment}\n")
            formatter.write(f"{'':{formatter.current_indent}}{program} {arguments}\n")
