"""The embedded API server under load: requests and watch events per second of its own CPU time, and its memory when full.

The server runs in a child process with 5,000 nodes and 20,000 pods; this process is the client. What counts is the CPU time
of the server's process, so a busy machine does not change the figures.
"""

import asyncio
import multiprocessing
import resource
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from bench.figure import Figure
from koord_numa.sandbox.apiserver import ApiServer, JsonObject

_NODES = 5_000
_PODS = 20_000
_REQUESTS = 6_000
_EVENTS = 4_000
_WATCHERS = 4
_CLIENTS = 16
_PATH = "/api/v1/namespaces/default/pods"


def figures() -> Iterator[Figure]:
    """Requests (half reads, half binds), watch events with four watchers, and memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    try:
        yield from uvloop.run(_measure(ours))
    finally:
        ours.send("stop")
        child.join(10)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run cost: wall and server CPU seconds."""

    wall: float
    cpu: float


async def _measure(server: Connection) -> list[Figure]:
    url: str = await asyncio.to_thread(server.recv)
    # One connection each, or requests would wait in the client for one another.
    connector = aiohttp.TCPConnector(limit=_CLIENTS + _WATCHERS)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        mix = await _timed(server, _mixed(session))
        events = await _timed(server, _watched(session))
    memory: float = await asyncio.to_thread(_ask, server, "memory")
    return [
        Figure(
            "apiserver requests",
            _REQUESTS / mix.cpu,
            "1/s",
            3_000,
            "higher",
            f"{_REQUESTS / mix.wall:,.0f}/s on the clock",
        ),
        Figure(
            "apiserver watch events",
            _EVENTS / events.cpu,
            "1/s",
            1_000,
            "higher",
            f"each to {_WATCHERS} watchers, binds included",
        ),
        Figure("apiserver memory", memory, "MB", 600, "lower", f"{_NODES:,} nodes and {_PODS:,} pods"),
    ]


async def _timed(server: Connection, load: Coroutine[None, None, None]) -> Load:
    cpu = await asyncio.to_thread(_ask, server, "cpu")
    start = time.perf_counter()
    await load
    wall = time.perf_counter() - start
    return Load(wall, await asyncio.to_thread(_ask, server, "cpu") - cpu)


def _ask(server: Connection, question: str) -> float:
    server.send(question)
    answer: float = server.recv()
    return answer


async def _mixed(session: aiohttp.ClientSession) -> None:
    """Reads and binds in turn, from so many clients at once."""

    async def client(first: int) -> None:
        # Interleaved: every client walks through all pods, and none binds what another one reads.
        for number in range(first, _REQUESTS // 2, _CLIENTS):
            async with session.get(f"{_PATH}/pod-{number}") as answer:
                await answer.read()
            await _bind(session, number)

    await asyncio.gather(*(client(first) for first in range(_CLIENTS)))


async def _bind(session: aiohttp.ClientSession, number: int) -> None:
    annotations = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}'}
    body = {
        "metadata": {"name": f"pod-{number}", "annotations": annotations},
        "target": {"kind": "Node", "name": f"node-{number % _NODES}"},
    }
    async with session.post(f"{_PATH}/pod-{number}/binding", json=body) as answer:
        if answer.status != 201:
            raise RuntimeError(f"bind of pod-{number}: {await answer.text()}")


async def _watched(session: aiohttp.ClientSession) -> None:
    """Bind pods until every watcher has seen every one of them."""
    async with session.get(_PATH, params={"limit": "1"}) as answer:
        revision = (await answer.json())["metadata"]["resourceVersion"]

    async def watcher() -> None:
        seen = 0
        async with session.get(_PATH, params={"watch": "1", "resourceVersion": revision}) as stream:
            while seen < _EVENTS:
                seen += (await stream.content.readany()).count(b"\n")

    async def client(first: int) -> None:
        for number in range(first, _EVENTS, _CLIENTS):
            # The other half of the pods: those of the first run are bound already.
            await _bind(session, _PODS // 2 + number)

    await asyncio.gather(*(watcher() for _ in range(_WATCHERS)), *(client(first) for first in range(_CLIENTS)))


def _serve(client: Connection) -> None:
    """The child: a full server that answers questions about its process."""
    uvloop.run(_serving(client))


async def _serving(client: Connection) -> None:
    async with ApiServer() as server:
        for number in range(_NODES):
            server.store.create(_node(number))
        for number in range(_PODS):
            server.store.create(_pod(number))
        client.send(server.url)
        while (question := await asyncio.to_thread(client.recv)) != "stop":
            client.send(
                time.process_time() if question == "cpu" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            )


def _node(number: int) -> JsonObject:
    capacity = {"cpu": "128", "memory": "512Gi", "pods": "110"}
    status = {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}, "status": status}


def _pod(number: int) -> JsonObject:
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}
    spec = {"schedulerName": "koord-numa", "containers": [{"name": "main", "image": "app:1", "resources": resources}]}
    metadata = {"name": f"pod-{number}", "labels": {"app": f"app-{number % 100}", "koordinator.sh/qosClass": "LSR"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
