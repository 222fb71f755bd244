"""The function library: rows by topic, and the table of all of them."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.cel.standard_library import (
    conversions,
    formats,
    kubernetes,
    lists,
    network,
    operators,
    optionals,
    strings,
    times,
)
from koord_numa.core.cel.values.functions import Overload, table

TABLE: Final[Mapping[tuple[str, bool], tuple[Overload, ...]]] = table(
    (
        *operators.ROWS,
        *conversions.ROWS,
        *strings.ROWS,
        *lists.ROWS,
        *optionals.ROWS,
        *kubernetes.ROWS,
        *formats.ROWS,
        *network.ROWS,
        *times.ROWS,
    )
)
"""Overloads by function name and whether the function has a receiver."""
