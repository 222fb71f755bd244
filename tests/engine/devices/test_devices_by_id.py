"""Devices by id through the engine: bound, counted, released, rebuilt, and the choice of the node."""

import json
from random import Random

import pytest

from koord_numa.core.objects.devices import DeviceInventory, DeviceSpec, PartitionSpec
from koord_numa.core.objects.gangs import Dialect, GangKey, GangRef, GangSpec
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import NumaSpec, Pod
from koord_numa.core.objects.verdicts import Placement, Reason
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaPolicy
from koord_numa.core.scheduling.filters import decide
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED
from koord_numa.wire.devices import device_grants
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.names import DEVICE_ALLOCATED
from koord_numa.wire.pod_annotations import resource_status
from tests.core.devices.rack import inventory, request
from tests.engine.gangs.groups import kubelet_topology
from tests.engine.preemption.world import leaves, make_room
from tests.engine.world import World, make_node, make_pod, make_topology, make_world

NVIDIA = {"nvidia.com/gpu": 1}
SAME = DeviceSpec(joint=("gpu", "rdma"), same_pcie=True)


def asking(name: str, *specs: DeviceSpec | None, **amounts: int) -> Pod:
    """A waiting pod with device requests: ``gpu=100``."""
    pod = make_pod(name, cpu=2000, memory=1)
    wanted = request({**pod.request.containers[0].requests, **amounts}, *specs)
    return replace(pod, request=wanted)


def rack(*machines: DeviceInventory, topology: bool = False) -> World:
    """A world of nodes with these Device objects."""
    nodes = [make_node(f"node-{number}", cpu=64, memory=256) for number in range(len(machines))]
    world = make_world(*nodes, annotate=resource_status)
    for number, machine in enumerate(machines):
        world.engine.handlers.devices.observe("ADDED", replace(machine, node=f"node-{number}"))
        if topology:
            there = make_topology(f"node-{number}", sockets=2, numa=1, cores=16, memory=256)
            world.engine.handlers.topologies.observe("ADDED", there)
    return world


def devices_of(world: World, pod: Pod) -> str:
    """Return the devices of the annotation ``device-allocated``: ``gpu0 rdma0``."""
    written = json.loads(world.server.annotations[pod.key.uid].get(DEVICE_ALLOCATED, "{}"))
    return " ".join(f"{kind}{entry['minor']}" for kind, entries in written.items() for entry in entries)


async def test_the_bind_writes_the_devices() -> None:
    """One call: node, CPUs and devices with id, amounts and memory."""
    world = rack(inventory())
    world.waits(pod := asking("a", gpu=100, rdma=1))
    await world.settle()
    assert json.loads(world.server.annotations[pod.key.uid][DEVICE_ALLOCATED]) == {
        "gpu": [
            {
                "minor": 0,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "80Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
                "id": "gpu-0",
            }
        ],
        "rdma": [{"minor": 0, "resources": {"koordinator.sh/rdma": "1"}, "id": "rdma-0"}],
    }


async def test_pods_hold_their_devices_until_they_are_gone() -> None:
    """The ninth GPU is nobody's; a pod that ends wakes the one that waits."""
    world = rack(inventory())
    pods = [asking(f"pod-{number}", gpu=100) for number in range(9)]
    world.waits(*pods)
    await world.settle()
    placed = [pod for pod in pods if world.server.pods[pod.key.uid].node]
    assert len(placed) == 8
    assert len({devices_of(world, pod) for pod in placed}) == 8
    (waiting,) = (pod for pod in pods if not world.server.pods[pod.key.uid].node)
    assert "Insufficient gpu devices" in world.pending(waiting).message
    assert "needs 1 gpu; 0 of 8 are free" in world.pending(waiting).message
    world.engine.handlers.bound_pods.observe(DELETED, world.server.pods[placed[3].key.uid])
    world.clock.now += 10
    await world.settle()
    assert devices_of(world, waiting) == devices_of(world, placed[3])


