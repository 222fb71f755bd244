"""Function library: rows by topic, and the table of all rows."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.cel.functions import Overload, table
from koord_numa.core.cel.standard_library import kubernetes, lists, operators, strings

TABLE: Final[Mapping[tuple[str, bool], tuple[Overload, ...]]] = table(
    (
        *operators.ROWS,
        *operators.CONVERSIONS,
        *strings.ROWS,
        *lists.ROWS,
        *operators.OPTIONALS,
        *kubernetes.ROWS,
        *strings.NAMED_FORMATS,
        *kubernetes.NETWORK,
        *operators.TIMES,
    )
)
"""Overloads, by function name and whether the function has a receiver."""
