"""The server in its process: the direct store, subscriptions, files, restart, and that nothing is left behind."""

import asyncio
import json
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from tests.sandbox.apiserver.client import (
    CONFIGMAPS,
    JSON_PATCH,
    PODS,
    Api,
    binding,
    configmap,
    crd,
    eventually,
    node,
    pod,
    rack,
)
from tests.tables import each_row


async def test_direct_and_http_are_one(server: ApiServer, api: Api) -> None:
    created = server.store.create(pod())
    assert (await api.get(f"{PODS}/p")).body == created
    await api.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    assert server.store.get("pods", "p")["metadata"]["labels"] == {"a": "b"}


def test_the_direct_store_needs_no_loop_and_validates() -> None:
    store = ApiServer().store
    with pytest.raises(ApiError) as caught:
        store.create({**pod(), "spec": {"containers": []}})
    assert caught.value.code == 422
    with pytest.raises(ApiError) as caught:
        store.get("pods", "absent")
    assert caught.value.code == 404
    assert store.find("pods", "absent") is None


def test_objects_are_copies() -> None:
    store = ApiServer().store
    given = configmap(a="1")
    created = store.create(given)
    created["data"]["a"] = given["data"]["a"] = "2"
    store.list("configmaps")[0]["data"]["a"] = "3"
    assert store.get("configmaps", "c")["data"] == {"a": "1"}


def test_direct_verbs() -> None:
    store = ApiServer().store
    store.create(pod("a", labels={"x": "y"}))
    store.create(pod("b"))
    store.bind("default", "a", binding("a", "n1", annotations={"k": "v"}))
    store.patch("pods", "a", {"status": {"phase": "Running"}}, subresource="status")
    assert [one["metadata"]["name"] for one in store.list("pods", labels="x=y", fields="spec.nodeName=n1")] == ["a"]
    assert store.get("pods", "a")["status"]["phase"] == "Running"
    store.evict("default", "b")
    store.delete("pods", "a")
    assert store.get("pods", "a")["metadata"]["deletionGracePeriodSeconds"] == 30
    store.delete("pods", "a", options=DeleteOptions(grace=0))
    assert store.count("pods") == 0
    store.create(node())
    changed = store.update({**store.get("nodes", "n1"), "spec": {"unschedulable": True}})
    assert store.get("nodes", "n1") == changed


def test_subscriptions_see_what_is_there_and_what_comes() -> None:
    server = ApiServer()
    server.store.create(pod("a"))
    seen: list[tuple[str, str]] = []
    subscription = server.store.subscribe(
        "pods", lambda kind, found: seen.append((kind, found["metadata"]["name"])), fields="spec.nodeName="
    )
    server.store.create(pod("b"))
    server.store.bind("default", "a", binding("a", "n1"))
    subscription.cancel()
    subscription.cancel()
    server.store.create(pod("c"))
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]


def test_callbacks_may_write_and_subscribers_share_the_order() -> None:
    server = ApiServer()
    orders: list[list[str]] = [[], []]

    def kubelet(kind: str, found: dict[str, Any]) -> None:
        orders[0].append(f"{kind} {found['status']['phase']}")
        if found["status"]["phase"] == "Pending":
            server.store.patch("pods", "p", {"status": {"phase": "Running"}}, subresource="status")

    server.store.subscribe("pods", kubelet)
    server.store.subscribe("pods", lambda kind, found: orders[1].append(f"{kind} {found['status']['phase']}"))
    server.store.create(pod())
    assert orders == [["ADDED Pending", "MODIFIED Running"]] * 2


def test_files_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    listed = {"apiVersion": "v1", "kind": "List", "items": [configmap("a"), configmap("b")]}
    file.write_text("---\n" + yaml.safe_dump_all([crd(), listed]) + "---\n")
    server = ApiServer(crds=[file])
    server.apply_file(file)
    server.store.apply(rack(size=2))
    server.store.apply(rack(size=3))
    assert [one["metadata"]["name"] for one in server.store.list("configmaps")] == ["a", "b"]
    assert server.store.get("racks.example.com", "r1")["spec"] == {"size": 3, "mode": "Fast"}


@pytest.mark.parametrize(
    "text",
    ["- a\n- b\n", "{", "{kind: List, items: 3}", "{kind: List, items: [3]}", "[\n" * 3000],
    ids=["list", "malformed", "no items", "no objects", "deep"],
)
def test_files_that_are_no_objects(tmp_path: Path, text: str) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"objects\.yaml"):
        ApiServer(crds=[file])


async def test_it_listens_on_loopback_and_stops_cleanly() -> None:
    server = ApiServer()
    before = asyncio.all_tasks()
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        api = Api(session)
        async with api.watch(CONFIGMAPS) as watch:
            await api.create(CONFIGMAPS, configmap())
            await watch.seen(1)
            assert server.open_watches == 1
            await server.stop()
            assert await watch.rest() == []
    assert server.url.startswith("http://127.0.0.1:")
    assert server.open_watches == 0
    assert asyncio.all_tasks() == before
    await server.stop()


async def test_a_restart_keeps_port_and_objects() -> None:
    server = ApiServer()
    await server.start()
    port = server.port
    server.store.create(configmap())
    await server.stop()
    async with server, aiohttp.ClientSession(server.url) as session:
        assert server.port == port
        assert (await Api(session).get(f"{CONFIGMAPS}/c")).status == 200


async def test_a_suspended_server_refuses_connections_on_its_port(server: ApiServer) -> None:
    server.store.create(configmap())
    await server.suspend()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.port))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        assert (await Api(session).get(f"{CONFIGMAPS}/c")).status == 200


async def test_a_taken_port_is_an_error(server: ApiServer) -> None:
    with pytest.raises(OSError, match=f"^cannot listen on port {server.port}: Address already in use$"):
        await ApiServer(server.port).start()


async def test_a_watcher_that_leaves_is_forgotten(server: ApiServer, api: Api) -> None:
    async with api.watch(CONFIGMAPS):
        await eventually(lambda: server.open_watches == 1)
    await eventually(lambda: server.open_watches == 0)


async def test_a_written_kubeconfig_names_the_server(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    server.write_kubeconfig(file)
    url = yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"]
    async with aiohttp.ClientSession(url) as session:
        assert (await Api(session).get("/readyz")).body == "ok"
    assert file.stat().st_mode & 0o777 == 0o600


@each_row("turns", range(12))
async def test_connections_that_come_as_it_stops_are_closed_too(turns: int) -> None:
    server = ApiServer()
    await server.start()
    with ExitStack() as clients:
        made = [clients.enter_context(socket.create_connection(("127.0.0.1", server.port), 5)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        for client in made:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
async def test_objects_that_are_nested_too_deeply_are_refused(api: Api, kind: str) -> None:
    """Also where a patch makes them so: what is stored has to be sent, too."""
    for levels in (300, 2000):
        deep = '{"a": ' * levels + "1" + "}" * levels
        text = f'{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "deep"}}, "data": {deep}}}'
        assert (await api.post(CONFIGMAPS, text, type=kind)).reason == (400, "BadRequest")
    assert (await api.post(PODS, pod())).status == 201
    patch = {"op": "add", "path": "/metadata/annotations", "value": json.loads('{"a":' * 249 + "1" + "}" * 249)}
    assert (await api.patch(f"{PODS}/p", [patch], type=JSON_PATCH)).reason == (400, "BadRequest")
    assert (await api.get(PODS)).status == 200
