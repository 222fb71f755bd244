"""What the operator learns from an API server besides what the other tests show."""

from pathlib import Path

import pytest

from tests.cluster.objects import until
from tests.e2e.world import JsonObject, pinned, world
from tests.test_operator import operating

NODE: JsonObject = {"machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]}


async def test_room_for_which_another_scheduler_has_evicted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, NODE) as rack:
        theirs = pinned("theirs", 12, scheduler="default-scheduler")
        rack.create([theirs, pinned("nobody", 2, scheduler="default-scheduler")])
        rack.server.store.patch("pods", "theirs", {"status": {"nominatedNodeName": "n"}}, "default", "status")
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            await until(lambda: all(mirror.synced for mirror in runtime.sources.mirrors))
            assert set(runtime.engine.cache.nodes["n"].nominees) == {
                rack.server.store.get("pods", "theirs", "default")["metadata"]["uid"]
            }
            rack.create([pinned("ours", 8)])
            await until(lambda: runtime.engine.queue_numbers().unschedulable == 1)
            rack.server.store.patch("pods", "theirs", {"status": {"nominatedNodeName": None}}, "default", "status")
            await until(lambda: "ours" not in rack.unbound())
