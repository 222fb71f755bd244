"""
Extended resources that a class serves by claim: the node decides how, the claim is made in PreBind, counts once at any moment, is found
again after a restart and is deleted when nothing comes of it.
"""

from typing import Any

import pytest

from koord_numa.core.claims.node_resources import IN_MEMORY, OTHER_NODES
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.scheduling.request import Profile, scheduling_request, with_claims
from koord_numa.core.state.inventory import candidate
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.late_check import ClaimCheck, ExtendedAsk
from koord_numa.engine.claims.pod_claims import claim_work
from koord_numa.ports import Conflict, Unavailable
from koord_numa.wire.resource_claims import extended_claim_name
from tests.core.claims.worlds import device_class
from tests.engine.claims.test_cycle import NODE, World

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
    """Return the result of the late check on a node."""
    claims = world.resolver.of(pod)
    assert claims is not None
    assert not claims.problem
    ask = with_claims(scheduling_request(pod.request, Profile()), claims)
    check = ClaimCheck(world.lister, claims, lambda _: None, ExtendedAsk("", pod.request.containers))
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


async def test_the_claim_is_created_allocated_and_in_the_pod_status() -> None:
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


async def test_a_claim_with_lost_creation_response_is_deleted_by_owner() -> None:
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
    """Return the requests of the pod's claim."""
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


async def test_a_claim_that_serves_no_possible_node_is_deleted() -> None:
    world = gpu_world()
    placement = await done(world)
    world.step.unreserve(POD, placement)
    refused = at(world, node=Node("plugin", allocatable={GPU: 4}))
    assert isinstance(refused, Rejection)
    assert refused.message == OTHER_NODES
    verdict = Unschedulable({"plugin": refused})
    work = world.deallocation()
    work.consider(POD, verdict)
    claim, pod = work._noted.popitem()[1]
    world.placed.append(replace(POD, node="node-1"))
    await work._deallocate(claim, pod)
    assert world.server.deleted == []
    world.placed.clear()
    await work._deallocate(claim, pod)
    assert (world.server.deleted, world.in_use) == ([CLAIM], [])


async def test_a_claim_in_deletion_is_awaited_and_completed() -> None:
    world = gpu_world()
    await done(world)
    claim = world.lister.claims["default", CLAIM]
    world.lister.observe_claim(None, replace(claim, version="9", deleting=True))
    claims = world.resolver.of(POD)
    assert claims is not None
    assert claims.problem == f'resourceclaim "{CLAIM}" of an earlier attempt is being deleted'
    work = world.deallocation()
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
