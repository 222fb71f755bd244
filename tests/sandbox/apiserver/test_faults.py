"""Faults: each effect over HTTP, matching and counting, and the control endpoints for other processes."""

import asyncio
import time
from functools import partial

import aiohttp
import pytest

from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.sandbox.apiserver.faults import Asked, Faults
from tests.cluster.objects import PATIENCE
from tests.sandbox.apiserver.client import CONFIGMAPS, PODS, Api, binding, configmap, eventually, pod

C = f"{CONFIGMAPS}/c"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
async def test_errors_on_demand(api: Api, server: ApiServer, status: int, reason: str) -> None:
    server.faults.add(Fault(status=status, retry_after=3 if status == 429 else 0, count=1))
    first, second = await api.get(CONFIGMAPS), await api.get(CONFIGMAPS)
    assert (first.reason, second.status) == ((status, reason), 200)
    assert first.headers.get("Retry-After") == ("3" if status == 429 else None)


async def test_a_dropped_connection_serves_nothing(api: Api, server: ApiServer) -> None:
    server.faults.add(Fault(effect=Effect.DROP, verb="create", count=1))
    with pytest.raises(aiohttp.ClientConnectionError):
        await api.post(CONFIGMAPS, configmap())
    assert (await api.get(C)).status == 404


async def test_a_lost_answer_is_served(api: Api, server: ApiServer) -> None:
    await api.create(PODS, pod())
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, subresource="binding", count=1))
    with pytest.raises(aiohttp.ClientConnectionError):
        await api.post(f"{PODS}/p/binding", binding("p", "n1"))
    assert (await api.get(f"{PODS}/p")).body["spec"]["nodeName"] == "n1"
    assert [asked.status for asked in server.requests if asked.subresource == "binding"] == [0]


@pytest.mark.parametrize(("effect", "stored"), [(Effect.DELAY, False), (Effect.SLOW_ANSWER, True)])
async def test_delays_happen_before_and_slow_answers_after(
    api: Api, server: ApiServer, effect: Effect, stored: bool
) -> None:
    server.faults.add(Fault(effect=effect, verb="create", seconds=0.2))
    start = time.monotonic()
    assert (await api.post(CONFIGMAPS, configmap())).status == 201
    assert time.monotonic() - start >= 0.2
    server.faults.clear()
    held = server.faults.add(Fault(effect=effect, verb="create", seconds=None))
    other = server.faults.add(Fault(status=503, verb="delete"))
    creating = asyncio.create_task(api.post(CONFIGMAPS, configmap("held")))
    await eventually(partial(server.faults.hits, held))
    server.faults.remove(other)
    assert (await api.get(C)).status == 200
    assert (server.store.find("configmaps", "held") is not None) is stored
    assert not creating.done()
    server.faults.remove(held)
    assert (await creating).status == 201
    assert server.store.find("configmaps", "held") is not None


async def test_faults_strike_only_what_they_name(api: Api, server: ApiServer) -> None:
    server.faults.add(Fault(verb="get,list", resource="configmaps", namespace="default", name="c"))
    await api.create(CONFIGMAPS, configmap("c"))
    await api.create(CONFIGMAPS, configmap("d"))
    assert [(await api.get(path)).status for path in (C, f"{CONFIGMAPS}/d", CONFIGMAPS)] == [500, 200, 200]


def strikes(fault: Fault, times: int = 40) -> list[bool]:
    """Return the indexes of equal requests to which a fault applies."""
    faults = Faults()
    faults.add(fault)
    return [bool(faults.on_request(Asked("get", resource="pods"))) for _ in range(times)]


def test_skipping_and_counting() -> None:
    assert strikes(Fault(skip=2, count=3), 7) == [False, False, True, True, True, False, False]


def test_chance_is_repeatable() -> None:
    assert (
        strikes(Fault(probability=0.5, seed=1))
        == strikes(Fault(probability=0.5, seed=1))
        != strikes(Fault(probability=0.5, seed=2))
    )
    assert strikes(Fault(probability=0.0), 5) == [False] * 5


async def test_a_silent_watch_says_nothing_until_it_is_over(api: Api, server: ApiServer) -> None:
    async with api.watch(CONFIGMAPS, allowWatchBookmarks="true") as watch:
        number = server.faults.add(Fault(effect=Effect.SILENT_WATCH, resource="configmaps"))
        await api.create(CONFIGMAPS, configmap())
        with pytest.raises(TimeoutError):
            await watch.next(within=0.5)
    server.faults.remove(number)
    async with api.watch(CONFIGMAPS) as watch:
        assert await watch.seen(1) == [("ADDED", "c")]


