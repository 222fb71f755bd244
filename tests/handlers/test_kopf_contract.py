"""The undocumented parts of Kopf that koord-numa uses. A release that changes them fails here and nowhere else."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import kopf

from koord_numa.handlers.embedding import CREDENTIALS, WATCHER, WATCHERS_OWN
from tests.tables import each_row


def source(module: str) -> str:
    return inspect.getsource(import_module(module))


def test_watchers_are_tasks_with_this_name() -> None:
    assert f'f"{WATCHER}' in source("kopf._core.reactor.orchestration").replace("'", '"')


def test_credentials_are_retrieved_by_a_task_with_this_name() -> None:
    assert f'name="{CREDENTIALS}"' in source("kopf._core.reactor.running")


def test_what_a_watcher_ends_itself_has_these_names() -> None:
    queueing, tasks = import_module("kopf._core.reactor.queueing"), import_module("kopf._cogs.aiokits.aiotasks")
    names = [
        queueing.worker.__qualname__,
        queueing._wait_for_depletion.__qualname__,
        tasks.Scheduler._task_spawner.__qualname__,
    ]
    assert all(name.startswith(WATCHERS_OWN) for name in names)


@each_row(
    "path",
    [
        "process.ultimate_exiting_timeout",
        "persistence.diffbase_storage",
        "persistence.progress_storage",
        "posting.enabled",
        "peering.standalone",
        "queueing.idle_timeout",
        "networking.error_backoffs",
        "watching.chunk_size",
        "watching.field_selectors",
    ],
)
def test_every_setting_that_is_changed_exists(path: str) -> None:
    found: Any = kopf.OperatorSettings()
    for step in path.split("."):
        assert hasattr(found, step)
        found = getattr(found, step)


async def test_a_worker_task_reads_the_setting_before_each_wait() -> None:
    """It would wait for ever by what the setting was when it began; after its first event it ends at once."""
    queueing, settings = import_module("kopf._core.reactor.queueing"), kopf.OperatorSettings()
    settings.queueing.idle_timeout = 1e6
    stream = queueing.Stream(backlog=asyncio.Queue(), pressure=asyncio.Event())
    await stream.backlog.put({"type": "ADDED", "object": {"metadata": {"uid": "u"}}})

    async def process(**_: Any) -> None:
        settings.queueing.idle_timeout = 0.01

    streams = {"u": stream}
    async with asyncio.timeout(300):
        await queueing.worker(
            signaller=asyncio.Condition(), settings=settings, processor=process, streams=streams, key="u"
        )
    assert streams == {}


def test_a_filter_is_called_once_per_event_with_event_and_memo() -> None:
    """Pods and topologies are handed over by their filter."""
    registry = kopf.OperatorRegistry()
    asked: list[str] = []

    def hand_over(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
        asked.append(f"{event['type']} {memo.name}")
        return False

    @kopf.on.event("v1", "pods", registry=registry, when=hand_over)
    async def handler(**_: Any) -> None:
        raise AssertionError("the filter matches nothing")

    references = import_module("kopf._cogs.structs.references")
    processing = import_module("kopf._core.reactor.processing")
    resource = references.Resource("", "v1", "pods", kind="Pod", namespaced=True)
    body = {"metadata": {"name": "a", "uid": "u"}}

    async def process() -> None:
        for kind in ("ADDED", "DELETED"):
            await processing.process_resource_event(
                lifecycle=import_module("kopf._core.actions.lifecycles").all_at_once,
                indexers=import_module("kopf._core.engines.indexing").OperatorIndexers(),
                registry=registry,
                settings=kopf.OperatorSettings(),
                memories=import_module("kopf._core.reactor.inventory").ResourceMemories(),
                memobase=kopf.Memo(name="m"),
                resource=resource,
                raw_event={"type": kind, "object": body},
                event_queue=asyncio.Queue(),
            )

    asyncio.run(process())
    assert asked == ["ADDED m", "DELETED m"]


def test_a_session_of_ours_can_be_lent() -> None:
    fields = inspect.signature(kopf.AiohttpSession).parameters
    assert {"server", "aiohttp_session"} <= fields.keys()


async def test_a_watch_is_read_in_chunks_of_the_body() -> None:
    """Topologies are read in batches by pausing between two chunks."""
    api, sizes = import_module("kopf._cogs.clients.api"), list[int]()
    assert "iter_jsonlines(response.content)" in source("kopf._cogs.clients.api")

    class Body:
        async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
            sizes.append(n)
            for chunk in (b"1", b"2\n3", b"\n"):
                yield chunk

    assert [line async for line in api.iter_jsonlines(Body())] == [b"12", b"3"]
    assert sizes == [2**20]
