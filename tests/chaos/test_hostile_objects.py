"""
The whole runtime against objects that mean no good: the process lives, and an innocent pod is bound at any time.

``--hostile-objects`` makes the run longer. The seed is printed, and the longest time that an innocent pod took.
"""

import asyncio
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path
from random import Random
from typing import Final

import pytest

from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from tests.chaos.hostile.objects import RESOURCES, Hostile
from tests.chaos.hostile.workloads import priority_classes
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, World, shared, world
from tests.operator.operating import operating, placed

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

THERE: Final = 60
"""Hostile objects that exist at a time, the oldest leaves first."""

AT_ONCE: Final = DeleteOptions(grace=0)
ONE_NODE: Final[JsonObject] = {
    "machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 8, "threads": 2, "memory": "64Gi"}]
}


@dataclass
class Flood:
    """Hostile objects that come, change and go. ``made`` and ``refused`` count what the API server took and what it did not."""

    server: ApiServer
    hostile: Hostile
    made: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    _there: deque[tuple[str, str, str]] = field(default_factory=deque)

    async def go_on(self, objects: int) -> None:
        """Until so many were taken."""
        while self.made.total() < objects:
            found = self.hostile.any_object()
            try:
                self._put(found)
                self.made[found["kind"]] += 1
            except ApiError:
                self.refused[found["kind"]] += 1
            await asyncio.sleep(0)
        self.end()

    def end(self) -> None:
        """Everything goes."""
        while self._there:
            self._remove(*self._there.popleft())

    def _put(self, found: JsonObject) -> None:
        metadata = found["metadata"]
        place = (RESOURCES[found["kind"]], metadata["name"], metadata.get("namespace", ""))
        if found["kind"] == "ResourceClaim":
            self._remove(*place)  # what it asks for cannot be changed
        self.server.store.apply(found)
        self._there.append(place)
        if len(self._there) > THERE:
            self._remove(*self._there.popleft())

    def _remove(self, resource: str, name: str, namespace: str) -> None:
        with suppress(ApiError):
            self.server.store.delete(resource, name, namespace, AT_ONCE)


async def innocents(cluster: World, flood: asyncio.Task[None]) -> tuple[int, float, float]:
    """
    One innocent pod after the other for as long as the flood lasts.

    Returns how many, and the longest time until one was bound: in seconds, and in seconds of this process's CPU, the API server's
    work on hostile objects meanwhile included.
    """
    count, longest, work = 0, 0.0, 0.0
    while not flood.done():
        name = f"innocent-{count}"
        began, before = time.monotonic(), time.process_time()
        cluster.create([shared(name, "100m")])
        await until(partial(placed, cluster.server, name))
        longest, work = max(longest, time.monotonic() - began), max(work, time.process_time() - before)
        cluster.server.store.delete("pods", name, "default", AT_ONCE)
        count += 1
        await asyncio.sleep(0.02)
    return count, longest, work


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_object_stops_the_scheduler(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    objects = request.config.getoption("--hostile-objects") // 2
    for logger in [getLogger(name) for name in ("koord_numa", "kopf", "kopf.objects", "aiohttp.server")]:
        monkeypatch.setattr(logger, "level", CRITICAL)
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered
    async with (
        world(tmp_path, ONE_NODE) as cluster,
        operating(cluster.server, tmp_path, monkeypatch) as runtime,
    ):
        for each in priority_classes():
            cluster.server.store.create(each)
        cluster.create([shared("first", "100m")])
        await until(partial(placed, cluster.server, "first"))
        flood = Flood(cluster.server, Hostile(Random(seed)))
        flooding = asyncio.create_task(flood.go_on(objects))
        try:
            count, longest, work = await innocents(cluster, flooding)
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        print(
            f"seed {seed}: {flood.made.total()} objects of {len(flood.made)} kinds, {flood.refused.total()} refused; "
            f"{count} innocent pods, the slowest bound after {longest:.2f} s, {work:.2f} s of CPU; longest hold "
            f"of the loop {runtime.loop_lag.worst:.2f} s; contained: {dict(runtime.scheduler.handle.quarantine.counts)}"
        )
        assert not runtime.tasks.failure.done()
        assert set(flood.made) == set(RESOURCES)
        assert runtime.scheduler.handle.quarantine.counts == {}
