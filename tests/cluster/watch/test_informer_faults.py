"""An informer whose list or watch fails: what it shows meanwhile, and how it recovers."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer
from koord_numa.cluster.lister import ListedKind
from koord_numa.cluster.resources import PODS, Call
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.wire.errors import FieldPath
from tests.cluster.objects import pod, until
from tests.cluster.watch.watched import QUICK, Picture, delete, mirror_of, seen
from tests.tables import each_row


async def test_a_relist_after_410_drops_what_vanished_meanwhile(server: ApiServer, api: Api) -> None:
    for name in ("a", "b"):
        server.store.create(pod(name))
    async with mirror_of(api) as watched:
        await watched.shows("a", "b")
        outage = server.faults.add(Fault(effect=Effect.OUTAGE))
        await until(lambda: watched.informer.problem)
        delete(server, "a")
        server.store.create(pod("c"))
        server.compact()
        server.faults.remove(outage)
        await watched.shows("b", "c")
        assert (watched.picture.lists, watched.picture.syncs, watched.informer.problem) == (2, 1, "")


@each_row("metadata", [None, 5, "x", [], {"resourceVersion": 7, "name": []}])
@each_row("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "UNHEARD-OF", None])
def test_events_of_any_shape_are_left_out(kind: str | None, metadata: object) -> None:
    picture = Picture()
    informer = Informer(cast("Api", None), ListedKind(PODS, read), picture)
    for event in ({"type": kind, "object": {"metadata": metadata}}, {"type": kind, "object": metadata}, {"type": kind}):
        informer._handle(Call("watch", PODS), event)
    assert picture.objects == {}


def read(raw: Mapping[str, Any]) -> tuple[str, str]:
    """As the parsers of ``wire``."""
    if not isinstance(metadata := raw.get("metadata"), Mapping) or not isinstance(metadata.get("name"), str):
        raise FieldPath("Pod").error("has no name")
    return seen(raw)


async def test_an_error_event_410_lists_again(server: ApiServer, api: Api) -> None:
    server.store.create(pod("a"))
    async with mirror_of(api) as watched:
        await watched.shows("a")
        server.faults.add(Fault(effect=Effect.EXPIRE_WATCH, count=1))
        await until(lambda: watched.picture.lists == 2)
        await watched.shows("a")


async def test_a_cut_watch_goes_on_without_a_list(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: server.open_watches == 1)
        server.faults.add(Fault(effect=Effect.CUT_WATCH, count=1))
        for number in range(20):
            server.store.create(pod(f"p{number}"))
        await watched.shows(*(f"p{number}" for number in range(20)))
        assert watched.picture.lists == 1


async def test_a_silent_watch_is_left(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: server.open_watches == 1)
        silence = server.faults.add(Fault(effect=Effect.SILENT_WATCH))  # neither event nor bookmark comes
        server.store.create(pod("a"))
        await until(lambda: watched.informer.reconnects)
        assert watched.picture.objects == {}
        assert "watch pods" in watched.informer.problem
        server.faults.remove(silence)
        await watched.shows("a")
        assert (watched.picture.lists, watched.informer.problem) == (1, "")


async def test_a_new_list_is_awaited_through_an_outage(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: server.open_watches == 1)
        failing = server.faults.add(Fault(status=503, resource="pods"))
        waiting = asyncio.create_task(watched.informer.refresh())
        await until(lambda: server.faults.hits(failing) > 2)
        assert not waiting.done()
        server.store.create(pod("a"))
        server.faults.remove(failing)
        await waiting
        assert set(watched.picture.objects) == {"a"}


async def test_only_an_informer_that_should_receive_data_is_stuck(server: ApiServer, api: Api) -> None:
    time = 100.0
    mirror = Informer(api, ListedKind(PODS, seen), Picture(), QUICK, lambda: time)
    task = asyncio.create_task(mirror.run())
    try:
        await until(lambda: mirror.synced and server.open_watches)
        time = 500.0
        assert mirror.stuck == 400.0
        server.store.create(pod("a"))
        await until(lambda: mirror.stuck == 0.0)
        await server.suspend()
        time, tries = 900.0, mirror.reconnects
        await until(lambda: mirror.reconnects > tries + 2)
        assert (mirror.stuck, mirror.age) == (0.0, 400.0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_outage_is_waited_out(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.synced)
        await server.suspend()
        await until(lambda: watched.informer.reconnects >= 5)
        server.store.create(pod("a"))
        await server.start()
        await watched.shows("a")
        assert watched.informer.problem == ""


async def test_a_missing_right_is_named_and_the_mirror_recovers(server: ApiServer, api: Api) -> None:
    fault = server.faults.add(Fault(status=403, verb="list", resource="pods"))
    server.store.create(pod("a"))
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.problem)
        assert "list pods" in watched.informer.problem
        assert not watched.informer.synced
        server.faults.remove(fault)
        await watched.shows("a")


async def test_retry_after_is_respected(server: ApiServer, api: Api) -> None:
    server.faults.add(Fault(status=429, verb="list", retry_after=1, count=1))
    begun = asyncio.get_running_loop().time()
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.synced)
    assert asyncio.get_running_loop().time() - begun >= 1


async def test_a_404_of_something_else_does_not_empty_the_cluster(server: ApiServer, api: Api) -> None:
    server.store.create(pod("a"))
    async with mirror_of(api) as watched:
        await watched.shows("a")
        server.faults.add(Fault(status=404, verb="list,watch"))
        server.faults.add(Fault(effect=Effect.CUT_WATCH, count=1))
        await until(lambda: watched.informer.problem)
        assert sorted(watched.picture.objects) == ["a"]


async def test_events_and_random_cuts_end_in_the_true_picture(server: ApiServer, api: Api) -> None:
    server.faults.add(Fault(effect=Effect.CUT_WATCH, probability=0.05, seed=1))
    server.faults.add(Fault(effect=Effect.EXPIRE_WATCH, probability=0.02, seed=2))
    server.faults.add(Fault(status=500, verb="list,watch", probability=0.2, seed=3))
    async with mirror_of(api) as watched:
        for number in range(300):
            server.store.create(pod(f"p{number}"))
            if number % 3 == 0:
                delete(server, f"p{number // 2}")
            await asyncio.sleep(0)
        server.faults.clear()
        true = [found["metadata"]["name"] for found in server.store.list("pods")]
        await watched.shows(*true)
