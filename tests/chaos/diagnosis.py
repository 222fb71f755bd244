"""
What a replica knows, does and waits for when a cluster never comes to rest: the text of a failure that may not happen again for days.
"""

import asyncio
import gc
import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

import orjson

from koord_numa.app.debug import Dump, pod_dump
from koord_numa.app.runtime import Runtime
from koord_numa.sandbox.apiserver import ApiError, ApiServer
from tests.chaos.replicas import Replica
from tests.e2e.world import JsonObject

DRIVEN: Final = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)

MOST: Final = 12
"""So many waiting pods are described."""

ANSWER_SECONDS: Final = 30.0
"""What a replica gets to describe itself; one whose event loop stands still never does."""


async def diagnosis(server: ApiServer, replicas: Iterable[Replica], waiting: Iterable[str]) -> str:
    """For people: waiting pods as the API server has them; then for each replica its lease, its sources, its queue and its tasks."""
    names = sorted(waiting)[:MOST]
    lines = [f"{name}: {_in_store(server, name)}" for name in names]
    for replica in replicas:
        lines += ["", f"{replica.identity}:", *await _described(replica, names)]
    return "\n".join(lines)


def _in_store(server: ApiServer, name: str) -> str:
    try:
        pod: JsonObject = server.store.get("pods", name, "default")
    except ApiError as error:
        return str(error)
    status = pod.get("status", {})
    conditions = [it for it in status.get("conditions", ()) if it["type"] == "PodScheduled"]
    metadata = {key: pod["metadata"].get(key) for key in ("uid", "resourceVersion", "deletionTimestamp")}
    return str({**metadata, "phase": status.get("phase"), "scheduled": conditions})


async def _described(replica: Replica, names: list[str]) -> list[str]:
    def describe(runtime: Runtime) -> list[str]:
        return [*_sources(runtime), *_queue(runtime, names), *_tasks()]

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            lines = await replica.ask(describe, ["has not begun, or has ended"])
    except TimeoutError:
        lines = [f"its event loop did not answer within {ANSWER_SECONDS:g} s"]
    return [f"  {line}" for line in (*replica.errors, *lines)]


def _sources(runtime: Runtime) -> Iterator[str]:
    scheduler, lease = runtime.scheduler, runtime.lease
    yield f"leads: {lease.fresh()}, holder: {lease.holder!r}, problem: {lease.problem!r}"
    yield f"ready: {scheduler.ready}, failure: {runtime.tasks.failure!r}"
    for informer in runtime.informers.all:
        if not informer.synced or informer.problem:
            yield f"{informer.kind}: synced {informer.synced}, stuck {informer.stuck:.0f} s, {informer.problem!r}"
    for resync in runtime.informers.resyncs:
        yield f"resync of {resync.name}: synced {resync.synced}, {resync.problem!r}"


def _queue(runtime: Runtime, names: Iterable[str]) -> Iterator[str]:
    scheduler = runtime.scheduler
    yield f"queue: {scheduler.queue.numbers()}, {scheduler.queue.sizes()}, pending: {len(scheduler.handle.pending)}"
    yield f"assumed: {[*map(str, scheduler.cache.assumed)]}"
    for name in names:
        dump: Dump | None = pod_dump(scheduler, "default", name, lambda: runtime.lease.holder)
        yield f"{name}: {'unknown' if dump is None else orjson.dumps(dump).decode()}"


def _tasks() -> Iterator[str]:
    """What the tasks of the event loop wait for, outermost frame first; those that wait for the same come together."""
    names: dict[tuple[str, ...], list[str]] = {}
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
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
