"""An asyncio event loop whose time passes only when no task is ready: hours of waiting cost what the work in them costs."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from time import process_time
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Looks at files without waiting; the time that would have been waited for passes at once."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance
        self.busy: list[float] = []
        self.skip = True  # what runs until the first look is not counted
        self._since = process_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the real one with a timeout of 0. Raises ``RuntimeError`` where a real loop would wait for ever."""
        # No timer and no ready task: asyncio would wait for a file, and there is none.
        if timeout is None:
            raise RuntimeError("everything waits, and no timer runs")
        if not self.skip:
            self.busy.append(process_time() - self._since)
        self.skip = False
        self._advance(max(0.0, timeout))
        self._since = process_time()
        # Files are still looked at: the loop's own wake-up pipe is one.
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time`` starts at 0. Only for programs that wait for timers and for one another, not for files or threads."""

    def __init__(self) -> None:
        self._now = 0.0
        self._selector = _NoWaiting(self._pass)
        super().__init__(self._selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def skip(self) -> None:
        """Leave out of ``busy`` what runs now: initial lists."""
        self._selector.skip = True

    @property
    def busy(self) -> list[float]:
        """Seconds of CPU between two looks at the timers: of all tasks that were ready."""
        return self._selector.busy

    def _pass(self, seconds: float) -> None:
        self._now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
