"""Stacks of the tasks of an event loop, to explain a hang."""

import asyncio
import gc
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

DRIVEN: Final = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)


def stacks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Return the stacks of all tasks of an event loop, outermost frame first. Tasks with equal stacks are grouped."""
    names: dict[tuple[str, ...], list[str]] = {}
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        cancelled = (f"cancelled {task.cancelling()} times",) if task.cancelling() else ()
        names.setdefault((*cancelled, *_awaited(task.get_coro())), []).append(task.get_name())
    for lines, alike in names.items():
        yield f"{len(alike)} tasks: {', '.join(alike[:3])}"
        yield from (f"  {line}" for line in lines)


def _awaited(awaitable: Any) -> Iterator[str]:
    """As ``asyncio.Task.get_stack``, which shows of a task that waits the outermost frame only."""
    while awaitable is not None:
        frame, inner = _step(awaitable)
        if frame is not None:
            file, line = frame.f_code.co_filename, frame.f_lineno
            place = "/".join(Path(file).parts[-3:])
            yield f"{place}:{line} {frame.f_code.co_name}: {linecache.getline(file, line).strip()}"
        if isinstance(awaitable, asyncio.Task):
            yield f"task {awaitable.get_name()}"
        awaitable = inner


def _step(awaitable: Any) -> tuple[FrameType | None, Any]:
    """The frame of a coroutine, generator or asynchronous generator, and what it awaits."""
    match awaitable:
        case CoroutineType():
            return awaitable.cr_frame, awaitable.cr_await
        case GeneratorType():
            return awaitable.gi_frame, awaitable.gi_yieldfrom
        case AsyncGeneratorType():
            return awaitable.ag_frame, awaitable.ag_await
        case asyncio.Future():
            return None, None
    # A step of an asynchronous generator, or an iterator of ``__await__``: it refers to what it drives, and does not say so.
    return None, next((it for it in gc.get_referents(awaitable) if isinstance(it, DRIVEN)), None)