async def test_a_restart_rebuilds_the_ledger_from_annotations() -> None:
    """A second scheduler that reads the bound pods has the same free devices."""
    world = rack(inventory(), inventory())
    world.waits(*(asking(f"pod-{number}", SAME, gpu=100 * (1 + number % 2), rdma=1) for number in range(7)))
    await world.settle()
    fresh = rack(inventory(), inventory())
    for uid, pod in world.server.pods.items():
        text = world.server.annotations.get(uid, {}).get(DEVICE_ALLOCATED)
        if text is not None:
            grants = device_grants(text, FieldPath(""))
            fresh.engine.handlers.bound_pods.observe("ADDED", replace(pod, devices=grants))
    for name, record in world.engine.cache.nodes.items():
        held = {uid: holding.devices for uid, holding in record.ledger.holdings.items()}
        assert {uid: holding.devices for uid, holding in fresh.engine.cache.nodes[name].ledger.holdings.items()} == held
        assert held


@pytest.mark.parametrize(
    ("pod", "events", "message"),
    [
        (asking("a", gpu=150), (), "invalid resource unit koordinator.sh/gpu: 150"),
        (asking("a", gpu=100), (replace(inventory(), problem="malformed"),), "node(s) had unknown devices"),
        (asking("a", SAME, gpu=200, rdma=200), (inventory("0a 0a", "0a"),), "Insufficient rdma devices"),
        (
            asking("a", SAME, gpu=300, rdma=1),
            (inventory("0a 0a 1b", "0a"),),
            "node(s) Device Joint-Allocate rules violation",
        ),
        (
            asking("a", DeviceSpec(partition=PartitionSpec()), gpu=100),
            (inventory(),),
            "node(s) missing GPU Partition Table",
        ),
    ],
    ids=["invalid", "malformed", "too few", "joint", "partition"],
)
async def test_rejections(pod: Pod, events: tuple[DeviceInventory, ...], message: str) -> None:
    """Koordinator's words reach the pod."""
    world = rack(inventory())
    for devices in events:
        world.engine.handlers.devices.observe("MODIFIED", replace(devices, node="node-0"))
    world.waits(pod)
    await world.settle()
    assert message in world.pending(pod).message


async def test_a_node_without_a_device_object_counts_amounts() -> None:
    """Plain requests are amounts of the Node there; conditions on devices are rejected."""
    node = make_node("node-0", cpu=64, memory=256)
    node = replace(node, allocatable={**node.allocatable, "koordinator.sh/gpu": 100, "koordinator.sh/rdma": 100})
    world = make_world(node, annotate=resource_status)
    plain, strict = asking("plain", gpu=100), asking("strict", SAME, gpu=100, rdma=1)
    world.waits(strict, plain)
    await world.settle()
    assert world.nodes_of()["plain"] == "node-0"
    assert DEVICE_ALLOCATED not in world.server.annotations[plain.key.uid]
    assert "node(s) had no Device object" in world.pending(strict).message


async def test_amounts_that_the_node_lists_count_too() -> None:
    """A device plugin that has lost its GPUs rejects the pod, whatever the Device object says."""
    world = rack(inventory())
    node = make_node("node-0", cpu=64, memory=256)
    world.engine.handlers.nodes.observe(
        "MODIFIED", replace(node, allocatable={**node.allocatable, "nvidia.com/gpu": 0})
    )
    world.waits(pod := asking("a", **NVIDIA))
    await world.settle()
    assert "Insufficient nvidia.com/gpu" in world.pending(pod).message
    world.engine.handlers.nodes.observe("MODIFIED", node)
    world.clock.now += 10
    await world.settle()
    assert devices_of(world, pod) == "gpu0"


async def test_unreadable_devices_close_the_node_for_devices_only() -> None:
    """It is not known what the pod holds; pods without device requests still fit."""
    world = rack(inventory())
    broken = replace(make_pod("broken"), node="node-0", unknown_devices="malformed")
    world.engine.handlers.bound_pods.observe("ADDED", broken)
    world.waits(pod := asking("a", gpu=100), other := make_pod("other"))
    await world.settle()
    assert "the devices of default/broken are not known: malformed" in world.pending(pod).message
    assert world.nodes_of()[other.key.name] == "node-0"


