"""Moves of single pods that gather free devices, and evictions where they are allowed."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.objects.node import Node, Zone
from koord_numa.core.objects.request import Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, NumaPolicy
from koord_numa.core.value_objects import replace
from koord_numa.engine.device_moves import DeviceMoves, find_moves
from koord_numa.ports import Unavailable
from koord_numa.settings import DeviceMoveSettings, Settings
from tests.engine.world import GIB, World, bound, make_node, make_topology, make_world
from tests.tables import each_row

GPU = "nvidia.com/gpu"


def gpu_pod(name: str, gpus: int, **changes: object) -> Pod:
    amounts = {"cpu": 1000, "memory": GIB, GPU: gpus}
    request = PodRequest(containers=(Container("app", ContainerKind.APP, amounts, amounts),))
    pod = Pod(PodKey("default", name, f"uid-{name}"), request, scheduler="koord-numa", owner=f"owner-{name}")
    return replace(pod, **changes)  # type: ignore[arg-type]  # changes are named fields


def gpu_node(name: str, gpus: int = 4) -> Node:
    node = make_node(name, cpu=32, memory=64)
    return replace(node, allocatable={**node.allocatable, GPU: gpus})


def place(world: World, *pods: Pod) -> None:
    for pod in pods:
        world.engine.handlers.bound_pods.observe("ADDED", pod)


def texts(world: World) -> list[str]:
    return [move.text for move in find_moves(world.engine) if move is not None]


def test_one_pod_stands_in_the_way_of_a_block() -> None:
    world = make_world(gpu_node("a"), gpu_node("b"))
    place(world, bound(gpu_pod("small", 1), "a"))
    place(world, bound(gpu_pod("large", 2), "b"))
    assert texts(world) == ["moving pod default/small to b frees 4 nvidia.com/gpu on node a"]


@each_row(
    ("small", "large"),
    [
        pytest.param({"owner": ""}, {}, id="nobody creates the pod again"),
        pytest.param({"never_rebound": True}, {}, id="the pod asks to stay"),
        pytest.param({"deleting": True}, {}, id="the pod leaves anyway"),
        pytest.param({"mirror": True}, {}, id="the kubelet runs the pod whatever the scheduler does"),
        pytest.param({"scheduler": "another"}, {}, id="another scheduler would place the pod"),
        pytest.param({}, {"gpus": 4}, id="the other node is full"),
        pytest.param({}, {"gpus": 0}, id="the other node would lose a block"),
    ],
)
def test_no_move(small: dict[str, object], large: dict[str, int]) -> None:
    world = make_world(gpu_node("a"), gpu_node("b"))
    place(world, bound(gpu_pod("small", 1, **small), "a"))
    # Not movable, so that no other move is found.
    place(world, bound(gpu_pod("large", large.get("gpus", 2), owner=""), "b"))
    assert texts(world) == []


def crowded(config: Settings) -> tuple[World, DeviceMoves]:
    """Two nodes with 3 and 2 free GPUs, and a waiting pod of 4."""
    world = make_world(gpu_node("a"), gpu_node("b"), settings=config)
    place(world, bound(gpu_pod("small", 1), "a"))
    place(world, bound(gpu_pod("large", 2, owner=""), "b"))
    return world, DeviceMoves(world.engine)


def allowed(**changes: object) -> Settings:
    return Settings(device_moves=DeviceMoveSettings(evict=True, **changes))


async def evicted(world: World, moves: DeviceMoves) -> list[str]:
    await moves.refresh()
    await moves.evict()
    return [call for call in world.server.calls if call.startswith(("evict", "delete"))]


def test_evictions_are_off_by_default() -> None:
    world, moves = crowded(Settings())
    world.waits(gpu_pod("waits", 4))
    assert asyncio.run(evicted(world, moves)) == []
    assert [move.pod.key.name for move in moves.moves] == ["small"]


def test_a_pod_is_evicted_for_a_waiting_pod_only() -> None:
    world, moves = crowded(allowed())
    assert asyncio.run(evicted(world, moves)) == []
    world.waits(gpu_pod("waits", 4))
    assert asyncio.run(evicted(world, moves)) == ["evict small"]
    assert world.engine.metrics.device_evictions == 1
    # The owner's next pod may come back to the same node: it is not evicted again.
    assert asyncio.run(evicted(world, moves)) == ["evict small"]


def test_a_free_block_makes_evictions_needless() -> None:
    world, moves = crowded(allowed())
    world.engine.handlers.nodes.observe("ADDED", gpu_node("c"))
    world.waits(gpu_pod("waits", 4))
    assert asyncio.run(evicted(world, moves)) == []


def test_an_eviction_forbidden_by_a_budget_counts_for_the_rate() -> None:
    world, moves = crowded(allowed(max_per_hour=1))
    world.waits(gpu_pod("waits", 4))

    def forbid(call: str) -> None:
        if call.startswith("evict"):
            raise Unavailable("429: the disruption budget")

    world.server.fail = forbid
    with pytest.raises(Unavailable):
        asyncio.run(evicted(world, moves))
    assert world.engine.metrics.device_evictions == 0
    world.server.fail = lambda _: None
    assert asyncio.run(evicted(world, moves)) == ["evict small"]


def test_only_the_leader_evicts() -> None:
    world, moves = crowded(allowed())
    world.waits(gpu_pod("waits", 4))
    world.lease.held = False
    assert asyncio.run(evicted(world, moves)) == []


def socket_node(world: World, name: str) -> None:
    """A node with two NUMA nodes of 4 GPUs and 32 CPUs."""
    topology = make_topology(name, sockets=2, numa=1, cores=16, memory=128)
    amounts = {"cpu": 32_000, "memory": 64 * GIB, GPU: 4}
    zones = tuple(Zone(zone.numa, amounts, amounts, amounts) for zone in topology.zones)
    node = make_node(name, cpu=64, memory=128)
    world.engine.handlers.nodes.observe("ADDED", replace(node, allocatable={**node.allocatable, GPU: 8}))
    world.engine.handlers.topologies.observe("ADDED", replace(topology, zones=zones))


@settings(max_examples=20, deadline=None)
@given(st.permutations([1, 1, 1, 1, 4, 4, 4]))
def test_small_pods_leave_whole_sockets(sizes: list[int]) -> None:
    """Pods of 1 and 4 GPUs that fill two machines of 2 x 4 GPUs find room in any order, and the queue comes to rest."""
    world = make_world()
    socket_node(world, "a")
    socket_node(world, "b")
    numa = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)
    for number, gpus in enumerate(sizes):
        pod = gpu_pod(f"p{number}", gpus)
        world.waits(replace(pod, request=replace(pod.request, numa=numa)))
        asyncio.run(world.settle())
    assert "" not in world.nodes_of().values()


def test_more_blocks_than_there_are_wait_without_a_livelock() -> None:
    """Four pods of 4 GPUs on two nodes of 4: two run, and the others follow when these leave (pytorch/ci-infra#696)."""
    world = make_world(gpu_node("a"), gpu_node("b"))
    pods = [gpu_pod(f"p{number}", 4) for number in range(4)]
    world.waits(*pods)
    asyncio.run(world.settle())
    first = [pod for pod in pods if world.server.pods[pod.key.uid].node]
    assert len(first) == 2
    for pod in first:
        world.engine.handlers.bound_pods.observe("ADDED", world.server.pods[pod.key.uid])
        world.engine.handlers.bound_pods.observe("DELETED", world.server.pods[pod.key.uid])
    world.clock.now += 600
    asyncio.run(world.settle())
    assert "" not in world.nodes_of().values()
