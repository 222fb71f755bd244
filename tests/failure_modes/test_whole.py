"""Failure modes of the operator as a whole: what it leaves on objects, and what it survives from its first second on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord_numa.app.runtime import Runtime
from koord_numa.cluster.events import EventLimits
from koord_numa.engine import Source
from koord_numa.sandbox.apiserver import Effect, Fault
from koord_numa.settings import LeaseSettings, Settings
from tests.chaos.replicas import Replica
from tests.cluster.objects import PATIENCE, until
from tests.e2e.world import JsonObject, World, mixed_pods, pinned, shared, world

SETTINGS = Settings(lease=LeaseSettings(duration=60, renew=45, retry=2))
STATUS = "scheduling.koordinator.sh/resource-status"
EVENTS = "events.events.k8s.io"
TWO: JsonObject = {"machines": [{"name": "n", "count": 2, "sockets": 2, "numa": 1, "cores": 4, "threads": 2}]}


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, TWO) as made:
        yield made


@asynccontextmanager
async def operating(rack: World) -> AsyncIterator[Replica]:
    replica = Replica(SETTINGS, rack.kubeconfig, "me")
    try:
        yield replica
    finally:
        replica.stop()
        await replica.join()
        assert replica.errors == []


def leftovers(rack: World) -> list[str]:
    """Finalizers, and annotations that only a framework could have left."""
    found = []
    for kind in ("pods", "nodes", "noderesourcetopologies.topology.node.k8s.io"):
        for thing in rack.server.store.list(kind):
            about: dict[str, Any] = thing["metadata"]
            found += [f"{about['name']}: {finalizer}" for finalizer in about.get("finalizers", ())]
            found += [f"{about['name']}: {key}" for key in about.get("annotations", {}) if "kopf" in key]
    return found


async def test_nothing_is_left_on_other_peoples_objects(rack: World) -> None:
    rack.create([*mixed_pods(10), pinned("waits", 99)])
    async with operating(rack):
        await until(lambda: rack.unbound() == ["waits"])
        rack.server.store.delete("pods", "waits", "default")
        await until(lambda: rack.server.store.find("pods", "waits", "default") is None)
    assert leftovers(rack) == []


async def test_an_old_status_on_a_pod_without_a_node_is_overwritten(rack: World) -> None:
    stale = pinned("a", 2)
    stale["metadata"]["annotations"][STATUS] = '{"cpuset":"900-999"}'
    rack.create([stale])
    async with operating(rack):
        await until(lambda: not rack.unbound())
    status = orjson.loads(rack.server.store.get("pods", "a", "default")["metadata"]["annotations"][STATUS])
    assert status["cpuset"] in ("0,8", "0-1")
    assert rack.complaints() == []


async def test_a_server_that_is_away_at_the_start_is_waited_for(rack: World) -> None:
    await rack.server.suspend()
    rack.create([pinned("a", 2)])
    async with operating(rack):
        await asyncio.sleep(0)
        await rack.server.start()
        await until(lambda: not rack.unbound())


async def test_without_the_right_to_list_nodes_the_rule_is_named(rack: World) -> None:
    denied = rack.server.faults.add(Fault(status=403, verb="list", resource="nodes"))
    rack.create([pinned("a", 2)])
    async with operating(rack) as replica:
        problems: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while not any("list nodes" in problem for problem in problems):
                problems = await replica.ask(lambda runtime: list(runtime._not_ready()), [])
                await asyncio.sleep(0.01)
        assert rack.unbound() == ["a"]
        assert Source.NODES in await replica.ask(lambda runtime: runtime.scheduler.missing, frozenset[Source]())
        rack.server.faults.remove(denied)
        await until(lambda: not rack.unbound())


async def test_events_that_cannot_be_written_delay_no_pod(rack: World) -> None:
    rack.server.faults.add(Fault(status=403, verb="create", resource="events"))
    rack.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, resource="events", verb="patch"))
    rack.create([shared(f"pod-{number}", "100m") for number in range(30)])
    async with operating(rack):
        await until(lambda: not rack.unbound())


async def test_a_slow_server_binds_everyone_once(rack: World) -> None:
    rack.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=0.3, subresource="binding"))
    rack.create([pinned(f"pod-{number}", 1) for number in range(12)])
    async with operating(rack):
        await until(lambda: not rack.unbound())
    assert set(rack.binds().values()) == {1}
    assert rack.complaints() == []


async def test_two_that_both_believe_to_be_alone_do_no_harm(rack: World) -> None:
    """Two clusters of replicas that do not know each other: other leases, the same pods. Binds are conditional."""
    other = Settings(lease=LeaseSettings(name="other", duration=60, renew=45, retry=2))
    rack.create([shared(f"pod-{number}", "100m") for number in range(60)])
    second = Replica(other, rack.kubeconfig, "second")
    async with operating(rack):
        await until(lambda: not rack.unbound())
    second.stop()
    await second.join()
    assert set(rack.binds().values()) == {1}
    assert second.errors == []


@pytest.mark.rights
async def test_a_repeated_event_is_one_object_with_a_count(rack: World) -> None:
    async with operating(rack) as replica:
        await until(lambda: replica.alive and rack.server.open_watches)

        def tell(runtime: Runtime) -> bool:
            runtime.recorder._limits = EventLimits(series_pause=0.0)
            runtime.recorder.node_event("n-0", warning=True, reason="KubeletRefusal", message="as before")
            return True

        def told() -> list[JsonObject]:
            return [event for event in rack.server.store.list(EVENTS) if event["reason"] == "KubeletRefusal"]

        assert await replica.ask(tell, False)
        await until(told)
        assert await replica.ask(tell, False)
        await until(lambda: told()[0].get("series"))
    assert [event["series"]["count"] for event in told()] == [2]
