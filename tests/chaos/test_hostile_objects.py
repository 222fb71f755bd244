"""
The whole runtime against objects that mean no good: the process lives, and an innocent pod is bound at any time.

``--hostile-objects`` makes the run longer. The seed is printed.
"""

import asyncio
from contextlib import suppress
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path
from random import Random
from typing import Final

import pytest

from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from tests.chaos.hostile import Hostile
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, shared, world
from tests.test_operator import operating, placed

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

BATCH: Final = 50
AT_ONCE: Final = DeleteOptions(grace=0)
ONE_NODE: Final[JsonObject] = {
    "machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 8, "threads": 2, "memory": "64Gi"}]
}


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_object_stops_the_scheduler(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    objects = request.config.getoption("--hostile-objects") // 2
    print(f"seed {seed}, {objects} objects")
    hostile, made = Hostile(Random(seed)), 0
    loggers = [getLogger(name) for name in ("koord_numa", "kopf", "kopf.objects", "aiohttp.server")]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", CRITICAL)
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered
    async with world(tmp_path, ONE_NODE) as cluster, operating(cluster.server, tmp_path, monkeypatch) as runtime:
        while made < objects:
            there: list[JsonObject] = []
            while len(there) < BATCH:
                found = hostile.any_object()
                with suppress(ApiError):  # the server refuses some, and names that exist
                    cluster.server.store.create(found)
                    there.append(found)
            made += len(there)
            innocent = f"innocent-{made}"
            cluster.create([shared(innocent, "100m")])
            await until(partial(placed, cluster.server, innocent), 30.0)
            await asyncio.sleep(0.05)
            for found in [*there, shared(innocent)]:
                _delete(cluster.server, found)
        print(f"contained: {dict(runtime.scheduler.handle.quarantine.counts)}")
        assert not runtime.tasks.failure.done()


def _delete(server: ApiServer, found: JsonObject) -> None:
    kinds = {
        "Pod": "pods",
        "Node": "nodes",
        "NodeResourceTopology": "noderesourcetopologies.topology.node.k8s.io",
        "PodDisruptionBudget": "poddisruptionbudgets.policy",
        "RebindResource": "rebindresources.scheduling.koordinator.sh",
    }
    metadata = found["metadata"]
    with suppress(ApiError):
        server.store.delete(kinds[found["kind"]], metadata["name"], metadata.get("namespace", ""), AT_ONCE)
