"""Extended resources by claim in whole decisions: each node is asked in its own way, and the ranking chooses as asking every node would."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.objects.claims import Allocation, DeviceClass, DeviceId, DeviceResult
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Container, Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.scheduling.filters import ScoredPlacement, choose
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.pod_claims import claim_work
from tests.core.claims.worlds import device, device_class, published
from tests.engine.claims.test_cycle import World
from tests.engine.claims.test_extended import GPU, GPU_CLASS, gpu_world
from tests.engine.claims.test_ranking import placed_as_by_asking_every_node, random_world
from tests.engine.clusters import random_pod
from tests.engine.world import make_node, make_pod, make_world


def cluster(*nodes: Node, devices: int = 0, classes: tuple[DeviceClass, ...] = (GPU_CLASS,)) -> Any:
    """A scheduler that knows these nodes, with slices of so many GPUs for ``node-1``."""
    world = make_world(*nodes)
    claims = world.engine.claims
    gpus = gpu_world().lister.slices() if devices else ()
    claims.replace_slices(gpus)
    claims.replace_classes(classes)
    claims.synced()
    return world


def engine_pod(name: str = "pod", gpus: int = 1) -> Pod:
    """A pod of the engine's tests that asks for GPUs too."""
    pod = make_pod(name, cpu=1000)
    (container,) = pod.request.containers
    more = replace(container, requests={**container.requests, GPU: gpus}, limits={**container.limits, GPU: gpus})
    return replace(pod, request=replace(pod.request, containers=(more,)))


def test_nodes_without_devices_reject_until_there_are_some() -> None:
    world = cluster(make_node("node-1"))
    pod = engine_pod()
    run = world.engine.dry_run(pod)
    assert run is not None
    refused = run["node-1"]
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.message) == (Reason.RESOURCE_CLAIMS, "cannot allocate all claims")
    assert refused.detail == "example.com/gpu of container app: 1 wanted, 0 of 0 devices match, 0 free"
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    # What a node has to have for a waiting pod to be tried again leaves the devices out.
    assert GPU not in request_class.amounts
    world.engine.claims.replace_slices(gpu_world().lister.slices())
    again = world.engine.dry_run(pod)
    assert again is not None
    assert isinstance(choose(again), Placement)


def test_a_new_class_reorders_waiting_pods_of_a_rejection() -> None:
    world = cluster(make_node("node-1"), devices=2, classes=())
    pod = engine_pod()
    world.engine.handlers.pending_pods.observe(None, pod)
    before = world.engine.handle.pending.get(pod.key.uid)
    assert before is not None
    former = before.request_class
    world.engine.claims.observe_class("ADDED", GPU_CLASS)
    after = world.engine.handle.pending.get(pod.key.uid)
    assert after is not None
    assert after.request_class is not former
    assert after.request_class.claims is not None


def test_a_node_that_advertises_the_resource_needs_no_claim() -> None:
    node = make_node("node-1")
    plugin = replace(node, allocatable={**node.allocatable, GPU: 1})
    world = cluster(plugin, devices=2)
    run = world.engine.dry_run(engine_pod())
    assert run is not None
    best = choose(run)
    assert isinstance(best, Placement)
    assert (best.extended, best.allocations) == ((), ())
    # More than it advertises is not made up for by claim (noderesources ShouldDelegateResourceToDRA).
    short = world.engine.dry_run(engine_pod(gpus=2))
    assert short is not None
    refused = short["node-1"]
    assert isinstance(refused, Rejection)
    assert refused.message == f"Insufficient {GPU}"


def test_devices_by_id_count_in_the_score_as_plugin_amounts() -> None:
    """Most allocated, by GPUs alone: of two nodes with two GPUs each the one where a GPU is taken is the fuller one."""
    settings = weighted("MostAllocated")
    world = make_world(make_node("node-1"), make_node("node-2"), settings=settings)
    claims = world.engine.claims
    slices = [
        published("gpu", [device("a"), device("b")], pool=name, nodeName=name, name=name)
        for name in ("node-1", "node-2")
    ]
    claims.replace_slices(slices)
    claims.replace_classes([GPU_CLASS])
    claims.synced()
    other = World.claim("other")
    taken = Allocation((DeviceResult("r", DeviceId("gpu", "node-2", "a")),))
    claims.observe_claim(None, replace(other, allocation=taken))
    run = world.engine.dry_run(engine_pod())
    assert run is not None
    best = choose(run)
    assert isinstance(best, Placement)
    assert (best.node, best.device_counts) == ("node-2", ((GPU, 1, 2),))
    first, second = (run[name] for name in ("node-1", "node-2"))
    assert isinstance(first, ScoredPlacement)
    assert isinstance(second, ScoredPlacement)
    assert first.parts is not None
    assert second.parts is not None
    assert (first.parts["resources"], second.parts["resources"]) == (50, 100)


def weighted(strategy: str) -> str:
    """A configuration by which GPUs alone count in the score of a node."""
    return f"{{profiles: [{{scoringStrategy: {{type: {strategy}, resources: [{{name: {GPU}, weight: 1}}]}}}}]}}"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("", "MostAllocated", "LeastAllocated", "BalancedAllocation")))
def test_the_ranking_chooses_what_asking_every_node_would(seed: int, strategy: str) -> None:
    dice = Random(seed)
    world, _ = random_world(dice, weighted(strategy) if strategy else "")
    engine = world.engine
    engine.claims.replace_classes([replace(device_class("gpu"), extended_resource=GPU), device_class("nic")])
    for info in list(engine.cache.nodes.values()):
        if info.node is not None and dice.random() < 0.4:
            own = {GPU: dice.randint(0, 2)}
            engine.handlers.nodes.observe(None, replace(info.node, allocatable={**info.node.allocatable, **own}))
    devices: set[object] = set()
    for number in range(8):
        pod = _with_gpus(dice, random_pod(dice, f"pod-{number}"))
        found = placed_as_by_asking_every_node(world, pod)
        if found is None:
            continue
        node = engine.cache.nodes[found.node].node
        assert node is not None
        assert bool(found.extended) == (not node.allocatable.get(GPU))
        for work in claim_work(engine.claims, engine.handle.resource_claims, pod, found):
            assert work.allocation is not None
            engine.claims.assume(work.claim, work.allocation, pod.key.uid)
            for result in work.allocation.results:
                assert result.device not in devices
                devices.add(result.device)


def _with_gpus(dice: Random, pod: Pod) -> Pod:
    """The pod without a node, whose first container asks for GPUs."""
    containers = list(pod.request.containers) or [Container("main", ContainerKind.APP)]
    wanted = {GPU: dice.choice((1, 1, 2))}
    containers[0] = replace(
        containers[0], requests={**containers[0].requests, **wanted}, limits={**containers[0].limits, **wanted}
    )
    return replace(pod, request=replace(pod.request, containers=tuple(containers)), node="", problem="")