async def test_a_silent_watch_costs_a_look_a_bookmark_and_no_more() -> None:
    async with ApiServer(bookmark_interval=0.1) as server, aiohttp.ClientSession() as session:
        silence = server.faults.add(Fault(effect=Effect.SILENT_WATCH))
        async with session.get(f"{server.url}/api/v1/configmaps?watch=1&allowWatchBookmarks=1") as response:
            begun = asyncio.get_running_loop().time()
            while server.faults.hits(silence) < 5:  # every look at the watch is a hit
                assert await read_within(response, 0.01) == b""
            assert asyncio.get_running_loop().time() - begun >= 0.3
            server.faults.remove(silence)
            assert b"BOOKMARK" in await read_within(response, PATIENCE)


async def read_within(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    """Return the next event of the stream; nothing if none arrives in time."""
    try:
        async with asyncio.timeout(seconds):
            return await response.content.readany()
    except TimeoutError:
        return b""


async def test_a_watch_catches_up_when_silence_ends(api: Api, server: ApiServer) -> None:
    server.faults.add(Fault(effect=Effect.SILENT_WATCH))
    async with api.watch(CONFIGMAPS) as watch:
        await api.create(CONFIGMAPS, configmap())
        server.faults.clear()
        assert await watch.seen(1) == [("ADDED", "c")]


async def test_a_slow_watch_takes_its_time(api: Api, server: ApiServer) -> None:
    async with api.watch(CONFIGMAPS) as watch:
        server.faults.add(Fault(effect=Effect.SLOW_WATCH, seconds=0.1))
        start = time.monotonic()
        for name in "abc":
            await api.create(CONFIGMAPS, configmap(name))
        assert await watch.seen(3) == [("ADDED", name) for name in "abc"]
        assert time.monotonic() - start >= 0.3


async def test_a_watch_expires_on_demand(api: Api, server: ApiServer) -> None:
    async with api.watch(CONFIGMAPS) as watch:
        server.faults.add(Fault(effect=Effect.EXPIRE_WATCH, resource="configmaps", count=1))
        assert [(event["type"], event["object"]["code"]) for event in await watch.rest()] == [("ERROR", 410)]


async def test_a_watch_is_cut_on_demand(api: Api, server: ApiServer) -> None:
    async with api.watch(CONFIGMAPS) as watch:
        server.faults.add(Fault(effect=Effect.CUT_WATCH, count=1))
        with pytest.raises(aiohttp.ClientError):
            await watch.rest()


async def test_an_outage_closes_everything_until_it_ends(api: Api, server: ApiServer) -> None:
    async with api.watch(CONFIGMAPS) as watch:
        number = server.faults.add(Fault(effect=Effect.OUTAGE))
        with pytest.raises(aiohttp.ClientError):
            await watch.rest()
    with pytest.raises(aiohttp.ClientConnectionError):
        await api.get(CONFIGMAPS)
    server.faults.remove(number)
    assert (await api.get(CONFIGMAPS)).status == 200


async def test_the_request_log(api: Api, server: ApiServer) -> None:
    await api.create(PODS, pod())
    await api.post(f"{PODS}/p/binding", binding("p", "n1"))
    await api.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/absent")
    await api.get("/version")
    logged = [
        (one.verb, one.group, one.resource, one.subresource, one.namespace, one.name, one.path, one.status)
        for one in server.requests
    ]
    assert logged == [
        ("create", "", "pods", "", "default", "", "", 201),
        ("create", "", "pods", "binding", "default", "p", "", 201),
        ("get", "coordination.k8s.io", "leases", "", "default", "absent", "", 404),
        ("get", "", "", "", "", "", "/version", 200),
    ]
    assert server.requests.rules("aiohttp") == {
        ("create", "", "pods"),
        ("create", "", "pods/binding"),
        ("get", "coordination.k8s.io", "leases"),
    }
    assert server.requests.rules("someone else") == set()
    assert all("aiohttp" in one.user_agent and one.port for one in server.requests)
    server.requests.clear()
    assert len(server.requests) == 0


async def test_unknown_control_paths(api: Api) -> None:
    assert (await api.get("/sandbox/nothing")).status == 404
