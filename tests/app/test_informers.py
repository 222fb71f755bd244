"""Objects that reach the operator from an API server, with Kopf or an informer watching waiting pods."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koord_numa.app import informers
from koord_numa.core.objects.request import Pod
from koord_numa.sandbox.apiserver import DeleteOptions
from koord_numa.settings import PodSource
from koord_numa.wire.pods import parse_pod
from tests.cluster.objects import pod, until
from tests.e2e.world import JsonObject, pinned, shared, world
from tests.operator.operating import operating

NODE: JsonObject = {"machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]}


async def test_room_freed_by_another_scheduler_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, NODE) as rack:
        theirs = pinned("theirs", 12, scheduler="default-scheduler")
        rack.create([theirs, pinned("foreign", 2, scheduler="default-scheduler")])
        rack.server.store.patch("pods", "theirs", {"status": {"nominatedNodeName": "n"}}, "default", "status")
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            await until(lambda: all(informer.synced for informer in runtime.informers.all))
            assert set(runtime.scheduler.cache.nodes["n"].nominees) == {
                rack.server.store.get("pods", "theirs", "default")["metadata"]["uid"]
            }
            rack.create([pinned("ours", 8)])
            await until(lambda: runtime.scheduler.queue.numbers().unschedulable == 1)
            rack.server.store.patch("pods", "theirs", {"status": {"nominatedNodeName": None}}, "default", "status")
            await until(lambda: "ours" not in rack.unbound())


@pytest.fixture(name="read")
def names_of_pods_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of pods that were read in full, as it goes on."""
    read: list[str] = []

    def noted(raw: Mapping[str, Any]) -> Pod:
        read.append(raw["metadata"]["name"])
        return parse_pod(raw)

    monkeypatch.setattr(informers, "parse_pod", noted)
    return read


async def test_a_new_list_reads_only_what_is_new_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    async with world(tmp_path, NODE) as rack:
        rack.create([pinned("bound", 2), shared("waits", "99"), pod("foreign", scheduler="other")])
        async with operating(rack.server, tmp_path, monkeypatch, pods=PodSource.INFORMER) as runtime:
            engine = runtime.scheduler
            await until(lambda: engine.ready)
            await until(lambda: [seen.started for seen in engine.cache.nodes["n"].pods.values()] == [True])
            await until(lambda: engine.queue.numbers().unschedulable == 1)
            await until(lambda: bool(rack.server.store.get("pods", "waits", "default")["status"].get("conditions")))
            conditions = rack.server.store.get("pods", "waits", "default")["metadata"]["resourceVersion"]
            await until(lambda: [seen.resource_version for seen in engine.waiting()] == [conditions])
            read.clear()
            for informer in runtime.informers.essential:
                await informer.refresh()
            assert read == ["foreign"]
            assert ([seen.key.name for seen in engine.waiting()], len(engine.cache.node_of)) == (["waits"], 1)


async def test_other_schedulers_pods_count_when_they_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, NODE) as rack, operating(rack.server, tmp_path, monkeypatch) as runtime:
        await until(lambda: runtime.scheduler.ready)
        rack.create([pod("foreign", scheduler="other")])
        rack.create([shared("ours", "1")])
        await until(lambda: rack.unbound() == ["foreign"])
        await until(lambda: not runtime.scheduler.waiting())
        rack.server.store.delete("pods", "foreign", "default")
        rack.create([pod("placed", scheduler="other", node="n")])
        await until(lambda: len(runtime.scheduler.cache.node_of) == 2)


@pytest.mark.parametrize("source", list(PodSource))
async def test_a_counted_pod_that_is_deleted_is_not_read_again(
    source: PodSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    async with world(tmp_path, NODE) as rack:
        rack.server.store.create(pod("placed", scheduler="other", node="n"))
        async with operating(rack.server, tmp_path, monkeypatch, pods=source) as runtime:
            cache = runtime.scheduler.cache
            await until(lambda: runtime.scheduler.ready)
            await until(lambda: [seen.started for seen in cache.nodes["n"].pods.values()] == [True])
            read.clear()
            rack.server.store.delete("pods", "placed", "default", DeleteOptions(grace=0))
            await until(lambda: not cache.node_of)
            assert read == []