async def test_devices_of_a_vanished_device_object_are_not_given_away() -> None:
    """Pods hold devices there; once they are gone, the node is one without a Device object."""
    world = rack(inventory())
    world.waits(first := asking("a", gpu=100))
    await world.settle()
    world.engine.handlers.devices.observe(DELETED, replace(inventory(), node="node-0"))
    world.waits(second := asking("b", gpu=100))
    await world.settle()
    assert "the Device object of the node is gone" in world.pending(second).message
    world.engine.handlers.devices.observe("ADDED", replace(inventory(), node="node-0"))
    world.clock.now += 10
    await world.settle()
    assert devices_of(world, second) != devices_of(world, first) != ""


async def test_an_annotation_copied_from_another_pod_is_replaced() -> None:
    """A template with a device-allocated of its own gives nobody those devices."""
    world = make_world(make_node("node-0"), annotate=resource_status)
    world.waits(pod := replace(make_pod("a"), stale_devices=True))
    await world.settle()
    assert world.server.annotations[pod.key.uid][DEVICE_ALLOCATED] == "{}"


@pytest.mark.parametrize(
    ("policy", "gone", "expected"),
    [
        (NumaPolicy.SINGLE_NUMA_NODE, "", "gpu0 rdma0"),
        (NumaPolicy.SINGLE_NUMA_NODE, "gpu0 gpu1 gpu2 gpu3", "gpu4 rdma2"),
        (NumaPolicy.SINGLE_NUMA_NODE, "rdma0 rdma1", "gpu4 rdma2"),
        (NumaPolicy.RESTRICTED, "gpu0 gpu1 gpu2 gpu3", "gpu4 rdma2"),
        (NumaPolicy.BEST_EFFORT, "gpu0 gpu1 gpu2 gpu3", "gpu4 rdma2"),
        (NumaPolicy.SINGLE_NUMA_NODE, "gpu0 gpu1 gpu2 gpu3 rdma2 rdma3", ""),
        (NumaPolicy.BEST_EFFORT, "gpu0 gpu1 gpu2 gpu3 rdma2 rdma3", "gpu4 rdma0"),
    ],
)
async def test_cpus_and_devices_share_numa_nodes(policy: NumaPolicy, gone: str, expected: str) -> None:
    """The pod's CPUs are where its devices are; where there is no common NUMA node, only a required policy rejects it."""
    machine = inventory()
    devices = [replace(it, healthy=f"{it.type}{it.minor}" not in gone.split()) for it in machine.devices]
    world = rack(replace(machine, devices=tuple(devices)), topology=True)
    pod = asking("a", gpu=100, rdma=1)
    pod = replace(pod, request=replace(pod.request, numa=NumaSpec(policy=policy)))
    world.waits(pod)
    await world.settle()
    if not expected:
        assert "Insufficient NUMA Scoped Devices" in world.pending(pod).message
        return
    assert devices_of(world, pod) == expected
    if policy is not NumaPolicy.BEST_EFFORT:
        numa = "0" if expected.startswith("gpu0") else "1"
        assert world.server.annotations[pod.key.uid]["koord-numa/numa-nodes"] == numa


async def test_whole_partitions_are_spared() -> None:
    """A single GPU goes to the node whose pair is broken already, not to an empty one."""
    world = rack(inventory(), inventory(), inventory())
    pair = replace(
        asking("first", gpu=100),
        node="node-1",
        devices=device_grants('{"gpu":[{"minor":7,"resources":{"koordinator.sh/gpu-core":"100"}}]}', FieldPath("")),
    )
    world.engine.handlers.bound_pods.observe("ADDED", pair)
    world.waits(pod := asking("a", gpu=100))
    await world.settle()
    assert (world.nodes_of()["a"], devices_of(world, pod)) == ("node-1", "gpu6")


