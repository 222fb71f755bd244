"""Claims of devices that take CPUs of the node: counted once, compared with what is left, written before the bind and read back."""

from typing import Any

import pytest

from koord_numa.core.objects.claims import ClaimAmounts, PodResourceClaim
from koord_numa.core.objects.request import Container, Pod, PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.scheduling.filters import choose
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.pre_bind import ClaimPreBind
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.resource_claims import claim_amounts_json, parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import claim_object, device, device_class, request
from tests.engine.claims.claim_server import FakeClaimWriter
from tests.engine.world import World, make_node, make_pod, make_world

N = 10**9
MAPPED = {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}}


def world_with(resources: Any, cpus: str = "64") -> World:
    """A node of 32 CPUs with a group of CPUs that is worth CPUs of the node."""
    world = make_world(make_node("node"))
    group = device("group", capacity={"dra.cpu/cpu": cpus}, allowMultipleAllocations=True)
    spec = {
        "driver": "dra.cpu",
        "nodeName": "node",
        "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
        "devices": [group | {"nodeAllocatableResources": resources}],
    }
    parts = parse_resource_slice({"metadata": {"name": "s"}, "spec": spec}).parts
    assert parts is not None
    world.engine.claims.observe_slice(None, parts)
    world.engine.claims.replace_classes([device_class("dra.cpu")])
    world.engine.claims.synced()
    return world


def asks(world: World, name: str, cpus: int, cpu: int = 0, claim: str = "") -> Pod:
    """A pod that requests some CPUs and claims others."""
    wanted = request("r", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": str(cpus)}})
    if not claim:
        made = replace(parse_resource_claim(claim_object(wanted, name=name)), version="1")
        world.engine.claims.observe_claim(None, made)
    containers = (Container("main", ContainerKind.APP, {"cpu": cpu} if cpu else {}, claims=(("c", ""),)),)
    pod = make_pod(name, resource_claims=(PodResourceClaim("c", claim or name),))
    return replace(pod, request=PodRequest(containers))


def verdict(world: World, pod: Pod) -> Placement | Rejection:
    """The answer of the node."""
    found = world.engine.dry_run(pod)
    assert found is not None
    best = choose(found)
    return best if isinstance(best, Placement) else next(it for it in found.values() if isinstance(it, Rejection))


def capacity(world: World) -> int:
    return world.engine.cache.nodes["node"].node.allocatable["cpu"] // 1000  # type: ignore[union-attr]  # the node exists


def test_claimed_cpus_come_on_top_of_requests_and_count_once() -> None:
    world = world_with(MAPPED)
    most = capacity(world)
    found = verdict(world, asks(world, "fits", most - 1, cpu=1000))
    assert isinstance(found, Placement)
    assert found.claim_amounts == (ClaimAmounts("c", ("main",), (("cpu", (most - 1) * N),)),)
    assert found.counted is not None
    assert found.counted["cpu"] == most * 1000
    refused = verdict(world, asks(world, "more", most, cpu=1000))
    assert isinstance(refused, Rejection)
    assert refused.message == "Insufficient cpu"
    assert "with devices of its claims" in refused.detail


def test_what_a_placed_pod_takes_is_not_there_for_others() -> None:
    world = world_with(MAPPED)
    most = capacity(world)
    pod = asks(world, "first", most - 2, cpu=1000)
    found = verdict(world, pod)
    assert isinstance(found, Placement)
    with world.engine.cache.assume(pod, found):
        assert world.engine.cache.nodes["node"].ledger.amounts["cpu"] == (most - 1) * 1000
        assert isinstance(verdict(world, make_pod("small", cpu=1000)), Placement)
        assert isinstance(verdict(world, make_pod("large", cpu=1001)), Rejection)


def test_without_the_fields_a_claim_takes_nothing() -> None:
    world = world_with(None)
    found = verdict(world, asks(world, "q", 4, cpu=1000))
    assert isinstance(found, Placement)
    assert (found.claim_amounts, found.counted) == ((), None)


@pytest.mark.parametrize(
    ("resources", "shared"),
    [(MAPPED, False), ({"cpu": {"overhead": {"perPod": "1"}}}, True), (None, True)],
)
def test_a_mapped_claim_is_not_shared(resources: Any, shared: bool) -> None:
    world = world_with(resources)
    pod = asks(world, "owner", 4)
    found = verdict(world, pod)
    assert isinstance(found, Placement)
    claim = world.engine.claims.claims["default", "owner"]
    allocated = replace(claim, version="2", allocation=found.allocations[0], reserved_for=(pod.key.uid,))
    world.engine.claims.observe_claim("MODIFIED", allocated)
    assert isinstance(verdict(world, pod), Placement)
    other = verdict(world, asks(world, "other", 4, claim="owner"))
    assert isinstance(other, Placement) == shared
    if isinstance(other, Rejection):
        assert (
            other.message
            == "node allocatable resource claim owner has a mapped device and cannot be shared across pods"
        )
    elif resources:
        # Overhead is each pod's own, also of a claim that is allocated already.
        assert other.counted is not None
        assert other.counted["cpu"] == 1000


def test_amounts_are_read_back_from_the_status() -> None:
    amounts = ClaimAmounts("c", ("main", "side"), (("cpu", 4 * N),))
    status = {"phase": "Running", "nodeAllocatableResourceClaimStatuses": [claim_amounts_json("claim", amounts)]}
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "c"}]}}
    obj: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "nodeName": "node",
            "containers": [container],
            "resourceClaims": [{"name": "c", "resourceClaimName": "claim"}],
        },
        "status": status,
    }
    pod = parse_pod(obj)
    assert (pod.problem, dict(pod.request.counted or {})) == ("", {"cpu": 5000})
    # Without a node the status is of a former attempt.
    del obj["spec"]["nodeName"]
    assert parse_pod(obj).request.counted is None


async def test_amounts_are_written_before_the_bind_and_then_cleared() -> None:
    world = world_with(MAPPED)

    async def waits(_: Any) -> bool:
        return True

    server = FakeClaimWriter(world.engine.claims)
    step = ClaimPreBind(world.engine.claims, world.engine.handle.resource_claims, server, waits, waits)
    pod = asks(world, "p", 4, cpu=1000)
    found = verdict(world, pod)
    assert isinstance(found, Placement)
    step.reserve(pod, found)
    await step.do(pod, found)
    assert server.amounts == {"p": [("p", ClaimAmounts("c", ("main",), (("cpu", 4 * N),)))]}
    await step.undo(pod, found)
    assert server.amounts == {"p": []}
