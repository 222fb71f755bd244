"""An asyncio event loop whose time passes only when no task is ready: hours of waiting cost what the work in them costs."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Looks at files without waiting; the time that would have been waited for passes at once."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the real one with a timeout of 0. Raises ``RuntimeError`` where a real loop would wait for ever."""
        # No timer and no ready task: asyncio would wait for a file, and there is none.
        if timeout is None:
            raise RuntimeError("everything waits, and no timer runs")
        self._advance(max(0.0, timeout))
        # Files are still looked at: the loop's own wake-up pipe is one.
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time`` starts at 0. Only for programs that wait for timers and for one another, not for files or threads."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NoWaiting(self._pass))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