@pytest.mark.parametrize(
    ("seed", "policies"),
    [*((seed, (NumaPolicy.NONE,)) for seed in range(6)), *((seed, tuple(NumaPolicy)) for seed in range(6, 18))],
)
async def test_remembered_choices_equal_asking_every_node(seed: int, policies: tuple[NumaPolicy, ...]) -> None:
    """Bounds and remembered rankings choose the node that evaluating every node chooses."""
    dice = Random(seed)
    machines = ["0a 0a 0b 0b 1c 1c 1d 1d", "0a 0a 1b 1b", "0a", "? ?"]
    world = rack(*(inventory(dice.choice(machines), dice.choice(("0a 0b 1c", "0a", ""))) for _ in range(6)))
    world.engine.handlers.nodes.observe("ADDED", _listing(make_node("plain", cpu=64, memory=256)))
    engine = world.engine
    aligned = len(policies) > 1
    for name in sorted(engine.cache.nodes) if aligned else ():
        ours = make_topology(name, sockets=2, numa=1, cores=16, memory=256)
        kubelets = [kubelet_topology(name, 2, 16, policy) for policy in KubeletPolicy]
        topology = dice.choice((None, ours, replace(ours, numa_policy=NumaPolicy.SINGLE_NUMA_NODE), *kubelets))
        if topology is not None:
            engine.handlers.topologies.observe("ADDED", topology)
    shapes = ({"gpu": 100}, {"gpu": 200}, {"gpu": 30}, {"gpu": 100, "rdma": 1}, {"rdma": 50}, {"gpu-memory": 9 << 30})
    for number in range(40):
        spec = dice.choice((None, SAME, DeviceSpec(joint=("gpu", "rdma"))))
        pod = asking(f"pod-{number}", spec, **dice.choice(shapes))
        policy = dice.choice(policies) if aligned else NumaPolicy.NONE
        pod = replace(pod, request=replace(pod.request, numa=NumaSpec(policy=policy)))
        request_class = engine.classes.of(pod)
        assert request_class is not None
        selector = engine.handle.selector
        nodes = [seen for record in engine.cache.nodes.values() if (seen := record.candidate()) is not None]
        expected = decide(selector.request_now(request_class), nodes, selector.profile_of(request_class))
        found = selector.choose(request_class)
        assert found == (expected if isinstance(expected, Placement) else None)
        if isinstance(found, Placement):
            engine.cache.hold(pod, found)
        elif not aligned:
            assert Reason.DEVICES in {no.reason for no in selector.explain(request_class).rejections.values()}
        if dice.random() < 0.3 and (held := sorted(engine.cache.node_of)):
            engine.cache.release(dice.choice(held))


def _listing(node: Node) -> Node:
    return replace(node, allocatable={**node.allocatable, "koordinator.sh/gpu": 400})


async def test_more_in_use_than_exists_is_reported_once() -> None:
    """Another scheduler gave the same GPU away: an event on the node, and the GPU is not allocated again."""
    world = rack(inventory("0a 0a", ""))
    for name in ("a", "b"):
        grants = device_grants('{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100"}}]}', FieldPath(""))
        world.engine.handlers.bound_pods.observe("ADDED", replace(make_pod(name), node="node-0", devices=grants))
    world.engine.handlers.bound_pods.observe("ADDED", replace(make_pod("c"), node="node-0"))
    said = [(who, message) for who, reason, message in world.diary.events if reason == "DeviceConflict"]
    assert said == [("node-0", "200 of 100 koordinator.sh/gpu-core of gpu 0 is held by default/a, default/b")]
    world.waits(first := asking("d", gpu=100), second := asking("e", gpu=100))
    await world.settle()
    assert devices_of(world, first) == "gpu1"
    assert "needs 1 gpu; 0 of 2 are free" in world.pending(second).message


async def test_unknown_devices_are_reported() -> None:
    """A malformed Device object is named on its node."""
    world = rack(inventory())
    world.engine.handlers.devices.observe("MODIFIED", DeviceInventory("node-0", problem="spec.devices is not a list"))
    assert ("node-0", "DevicesUnknown", "spec.devices is not a list") in world.diary.events


