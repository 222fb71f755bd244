"""A volume that only one pod may use is taken over from a pod of lower priority, as kube-scheduler does."""

import pytest

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim
from koord_numa.core.value_objects import replace
from tests.engine.preemption.world import crowded, important, leaves, make_room, running, wrote
from tests.engine.world import World


def using(pod: Pod) -> Pod:
    """The pod, with the volume."""
    return replace(pod, request=replace(pod.request, constraints=Constraints(claims=("data",))))


def with_volume(*pods: Pod) -> World:
    """Many empty nodes and a volume for one pod."""
    world = crowded(*pods, nodes=("node", *(f"empty-{number}" for number in range(40))))
    room = world.engine.volumes
    room.volumes.replace([PersistentVolume("pv", claim="default/data")])
    claim = PersistentVolumeClaim(
        "default", "data", volume="pv", bound=True, access_modes=frozenset({"ReadWriteOncePod"})
    )
    room.claims.replace([claim])
    room.synced()
    return world


async def test_its_user_is_evicted_and_the_pod_takes_its_place() -> None:
    world = with_volume(using(running("user", "0-1")), running("other", "4-5"))
    world.waits(using(important("pod", cpu=1)))
    await make_room(world)
    assert wrote(world) == ["nominate pod node", "evict user"]
    await make_room(world)
    assert world.nodes_of()["pod"] == ""
    leaves(world, "user")
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


@pytest.mark.parametrize("priority", [10, 11])
async def test_a_user_that_matters_as_much_stays(priority: int) -> None:
    world = with_volume(using(running("user", "0-1", priority=priority)))
    world.waits(using(important("pod", cpu=1)))
    await make_room(world)
    assert wrote(world) == []
    leaves(world, "user")
    world.clock.now += 60
    await make_room(world)
    assert world.nodes_of()["pod"]
