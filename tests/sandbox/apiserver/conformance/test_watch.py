"""Watching: where a watch begins, what selectors turn changes into, bookmarks, time-outs, and history that is gone."""

from typing import Any

import aiohttp
import pytest

from koord_numa.sandbox.apiserver import ApiServer, storage
from tests.sandbox.apiserver.client import CONFIGMAPS, CRDS, PODS, RACKS, Api, binding, configmap, crd, pod, rack


async def revision(api: Api, path: str = CONFIGMAPS) -> str:
    """The resourceVersion of a list."""
    found: str = (await api.get(path)).body["metadata"]["resourceVersion"]
    return found


@pytest.mark.parametrize("flag", ["1", "true"])
@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}], ids=["none", "zero"])
async def test_without_a_version_it_begins_with_what_there_is(api: Api, flag: str, start: dict[str, str]) -> None:
    await api.create(CONFIGMAPS, configmap("a"))
    async with api.session.get(CONFIGMAPS, params={"watch": flag, "timeoutSeconds": "1", **start}) as response:
        lines = (await response.text()).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith('{"type":"ADDED"')


async def test_from_a_list_nothing_is_repeated(api: Api) -> None:
    await api.create(CONFIGMAPS, configmap("a"))
    async with api.watch(CONFIGMAPS, resourceVersion=await revision(api)) as watch:
        await api.create(CONFIGMAPS, configmap("b"))
        await api.patch(f"{CONFIGMAPS}/a", {"data": {"x": "1"}})
        await api.delete(f"{CONFIGMAPS}/b")
        assert await watch.seen(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_from_an_older_version_the_missed_is_told(api: Api) -> None:
    start = await revision(api)
    await api.create(CONFIGMAPS, configmap("a"))
    await api.patch(f"{CONFIGMAPS}/a", {"data": {"x": "1"}})
    await api.delete(f"{CONFIGMAPS}/a")
    async with api.watch(CONFIGMAPS, resourceVersion=start) as watch:
        assert await watch.seen(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_deletions_carry_the_last_state_under_a_new_version(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap("a", x="1"))
    async with api.watch(CONFIGMAPS, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        await api.delete(f"{CONFIGMAPS}/a")
        event = await watch.next()
    assert (event["type"], event["object"]["data"]) == ("DELETED", {"x": "1"})
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


async def test_compacted_history_is_gone(api: Api, server: ApiServer) -> None:
    start = await revision(api)
    await api.create(CONFIGMAPS, configmap("a"))
    server.compact()
    async with api.watch(CONFIGMAPS, resourceVersion=start) as watch:
        events = await watch.rest()
    assert [(event["type"], event["object"]["code"], event["object"]["reason"]) for event in events] == [
        ("ERROR", 410, "Expired")
    ]


async def test_a_short_history_is_gone_too() -> None:
    async with ApiServer(history=4) as server, aiohttp.ClientSession(server.url) as session:
        api = Api(session)
        start = await revision(api)
        for number in range(10):
            await api.create(CONFIGMAPS, configmap(f"c{number}"))
        async with api.watch(CONFIGMAPS, resourceVersion=start) as watch:
            assert (await watch.next())["object"]["code"] == 410


async def test_a_history_of_large_objects_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HISTORY_BYTES", 100_000)
    async with ApiServer() as server, aiohttp.ClientSession(server.url) as session:
        api = Api(session)
        start = await revision(api)
        for number in range(30):
            server.store.create({**configmap(f"c{number}"), "data": {"a": "x" * 10_000}})
        late = server.revision - 5
        async with api.watch(CONFIGMAPS, resourceVersion=start) as watch:
            assert (await watch.next())["object"]["code"] == 410
        async with api.watch(CONFIGMAPS, resourceVersion=str(late)) as watch:
            assert [name for _, name in await watch.seen(5)] == [f"c{number}" for number in range(25, 30)]


async def test_field_selectors_turn_binding_into_deletion(api: Api) -> None:
    await api.create(PODS, pod("a"))
    async with api.watch(PODS, fieldSelector="spec.nodeName=", resourceVersion=await revision(api, PODS)) as watch:
        await api.create(PODS, pod("b"))
        await api.post(f"{PODS}/a/binding", binding("a", "n1"))
        events = [await watch.next(), await watch.next()]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]
    assert "nodeName" not in events[1]["object"]["spec"]  # the last state that matched, as the watch cache sends it
    assert (
        events[1]["object"]["metadata"]["resourceVersion"]
        == (await api.get(f"{PODS}/a")).body["metadata"]["resourceVersion"]
    )


async def test_the_other_side_of_that_selector_sees_an_addition(api: Api) -> None:
    await api.create(PODS, pod("a"))
    async with api.watch(PODS, fieldSelector="spec.nodeName!=", resourceVersion=await revision(api, PODS)) as watch:
        await api.post(f"{PODS}/a/binding", binding("a", "n1"))
        await api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}})
        assert await watch.seen(2) == [("ADDED", "a"), ("MODIFIED", "a")]


