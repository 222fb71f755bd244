"""
The whole runtime against objects that mean no good: the process lives, an innocent pod is bound at any time, and nothing is left of them.

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

from koord_numa.app.runtime import Runtime
from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions, storage
from tests.chaos.hostile.objects import RESOURCES, Hostile
from tests.chaos.hostile.raw import HostileRecord
from tests.chaos.hostile.workloads import priority_classes
from tests.chaos.test_devices_by_id import DEVICES
from tests.cluster.objects import until
from tests.e2e.world import CRDS, JsonObject, World, shared, world
from tests.failure_modes.containers import container_sizes, most
from tests.operator.operating import operating, placed

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

THERE: Final = 60
"""Hostile objects that exist at a time, the oldest leaves first."""

HISTORY: Final = 500
"""Changes a kind that the API server keeps: it is not the memory of the simulated cluster that is tried here."""

CLASSES: Final = (".classes._known[]", ".request_class.")
"""Containers that grow with the number of requesting pods, and bounded caches and timers."""

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
        """Until so many more were taken; all of them are gone then."""
        most = self.made.total() + objects
        while self.made.total() < most:
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


@dataclass
class Innocents:
    """Number of innocent pods bound, and the longest time until a bind: in seconds, and in CPU seconds of this process."""

    count: int = 0
    longest: float = 0.0
    work: float = 0.0  # the API server's on hostile objects meanwhile included

    async def come(self, cluster: World, flood: asyncio.Task[None]) -> None:
        """One after the other for as long as the flood lasts."""
        while not flood.done():
            name = f"innocent-{self.count}"
            began, before = time.monotonic(), time.process_time()
            cluster.create([shared(name, "100m")])
            await until(partial(placed, cluster.server, name))
            self.longest = max(self.longest, time.monotonic() - began)
            self.work = max(self.work, time.process_time() - before)
            cluster.server.store.delete("pods", name, "default", AT_ONCE)
            self.count += 1
            await asyncio.sleep(0.02)


async def what_is_left(runtime: Runtime) -> dict[str, int]:
    """Return the size of each container after the hostile objects are gone. No data of a hostile object may remain."""
    handle = runtime.scheduler.handle
    await until(lambda: not len(handle.pending) and set(handle.cache.node_of.values()) <= {"n"})
    await runtime.recorder.flush()  # events wait for their turn, a bounded number of them
    sizes = container_sizes(runtime)
    return {path: size for path, size in sizes.items() if not any(each in path for each in CLASSES)}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Containers that are larger. What is in items of containers is as large as hostile objects were: they are compared roughly."""
    return {
        path: size
        for path, size in after.items()
        if size > (10 * before.get(path, 0) + 20_000 if "[]" in path else most(before.get(path, 0)))
    }


@pytest.mark.parametrize(("seed", "share"), [(1, 0.0), (2, 0.5)], ids=["valid", "raw"])
async def test_no_object_stops_the_scheduler(
    seed: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    objects = request.config.getoption("--hostile-objects") // 2
    for logger in [getLogger(name) for name in ("koord_numa", "kopf", "kopf.objects", "aiohttp.server")]:
        monkeypatch.setattr(logger, "level", CRITICAL)
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered
    monkeypatch.setattr(storage, "Record", HostileRecord)
    monkeypatch.setattr(HostileRecord, "dice", Random(seed))
    monkeypatch.setattr(HostileRecord, "share", share)
    async with (
        world(tmp_path, ONE_NODE, history=HISTORY, crds=(*CRDS, DEVICES)) as cluster,
        operating(cluster.server, tmp_path, monkeypatch) as runtime,
    ):
        for each in priority_classes():
            cluster.server.store.create(each)
        cluster.create([shared("first", "100m")])
        await until(partial(placed, cluster.server, "first"))
        flood, innocents = Flood(cluster.server, Hostile(Random(seed))), Innocents()
        left: list[dict[str, int]] = []
        for _ in range(2):
            flooding = asyncio.create_task(flood.go_on(objects // 2))
            try:
                await innocents.come(cluster, flooding)
            finally:
                flooding.cancel()
                await asyncio.gather(flooding, return_exceptions=True)
            left.append(await what_is_left(runtime))
        print(
            f"seed {seed}: {flood.made.total()} objects of {len(flood.made)} kinds, {flood.refused.total()} refused; "
            f"{innocents.count} innocent pods, the slowest bound after {innocents.longest:.2f} s, {innocents.work:.2f} s of "
            f"CPU; longest hold of the loop {runtime.loop_lag.worst:.2f} s; "
            f"contained: {dict(runtime.scheduler.handle.quarantine.counts)}"
        )
        assert grown(*left) == {}
        assert not runtime.tasks.failure.done()
        assert set(flood.made) == set(RESOURCES)
        assert runtime.scheduler.handle.quarantine.counts == {}
