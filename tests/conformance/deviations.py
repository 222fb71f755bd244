"""
The documented differences from recorded answers: rows of ``docs/deviations.md``.

A row begins with its name in backticks and counts only while that file has it: a difference without a row is a failure.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

Answer = TypeVar("Answer")

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "deviations.md"
_ROW: Final = re.compile(r"^\|\s*`([a-z0-9-]+)`\s*\|", re.MULTILINE)


def documented(document: Path = DOCUMENT) -> frozenset[str]:
    """The names of all rows."""
    return frozenset(_ROW.findall(document.read_text())) if document.is_file() else frozenset()


@dataclass(frozen=True, slots=True)
class Deviation(Generic[Answer]):
    """One row and the cases it speaks of: ``explains`` tells whether the row makes our answer the right one there."""

    row: str
    explains: Callable[[Mapping[str, Any], Answer], bool]