async def test_label_selectors_turn_changes_into_adds_and_deletes(api: Api) -> None:
    async with api.watch(CONFIGMAPS, labelSelector="on=yes") as watch:
        await api.create(CONFIGMAPS, configmap("a"))
        for labels in ({"on": "yes"}, {"on": "yes", "x": "y"}, {"on": "no"}, {"on": "maybe"}, {"on": "yes"}):
            await api.patch(f"{CONFIGMAPS}/a", {"metadata": {"labels": labels}})
        assert await watch.seen(4) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "a")]


async def test_a_watch_keeps_to_its_namespace_and_name(api: Api) -> None:
    elsewhere = "/api/v1/namespaces/kube-system/configmaps"
    async with (
        api.watch(CONFIGMAPS) as here,
        api.watch("/api/v1/configmaps") as everywhere,
        api.watch(f"{CONFIGMAPS}/b") as one,
        api.watch(CONFIGMAPS, fieldSelector="metadata.name=b") as selected,
    ):
        await api.create(elsewhere, configmap("x"))
        await api.create(CONFIGMAPS, configmap("a"))
        await api.create(CONFIGMAPS, configmap("b"))
        assert await here.seen(2) == [("ADDED", "a"), ("ADDED", "b")]
        assert await everywhere.seen(3) == [("ADDED", "x"), ("ADDED", "a"), ("ADDED", "b")]
        assert await one.seen(1) == [("ADDED", "b")]
        assert await selected.seen(1) == [("ADDED", "b")]


async def test_it_ends_after_timeout_seconds(api: Api) -> None:
    async with api.watch(CONFIGMAPS, timeoutSeconds=1) as watch:
        assert await watch.rest() == []


async def test_bookmarks_say_how_far_it_is(api: Api) -> None:
    async with api.watch(PODS, allowWatchBookmarks="true", resourceVersion=await revision(api, PODS)) as watch:
        await api.create(CONFIGMAPS, configmap())
        now = await revision(api)
        event = await watch.next()
        while event["object"]["metadata"]["resourceVersion"] != now:
            event = await watch.next()
    assert (event["type"], event["object"]["kind"], event["object"]["apiVersion"]) == ("BOOKMARK", "Pod", "v1")


async def test_no_bookmarks_unless_allowed(api: Api) -> None:
    async with api.watch(PODS, timeoutSeconds=1) as watch:
        assert await watch.rest() == []


async def test_streamed_lists_end_with_a_mark(api: Api) -> None:
    await api.create(CONFIGMAPS, configmap("a"))
    query: dict[str, Any] = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with api.watch(CONFIGMAPS, resourceVersion=await revision(api), **query) as watch:
        added, mark = await watch.next(), await watch.next()
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert (mark["type"], mark["object"]["metadata"]["annotations"]) == (
        "BOOKMARK",
        {"k8s.io/initial-events-end": "true"},
    )


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"sendInitialEvents": "true"}, 422),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "x"}, 500),
        ({"fieldSelector": "spec.x=1"}, 400),
    ],
)
async def test_refused_watches(api: Api, query: dict[str, str], status: int) -> None:
    assert (await api.get(CONFIGMAPS, watch="1", **query)).status == status


async def test_other_versions_of_a_kind_are_watched_as_themselves(api: Api) -> None:
    await api.create(CRDS, crd())
    async with api.watch(RACKS.replace("/v1/", "/v1alpha1/")) as watch:
        await api.create(RACKS, rack())
        assert (await watch.next())["object"]["apiVersion"] == "example.com/v1alpha1"


async def test_a_watch_ends_with_its_kind(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack())
    async with api.watch(RACKS) as watch:
        assert await watch.seen(1) == [("ADDED", "r1")]
        await api.delete(f"{CRDS}/racks.example.com")
        assert [event["type"] for event in await watch.rest()] in (["DELETED"], [])


async def test_tables_are_watched_as_tables(api: Api) -> None:
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with api.session.get(PODS, params={"watch": "1"}, headers=headers) as response:
        await api.create(PODS, pod())
        line = await response.content.readline()
    assert b'"kind":"Table"' in line
    assert b'"cells":["p","0/1","Pending"' in line


async def test_the_deprecated_watch_path(api: Api) -> None:
    async with api.watch("/api/v1/watch/namespaces/default/configmaps") as watch:
        await api.create(CONFIGMAPS, configmap())
        assert await watch.seen(1) == [("ADDED", "c")]


async def test_a_watch_from_before_the_first_objects_is_too_old(api: Api) -> None:
    """A kube-apiserver has written its own objects before anybody else does: version 1 is beyond its watch cache."""
    await api.create(CONFIGMAPS, configmap("a"))
    async with api.watch(CONFIGMAPS, resourceVersion="1") as watch:
        assert (await watch.next())["object"]["code"] == 410
