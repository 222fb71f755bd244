"""An asyncio event loop whose time passes only when no task is ready: hours of waiting cost what the work in them costs."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator
from time import process_time
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


class Timed(Coroutine[Any, Any, T]):
    """A coroutine that appends the seconds of CPU of each of its steps to ``spent``: what runs until it waits again."""

    def __init__(self, work: Coroutine[Any, Any, T], spent: list[float]) -> None:
        self._work = work
        self._spent = spent

    def send(self, value: Any) -> Any:
        """As of a coroutine."""
        return self._step(lambda: self._work.send(value))

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        return self._step(lambda: self._work.throw(*error))

    def close(self) -> None:
        """As of a coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def _step(self, act: Callable[[], Any]) -> Any:
        began = process_time()
        try:
            return act()
        finally:
            self._spent.append(process_time() - began)


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
