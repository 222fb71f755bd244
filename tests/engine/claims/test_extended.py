"""
Extended resources that a class serves by claim: the node decides how, the claim is made in PreBind, counts once at any moment, is found
again after a restart and is deleted when nothing comes of it.
"""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.claims.extended_claim import IN_MEMORY, OTHER_NODES
from koord_numa.core.claims.objects.claim import DeviceClass
from koord_numa.core.claims.search.allocation import Allocation, DeviceResult
from koord_numa.core.claims.search.inventory import DeviceId
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.scheduling.decide import choose
from koord_numa.core.scheduling.evaluate import ScoredPlacement
from koord_numa.core.scheduling.request import Profile, scheduling_request, with_claims
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import candidate
from koord_numa.engine.claims.deallocation import Deallocation
from koord_numa.engine.claims.late_check import ClaimCheck, ExtendedAsk
from koord_numa.engine.claims.work import claim_work
from koord_numa.engine.dry_run import dry_run
from koord_numa.ports import Conflict, Unavailable
from koord_numa.wire.claims.claim_json import extended_claim_name
from tests.core.claims.worlds import device, device_class, published
from tests.engine.claims.test_cycle import NODE, Leader, World
from tests.engine.claims.test_ranking import random_world
from tests.engine.clusters import random_pod
from tests.engine.world import make_node, make_pod, make_world

GPU = "example.com/gpu"
GPU_CLASS = replace(device_class("gpu"), extended_resource=GPU)


def asking(name: str = "pod", gpus: int = 1, **more: Any) -> Pod:
    """A pod whose one container asks for GPUs."""
    container = Container("main", ContainerKind.APP, {"cpu": 1000, GPU: gpus}, {GPU: gpus})
    return Pod(PodKey("default", name, f"uid-{name}"), PodRequest((container,)), **more)


NOTHING_KNOWN = Rejection(Reason.NO_TOPOLOGY, "no topology")
POD = asking()
CLAIM = extended_claim_name(POD.key)


def gpu_world() -> World:
    """One node with two GPUs, which a class serves as an extended resource."""
    world = World()
    world.lister.replace_classes([GPU_CLASS])
    return world


def at(world: World, pod: Pod = POD, node: Node = NODE) -> Placement | Rejection:
    """What the late check says of a node."""
    claims = world.resolver.of(pod)
    assert claims is not None
    assert not claims.problem
    ask = with_claims(scheduling_request(pod.request, Profile()), claims)
    check = ClaimCheck(world.lister, claims, lambda _: None, ExtendedAsk(pod.request.containers))
    return check.check(ask, candidate(node, NOTHING_KNOWN, Ledger()), Placement(node.name))


def placed(world: World, pod: Pod = POD) -> Placement:
    """A placement with devices."""
    found = at(world, pod)
    assert isinstance(found, Placement)
    return found


async def done(world: World, pod: Pod = POD) -> Placement:
    """A cycle up to the bind."""
    placement = placed(world, pod)
    world.step.reserve(pod, placement)
    await world.step.do(pod, placement)
    return placement


async def test_the_claim_is_created_allocated_and_named_in_the_pods_status() -> None:
    world = gpu_world()
    placement = placed(world)
    assert placement.extended == ((GPU, "gpu"),)
    assert world.step.applies(POD, placement)
    world.step.reserve(POD, placement)
    assert world.in_use == ["a"]
    await world.step.do(POD, placement)
    claim = world.lister.claim(("default", CLAIM))
    assert claim is not None
    assert (claim.owner, claim.extended, claim.reserved_for) == ("uid-pod", True, ("uid-pod",))
    assert world.server.mapped["pod"][0] == CLAIM
    (mapping,) = world.server.mapped["pod"][1]
    assert (mapping.container, mapping.resource, mapping.request) == ("main", GPU, "container-0-request-1")
    world.step.post_bind(POD, placement)
    assert (world.in_use, world.lister.assumed, world.server.deleted) == (["a"], {}, [])


def test_its_devices_count_for_others_before_it_exists() -> None:
    world = gpu_world()
    world.step.reserve(POD, placed(world))
    other = asking("other", gpus=2)
    refused = at(world, other)
    assert isinstance(refused, Rejection)
    assert refused.detail == "example.com/gpu of container main: 2 wanted, 2 of 2 devices match, 1 free (1 on NUMA 1)"
    assert world.lister.claim(("default", IN_MEMORY)) is None
    world.step.unreserve(POD, placed(world, asking("third")))
    assert world.in_use == []


