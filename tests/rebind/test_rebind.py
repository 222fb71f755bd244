"""RebindResources from creation to their last status, on a machine that checks every placement."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from koord_numa.sandbox.apiserver import DeleteOptions, Fault
from koord_numa.wire import names
from tests.cluster.objects import until
from tests.rebind.world import CRDS, FRAGMENTED, MACHINE, NODE, RESOURCE, World, fragmented, parse_cpus, pod

KUBELETS = MACHINE | {"name": "kubelets", "style": "kubelet"}


async def test_a_fragmented_node_is_repacked_and_the_status_tells_how(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        world.ask()
        status = await world.ended()
        assigned = world.assigned()
        assert status["phase"] == "Succeed", status
        assert status["before"]["crossingPods"] == 2
        assert (status["after"]["crossingPods"], status["after"]["splitCores"]) == (0, 0)
        assert status["reason"].startswith(
            f"{status['moves']} pods moved in {status['steps']} steps: NUMA-crossing pods 2 → 0"
        )
        assert status["result"] == status["plan"]
        assert {move["name"]: (move["from"], move["to"]) for move in status["plan"]} == {
            name: (FRAGMENTED[name], cpus) for name, cpus in assigned.items() if cpus != FRAGMENTED[name]
        }
        assert (status["observedGeneration"], status["conditions"][0]["status"]) == (1, "True")
        assert {"startTime", "updateTimestamp"} <= status.keys()
        assert world.complaints() == []
        assert world.ledger_is_true(runtime)
        await until(lambda: ("tidy", "RebindSucceeded") in told(world))  # said after the status was written
        await runtime.recorder.flush()
        assert sorted(told(world)) == sorted(
            [("tidy", "RebindStarted"), ("tidy", "RebindSucceeded"), *((name, "CPUsRebound") for name in world.moved)]
        )
        found = world.server.store.list("events.events.k8s.io")
        (event,) = [it for it in found if it["reason"] == "RebindStarted"]
        rebind = world.server.store.get("rebindresources.scheduling.koordinator.sh", "tidy")
        assert (event["regarding"], event["action"]) == (
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "RebindResource",
                "name": "tidy",
                "uid": rebind["metadata"]["uid"],
            },
            "Rebinding",
        )


async def test_devices_by_id_stay_where_they_are(tmp_path: Path) -> None:
    """A pod with a GPU keeps it, and its number of CPUs on each NUMA node; the others still move."""
    async with fragmented(tmp_path, {}) as world:
        gpu = {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}
        for name, cpus in FRAGMENTED.items():
            created = pod(name, len(cpus.split(",")))
            annotations = {names.RESOURCE_STATUS: json.dumps({"cpuset": cpus, "unknown": {"kept": name}})}
            if name == "a":
                created["spec"]["containers"][0]["resources"]["requests"]["koordinator.sh/gpu"] = "100"
                annotations[names.DEVICE_ALLOCATED] = json.dumps(gpu)
            uid = world.server.store.create(created)["metadata"]["uid"]
            metadata = {"uid": uid, "annotations": annotations}
            world.server.store.bind("default", name, {"metadata": metadata, "target": {"name": NODE}})
        async with world.scheduler() as runtime:
            world.ask()
            status = await world.ended()
            assert (status["phase"], world.complaints()) == ("Succeed", [])
            assigned = world.assigned()
            assert sorted(cpu < 8 for cpu in parse_cpus(assigned["a"])) == [False] * 3 + [True] * 3
            assert assigned["b"] != FRAGMENTED["b"]
            annotations = world.server.store.get("pods", "a", "default")["metadata"]["annotations"]
            assert json.loads(annotations[names.DEVICE_ALLOCATED]) == gpu
            await until(lambda: world.ledger_is_true(runtime))


def told(world: World) -> list[tuple[str, str]]:
    """Every event: about whom, and its reason."""
    return [(e["regarding"]["name"], e["reason"]) for e in world.server.store.list("events.events.k8s.io")]


async def test_a_dry_run_gives_the_plan_and_moves_no_pod(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        world.ask(dryRun=True)
        status = await world.ended()
        assert (status["phase"], world.assigned(), world.moved) == ("Succeed", FRAGMENTED, [])
        assert " would move in " in status["reason"]
        assert status["plan"]
        assert "result" not in status
        assert status["after"]["crossingPods"] == 0


async def test_a_second_rebind_finds_nothing_to_improve(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        world.ask()
        await world.ended()
        world.ask("again")
        status = await world.ended("again")
        assert (status["phase"], status["reason"], status["moves"]) == ("Succeed", "nothing to improve", 0)


async def test_without_spare_cpus_it_says_what_is_missing(tmp_path: Path) -> None:
    full = {"a": "0-3,8-11", "b": "4-7,12-15"}
    async with fragmented(tmp_path, full) as world, world.scheduler():
        world.ask()
        status = await world.ended()
        reason = "nothing can be improved without spare CPUs to move 2 pods"
        assert (status["phase"], status["reason"], sorted(status["stuck"])) == (
            "Succeed",
            reason,
            ["default/a", "default/b"],
        )
        assert world.assigned() == full


async def test_two_for_one_node_work_one_after_the_other(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        world.ask("first")
        world.ask("second")
        told: list[tuple[str, str]] = []
        world.server.store.subscribe(
            RESOURCE,
            lambda _, rebind: told.append((rebind["metadata"]["name"], (rebind.get("status") or {}).get("reason", ""))),
        )
        async with world.scheduler():
            await world.ended("second")
        assert world.phase("first") == "Succeed"
        assert ("second", f"waits until another rebind of node {NODE} has ended") in told
        looks = [name for name, reason in told if reason == f"node {NODE} is looked at"]
        assert looks == ["first", "second"]
        first_end = told.index(("first", world.status("first")["reason"]))
        assert first_end < told.index(("second", f"node {NODE} is looked at"))
        assert world.complaints() == []


async def test_pods_created_meanwhile_wait_and_are_placed_right_after(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        bound_while_locked: list[str] = []

        def watch(_: str, found: dict[str, Any]) -> None:
            placed = found["spec"].get("nodeName") and found["metadata"]["name"] not in FRAGMENTED
            if placed and runtime.scheduler.cache.nodes[NODE].locked:
                bound_while_locked.append(found["metadata"]["name"])
            if world.moved and world.server.store.find("pods", "late", "default") is None:
                world.server.store.create(pod("late", 4))  # in the very moment of the first step

        await until(lambda: runtime.scheduler.ready)
        watching = world.server.store.subscribe("pods", watch)
        world.ask()
        await until(lambda: "late" in world.assigned())
        watching.cancel()
        assert (await world.ended())["phase"] == "Succeed"
        assert bound_while_locked == []
        assert world.complaints() == []
        assert world.ledger_is_true(runtime)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"node": "nowhere"}, "there is no node nowhere"),
    "without topology": ({"node": "bare"}, "node bare has no NodeResourceTopology"),
    "kubelet-owned": (
        {"node": "kubelets"},
        "the kubelet of node kubelets chooses CPUs itself: they are not the scheduler's to change",
    ),
    "malformed": ({"node": "odd"}, "the topology of node odd cannot be used: "),
}


@pytest.mark.parametrize(("spec", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_nodes_that_cannot_be_rebound(tmp_path: Path, spec: dict[str, Any], reason: str) -> None:
    machines = [MACHINE, KUBELETS, MACHINE | {"name": "odd"}, MACHINE | {"name": "bare"}]
    async with fragmented(tmp_path, machines=machines) as world:
        topologies = f"{names.TOPOLOGY_PLURAL}.{names.TOPOLOGY_GROUP}"
        world.server.store.delete(topologies, "bare")
        world.server.store.patch(topologies, "odd", {"metadata": {"annotations": {names.CPU_TOPOLOGY: "["}}})
        async with world.scheduler():
            world.ask(**spec)
            status = await world.ended()
        assert status["phase"] == "Failed"
        assert status["reason"].startswith(reason)
        assert world.assigned() == FRAGMENTED


async def test_an_unknown_action_fails(tmp_path: Path) -> None:
    definition = yaml.safe_load(CRDS[1].read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["rebindAction"]["enum"]
    async with fragmented(tmp_path) as world, world.scheduler():
        world.server.store.apply(definition)
        world.ask(rebindAction="Shuffle")
        status = await world.ended()
        assert status["phase"] == "Failed"
        assert '"Shuffle" is none of RebindCPU' in status["reason"]


async def test_a_new_generation_is_worked_on_again(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        world.ask(dryRun=True)
        await world.ended()
        world.server.store.patch(RESOURCE, "tidy", {"spec": {"dryRun": False}})
        await until(lambda: world.status()["observedGeneration"] == 2 and world.phase() == "Succeed")
        assert world.status()["result"]
        assert world.assigned() != FRAGMENTED


async def test_pods_of_other_schedulers_and_leaving_pods_stay(tmp_path: Path) -> None:
    async with fragmented(tmp_path, {}) as world:
        world.place({"theirs": "0,2,8,10"}, schedulerName="other")
        world.place({"leaving": "1,3"}, terminationGracePeriodSeconds=3600)
        world.place({"ours": "4,6"})
        world.rack.nodes[NODE].lag()
        world.server.store.delete("pods", "leaving", "default")
        async with world.scheduler():
            world.ask()
            status = await world.ended()
        assert [move["name"] for move in status["plan"]] == ["ours"]
        assert world.assigned() == {"theirs": "0,2,8,10", "leaving": "1,3", "ours": "4-5"}


async def test_numa_amounts_tie_a_pod_to_its_numa_nodes(tmp_path: Path) -> None:
    async with fragmented(tmp_path, {}) as world, world.scheduler():
        world.server.store.create(pod("by-us", 4))
        await until(lambda: "by-us" in world.assigned())
        world.place({"crossing": "6,9"} if world.assigned()["by-us"] == "0-3" else {"crossing": "7-8"})
        before = world.assigned()
        world.ask()
        status = await world.ended()
        after = world.assigned()
        assert status["after"]["crossingPods"] == 0
        assert before["by-us"] == after["by-us"]
        assert world.complaints() == []


async def test_a_deleted_rebind_ends_between_two_steps(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:

        def delete(_: str, found: dict[str, Any]) -> None:
            if world.assigned() != FRAGMENTED and world.server.store.find(RESOURCE, "tidy"):
                world.server.store.delete(RESOURCE, "tidy", options=DeleteOptions(grace=0))
                world.rack.nodes[NODE].lag()

        await until(lambda: runtime.scheduler.ready)
        world.server.store.subscribe("pods", delete)
        world.ask()
        await until(lambda: not world.server.store.find(RESOURCE, "tidy"))
        await until(lambda: not runtime.scheduler.cache.nodes[NODE].locked)
        assert len(world.moved) == 1
        assert world.ledger_is_true(runtime)
        world.ask("other")
        assert (await world.ended("other"))["after"]["crossingPods"] == 0


@pytest.mark.rights
async def test_a_rebind_that_has_ended_is_deleted_after_its_time(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        world.ask(dryRun=True, ttlSecondsAfterFinished=1)
        world.ask("stays", dryRun=True)
        async with world.scheduler():
            await until(lambda: world.server.store.find(RESOURCE, "tidy", "") is None)
            assert world.phase("stays") == "Succeed"


async def test_a_rebind_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        world.server.faults.add(Fault(status=500, verb="delete", resource="rebindresources", count=1))
        world.ask(dryRun=True, ttlSecondsAfterFinished=0)
        async with world.scheduler():
            await until(lambda: world.server.store.find(RESOURCE, "tidy", "") is None)


async def test_story_6_a_split_pod_is_gathered_with_its_amounts(tmp_path: Path) -> None:
    """
    Fine-grained CPU orchestration, user story 6 and "benefit 1": two pods of 6 CPUs leave 2 on each NUMA node, a pod of 4 is split over
    them, one of the two leaves, and a rebind gathers the split one: CPUs and amounts in one patch.
    """
    async with fragmented(tmp_path, {}) as world, world.scheduler() as runtime:
        for name, cpus in (("first", 6), ("second", 6), ("split", 4)):
            world.server.store.create(pod(name, cpus))
            await until(lambda name=name: name in world.assigned())  # type: ignore[misc]  # mypy infers no type for the default
        assert placed(world, "split") == {0: "2", 1: "2"}
        world.server.store.delete("pods", "second", "default", DeleteOptions(grace=0))
        # News of pods and of rebinds comes by two watches, of which either may be ahead.
        await until(lambda: "second" not in world.assigned() and world.ledger_is_true(runtime))
        world.ask()
        status = await world.ended()
        assert status["phase"] == "Succeed", status
        assert (status["before"]["crossings"], status["after"]["crossings"]) == (1, 0), status
        assert len(placed(world, "split")) == 1
        assert list(placed(world, "split").values()) == ["4"]
        assert world.complaints() == []
        await until(lambda: world.ledger_is_true(runtime))


def placed(world: World, name: str) -> dict[int, str]:
    """CPUs by NUMA node, as resource-status says it."""
    found = world.server.store.get("pods", name, "default")["metadata"]["annotations"][names.RESOURCE_STATUS]
    return {entry["node"]: entry["resources"]["cpu"] for entry in orjson.loads(found)["numaNodeResources"]}
