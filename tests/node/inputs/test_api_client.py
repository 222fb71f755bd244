"""The agent's own client of the API server."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from koord_numa.cluster.credentials import Credentials, token_file
from koord_numa.node.api_client import PAGE, READ_BUFFER, NodeApi, NodeApiError
from koord_numa.node.pods import NodePods
from koord_numa.sandbox.apiserver import ApiServer
from tests.sandbox.machines.pods import bind, create

PODS = "/api/v1/pods"


async def watched(size: int) -> list[str]:
    """The kinds of events seen of a watch in which one pod has an annotation of this many bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        event = {"type": "ADDED", "object": {"metadata": {"name": "one", "annotations": {"text": "x" * size}}}}
        await response.write(json.dumps(event).encode() + b"\n")
        return response

    app = web.Application()
    app.router.add_get(PODS, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with NodeApi(Credentials(f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
            return [kind async for kind, _ in api.watch(PODS, {})]
    finally:
        await runner.cleanup()


async def test_pods_are_listed_in_pages() -> None:
    """A list of all pods at once would need memory that the process keeps."""
    async with ApiServer() as server, NodeApi(Credentials(server.url)) as api:
        names = {f"p{number}" for number in range(2 * PAGE + 1)}
        for name in sorted(names):
            bind(server.store, create(server.store, name), "n0")
        pods = NodePods(api, "n0")
        kinds = []
        async for kind, value in api.watch(PODS, {"fieldSelector": "spec.nodeName=n0"}):
            kinds.append((kind, len(value)))
            pods.observe(kind, value)
            if kind == "LIST":
                break
            assert not pods.synced.is_set()
        assert kinds == [("PAGE", PAGE), ("PAGE", PAGE), ("LIST", 1)]
        assert {pod.name for pod in pods.all()} == {pod.name for pod in pods.bound()} == names


def test_a_watch_takes_the_largest_pods() -> None:
    assert asyncio.run(watched(1_500_000)) == ["LIST", "ADDED"]


def test_a_line_beyond_the_buffer_is_a_survived_error() -> None:
    with pytest.raises(NodeApiError, match="watch"):
        asyncio.run(watched(3 * READ_BUFFER))


def test_a_token_that_cannot_be_read_for_a_moment_stays_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet replaces the file while the agent runs."""
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    async def ask() -> None:
        app = web.Application()
        app.router.add_get(PODS, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with NodeApi(Credentials(f"http://127.0.0.1:{runner.addresses[0][1]}", token_file(token))) as api:
                with pytest.raises(NodeApiError, match="No such file"):
                    await api.get(PODS)
                token.write_text("first")
                await api.get(PODS)
                token.unlink()
                await api.get(PODS)
                token.write_text("second")
                await api.get(PODS)
        finally:
            await runner.cleanup()

    token = tmp_path / "token"
    monkeypatch.setattr("koord_numa.cluster.credentials.TOKEN_SECONDS", -1.0)
    asyncio.run(ask())
    assert seen == ["Bearer first", "Bearer first", "Bearer second"]
