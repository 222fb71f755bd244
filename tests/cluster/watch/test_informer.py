"""An informer shows what is there."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer, InformerTimeouts
from koord_numa.cluster.lister import ListedKind, list_all
from koord_numa.cluster.resources import PODS, REBINDS, TAINT_RULES, Resource
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.wire import raw_json
from koord_numa.wire.errors import WireError
from koord_numa.wire.raw_json import UnreadObject
from tests.cluster.objects import node, pod, until
from tests.cluster.watch.watched import Picture, delete, mirror_of, seen


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


async def test_a_watch_that_is_read_in_batches_shows_the_same(server: ApiServer, api: Api) -> None:
    picture = Picture()
    running = asyncio.create_task(Informer(api, ListedKind(PODS, seen, pause=0.05), picture).run())
    await until(lambda: picture.syncs == 1)
    for number in range(3):
        server.store.create(pod(f"p{number}"))
    delete(server, "p1")
    await until(lambda: sorted(picture.objects) == ["p0", "p2"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert picture.lists == 1


async def test_what_is_left_as_text_is_not_decoded_on_its_way(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(raw_json, "_decoded", decoded.append)
    server.store.create(pod("listed"))
    versions: dict[str, str] = {}

    def note(raw: Mapping[str, Any]) -> None:
        assert isinstance(raw, UnreadObject)
        versions[raw.identity.uid] = raw.identity.resource_version

    kind: ListedKind[Any] = ListedKind(PODS, note, known=lambda _: None, unread=True)
    running = asyncio.create_task(Informer(api, kind, Picture()).run())
    await until(lambda: len(versions) == 1)
    server.store.create(pod("watched"))
    await until(lambda: len(versions) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert decoded == []


async def test_an_empty_list_is_complete_too(api: Api) -> None:
    async with mirror_of(api) as watched:
        await until(lambda: watched.picture.syncs == 1)
        assert watched.picture.objects == {}


async def test_long_lists_come_in_pages(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.cluster.lister.PAGE", 3)
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


async def test_a_new_list_shows_what_a_silent_watch_has_not(server: ApiServer, api: Api) -> None:
    async with mirror_of(api, patience=InformerTimeouts(silence=60.0)) as watched:
        await until(lambda: server.open_watches == 1)
        server.faults.add(Fault(effect=Effect.SILENT_WATCH))
        server.store.create(pod("a"))
        await asyncio.gather(watched.informer.refresh(), watched.informer.refresh())
        assert set(watched.picture.objects) == {"a"}
        assert watched.informer.synced


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


async def test_objects_that_cannot_be_identified_are_left_out(server: ApiServer, api: Api) -> None:
    def strict(raw: Mapping[str, Any]) -> tuple[str, str]:
        if raw["metadata"]["name"] == "bad":
            raise WireError("Pod", "metadata", "is broken")
        return seen(raw)

    for name in ("bad", "good"):
        server.store.create(pod(name))
    assert (await list_all(api, ListedKind(PODS, strict))).objects == [("good", "")]


async def test_bookmarks_keep_a_quiet_watch_young(server: ApiServer, api: Api) -> None:
    time = 100.0
    mirror = Informer(api, ListedKind(PODS, seen), Picture(), InformerTimeouts(silence=600.0), lambda: time)
    task = asyncio.create_task(mirror.run())
    try:
        await until(lambda: mirror.synced and server.open_watches)
        for name in "ab":
            server.store.create(node(name))
        version, time = mirror._version, 500.0
        await until(lambda: mirror._version != version)
        assert (mirror.age, mirror.reconnects) == (0.0, 0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_deleted_object_that_is_known_needs_no_reading(server: ApiServer, api: Api) -> None:
    picture, gone = Picture(), list[str]()

    def read_once(raw: Mapping[str, Any]) -> tuple[str, str]:
        if raw["metadata"]["name"] in picture.objects:
            raise AssertionError("it was known")
        return seen(raw)

    def known(raw: Mapping[str, Any]) -> tuple[str, str] | None:
        gone.append(name := raw["metadata"]["name"])
        return (name, picture.objects[name]) if name == "a" else None

    server.store.create(pod("a"))
    informer = Informer(api, ListedKind(PODS, read_once, known=known), picture)
    task = asyncio.create_task(informer.run())
    await until(lambda: set(picture.objects) == {"a"})
    delete(server, "a")
    await until(lambda: not picture.objects)
    assert gone == ["a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_older_version_is_watched_if_the_newer_is_missing(server: ApiServer, api: Api) -> None:
    newest = Resource("resource.k8s.io", "v2", "devicetaintrules", namespaced=False)
    made = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "a"}, "spec": {}}
    server.store.create(made)
    picture = Picture()
    kind = ListedKind(newest, seen, optional=True, older=(TAINT_RULES[1],))
    informer = Informer(api, kind, picture)
    running = asyncio.create_task(informer.run())
    await until(lambda: sorted(picture.objects) == ["a"])
    server.store.create({**made, "metadata": {"name": "b"}})
    await until(lambda: sorted(picture.objects) == ["a", "b"])
    assert (picture.lists, informer.problem) == (1, "")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_kind_without_any_served_version_has_no_objects(api: Api) -> None:
    versions = tuple(
        Resource("resource.k8s.io", f"v{number}", "devicetaintrules", namespaced=False) for number in (2, 3)
    )
    picture = Picture()
    informer = Informer(api, ListedKind(versions[0], seen, optional=True, older=versions[1:]), picture)
    running = asyncio.create_task(informer.run())
    await until(lambda: picture.syncs == 1)
    assert "not installed" in informer.problem
    assert informer.kind.resource == versions[0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_leader_does_not_wait_for_missing_kinds(api: Api) -> None:
    kind = ListedKind(Resource("none.example.com", "v1", "nothings"), seen, optional=True)
    informer = Informer(api, kind, Picture())  # it looks again after 30 s by itself
    running = asyncio.create_task(informer.run())
    await until(lambda: informer.synced)
    async with asyncio.timeout(10):
        await informer.refresh()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
