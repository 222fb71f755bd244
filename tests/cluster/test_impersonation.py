"""A kubeconfig that impersonates a user is sent as that user, by our own requests and by Kopf's session."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from koord_numa.cluster.client import Api
from koord_numa.cluster.credentials import NoCredentials
from koord_numa.cluster.resources import PODS, Call


def kubeconfig(folder: Path, server: str, user: dict[str, Any]) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret"} | user}, {"name": "plain", "user": {"token": "other"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "plain", "context": {"cluster": "c", "user": "plain"}},
        ],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return folder / "config"


WHOM = {"as": "jane", "as-uid": "u-1", "as-groups": ["dev", "ops"], "as-user-extra": {"Scopes/x": ["a", "b"]}}
SENT = [
    ("Impersonate-User", "jane"),
    ("Impersonate-Uid", "u-1"),
    ("Impersonate-Group", "dev"),
    ("Impersonate-Group", "ops"),
    ("Impersonate-Extra-scopes%2Fx", "a"),
    ("Impersonate-Extra-scopes%2Fx", "b"),
]


@pytest.fixture
async def seen(unused_tcp_port: int) -> Any:
    """A server that only notes who asks."""
    heard: list[list[tuple[str, str]]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        heard.append([(name, value) for name, value in request.headers.items() if name.startswith("Impersonate")])
        return web.json_response({"items": [], "metadata": {}})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield heard, f"http://127.0.0.1:{unused_tcp_port}"
    await runner.cleanup()


@pytest.fixture
def unused_tcp_port() -> int:
    import socket  # noqa: PLC0415  (only here)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_kubeconfig_that_impersonates_is_honoured(tmp_path: Path, seen: Any) -> None:
    heard, url = seen
    path = kubeconfig(tmp_path, url, WHOM)
    async with await Api.connect(path) as api:
        await api.send(Call("list", PODS))
        session = await api.new_session()
        async with await session.request("get", f"{url}/api/v1/pods") as response:
            assert response.status == 200
        await session.close()
    async with await Api.connect(path, context="plain") as api:
        await api.send(Call("list", PODS))
    assert heard == [SENT, SENT, []]


@pytest.mark.parametrize(
    "user",
    [{"as-groups": ["dev"]}, {"as-uid": "u"}, {"as": 7}, {"as": "a\nb"}],
    ids=["groups alone", "uid alone", "a number", "a line break"],
)
async def test_what_cannot_be_impersonated_is_refused(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(NoCredentials):
        await Api.connect(kubeconfig(tmp_path, "http://127.0.0.1:1", user))
