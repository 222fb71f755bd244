"""
State of a replica in a cluster that does not come to rest: the text of a failure that may be rare.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson

from koord_numa.app.debug import Dump, pod_dump
from koord_numa.app.runtime import Runtime
from koord_numa.sandbox.apiserver import ApiError, ApiServer
from koord_numa.sandbox.machines.simulated_node import TOPOLOGIES
from tests.chaos.replicas import Replica
from tests.chaos.stacks import stacks
from tests.e2e.world import JsonObject

MOST: Final = 12
"""So many waiting pods are described."""

ANSWER_SECONDS: Final = 30.0
"""Seconds that a replica has to describe its state. A replica whose event loop is blocked never answers."""


async def diagnosis(server: ApiServer, replicas: Iterable[Replica], waiting: Iterable[str]) -> str:
    """For people: waiting pods as the API server has them; then for each replica its lease, its sources, its queue and its tasks."""
    names = sorted(waiting)[:MOST]
    lines = [f"{name}: {_in_store(server, name)}" for name in names]
    published = {it["metadata"]["name"]: it["metadata"]["resourceVersion"] for it in server.store.list(TOPOLOGIES)}
    for replica in replicas:
        lines += ["", f"{replica.identity}:", *await _described(replica, names, published)]
    return "\n".join(lines)


def _in_store(server: ApiServer, name: str) -> str:
    try:
        pod: JsonObject = server.store.get("pods", name, "default")
    except ApiError as error:
        return str(error)
    status = pod.get("status", {})
    conditions = [it for it in status.get("conditions", ()) if it["type"] == "PodScheduled"]
    metadata = {key: pod["metadata"].get(key) for key in ("uid", "resourceVersion", "deletionTimestamp")}
    return str({**metadata, "phase": status.get("phase"), "scheduled": conditions})


async def _described(replica: Replica, names: list[str], published: Mapping[str, str]) -> list[str]:
    def describe(runtime: Runtime) -> list[str]:
        topologies = _topologies(runtime, published)
        return [*_sources(runtime), *topologies, *_queue(runtime, names), *stacks(asyncio.get_running_loop())]

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            lines = await replica.ask(describe, ["has not begun, or has ended"])
    except TimeoutError:
        lines = [f"its event loop did not answer within {ANSWER_SECONDS:g} s"]
    return [f"  {line}" for line in (*replica.errors, *lines)]


def _sources(runtime: Runtime) -> Iterator[str]:
    scheduler, lease = runtime.scheduler, runtime.lease
    yield f"leads: {lease.fresh()}, holder: {lease.holder!r}, problem: {lease.problem!r}"
    yield f"ready: {scheduler.ready}, failure: {runtime.tasks.failure!r}"
    for informer in runtime.informers.all:
        if not informer.synced or informer.problem:
            yield f"{informer.kind}: synced {informer.synced}, stuck {informer.stuck:.0f} s, {informer.problem!r}"
    for resync in runtime.informers.resyncs:
        yield f"resync of {resync.name}: synced {resync.synced}, {resync.problem!r}"


def _topologies(runtime: Runtime, published: Mapping[str, str]) -> Iterator[str]:
    """Nodes whose topology is known in another version than the API server has."""
    for name, info in runtime.scheduler.cache.nodes.items():
        known, there = info.version, published.get(name)
        used = info.topology is not None
        if known != there or not used:
            node = "" if info.node is None else info.node.uid
            yield f"topology of {name}: known {known}, published {there}, used {used}, node {node}, {info.published}"


def _queue(runtime: Runtime, names: Iterable[str]) -> Iterator[str]:
    scheduler = runtime.scheduler
    yield f"queue: {scheduler.queue.numbers()}, {scheduler.queue.sizes()}, pending: {len(scheduler.handle.pending)}"
    yield f"assumed: {[*map(str, scheduler.cache.assumed)]}"
    for name in names:
        dump: Dump | None = pod_dump(scheduler, "default", name, lambda: runtime.lease.holder)
        yield f"{name}: {'unknown' if dump is None else orjson.dumps(dump).decode()}"
