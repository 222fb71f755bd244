"""Claims that nothing can meet and that take long to find out: each search ends, and they never hold the loop together."""

import pytest

from koord_numa.core.claims.allocator import MAX_STEPS
from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims import late_check
from koord_numa.engine.queue.pending_pod import SLICE
from koord_numa.engine.ranking.node_ranking import Undecided
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import Json, claim_object, device, device_class, request
from tests.engine.world import World, make_node, make_pod, make_world

NODES = 3
GAVE_UP = f"gave up after {MAX_STEPS} steps of trying combinations of devices"


def devices_of(node: str) -> Json:
    """A hundred devices, of which no two are alike and two make a pair."""
    devices = [device(f"d{number}", attributes={"pair": number // 2, "serial": number}) for number in range(100)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": node}, "spec": {"driver": "gpu", "nodeName": node, "pool": pool, "devices": devices}}


def hostile() -> Json:
    """Pair after pair, and at last three that are one."""
    requests = [request(f"r{number}", "gpu", count=2) for number in range(3)] + [request("last", "gpu", count=3)]
    names = [each["name"] for each in requests]
    constraints = [{"matchAttribute": "gpu/pair", "requests": [name]} for name in names]
    return claim_object(*requests, name="hostile", constraints=constraints)


@pytest.fixture
def world() -> World:
    names = [f"node-{number}" for number in range(NODES)]
    made = make_world(*(make_node(name) for name in names))
    claims = made.engine.claims
    parsed = [parse_resource_slice(devices_of(name)).parts for name in names]
    claims.replace_slices(each for each in parsed if each is not None)
    claims.replace_classes([device_class("gpu")])
    claims.observe_claim(None, replace(parse_resource_claim(hostile()), version="1"))
    claims.synced()
    return made


def hostile_pod() -> Pod:
    return replace(make_pod("hostile"), resource_claims=(PodResourceClaim("c", "hostile"),))


def test_a_long_search_ends_with_a_reason_and_yields(world: World) -> None:
    selector = world.engine.handle.selector
    request_class = world.engine.classes.of(hostile_pod())
    assert request_class is not None
    answers = [selector.choose_some(request_class, SLICE)]
    while answers[-1] is Undecided.UNDECIDED:
        assert len(answers) <= NODES
        answers.append(selector.choose_some(request_class, SLICE))
    assert MAX_STEPS // late_check.STEPS_A_NODE > SLICE
    assert answers[-1] is None
    assert len(answers) == NODES
    verdict = selector.explain(request_class)
    assert {rejection.message for rejection in verdict.rejections.values()} == {GAVE_UP}


async def test_such_a_pod_says_why_and_delays_no_other(world: World) -> None:
    world.waits(hostile_pod(), make_pod("innocent"))
    await world.settle()
    assert world.nodes_of()["innocent"]
    verdict = world.engine.queue.verdict(world.pending(hostile_pod()))
    assert isinstance(verdict, Unschedulable)
    assert GAVE_UP in str(world.engine.handle.messages.current(world.pending(hostile_pod()).request_class, verdict))
