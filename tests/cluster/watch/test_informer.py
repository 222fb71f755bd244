"""An informer shows what is there, whatever happens to its watch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.resources import PODS, REBINDS, Resource
from koord_numa.cluster.watch.informer import Informer, InformerTimeouts
from koord_numa.cluster.watch.lister import ListedKind, list_all
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from koord_numa.settings import BackoffSettings
from koord_numa.wire.errors import WireError
from tests.cluster.objects import node, pod, until

QUICK = InformerTimeouts(silence=0.5, watch=60.0, absent=0.02, backoff=BackoffSettings(initial=0.01, max=0.05))


def seen(raw: Mapping[str, Any]) -> tuple[str, str]:
    """What the tests' informers keep of an object: its name, and a field that changes."""
    return raw["metadata"]["name"], (raw["metadata"].get("labels") or {}).get("v", "")


class Picture:
    """An event handler that keeps what an informer shows."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.lists = 0
        self.syncs = 0

    def replace(self, found: Iterable[tuple[str, str]]) -> None:
        self.lists += 1
        self.objects = dict(found)

    def observe(self, event: str | None, found: tuple[str, str]) -> None:
        if event == "DELETED":
            self.objects.pop(found[0], None)
        else:
            self.objects[found[0]] = found[1]

    def synced(self) -> None:
        self.syncs += 1


class Watched:
    """A running informer and what it shows."""

    def __init__(self, api: Api, kind: ListedKind[tuple[str, str]], patience: InformerTimeouts) -> None:
        self.picture = Picture()
        self.informer = Informer(api, kind, self.picture, patience)

    async def shows(self, *names: str) -> None:
        await until(lambda: sorted(self.picture.objects) == sorted(names))


@asynccontextmanager
async def mirror_of(
    api: Api, resource: Resource = PODS, fields: str = "", *, optional: bool = False, patience: InformerTimeouts = QUICK
) -> AsyncIterator[Watched]:
    watched = Watched(api, ListedKind(resource, seen, fields, optional), patience)
    task = asyncio.create_task(watched.informer.run())
    try:
        yield watched
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def delete(server: ApiServer, name: str) -> None:
    server.store.delete("pods", name, "default", DeleteOptions(grace=0))


async def test_lists_then_watches(server: ApiServer, api: Api) -> None:
    server.store.create(pod("a"))
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.synced)
        await watched.shows("a")
        server.store.create(pod("b"))
        await watched.shows("a", "b")
        server.store.patch("pods", "b", {"metadata": {"labels": {"v": "2"}}}, "default")
        await until(lambda: watched.picture.objects.get("b") == "2")
        delete(server, "a")
        await watched.shows("b")
        assert (watched.picture.lists, watched.picture.syncs) == (1, 1)


async def test_an_empty_list_is_complete_too(api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: watched.picture.syncs == 1)
        assert watched.picture.objects == {}


async def test_long_lists_come_in_pages(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.cluster.watch.lister.PAGE", 3)
    for number in range(8):
        server.store.create(pod(f"p{number}"))
    async with mirror_of(api) as watched:
        await watched.shows(*(f"p{number}" for number in range(8)))
    assert sum(asked.verb == "list" for asked in server.requests) == 3


async def test_the_server_selects(server: ApiServer, api: Api) -> None:
    server.store.create(pod("waits"))
    server.store.create(pod("runs", node="n"))
    async with mirror_of(api, fields="spec.nodeName!=") as watched:
        await watched.shows("runs")
        server.store.bind("default", "waits", {"target": {"kind": "Node", "name": "n"}})
        await watched.shows("runs", "waits")


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


async def test_a_new_list_shows_what_a_silent_watch_has_not(server: ApiServer, api: Api) -> None:
    async with mirror_of(api, patience=InformerTimeouts(silence=60.0)) as watched:
        await until(lambda: server.open_watches == 1)
        server.faults.add(Fault(effect=Effect.SILENT_WATCH))
        server.store.create(pod("a"))
        await asyncio.gather(watched.informer.refresh(), watched.informer.refresh())
        assert set(watched.picture.objects) == {"a"}
        assert watched.informer.synced


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


async def test_only_a_mirror_that_waits_for_nothing_that_comes_is_stuck(server: ApiServer, api: Api) -> None:
    time = 100.0
    mirror = Informer(api, ListedKind(PODS, seen), Picture(), QUICK, lambda: time)
    task = asyncio.create_task(mirror.run())
    try:
        await until(lambda: mirror.synced and server.open_watches)
        time = 500.0
        assert mirror.stuck == 400.0
        server.store.create(pod("a"))
        await until(lambda: mirror.stuck == 0.0)
        await server.stop()
        time, tries = 900.0, mirror.reconnects
        await until(lambda: mirror.reconnects > tries + 2)
        assert (mirror.stuck, mirror.age) == (0.0, 400.0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_outage_is_waited_out(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.synced)
        await server.stop()
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


async def test_a_kind_that_is_not_installed_is_empty_until_it_is(
    server: ApiServer, api: Api, rebind_crd: Callable[[], None]
) -> None:
    async with mirror_of(api, REBINDS, optional=True) as watched:
        await until(lambda: watched.informer.synced)
        rebind_crd()
        server.store.create(
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "RebindResource",
                "metadata": {"name": "a"},
                "spec": {"nodeName": "n"},
            }
        )
        await watched.shows("a")
        server.store.delete("customresourcedefinitions.apiextensions.k8s.io", REBINDS_CRD)
        await watched.shows()
        assert watched.picture.syncs == 1


REBINDS_CRD = "rebindresources.scheduling.koordinator.sh"


async def test_a_404_of_something_else_does_not_empty_the_cluster(server: ApiServer, api: Api) -> None:
    server.store.create(pod("a"))
    async with mirror_of(api) as watched:
        await watched.shows("a")
        server.faults.add(Fault(status=404, verb="list,watch"))
        server.faults.add(Fault(effect=Effect.CUT_WATCH, count=1))
        await until(lambda: watched.informer.problem)
        assert sorted(watched.picture.objects) == ["a"]


async def test_objects_that_cannot_be_identified_are_left_out(server: ApiServer, api: Api) -> None:
    def strict(raw: Mapping[str, Any]) -> tuple[str, str]:
        if raw["metadata"]["name"] == "bad":
            raise WireError("Pod", "metadata", "is broken")
        return seen(raw)

    for name in ("bad", "good"):
        server.store.create(pod(name))
    assert (await list_all(api, ListedKind(PODS, strict))).objects == [("good", "")]


async def test_bookmarks_keep_a_quiet_watch_young(server: ApiServer, api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: watched.informer.synced)
        for name in "ab":
            server.store.create(node(name))
        version = watched.informer._version
        await until(lambda: watched.informer._version != version)
        assert watched.informer.age < 5
        assert watched.informer.reconnects == 0


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