async def test_the_closest_node_is_named_first() -> None:
    """The numbers are those of the node that lacks least."""
    world = rack(inventory("0a 0b", "0a"), inventory("0a 0a", "0a"), inventory("0a", "0a"))
    world.waits(pod := asking("a", DeviceSpec(joint=("gpu", "rdma"), same_pcie=True), gpu=200, rdma=200))
    await world.settle()
    lines = world.pending(pod).message.splitlines()
    assert lines[1].startswith("node-0: ") or lines[1].startswith("node-1: ")
    assert "needs 2 rdma; 1 of 1 are free" in lines[1]


async def test_a_node_that_can_never_hold_the_pod_is_not_named_first() -> None:
    """No eviction helps on a node without GPUs and NICs on one switch. The node with the closest switch is first."""
    world = rack(inventory("0a 0a", "1b 1b 1b"), inventory("0a 0a", "0a"), inventory("0a", "0a 0a"))
    world.waits(pod := asking("a", SAME, gpu=200, rdma=200))
    await world.settle()
    first = world.pending(pod).message.splitlines()[1]
    assert first.startswith("node-1: ")
    assert first.endswith("needs 2 gpu and 2 rdma on the same PCIe switches; the best switch has 2 + 1")


async def test_preemption_frees_devices() -> None:
    """The pod of lower priority whose devices suffice leaves; the other one stays."""
    world = rack(inventory("0a 0a 0b", ""))
    world.engine.handlers.budgets.replace([])
    for name, minors in (("pair", (0, 1)), ("single", (2,))):
        entries = [{"minor": minor, "resources": {"koordinator.sh/gpu-core": "100"}} for minor in minors]
        grants = device_grants(json.dumps({"gpu": entries}), FieldPath(""))
        there = replace(
            asking(name, gpu=100 * len(minors)), node="node-0", devices=grants, started=True, phase="Running"
        )
        world.server.pods[there.key.uid] = there
        world.engine.handlers.bound_pods.observe("ADDED", there)
    pod = asking("urgent", gpu=200)
    pod = replace(pod, request=replace(pod.request, priority=10))
    world.waits(pod)
    assert await make_room(world) == ["nominate urgent node-0", "evict pair"]
    leaves(world, "pair")
    world.clock.now += 10
    await world.settle()
    assert devices_of(world, pod) == "gpu0 gpu1"


def grouped(pod: Pod, name: str, count: int) -> Pod:
    """A member of a gang of so many pods."""
    gang = GangRef(GangKey(Dialect.KOORDINATOR, "default", name), GangSpec(count))
    return replace(pod, request=replace(pod.request, gang=gang))


async def test_members_of_a_gang_hold_different_devices() -> None:
    """The trial of a group counts the devices of members that are assumed; three members do not fit, two do."""
    world = rack(inventory(), inventory())
    members = [grouped(asking(f"m-{number}", gpu=600), "g", 3) for number in range(3)]
    world.waits(*members)
    await world.settle()
    assert not any(world.server.pods[pod.key.uid].node for pod in members)
    pair = [grouped(asking(f"p-{number}", gpu=600), "h", 2) for number in range(2)]
    world.waits(*pair)
    world.clock.now += 10
    await world.settle()
    assert sorted(world.server.pods[pod.key.uid].node for pod in pair) == ["node-0", "node-1"]


@pytest.mark.parametrize("policy", [NumaPolicy.NONE, NumaPolicy.SINGLE_NUMA_NODE])
async def test_a_kubelet_owned_node_has_no_agent_for_devices(policy: NumaPolicy) -> None:
    """The devices are near the NUMA node that the kubelet is expected to choose, and the event says who chooses."""
    world = rack(inventory())
    world.engine.handlers.topologies.observe("ADDED", kubelet_topology("node-0", 2, 32))
    pod = asking("a", gpu=100)
    world.waits(pod := replace(pod, request=replace(pod.request, numa=NumaSpec(policy=policy))))
    await world.settle()
    assert devices_of(world, pod) == "gpu0"
    (message,) = (message for who, reason, message in world.diary.events if (who, reason) == ("a", "Scheduled"))
    assert "no agent injects the chosen devices on this node" in message
