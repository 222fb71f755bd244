"""The PreBind step of volumes by itself: what it takes back, what it cannot take back, and what it says then."""

import pytest

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.pre_bind import STRANDED, VolumeBinding
from koord_numa.ports import Conflict, Gone, Unavailable
from tests.engine.world import World, make_world

KEY = ("default", "data")
CLAIM = PersistentVolumeClaim("default", "data", uid="c", storage_class="made", resource_version="1")
POD = Pod(PodKey("default", "db", "u"), PodRequest(constraints=Constraints(claims=("data",))), scheduler="koord-numa")
THERE = Placement("n")


class RecordingVolumeWriter:
    """A volume writer that remembers what it was asked, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken = False

    async def bind_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        self._note(f"bind {volume} to {claim.name}")

    async def release_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        self._note(f"release {volume} from {claim.name}")

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
        self._note(f"select {node} for {claim.name}")
        return replace(claim, selected_node=node, resource_version="2")

    async def clear_selected_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        self._note(f"clear {node} of {claim.name}")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.broken:
            raise Unavailable("503")


def binding(
    claim: PersistentVolumeClaim = CLAIM, *volumes: PersistentVolume
) -> tuple[World, VolumeBinding, RecordingVolumeWriter]:
    """A scheduler that knows one node, one claim and these volumes, with a pod that waits, and the step with its writer."""
    world, writer = make_world(), RecordingVolumeWriter()
    engine = world.engine
    engine.handlers.nodes.replace([Node("n", allocatable={"cpu": 8000, "pods": 110})])
    engine.volumes.claims.observe(None, claim)
    engine.volumes.volumes.replace(volumes)
    engine.volumes.classes.replace([StorageClass("made", waits=True, provisioner="p")])
    engine.volumes.synced()
    engine.handlers.pending_pods.observe(None, POD)
    return world, VolumeBinding(engine.handle, writer, 60.0), writer


async def test_what_was_reserved_is_free_again_when_it_is_undone() -> None:
    volume = PersistentVolume("pv", storage_class="made", available=True)
    world, step, writer = binding(CLAIM, volume)
    step.reserve(POD, THERE)
    assert world.engine.volumes.storage().reserved == {"pv": KEY}
    await step.undo(POD, THERE)
    step.unreserve(POD, THERE)
    assert writer.calls == ["release pv from data"]
    assert world.engine.volumes.storage().reserved == {}
    assert world.engine.volumes.storage().failed == {KEY: frozenset({"n"})}


async def test_what_cannot_be_taken_back_is_said() -> None:
    world, step, writer = binding()
    step.reserve(POD, THERE)
    world.engine.volumes.claims.observe(None, replace(CLAIM, bound=True, volume="pvc-1"))
    await step.undo(POD, THERE)
    assert writer.calls == []
    assert [event for event in world.diary.events if STRANDED in str(event)]


async def test_a_failed_write_does_not_keep_others_from_being_undone() -> None:
    _, step, writer = binding()
    step.reserve(POD, THERE)
    writer.broken = True
    await step.undo(POD, THERE)
    assert writer.calls == ["clear n of data"]


async def test_a_plan_that_does_not_hold_any_more_is_a_conflict() -> None:
    world, step, _ = binding(replace(CLAIM, selected_node="n"))
    world.engine.handlers.nodes.replace([Node("m"), Node("n")])
    with pytest.raises(Conflict):
        step.reserve(POD, Placement("m"))


async def test_a_pod_that_is_gone_is_not_waited_for() -> None:
    world, step, _ = binding()
    step.reserve(POD, THERE)
    world.engine.handle.forget("u")
    with pytest.raises(Gone):
        await step.do(POD, THERE)


async def test_a_provisioner_that_removes_the_node_is_a_conflict() -> None:
    world, step, _ = binding()
    step.reserve(POD, THERE)
    world.engine.volumes.claims.observe(
        None, replace(CLAIM, resource_version="3")
    )  # both changes in one turn of the watch
    with pytest.raises(Conflict, match="gave up claim data"):
        await step.do(POD, THERE)


async def test_a_bug_about_one_claim_costs_its_pod_and_not_the_process() -> None:
    """The node that an earlier process selected is given up beside all other work, so nothing else would contain it."""
    world, step, writer = binding(replace(CLAIM, selected_node="n"))

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    writer.clear_selected_node = broken  # type: ignore[assignment, method-assign]  # the bug
    await step.expire([POD])
    world.clock.now += 61
    await step.expire([POD])
    assert world.engine.handle.quarantine.counts == {"pod": 1}
