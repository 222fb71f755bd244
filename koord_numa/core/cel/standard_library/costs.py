"""What calls cost in units, as the runtime estimators of cel-go and of Kubernetes (apiserver/pkg/cel/library/cost.go)."""

from math import ceil
from typing import Final

STRING_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25


def traversal(text: object, *_: object) -> int:
    """Reading a text once."""
    return ceil(len(text) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def joined(left: object, right: object) -> int:
    """Reading two texts or lists."""
    return ceil((len(left) + len(right)) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def search(text: object, part: object, *_: object) -> int:
    """Looking for a text in another."""
    # Both lengths are rounded up before they are multiplied, as in cel-go's estimator.
    return ceil(len(text) * STRING_FACTOR) * ceil(len(part) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def regex(text: object, pattern: object, *_: object) -> int:
    """Running a regular expression over a text; an empty text counts as one character."""
    return ceil((len(text) + 1) * STRING_FACTOR) * ceil(len(pattern) * REGEX_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def elements(items: object, *_: object) -> int:
    """One unit an element."""
    return len(items)  # type: ignore[arg-type]  # calls are checked before


def pairs(left: object, right: object) -> int:
    """Every element of one list against every element of the other."""
    return len(left) * len(right) + 1  # type: ignore[arg-type]  # calls are checked before


def equality(left: object, right: object) -> int:
    """Comparing texts and collections costs by the shorter one, everything else one unit."""
    try:
        return ceil(min(len(left), len(right)) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before
    except TypeError:
        return 1