async def test_a_failed_bind_deletes_the_claim() -> None:
    world = gpu_world()
    placement = await done(world)
    await world.step.undo(POD, placement)
    world.step.unreserve(POD, placement)
    assert world.server.deleted == [CLAIM]
    assert (world.in_use, world.lister.assumed, world.server.released) == ([], {}, [])


async def test_a_pod_that_has_a_node_after_all_keeps_its_claim() -> None:
    world = gpu_world()
    placement = await done(world)
    world.placed.append(replace(POD, node="node-1"))
    await world.step.undo(POD, placement)
    assert world.server.deleted == []


async def test_a_claim_whose_creation_was_not_answered_is_deleted_by_its_owner() -> None:
    world = gpu_world()
    placement = placed(world)
    world.step.reserve(POD, placement)
    # The server has created it, and the answer was lost.
    await world.server.create(POD.key, placed_requests(world))
    world.server.fails = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await world.step.do(POD, placement)
    world.server.fails = None
    await world.step.undo(POD, placement)
    world.step.unreserve(POD, placement)
    assert world.server.deleted == [CLAIM]
    assert world.in_use == []


def placed_requests(world: World) -> Any:
    """What the claim of the pod asks for."""
    (work,) = world.step._cycles[POD.key.uid]
    return work.claim.spec.requests


async def test_a_cycle_that_was_cut_off_is_gone_on_with() -> None:
    """After the claim was created, and after it was allocated: the next leader finds it, and makes no second one."""
    world = gpu_world()
    placement = placed(world)
    world.step.reserve(POD, placement)
    await world.server.create(POD.key, placed_requests(world))
    world.step.unreserve(POD, placement)
    again = placed(world)
    (work,) = claim_work(world.lister, world.resolver, POD, again)
    assert (work.claim.name, work.in_memory) == (CLAIM, False)
    await done(world)
    world.step._cycles.clear()
    claims = world.resolver.of(POD)
    assert claims is not None
    assert claims.made is not None
    assert claims.made.allocated
    once_more = placed(world)
    assert (once_more.allocations, once_more.extended) == ((), ((GPU, "gpu"),))
    await done(world)
    assert list(world.lister.claims) == [("default", "claim"), ("default", CLAIM)]
    assert world.in_use == ["a"]


async def test_a_claim_that_is_of_no_use_where_the_pod_could_go_is_deleted() -> None:
    world = gpu_world()
    placement = await done(world)
    world.step.unreserve(POD, placement)
    refused = at(world, node=Node("plugin", allocatable={GPU: 4}))
    assert isinstance(refused, Rejection)
    assert refused.message == OTHER_NODES
    verdict = Unschedulable({"plugin": refused})
    work = Deallocation(world.lister, world.resolver, world.placed.copy, (world.server, Leader(), world.waits))
    work.consider(POD, verdict)
    claim, pod = work._noted.popitem()[1]
    world.placed.append(replace(POD, node="node-1"))
    await work._deallocate(claim, pod)
    assert world.server.deleted == []
    world.placed.clear()
    await work._deallocate(claim, pod)
    assert (world.server.deleted, world.in_use) == ([CLAIM], [])


async def test_a_claim_that_is_being_deleted_is_waited_for_and_deleted_to_the_end() -> None:
    world = gpu_world()
    await done(world)
    claim = world.lister.claims["default", CLAIM]
    world.lister.observe_claim(None, replace(claim, version="9", deleting=True))
    claims = world.resolver.of(POD)
    assert claims is not None
    assert claims.problem == f'resourceclaim "{CLAIM}" of an earlier attempt is being deleted'
    work = Deallocation(world.lister, world.resolver, world.placed.copy, (world.server, Leader(), world.waits))
    world.lister.lags(may_lag=True)
    work.consider(POD, Unschedulable({}))
    assert not work._noted  # the pod waits for the list and for nothing else
    world.lister.lags(may_lag=False)
    work.consider(POD, Unschedulable({}))
    assert list(work._noted) == [claim.uid]


async def test_a_decision_about_other_claims_is_void() -> None:
    world = gpu_world()
    placement = placed(world)
    await world.server.create(POD.key, ())
    with pytest.raises(Conflict, match="changed while it was decided on"):
        world.step.reserve(POD, placement)
    # Nor may a pod go where its claim serves nothing.
    with pytest.raises(Conflict, match="changed while it was decided on"):
        world.step.reserve(POD, Placement("plugin"))


