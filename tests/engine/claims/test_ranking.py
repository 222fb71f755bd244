"""
Pods with claims over random clusters: the ranking chooses what asking every node would, no device and no CPU is given out twice, and
pods under hard policies are on the NUMA nodes of their devices.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.claims.cpus import cpus_of
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import (
    AllocatedConfig,
    Allocation,
    ConfigSource,
    DeviceId,
    DeviceResult,
    OpaqueConfig,
    PodResourceClaim,
)
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.scheduling.filters import EVENTS, ClusterEvent, choose
from koord_numa.core.scheduling.placement import HARD
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import DELETED
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import Json, claim_object, device, device_class, request
from tests.engine.clusters import random_node, random_pod, random_topology
from tests.engine.world import GIB, World, make_node, make_pod, make_world

NUMA = "resource.kubernetes.io/numaNode"
DRIVERS = ("gpu", "nic", "dra.cpu")


def slices_of(dice: Random, node: Node, topology: NodeResourceTopology) -> list[Json]:
    """Return the slices of a node: some GPUs and NICs, and the CPUs if their ids are known."""
    places = [zone.numa for zone in topology.zones] or [0]
    found = [
        _slice(
            node.name,
            driver,
            [
                device(
                    f"{driver}-{number}", attributes={NUMA: dice.choice(places)} if dice.random() < 0.9 else {"x": 1}
                )
                for number in range(dice.randint(0, 4))
            ],
        )
        for driver in ("gpu", "nic")
    ]
    if topology.machine is not None and dice.random() < 0.5:
        count = len(topology.machine.all)
        texts = {"dra.cpu/numCPUs": count, "dra.cpu/cpuIDs": f"0-{count - 1}"}
        made = device(
            "cpudevmachine", attributes=texts, capacity={"dra.cpu/cpu": str(count)}, allowMultipleAllocations=True
        )
        found.append(_slice(node.name, "dra.cpu", [made]))
    return found


def _slice(node: str, driver: str, devices: list[Json]) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def wanted_by(dice: Random, name: str) -> Json:
    """A claim of one or two GPUs or a NIC, perhaps with CPUs, perhaps by a prioritized list."""
    gpu = request("gpu", "gpu", count=dice.choice((1, 1, 2)))
    if dice.random() < 0.3:
        subs = [
            {"name": each, "deviceClassName": each, "allocationMode": "ExactCount", "count": 1}
            for each in ("gpu", "nic")
        ]
        gpu = {"name": "gpu", "firstAvailable": subs}
    cpus = request("cpu", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": str(dice.choice((1, 2)))}})
    chosen = dice.choice(([gpu], [gpu, request("nic", "nic")], [gpu, cpus], [cpus]))
    return claim_object(*chosen, name=name)


def random_world(dice: Random, configuration: str = "") -> tuple[World, dict[str, NodeResourceTopology]]:
    """A few nodes with devices."""
    nodes = [random_node(dice, f"node-{number}") for number in range(dice.randint(1, 5))]
    topologies = {node.name: random_topology(dice, node) for node in nodes}
    world = make_world(*nodes, settings=configuration)
    world.engine.handlers.topologies.replace(topologies.values())
    claims = world.engine.claims
    parsed = [
        parse_resource_slice(each).parts for node in nodes for each in slices_of(dice, node, topologies[node.name])
    ]
    claims.replace_slices(each for each in parsed if each is not None)
    claims.replace_classes(device_class(driver) for driver in DRIVERS)
    claims.synced()
    return world, topologies


def with_claim(world: World, dice: Random, pod: Pod) -> Pod:
    """The pod with a claim of its own, which exists."""
    name = f"claim-{pod.key.name}"
    world.engine.claims.observe_claim(None, replace(parse_resource_claim(wanted_by(dice, name)), version="1"))
    return replace(pod, resource_claims=(PodResourceClaim("c", name),), node="", problem="")


def placed_as_by_asking_every_node(world: World, pod: Pod) -> Placement | None:
    """Place a pod by the ranking, which must choose the best answer of all nodes. The pod is assumed if a node fits."""
    engine = world.engine
    request_class = engine.classes.of(pod)
    if request_class is None:
        return None
    answers = engine.dry_run(pod)
    assert answers is not None
    found = engine.handle.selector.choose(request_class)
    expected = choose(answers)
    assert (found or None) == (expected if isinstance(expected, Placement) else None)
    if found is not None:
        engine.cache.hold(pod, found)
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_laws(seed: int) -> None:
    dice = Random(seed)
    world, topologies = random_world(dice)
    engine = world.engine
    exclusive: set[object] = set()
    cpus: dict[str, CpuSet] = {}
    for number in range(8):
        pod = with_claim(world, dice, random_pod(dice, f"pod-{number}"))
        found = placed_as_by_asking_every_node(world, pod)
        if found is None:
            continue
        (claim,) = engine.handle.resource_claims.claims_of(pod)
        (allocation,) = found.allocations
        engine.claims.assume(claim, allocation, pod.key.uid)
        for result in allocation.results:
            if not result.share_id:
                assert result.device not in exclusive
                exclusive.add(result.device)
        held = cpus.setdefault(found.node, EMPTY)
        assert not held & (cpus_of(allocation) | found.cpus)
        cpus[found.node] = held | cpus_of(allocation) | found.cpus
        _check_alignment(world, pod, found, topologies[found.node], allocation)


def _check_alignment(
    world: World, pod: Pod, found: Placement, topology: NodeResourceTopology, allocation: Allocation
) -> None:
    if pod.request.numa.policy not in HARD or found.mask is None:
        return
    known = {it.id: it for each in world.engine.claims.slices() for it in each.devices}
    for result in allocation.results:
        near = known[result.device].own_numa
        assert not near or any(found.mask >> numa & 1 for numa in near)
    if topology.owner is CpuOwner.SCHEDULER and topology.machine is not None:
        assert not topology.machine.numa_of(cpus_of(allocation)) & ~found.mask


@pytest.mark.parametrize(("first", "expected"), [((1, 0), "node-1"), ((0, 1), "node-0")])
def test_a_node_where_devices_are_near_the_pod_comes_first(first: tuple[int, int], expected: str) -> None:
    """Both kubelets put the pod on NUMA node 0; the GPU of one node is there."""
    world = make_world(make_node("node-0"), make_node("node-1"))
    room = {"cpu": 4000, "memory": 16 * GIB}
    config = KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
    zones = (Zone(0, room, room, room), Zone(1, room, room, room))
    world.engine.handlers.topologies.replace(
        NodeResourceTopology(f"node-{number}", CpuOwner.KUBELET, zones, kubelet=config) for number in (0, 1)
    )
    claims = world.engine.claims
    made = [_slice(f"node-{at}", "gpu", [device("gpu-0", attributes={NUMA: numa})]) for at, numa in enumerate(first)]
    claims.replace_slices(each for it in made if (each := parse_resource_slice(it).parts) is not None)
    claims.replace_classes([device_class("gpu")])
    claims.synced()
    claims.observe_claim(None, parse_resource_claim(claim_object(request("gpu", "gpu"), name="claim")))
    pod = make_pod("pod", cpu=2000, resource_claims=(PodResourceClaim("c", "claim"),))
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    found = world.engine.handle.selector.choose(request_class)
    assert found is not None
    assert found.node == expected


def two_nodes(*slices: Json, settings: str = "") -> World:
    """Two equal nodes and what drivers publish of them."""
    world = make_world(make_node("node-0"), make_node("node-1"), settings=settings)
    claims = world.engine.claims
    claims.replace_slices(each for it in slices if (each := parse_resource_slice(it).parts) is not None)
    claims.replace_classes([device_class("gpu"), device_class("nic")])
    claims.synced()
    return world


def placed(world: World, *requests: Json) -> str:
    """The node of a pod with one claim."""
    world.engine.claims.observe_claim(None, parse_resource_claim(claim_object(*requests, name="claim")))
    pod = make_pod("pod", resource_claims=(PodResourceClaim("c", "claim"),))
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    found = world.engine.handle.selector.choose(request_class)
    return "" if found is None else found.node


def test_a_claim_error_on_one_node_leaves_the_others() -> None:
    world = two_nodes(
        _slice("node-0", "gpu", [device("gpu-0", attributes={"x": 1})]),
        _slice("node-1", "gpu", [device("gpu-0", attributes={"size": 8})]),
    )
    fails = {"cel": {"expression": 'device.attributes["gpu"].size == 8'}}
    assert placed(world, request("gpu", "gpu", selectors=[fails])) == "node-1"


def test_gates_that_a_cluster_has_switched_off_are_followed() -> None:
    subs = [
        {"name": each, "deviceClassName": each, "allocationMode": "ExactCount", "count": 1} for each in ("gpu", "nic")
    ]
    wanted = {"name": "any", "firstAvailable": subs}
    assert placed(two_nodes(_slice("node-0", "gpu", [device("gpu-0")])), wanted) == "node-0"
    without = two_nodes(
        _slice("node-0", "gpu", [device("gpu-0")]), settings="{featureGates: {DRAPrioritizedList: false}}"
    )
    assert placed(without, wanted) == ""


def test_a_node_with_the_first_alternative_comes_first() -> None:
    world = two_nodes(_slice("node-0", "nic", [device("nic-0")]), _slice("node-1", "gpu", [device("gpu-0")]))
    subs = [
        {"name": each, "deviceClassName": each, "allocationMode": "ExactCount", "count": 1} for each in ("gpu", "nic")
    ]
    assert placed(world, {"name": "any", "firstAvailable": subs}) == "node-1"


def test_freed_cpus_wake_a_pod_that_lacks_cpus_near_devices() -> None:
    assert ClusterEvent.CAPACITY_FREED in EVENTS[Reason.CLAIM_ALIGNMENT]
    assert ClusterEvent.CLAIM_CHANGED in EVENTS[Reason.CLAIM_ALIGNMENT]


def test_cpus_are_claimed_until_the_last_claim_is_gone() -> None:
    """A driver that restarts withdraws its slice for a moment."""
    heard: list[tuple[str, bool]] = []
    lister = ClaimLister(lambda: None, lambda _: None, lambda node, by_claim: heard.append((node, by_claim)))
    made = device("cpudevmachine", capacity={"dra.cpu/cpu": "8"}, allowMultipleAllocations=True)
    cpus = parse_resource_slice(_slice("node-0", "dra.cpu", [made])).parts
    assert cpus is not None
    lister.observe_slice(None, cpus)
    held = parse_resource_claim(claim_object(request("cpu", "dra.cpu")))
    result = DeviceResult("cpu", DeviceId("dra.cpu", "node-0", "cpudevmachine"))
    config = OpaqueConfig("dra.cpu", '{"cpuConfig":{"cpuset":"0-1"}}')
    allocation = Allocation((result,), (AllocatedConfig(ConfigSource.CLAIM, ("cpu",), config),))
    lister.observe_claim(None, replace(held, version="1", allocation=allocation))
    lister.observe_slice(DELETED, cpus)
    assert heard[-1] == ("node-0", True)
    lister.observe_claim(None, replace(held, version="2"))
    assert heard[-1] == ("node-0", False)
