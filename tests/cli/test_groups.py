"""Groups of pods in ``explain`` and ``simulate``: their members are decided on together."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from koord_numa.app.api import ViewApi
from koord_numa.app.debug import pod_dump
from koord_numa.core.objects.gangs import GangSpec, TopologyLevel
from koord_numa.core.objects.request import Pod
from koord_numa.engine.gangs.group_report import dry_run_group
from koord_numa.view.waiting import WaitingGroups, advise_group
from tests.cli.small import ask, pod, small_cluster
from tests.engine.gangs.test_groups import KEY, group, members
from tests.engine.world import World, bound, make_node, make_pod, make_world

OWN = {"kind": "own"}  # two NUMA nodes of 8 CPUs


def gang(count: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, **spec},
    }


def trainer(number: int, cpu: int = 6) -> dict[str, Any]:
    obj = pod(f"train-{number}", cpu, numa="SingleNUMANode", **OWN)
    obj["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    return obj


def trainers(count: int, cpu: int = 6) -> list[dict[str, Any]]:
    return [trainer(number, cpu) for number in range(count)]


async def test_a_group_in_a_manifest_is_placed_together_or_not_at_all(tmp_path: Path) -> None:
    two, three = [gang(2), *trainers(2)], [gang(3), *trainers(3)]
    async with small_cluster(tmp_path) as cluster:
        fits = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(two))
        waits = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(three))
    assert (fits.exit_code, fits.output.splitlines()[1::2]) == (
        0,
        ["  own, NUMA 0, CPUs 0-2,8-10", "  own, NUMA 1, CPUs 4-6,12-14", "2 of 2 pods would be placed."],
    )
    assert waits.exit_code == 1
    assert "0 of 3 pods would be placed." in waits.output
    assert waits.output.count("gang default/train: minCount (3) cannot be satisfied") == 3


def prior(objects: list[dict[str, Any]], priority: int = 10) -> list[dict[str, Any]]:
    """The pods of these objects with a priority."""
    for obj in objects:
        if obj["kind"] == "Pod":
            obj["spec"]["priority"] = priority
    return objects


async def test_evictions_for_a_group_are_simulated(tmp_path: Path) -> None:
    low = pod("low", 6, node="own", cpus="0-2,8-10")
    later = pod("later", 6, numa="SingleNUMANode", **OWN)
    manifest = [*prior([gang(2), *trainers(2)]), later]
    never = prior([gang(2), *trainers(2)])
    for obj in never[1:]:
        obj["spec"]["preemptionPolicy"] = "Never"
    async with small_cluster(tmp_path, low) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(manifest))
        refused = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(never))
        big = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(prior([gang(3), *trainers(3)])))
    text = " ".join(answer.output.split())
    assert text.count("2 pods of the group, 1 pod(s) are evicted: default/low.") == 2, answer.output
    # The room is kept: the pod after the group does not get it.
    assert "0 of 3 pods would be placed. For 2 more, room would be made by evictions." in text
    assert refused.output.count("preemptionPolicy=Never") == 2
    assert "evicted" not in big.output


async def test_explain_names_the_evictions_for_a_group(tmp_path: Path) -> None:
    low = pod("low", 6, node="own", cpus="0-2,8-10")
    important = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "important"},
        "value": 10,
    }
    waiting = trainers(2)
    for obj in waiting:
        obj["spec"]["priorityClassName"] = "important"
    async with small_cluster(tmp_path, low, important, gang(2), *waiting) as cluster:
        answer = await ask(cluster, "explain", "train-0")
    assert "1 pod(s) are evicted: default/low" in " ".join(answer.output.split()), answer.output


async def test_a_group_of_the_cluster_is_completed_by_a_manifest(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, gang(3), trainer(0, 4), trainer(1, 4)) as cluster:
        alone = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(trainer(1, 4)))
        last = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(trainer(2, 4)))
    # A pod of the manifest replaces the pod of its name.
    assert "2 of 3 pods of default/train exist" in " ".join(alone.output.split())
    assert (last.exit_code, "1 of 1 pods would be placed." in last.output) == (0, True)


async def test_members_beyond_the_minimal_count_wait_alone(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, gang(2)) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(trainers(3)))
    assert "2 of 3 pods would be placed." in answer.output
    assert "minCount" not in answer.output


async def test_why_a_group_of_the_cluster_waits(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, gang(3), *trainers(3)) as cluster:
        answer = await ask(cluster, "explain", "train-0")
        listed = await ask(cluster, "explain")
    assert answer.output.splitlines() == [
        "default/train-0  6 CPU 1Gi  SingleNUMANode",
        "  gang default/train: minCount (3) cannot be satisfied: 2 scheduled, 0 remaining; pod train-2 fits",
        "    beside 2 placed members on no node: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s)",
        "    didn't match Pod's node affinity/selector.",
        "",
        "  gang default/train (scheduling.k8s.io): minCount 3, 3 pods exist, 0 with a node",
        "  blocked by default/train-2, beside 2 placed pods",
        "",
        "  What would make the group fit:",
        "  - with minCount 2 instead of 3 it fits on own",
        "  - container c with 4 CPUs instead of 6 in 3 pods fits on own",
        "  From the API objects, not from a running scheduler.",
    ]
    assert listed.output.count("with minCount 2 instead of 3 it fits on own") == 3


async def test_a_group_by_its_name(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, gang(3), *trainers(2)) as cluster:
        waiting = await ask(cluster, "explain", "podgroup/train")
        as_json = await ask(cluster, "explain", "pg/train", "-n", "default", "-o", "json")
        unknown = await ask(cluster, "explain", "podgroup/other")
    assert waiting.output.splitlines() == [
        "default/train  6 CPU 1Gi",
        "  waiting for minCount pods from a gang to appear in scheduling queue: 2 of 3 pods of default/train",
        "    exist",
        "  gang default/train (scheduling.k8s.io): minCount 3, 2 pods exist, 0 with a node",
        "",
        "  What would make the group fit:",
        "  - with minCount 2 instead of 3 it fits on own",
        "  By the API objects.",
    ]
    view = json.loads(as_json.output)
    assert (view["kind"], view["state"], view["gangs"][0]["minCount"]) == ("GroupView", "waiting", 3)
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: there is no group default/other\n")


async def test_a_group_whose_pods_all_run_by_its_name(tmp_path: Path) -> None:
    running = [{**trainer(0), "status": {"phase": "Running"}}]
    running[0]["spec"]["nodeName"] = "own"
    async with small_cluster(tmp_path, gang(1), *running) as cluster:
        answer = await ask(cluster, "explain", "podgroup/train")
    assert answer.output.splitlines() == [
        "default/train",
        "  gang default/train (scheduling.k8s.io): minCount 1, 1 pod exists, 1 with a node",
        "  By the API objects.",
    ]


async def test_an_incomplete_group_says_how_many_pods_exist(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, gang(4), *trainers(2)) as cluster:
        answer = await ask(cluster, "explain", "train-0")
    assert "2 of 4 pods of default/train exist" in " ".join(answer.output.split())
    assert "  gang default/train (scheduling.k8s.io): minCount 4, 2 pods exist, 0 with a node" in answer.output
    assert "  - with minCount 2 instead of 4 it fits on own" in answer.output


async def test_a_dry_run_ends_when_its_members_are_bound_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = racks(p0=16, q0=16)
    group(world, GangSpec(4))
    world.waits(*members(4, cpu=2000))
    monkeypatch.setattr("koord_numa.engine.gangs.trial.TURN_STEPS", 1)
    dry_run = asyncio.ensure_future(dry_run_group(world.engine.handle, (KEY,)))
    await asyncio.sleep(0)
    assert not any(world.ledgers().values())
    monkeypatch.setattr("koord_numa.engine.gangs.trial.TURN_STEPS", 2_000)
    while not dry_run.done() and await world.step() is not None:
        pass
    report = await dry_run
    assert (report.placed, report.rejection, report.why) == (None, None, "")
    bound_to = [list(world.engine.cache.nodes[name].pods) for name in ("p0", "q0")]
    assert sorted(uid for uids in bound_to for uid in uids) == [f"uid-m{number}" for number in range(4)]
    assert not any(info.nominees for info in world.engine.cache.nodes.values())


def racks(**cpus: int) -> World:
    return make_world(*(make_node(name, cpu=cpu, labels={"rack": name[0]}) for name, cpu in cpus.items()))


async def advice(world: World) -> list[str]:
    report, before = await dry_run_group(world.engine.handle, (KEY,)), world.ledgers()
    texts = [remedy.text for remedy in await advise_group(world.engine, report)]
    assert world.ledgers() == before
    return texts


async def test_a_topology_constraint_is_explained_by_domain() -> None:
    world = racks(p0=4, p1=4, q0=4)
    group(world, GangSpec(3, levels=(TopologyLevel("rack"),)))
    world.waits(*members(3, cpu=3000))
    await world.settle()
    (entry,) = await WaitingGroups(world.engine).read()
    assert [(it["name"], it["placed"], it["members"], it["blockedBy"]) for it in entry["domains"]] == [
        ("rack=p", 2, 3, "default/m2"),
        ("rack=q", 1, 3, "default/m1"),
    ]
    assert entry["domains"][1]["why"] == "pod m1 fits on no node: 0/1 nodes are available: 1 Insufficient cpu."
    assert [it["text"] for it in entry["wouldFit"]] == [
        "with minCount 2 instead of 3 it fits on p0, p1",
        "without the topology constraint rack it fits on p0, p1, q0",
        "container app with 2 CPUs instead of 3 in 3 pods fits on p0, p1",
    ]


async def test_a_running_scheduler_explains_a_group(tmp_path: Path) -> None:
    world = racks(p0=4, q0=4)
    group(world, GangSpec(2, levels=(TopologyLevel("rack"),)))
    world.waits(*members(2, cpu=3000))
    await world.settle()
    app = web.Application()
    app.add_routes(ViewApi(world.engine, partial(pod_dump, world.engine), list).routes())
    async with TestServer(app) as server, small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "explain", "m0", "--scheduler", str(server.make_url("")).rstrip("/"))
        by_name = await ask(cluster, "explain", "podgroup/g", "--scheduler", str(server.make_url("")).rstrip("/"))
        async with ClientSession() as session, session.get(server.make_url("/api/v1/waiting")) as response:
            waiting = await response.json()
    lines = answer.output.splitlines()
    assert lines[lines.index("") :][:-1] == [
        "",
        "  gang default/g (scheduling.k8s.io): minCount 2, 2 pods exist, 0 with a node",
        "  blocked by default/m1, beside 1 placed pod",
        "  rack=p: 1 of 2 pods; pod m1 fits on no node: 0/1 nodes are available: 1 Insufficient cpu.",
        "  rack=q: 1 of 2 pods; pod m1 fits on no node: 0/1 nodes are available: 1 Insufficient cpu.",
        "",
        "  What would make the group fit:",
        "  - with minCount 1 instead of 2 it fits on p0",
        "  - without the topology constraint rack it fits on p0, q0",
        "  - container app with 2 CPUs instead of 3 in 2 pods fits on p0",
        "",
        "  Waited 0 s, tried 1 time.",
    ]
    assert "  blocked by default/m1, beside 1 placed pod" in by_name.output.splitlines()
    assert [(it["pods"], it["why"].partition(":")[0]) for it in waiting["groups"]] == [
        (["default/m0", "default/m1"], "gang default/g")
    ]
    assert [(it["group"], it["wouldFit"]) for it in waiting["classes"]] == [("default/g", [])]


@pytest.mark.parametrize(
    ("running", "told"),
    [
        (make_pod("low", cpu=3000, deleting=True), "pod m1: it fits on b once default/low, which terminates, is gone"),
        (make_pod("low", cpu=3000), "pod m1: it fits on b if default/low (priority 0) leaves"),
    ],
    ids=["leaves", "eviction"],
)
async def test_what_helps_the_last_member_beside_the_others(running: Pod, told: str) -> None:
    world = racks(a=4, b=4)
    world.engine.handlers.bound_pods.observe("ADDED", bound(running, "b", started=True))
    group(world, GangSpec(2))
    world.waits(*members(2, cpu=3000))
    assert told in await advice(world)
