"""Run decisions that pause between their steps without pausing."""

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def finished(steps: Generator[Any, Any, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
