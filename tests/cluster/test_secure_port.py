"""The secure port: TLS, delegated authentication and authorization, and health without a token."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from cachetools import TTLCache
from prometheus_client import CollectorRegistry

from koord_numa.app.runtime import AGENT
from koord_numa.cluster import serving as access
from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.serving import DelegatedAuth, HttpServer, Protection, StatusProviders, server_context
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.apiserver.faults import Fault

EVE = {"Authorization": "Bearer sandbox:eve"}


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[ApiServer, str]]:
    """A secure port whose access an embedded API server decides."""
    async with ApiServer() as server, await Api.connect(server.write_kubeconfig(folder / "kubeconfig"), AGENT) as api:
        providers = StatusProviders(lambda: (), lambda: (), CollectorRegistry(), CollectorRegistry())
        protection = Protection(
            server_context(None, None), DelegatedAuth(lambda call, review: api.send(call, Body(review))).middleware()
        )
        http = HttpServer(providers, 0, "127.0.0.1", protection)
        await http.start()
        try:
            yield server, f"https://127.0.0.1:{http.port}"
        finally:
            await http.stop()


async def status(url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as response:
        return response.status, (await response.text()).strip()


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_is_open(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url):
        assert await status(url + path) == (200, "ok")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, (401, "a bearer token is needed"), id="none"),
        pytest.param({"Authorization": "Basic eHg6eQ=="}, (401, "a bearer token is needed"), id="basic"),
        pytest.param({"Authorization": "Bearer "}, (401, "a bearer token is needed"), id="empty"),
        pytest.param({"Authorization": "Bearer forged"}, (401, "the token is not valid"), id="unknown"),
        pytest.param(EVE, (200, ""), id="valid"),
    ],
)
async def test_tokens(headers: dict[str, str], expected: tuple[int, str], tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url):
        assert await status(f"{url}/metrics", headers) == expected


@pytest.mark.rights
async def test_a_right_is_needed_for_each_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, url):
        server.faults.add(Fault(verb="get", resource="/metrics", status=403))
        assert await status(f"{url}/metrics", EVE) == (403, "eve may not get /metrics")
        assert (await status(f"{url}/metrics/nodes", EVE))[0] == 200


async def test_answers_are_cached_and_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    cache = TTLCache
    monkeypatch.setattr("koord_numa.cluster.serving.TTLCache", lambda size, ttl: cache(size, ttl, timer=lambda: now[0]))
    async with serving(tmp_path) as (server, url):
        assert (await status(f"{url}/metrics", EVE))[0] == 200
        server.faults.add(Fault(verb="get", resource="/metrics", status=403))
        assert (await status(f"{url}/metrics", EVE))[0] == 200
        now[0] += access.CACHE_SECONDS + 1
        assert (await status(f"{url}/metrics", EVE))[0] == 403


async def test_while_the_api_server_is_away_nothing_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, url):
        server.faults.add(Fault(resource="tokenreviews", status=503))
        code, text = await status(f"{url}/metrics", EVE)
        assert code == 503
        assert text.startswith("access cannot be decided: ")
        server.faults.clear()
        server.faults.add(Fault(resource="subjectaccessreviews", status=500))
        assert (await status(f"{url}/metrics", EVE))[0] == 503
        assert await status(f"{url}/healthz") == (200, "ok")


async def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, url):
        server.faults.add(Fault(resource="tokenreviews", status=503, count=1))
        assert (await status(f"{url}/metrics", EVE))[0] == 503
        assert (await status(f"{url}/metrics", EVE))[0] == 200


async def test_plain_http_is_no_way_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url):
        with pytest.raises(aiohttp.ClientError):
            await status(f"{url.replace('https', 'http')}/metrics", EVE)


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    broken = tmp_path / "tls.crt"
    broken.write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        server_context(broken, broken)
    with pytest.raises(OSError, match="No such file"):
        server_context(tmp_path / "missing", tmp_path / "missing")
