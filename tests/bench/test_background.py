"""Background load without scheduling: watchers receive every counted update."""

from collections.abc import AsyncIterator

import pytest

from bench.cluster._background import TOPOLOGIES, Background
from bench.cluster._cluster import Cluster
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(crds=definitions()) as running:
        yield running


@pytest.mark.parametrize("kind", ["publish", "heartbeat", "start"])
async def test_every_update_changes_its_object_in_each_measurement(server: ApiServer, kind: str) -> None:
    cluster, told = Cluster(server), list[str]()
    await cluster.nodes(4, "exporting")
    await cluster.placed(4, 4)
    watched = {"publish": TOPOLOGIES, "heartbeat": "nodes", "start": "pods"}[kind]
    server.store.subscribe(watched, lambda event, _: told.append(event))
    for _ in range(3):
        background = Background(server.store)
        for number in range(16):
            told.clear()
            getattr(background, kind)(number)
            assert told == ["MODIFIED"]
