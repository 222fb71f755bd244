"""Changes by other writers to pods of a node between two steps of a rebind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koord_numa.app.runtime import Runtime
from koord_numa.sandbox.apiserver import DeleteOptions, Effect, Fault
from koord_numa.wire import names
from tests.cluster.objects import until
from tests.rebind.steps import repacked
from tests.rebind.world import FRAGMENTED, NODE, STEPS, JsonObject, World, fragmented, parse_cpus, pod


@asynccontextmanager
async def after_the_first_step(world: World, act: Any) -> AsyncIterator[Runtime]:
    """A scheduler, and something that happens in the very moment in which its first step was carried out."""
    async with world.scheduler() as runtime:
        acted: list[bool] = []

        def watch(_event: str, _found: Any) -> None:
            if not acted and world.assigned() != FRAGMENTED:
                acted.append(True)
                act(next(name for name in FRAGMENTED if world.assigned()[name] == FRAGMENTED[name]))

        await until(lambda: runtime.scheduler.ready)
        world.server.store.subscribe("pods", watch)
        yield runtime


async def test_other_changes_of_a_pod_are_no_reason_to_stop(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:

        def label_all_pods(_: str) -> None:
            for name in FRAGMENTED:
                world.server.store.patch("pods", name, {"metadata": {"labels": {"seen": "yes"}}}, "default")

        async with after_the_first_step(world, label_all_pods):
            world.ask()
            await repacked(world, "tidy")
        labelled = world.server.store.list("pods", labels="seen=yes")
        assert len(labelled) == len(FRAGMENTED)


async def test_a_deleted_pod_ends_it(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        gone: list[str] = []

        def delete(_: str) -> None:
            for name in FRAGMENTED:
                if world.assigned()[name] == FRAGMENTED[name]:
                    gone.append(name)
                    world.server.store.delete("pods", name, "default", DeleteOptions(grace=0))

        async with after_the_first_step(world, delete) as runtime:
            world.ask()
            status = await world.ended()
            assert status["phase"] == "Failed"
            assert status["reason"].startswith(f"stopped after 1 of {STEPS} steps: pod default/")
            assert any(name in status["reason"] for name in gone)
            await until(lambda: world.ledger_is_true(runtime))
            assert world.complaints() == []


async def test_cpus_that_another_writer_changes_end_it(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:

        def seize(_: str) -> None:
            world.rack.stop()  # what others do here is wrong, and is meant to be
            taken = {"metadata": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"15","unknown":{"kept":"x"}}'}}}
            for name in FRAGMENTED:
                if world.assigned()[name] == FRAGMENTED[name]:
                    world.server.store.patch("pods", name, taken, "default")

        async with after_the_first_step(world, seize):
            world.ask()
            status = await world.ended()
            assert status["phase"] == "Failed"
            assert "by another writer" in status["reason"] or "may no longer be moved" in status["reason"]
            assert len(status["result"]) == 1


TAMPERED: dict[str, JsonObject] = {
    "no-json": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":'}},
    "removed": {"annotations": {names.RESOURCE_STATUS: None}},
    "no-cpus": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"","unknown":{"kept":"x"}}'}},
    "cpus-that-do-not-exist": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"4000-4095"}'}},
    "all-cpus": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"0-15"}'}},
    "nan": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":NaN,"cpuset":"-1"}'}},
    "other-demands": {"annotations": {names.RESOURCE_SPEC: '{"requiredCPUBindPolicy":"SpreadByPCPUs"}'}},
    "another-class": {"labels": {names.QOS_CLASS: "BE"}},
}


@pytest.mark.parametrize("metadata", TAMPERED.values(), ids=TAMPERED)
async def test_changed_metadata_of_pods_ends_a_rebind(tmp_path: Path, metadata: JsonObject) -> None:
    async with fragmented(tmp_path) as world:
        changed: list[str] = []

        def tamper(_: str) -> None:
            world.rack.stop()  # what others do here is wrong, and is meant to be
            for name in FRAGMENTED:
                if world.assigned()[name] == FRAGMENTED[name]:
                    changed.append(name)
                    world.server.store.patch("pods", name, {"metadata": metadata}, "default")

        async with after_the_first_step(world, tamper) as runtime:
            world.ask()
            status = await world.ended()
            assert changed
            assert status["phase"] == "Failed"
            assert status["reason"].startswith("stopped after ")
            await until(lambda: not runtime.scheduler.cache.nodes[NODE].locked)
            assert runtime.scheduler.handle.quarantine.counts == {}


@pytest.mark.parametrize(
    "amounts", [{"cpu": "6"}, {"cpu": "1"}, {"cpu": "1500m"}, {"memory": "2Gi"}], ids=lambda it: str(*it.values())
)
async def test_a_rebind_goes_on_or_ends_when_its_pods_are_resized(tmp_path: Path, amounts: dict[str, str]) -> None:
    """A pod keeps its CPUs through a resize, whatever it asks for by then."""
    async with fragmented(tmp_path) as world:
        resized: list[str] = []

        def resize(_: str) -> None:
            for name in FRAGMENTED:
                if world.assigned()[name] == FRAGMENTED[name]:
                    resized.append(name)
                    own = {"cpu": str(len(parse_cpus(FRAGMENTED[name]))), "memory": "1Gi", **amounts}
                    container = {"name": "main", "image": "none", "resources": {"requests": own, "limits": own}}
                    world.server.store.patch("pods", name, {"spec": {"containers": [container]}}, "default", "resize")

        async with after_the_first_step(world, resize) as runtime:
            world.ask()
            await world.ended()
            assert resized
            await until(lambda: not runtime.scheduler.cache.nodes[NODE].locked)
            sizes = {name: len(parse_cpus(cpus)) for name, cpus in world.assigned().items()}
            assert sizes == {name: len(parse_cpus(cpus)) for name, cpus in FRAGMENTED.items()}
            assert world.rack.double_holds() == []
            assert runtime.scheduler.handle.quarantine.counts == {}


async def test_a_foreign_pod_on_planned_cpus_ends_the_rebind(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        world.ask("dry", dryRun=True)
        async with world.scheduler():
            planned = (await world.ended("dry"))["plan"]

        def intrude(_: str) -> None:
            world.place({"intruder": planned[-1]["to"].split("-")[0].split(",")[0]}, schedulerName="other")

        world.rack.stop()
        async with after_the_first_step(world, intrude) as runtime:
            world.ask()
            status = await world.ended()
            assert status["phase"] == "Failed", status
            held = [cpu for cpus in runtime.scheduler.cache.nodes[NODE].ledger for cpu in cpus.cpus]
            await until(lambda: world.ledger_is_true(runtime))
            assert len(held) == len(set(held)) or "intruder" in str(world.assigned())


async def test_a_watch_that_lags_keeps_the_node_locked(tmp_path: Path) -> None:
    """No pod is placed with CPUs that the ledger does not show yet."""
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        await until(lambda: runtime.scheduler.ready)
        lag = world.server.faults.add(Fault(effect=Effect.SILENT_WATCH, resource="pods"))
        world.ask()
        await until(lambda: world.moved)
        world.server.store.create(pod("late", 2))
        reads = len(world.server.requests)
        await until(lambda: len(world.server.requests) > reads + 2)  # the pod is read back: nothing new is believed yet
        assert runtime.scheduler.cache.nodes[NODE].locked
        assert len(world.moved) == 1
        world.server.faults.remove(lag)
        await repacked(world, "tidy")
        await until(lambda: "late" in world.assigned())
        assert world.complaints() == []
