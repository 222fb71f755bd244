"""Debug documents of nodes and pods, over HTTP and without."""

from pathlib import Path

import aiohttp
import pytest

from koord_numa.app.debug import node_dump, pod_dump
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment
from koord_numa.core.objects.vocabulary import CpuOwner
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, pinned, shared, world
from tests.engine.world import GIB, bound, make_node, make_pod, make_topology, make_world
from tests.operator.operating import operating

CPUS = CpuSet.parse("0-1")


async def test_a_node_with_its_ledger() -> None:
    world = make_world(make_node("n"))
    world.engine.handlers.topologies.observe(None, make_topology("n"))
    given = Assignment(cpus=CPUS, numa=((0, {"cpu": 2000, "memory": GIB}),))
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("a", 2000), "n", assignment=given))
    sheet = node_dump(world.engine, "n")
    assert sheet is not None
    revision = sheet.pop("revision")
    assert revision == world.engine.cache.nodes["n"].revision
    assert sheet == {
        "node": "n",
        "exists": True,
        "takesNoPodsBecause": "",
        "topology": {"version": "", "cpusOf": CpuOwner.SCHEDULER.value, "problem": ""},
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "held": {"cpu": "2", "memory": "1Gi"},
        "heldCPUs": "0-1",
        "freeCPUs": "2-7",
        "numa": [
            {"numa": 0, "total": {"cpu": "4", "memory": "16Gi"}, "free": {"cpu": "2", "memory": "15Gi"}},
            {"numa": 1, "total": {"cpu": "4", "memory": "16Gi"}, "free": {"cpu": "4", "memory": "16Gi"}},
        ],
        "largestAligned": {"cpu": "4", "memory": "16Gi"},
        "pods": [
            {
                "pod": "default/a",
                "uid": "uid-a",
                "state": "bound",
                "holds": {"cpu": "2", "memory": "1Gi"},
                "cpus": "0-1",
                "numa": {"0": {"cpu": "2", "memory": "1Gi"}},
                "inTopology": False,
            }
        ],
        "nominees": [],
    }
    assert pod_dump(world.engine, "default", "a") == sheet["pods"][0] | {"node": "n"}


async def test_why_a_node_takes_no_pods() -> None:
    world = make_world(
        make_node("cordoned", unschedulable=True), make_node("locked"), make_node("bad", problem="is odd")
    )
    world.engine.lock_node("locked", "rebind r works on it")
    world.engine.handlers.bound_pods.observe(None, make_pod("early", node="unknown"))
    reasons = {}
    for name in ("cordoned", "locked", "bad", "unknown"):
        sheet = node_dump(world.engine, name)
        assert sheet is not None
        reasons[name] = sheet["takesNoPodsBecause"]
    assert reasons == {
        "cordoned": "the node is cordoned",
        "locked": "node(s) were locked by a rebind: rebind r works on it",
        "bad": "node(s) had malformed labels or annotations: is odd",
        "unknown": "there is no such Node",
    }
    assert node_dump(world.engine, "never heard of") is None


async def test_a_pod_that_waits_and_why() -> None:
    world = make_world(make_node("n", cpu=2))
    world.waits(make_pod("big", 4000))
    await world.settle()
    world.clock.now += 7
    assert pod_dump(world.engine, "default", "big") == {
        "pod": "default/big",
        "uid": "uid-big",
        "priority": 0,
        "state": "waiting",
        "node": "",
        "nominatedNode": "",
        "waitedSeconds": 7.0,
        "attempts": 1,
        "why": world.engine.explain("uid-big"),
        "refusedBy": {"n": {"reason": "resources", "message": "Insufficient cpu"}},
    }
    assert world.engine.explain("uid-big").startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert pod_dump(world.engine, "other", "big") is None


async def test_a_standby_says_who_decides() -> None:
    world = make_world(make_node("n", cpu=2))
    world.lease.held = False
    world.waits(make_pod("big", 4000), make_pod("bad", problem="is odd"))
    said = {}
    for name in ("big", "bad"):
        sheet = pod_dump(world.engine, "default", name, lambda: "host-1_42")
        assert sheet is not None
        said[name] = sheet["why"]
    assert said == {"big": "this replica is not the leader; ask host-1_42", "bad": "is odd"}
    sheet = pod_dump(world.engine, "default", "big")
    assert sheet is not None
    assert sheet["why"] == "this replica is not the leader; ask the leader, when there is one"


async def test_the_state_between_a_decision_and_its_confirmation() -> None:
    world = make_world(make_node("n"))
    seen: list[object] = []

    def look(call: str) -> None:
        if call == "bind before":
            sheet = pod_dump(world.engine, "default", "a")
            assert sheet is not None
            seen.append((sheet["state"], sheet["node"], sheet["attempts"]))

    world.server.fail = look
    world.waits(make_pod("a"))
    await world.settle()
    assert seen == [("assumed", "n", 1)]


async def test_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines: JsonObject = {
        "machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]
    }
    async with world(tmp_path, machines) as rack:
        rack.create([pinned("a", 2, policy="SingleNUMANode"), shared("big", "100")])
        async with operating(rack.server, tmp_path, monkeypatch) as runtime, aiohttp.ClientSession() as session:
            await until(lambda: rack.unbound() == ["big"] and runtime.scheduler.queue.numbers().unschedulable == 1)
            url = f"http://127.0.0.1:{runtime.http_server.port}"

            async def ask(path: str) -> tuple[int, JsonObject]:
                async with session.get(f"{url}{path}") as response:
                    assert response.content_type == "application/json"
                    return response.status, await response.json()

            status, node = await ask("/nodes/n")
            assert (status, node["heldCPUs"], [pod["pod"] for pod in node["pods"]]) == (200, "0,8", ["default/a"])
            status, pod = await ask("/pods/default/big")
            assert (status, pod["state"], pod["refusedBy"]["n"]["reason"]) == (200, "waiting", "resources")
            assert await ask("/nodes/m") == (404, {"error": "there is no node m"})
            assert await ask("/pods/default/b") == (404, {"error": "there is no pod default/b"})
            async with session.post(f"{url}/nodes/n") as response:
                assert response.status == 405
