"""An event handler put together from functions, for kinds that have no handler of their own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Callbacks(Generic[T]):
    """``ports.EventHandler`` put together from functions."""

    replace: Callable[[Iterable[T]], None]
    observe: Callable[[str | None, T], None]
    synced: Callable[[], None] = _ignore
