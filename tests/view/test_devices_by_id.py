"""Devices by id as the page, the command line and the metrics show them."""

import pytest

from koord_numa.app.metrics import device_metrics
from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.devices import (
    AllocateStrategy,
    DeviceExclusive,
    DeviceHint,
    DeviceSpec,
    PartitionPolicy,
    PartitionSpec,
    TopologyScope,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import NumaPolicy
from koord_numa.core.value_objects import replace
from koord_numa.view.advice import advise
from koord_numa.view.documents import devices_by_id, groups_text, switch_rows
from tests.core.devices.rack import held, inventory, request
from tests.engine.world import World, make_node, make_pod, make_topology, make_world


def rack() -> World:
    """A node of four GPUs, one of which is unhealthy and one of which two pods share, and two NICs."""
    world = make_world(make_node("node"))
    world.engine.handlers.devices.observe("ADDED", replace(inventory("0a 0a 1b! ?", "0a 1b"), node="node"))
    for name, use in (("a", "gpu1:30 rdma0:1"), ("b", "gpu1:20")):
        world.engine.handlers.bound_pods.observe("ADDED", replace(make_pod(name), node="node", devices=held(use)))
    return world


def test_switches_with_holders() -> None:
    """By NUMA node and switch; a device without a switch comes last."""
    found = devices_by_id(rack().engine.cache.nodes["node"])
    assert found is not None
    assert [*switch_rows(found)] == [
        ["0", "a", "gpu 0 free, gpu 1 50% free (default/a, default/b), rdma 0 99% free (default/a)"],
        ["1", "b", "gpu 2 unhealthy, rdma 1 free"],
        ["-", "-", "gpu 3 free"],
    ]
    assert groups_text(found) == "free groups of GPUs: 0 of 4, 0 of 2, 2 of 1; largest: 1"
    assert found["switches"][0]["devices"][0] == {
        "type": "gpu",
        "minor": 0,
        "id": "gpu-0",
        "healthy": True,
        "freePercent": 100,
        "pods": [],
    }


def test_a_node_without_a_device_object_has_none() -> None:
    """The page then shows nothing."""
    assert devices_by_id(make_world(make_node("node")).engine.cache.nodes["node"]) is None


def test_metrics() -> None:
    """Numbers of the whole cluster."""
    devices, groups, largest = device_metrics(rack().engine.cache.nodes.values())
    assert {tuple(each.labels.values()): each.value for each in devices.samples} == {
        ("gpu", "free"): 2,
        ("gpu", "unhealthy"): 1,
        ("gpu", "used"): 1,
        ("rdma", "free"): 1,
        ("rdma", "used"): 1,
    }
    assert {each.labels["gpus"]: each.value for each in groups.samples} == {"1": 2, "2": 0, "4": 0}
    assert {each.labels["gpus"]: each.value for each in largest.samples} == {"1": 1}


SAME = DeviceSpec(joint=("gpu", "rdma"), same_pcie=True)
PAIR = "gpu0 gpu2 gpu4 gpu6"
"""Two GPUs of each NUMA node are free, and none of them share a PCIe switch."""


@pytest.mark.parametrize(
    ("amounts", "spec", "pods", "expected"),
    [
        pytest.param(
            {"gpu": 200, "rdma": 100},
            SAME,
            (f"{PAIR} rdma0 rdma1 rdma2",),
            [
                "container app with 100 koordinator.sh/gpu instead of 200 fits on node",
                "without requiredScope SamePCIe it fits on node",
                "it fits on node if default/p0 (priority 0) leaves",
            ],
            id="GPUs and NIC on the same switches",
        ),
        pytest.param(
            {"gpu": 200},
            DeviceSpec((("gpu", DeviceHint(scope=TopologyScope.PCIE)),)),
            (PAIR,),
            [
                "container app with 100 koordinator.sh/gpu instead of 200 fits on node",
                "with requiredTopologyScope of gpu NUMANode instead of PCIe it fits on node",
                "it fits on node if default/p0 (priority 0) leaves",
            ],
            id="scope",
        ),
        pytest.param(
            {"rdma": 2},
            DeviceSpec((("rdma", DeviceHint(strategy=AllocateStrategy.REQUESTS_AS_COUNT)),)),
            ("rdma0 rdma1 rdma2",),
            [
                "container app with 1 koordinator.sh/rdma instead of 2 fits on node",
                "it fits on node if default/p0 (priority 0) leaves",
            ],
            id="number of NICs",
        ),
        pytest.param(
            {"gpu": 50},
            DeviceSpec((("gpu", DeviceHint(exclusive=DeviceExclusive.PCIE)),)),
            ("gpu0:10 gpu2:10 gpu4:10 gpu6:10",),
            [
                "without exclusivePolicy PCIeLevel of gpu it fits on node",
                "it fits on node if default/p0 (priority 0) leaves",
            ],
            id="exclusivity",
        ),
        pytest.param(
            {"gpu": 100},
            DeviceSpec((("gpu", DeviceHint(LabelSelector((Requirement("model", Operator.IN, ("none",)),)))),)),
            (),
            ["without the selector of gpu it fits on node"],
            id="selector",
        ),
        pytest.param(
            {"gpu": 200},
            DeviceSpec(partition=PartitionSpec(PartitionPolicy.RESTRICTED, 100)),
            (),
            ["without gpu-partition-spec it fits on node"],
            id="partition without a table",
        ),
    ],
)
async def test_advice(amounts: dict[str, int], spec: DeviceSpec, pods: tuple[str, ...], expected: list[str]) -> None:
    """Each remedy is one change that the scheduler has tried."""
    world = make_world(make_node("node"))
    world.engine.handlers.devices.observe("ADDED", replace(inventory(), node="node"))
    for number, use in enumerate(pods):
        there = replace(make_pod(f"p{number}"), node="node", devices=held(use))
        world.engine.handlers.bound_pods.observe("ADDED", there)
    world.waits(pod := replace(make_pod("waits"), request=request(amounts, spec)))
    await world.settle()
    assert await advice(world, pod) == expected


async def test_advice_about_missing_objects() -> None:
    """A condition on devices needs a Device object."""
    node = make_node("node")
    world = make_world(replace(node, allocatable={**node.allocatable, "koordinator.sh/gpu": 800}))
    world.waits(pod := replace(make_pod("waits"), request=request({"gpu": 100}, DeviceSpec(partition=PartitionSpec()))))
    await world.settle()
    assert "publish a Device object for node (is koordlet running, or the node agent with --devices?)" in await advice(
        world, pod
    )


async def advice(world: World, pod: Pod) -> list[str]:
    run = world.engine.dry_run(pod)
    assert run is not None
    refused = {name: answer for name, answer in run.items() if isinstance(answer, Rejection)}
    return [remedy.text for remedy in await advise(world.engine, pod, refused)]


async def test_advice_about_the_policy_of_a_node_counts_its_devices() -> None:
    """Five GPUs are on two NUMA nodes."""
    world = make_world(make_node("node", 64, 256, numa_policy=NumaPolicy.SINGLE_NUMA_NODE))
    world.engine.handlers.topologies.observe("ADDED", make_topology("node", 2, 1, 16, 256))
    world.engine.handlers.devices.observe("ADDED", replace(inventory(), node="node"))
    world.waits(pod := replace(make_pod("waits"), request=request({"cpu": 2000, "gpu": 500})))
    await world.settle()
    text = "if node had the NUMA policy Restricted instead of SingleNUMANode, it fits on node, NUMA 0,1"
    assert text in await advice(world, pod)