async def test_a_status_that_names_a_claim_of_before_is_cleared() -> None:
    world = gpu_world()
    pod = replace(POD, extended_claim="former")
    placement = Placement("plugin")
    assert world.step.applies(pod, placement)
    world.step.reserve(pod, placement)
    await world.step.do(pod, placement)
    assert world.server.mapped == {"pod": ("", ())}


def test_pods_whose_resources_no_class_serves_have_no_claims() -> None:
    world = World()
    assert world.resolver.of(POD) is None
    assert POD.key.uid in world.resolver.users(None)  # told of classes that come
    world.lister.replace_classes([GPU_CLASS])
    assert world.resolver.of(POD) is not None
    made = replace(World.claim("made"), owner="uid-pod", extended=True)
    world.lister.observe_claim("ADDED", made)
    world.lister.features = replace(world.lister.features, extended_resource=False)
    assert world.resolver.of(POD) is None


def test_pods_wait_until_claims_of_before_are_known() -> None:
    world = gpu_world()
    world.lister.lags(may_lag=True)
    claims = world.resolver.of(POD)
    assert claims is not None
    assert claims.problem.startswith("waiting for ResourceClaims")


def test_its_pod_hears_of_a_claim_that_comes_and_goes() -> None:
    world = gpu_world()
    made = replace(World.claim("made"), owner="uid-pod", extended=True)
    world.lister.observe_claim("ADDED", made)
    assert world.resolver.users(("default", "made")) == ("uid-pod",)
    world.resolver.of(POD)
    world.lister.observe_claim("DELETED", made)
    assert world.resolver.users(("default", "made")) == ("uid-pod",)


# The engine as a whole.


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


def test_nodes_without_devices_refuse_with_numbers_and_are_tried_again_when_there_are_some() -> None:
    world = cluster(make_node("node-1"))
    pod = engine_pod()
    run = dry_run(world.engine.handle, pod)
    assert run is not None
    refused = run.nodes["node-1"]
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.message) == (Reason.RESOURCE_CLAIMS, "cannot allocate all claims")
    assert refused.detail == "example.com/gpu of container app: 1 wanted, 0 of 0 devices match, 0 free"
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    # What a node has to have for a waiting pod to be tried again leaves the devices out.
    assert GPU not in request_class.amounts
    world.engine.claims.replace_slices(gpu_world().lister.slices())
    again = dry_run(world.engine.handle, pod)
    assert again is not None
    assert isinstance(again.verdict, Placement)


def test_a_class_that_comes_takes_waiting_pods_out_of_their_refusal() -> None:
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


def test_a_node_that_advertises_the_resource_serves_it_without_a_claim() -> None:
    node = make_node("node-1")
    plugin = replace(node, allocatable={**node.allocatable, GPU: 1})
    world = cluster(plugin, devices=2)
    run = dry_run(world.engine.handle, engine_pod())
    assert run is not None
    assert isinstance(run.verdict, Placement)
    assert (run.verdict.extended, run.verdict.allocations) == ((), ())
    # More than it advertises is not made up for by claim (noderesources ShouldDelegateResourceToDRA).
    short = dry_run(world.engine.handle, engine_pod(gpus=2))
    assert short is not None
    refused = short.nodes["node-1"]
    assert isinstance(refused, Rejection)
    assert refused.message == f"Insufficient {GPU}"


def test_devices_count_in_the_score_of_a_node_as_the_amounts_of_a_device_plugin_do() -> None:
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
    run = dry_run(world.engine.handle, engine_pod())
    assert run is not None
    assert isinstance(run.verdict, Placement)
    assert (run.verdict.node, run.verdict.device_counts) == ("node-2", ((GPU, 1, 2),))
    first, second = (run.nodes[name] for name in ("node-1", "node-2"))
    assert isinstance(first, ScoredPlacement)
    assert isinstance(second, ScoredPlacement)
    assert first.parts is not None
    assert second.parts is not None
    assert (first.parts["resources"], second.parts["resources"]) == (50, 100)


def weighted(strategy: str) -> str:
    """A configuration by which GPUs alone count in the score of a node."""
    return f"{{profiles: [{{scoringStrategy: {{type: {strategy}, resources: [{{name: {GPU}, weight: 1}}]}}}}]}}"


@settings(max_examples=150, deadline=None)
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
        request_class = engine.classes.of(pod)
        if request_class is None:
            continue
        answers = dry_run(engine.handle, pod)
        assert answers is not None
        found = engine.handle.selector.choose(request_class)
        expected = choose(answers.nodes)
        assert (found or None) == (expected if isinstance(expected, Placement) else None)
        if found is None:
            continue
        engine.cache.hold(pod, found)
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
