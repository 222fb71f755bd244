"""Double holds end as configured: the younger pod gets other CPUs or is evicted, or nothing is done."""

from pathlib import Path
from typing import cast

import orjson
import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, PodKey
from koord_numa.core.rebind.plan import PodRevision
from koord_numa.engine import Scheduler
from koord_numa.engine.rebind.automatic import DoubleHoldRepair
from koord_numa.engine.rebind.context import RebindPorts
from koord_numa.ports import RebindWriter, Recorder
from koord_numa.sandbox.apiserver import Fault
from koord_numa.settings import RepairDoubleHolds
from koord_numa.wire import names
from tests.cluster.objects import until
from tests.engine.world import bound, make_node, make_pod, make_topology, make_world
from tests.rebind.world import NODE, SETTINGS, World, fragmented

APART = {"one": "0-3", "other": "4-7"}
TWICE = {"one": "0-3", "other": "2-5"}
REBIND = SETTINGS.model_copy(update={"repair_double_holds": RepairDoubleHolds.REBIND})
EVICT = SETTINGS.model_copy(update={"repair_double_holds": RepairDoubleHolds.EVICT})


def younger(made: World) -> str:
    """The pod that was created last; of two in the same second, that with the larger uid."""
    found = [pod["metadata"] for pod in made.server.store.list("pods")]
    return str(max(found, key=lambda metadata: (metadata["creationTimestamp"], metadata["uid"]))["name"])


async def write(made: World, name: str, cpus: str) -> None:
    """Another writer changes which CPUs a pod has; the simulated node would end one of the two, and is stopped."""
    await until(lambda: all(pod["status"]["phase"] == "Running" for pod in made.server.store.list("pods")))
    made.rack.stop()
    text = orjson.dumps({"cpuset": cpus, "unknown": {"kept": name}}).decode()
    made.server.store.patch("pods", name, {"metadata": {"annotations": {names.RESOURCE_STATUS: text}}}, "default")


def notes(made: World) -> list[str]:
    return [str(event["note"]) for event in made.server.store.list("events.events.k8s.io")]


@pytest.mark.parametrize("disturbed", [False, True], ids=["at once", "through failures"])
async def test_the_younger_pod_gets_other_cpus(tmp_path: Path, *, disturbed: bool) -> None:
    async with fragmented(tmp_path, APART) as made:
        await write(made, "other", TWICE["other"])
        if disturbed:
            made.server.faults.add(Fault(status=500, verb="patch", resource="pods", count=1))
        async with made.scheduler(settings=REBIND) as runtime:
            moves, stays = younger(made), next(name for name in TWICE if name != younger(made))
            await until(lambda: made.assigned()[moves] != TWICE[moves])
            found = CpuSet.parse(made.assigned()[moves])
            assert (len(found), len(found & CpuSet.parse(TWICE[stays]))) == (4, 0)
            assert made.assigned()[stays] == TWICE[stays]
            await until(lambda: made.ledger_is_true(runtime))
            await until(lambda: not runtime.scheduler.writers.double_holds)
            await until(lambda: not runtime.scheduler.cache.nodes[NODE].locked)
            assert not runtime.scheduler.writers.foreign["ResourceStatusChanged"]


async def test_the_younger_pod_is_evicted(tmp_path: Path) -> None:
    async with fragmented(tmp_path, APART) as made:
        await write(made, "other", TWICE["other"])
        async with made.scheduler(settings=EVICT) as runtime:
            await until(lambda: runtime.double_hold_repair.repaired == 1)
            going = [
                pod["metadata"] for pod in made.server.store.list("pods") if "deletionTimestamp" in pod["metadata"]
            ]
            assert [metadata["name"] for metadata in going] == [younger(made)]


async def test_without_other_cpus_the_pod_keeps_its_cpus_with_event(tmp_path: Path) -> None:
    async with fragmented(tmp_path, {"one": "0-5", "full": "8-15", "other": "6-7"}) as made:
        await write(made, "one", "0-7")
        async with made.scheduler(settings=REBIND):
            await until(lambda: any("not enough other CPUs" in note for note in notes(made)))
            assert made.assigned() == {"one": "0-7", "full": "8-15", "other": "6-7"}


async def test_by_default_a_double_hold_is_only_said(tmp_path: Path) -> None:
    async with fragmented(tmp_path, APART) as made:
        await write(made, "other", TWICE["other"])
        async with made.scheduler() as runtime:
            await until(lambda: len([note for note in notes(made) if "CPUs 2-3 belong to" in note]) == 3)
            await runtime.double_hold_repair.look()
            assert made.assigned() == TWICE


class FakeRebindWriter:
    """``RebindWriter``, as far as a repair uses it: a pod is deleted while it is read, and the watch tells first."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.patched = 0
        self._scheduler = scheduler

    async def read_pod(self, pod: PodKey) -> PodRevision:
        seen = self._scheduler.cache.pod(pod.uid)
        assert seen is not None
        self._scheduler.handlers.bound_pods.observe("DELETED", seen)
        return PodRevision(seen, "{}")

    async def patch_cpus(self, *_: object) -> None:
        self.patched += 1


async def test_a_pod_deleted_during_a_read_is_not_counted_again() -> None:
    world = make_world(make_node("n"), settings=REBIND)
    world.engine.handlers.topologies.observe("ADDED", make_topology("n"))
    for created, name in enumerate(TWICE):
        held = Assignment(cpus=CpuSet.parse("0-1"))
        pod = bound(make_pod(name, cpu=2000, created=float(created), assignment=held, started=True), "n")
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    writer = FakeRebindWriter(world.engine)
    repair = DoubleHoldRepair(world.engine, RebindPorts(cast("RebindWriter", writer), cast("Recorder", world.diary)))
    await repair.look()
    assert (len(world.engine.cache.node_of), writer.patched) == (1, 0)
    assert not world.engine.cache.nodes["n"].locked
