"""DeviceTaintRules in the cycle: which pods get which devices while rules come and go, and who is woken."""

from typing import Any

import pytest

from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.filters import choose
from koord_numa.core.value_objects import replace
from koord_numa.ports import DELETED
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice, parse_taint_rule
from tests.core.claims.test_taint_rules import rule
from tests.core.claims.worlds import claim_object, device, device_class, request
from tests.engine.world import World, make_node, make_pod, make_world
from tests.tables import each_row


def world_with_gpus() -> World:
    """Two nodes with a GPU each; ``node-0`` comes first."""
    world = make_world(make_node("node-0"), make_node("node-1"))
    claims = world.engine.claims
    for at in (0, 1):
        pool = {"name": f"node-{at}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu", "nodeName": f"node-{at}", "pool": pool, "devices": [device("gpu")]}
        parts = parse_resource_slice({"metadata": {"name": f"s{at}"}, "spec": spec}).parts
        assert parts is not None
        claims.observe_slice(None, parts)
    claims.replace_classes([device_class("gpu")])
    claims.synced()
    return world


def asks(world: World, **more: Any) -> Pod:
    """A pod with a claim for a GPU."""
    claim = claim_object(request("r", "gpu", **more), name="c")
    world.engine.claims.observe_claim(None, replace(parse_resource_claim(claim), version="1"))
    return replace(make_pod("pod"), resource_claims=(PodResourceClaim("c", "c"),))


def placed(world: World, pod: Pod) -> tuple[str, str]:
    """The node of the pod, or why there is none."""
    found = world.engine.dry_run(pod)
    assert found is not None
    if isinstance(best := choose(found), Placement):
        return best.node, ""
    return "", "; ".join(each.detail for each in found.values() if isinstance(each, Rejection))


@each_row(
    ("effect", "tolerations", "node"),
    [
        ("NoExecute", [], "node-1"),
        ("NoSchedule", [], "node-1"),
        ("None", [], "node-0"),
        ("NotYetKnown", [], "node-0"),
        ("NoExecute", [{"key": "broken", "operator": "Exists"}], "node-0"),
    ],
)
def test_a_rule_keeps_claims_from_its_devices(effect: str, tolerations: list[Any], node: str) -> None:
    world = world_with_gpus()
    world.engine.claims.observe_taint_rule(None, parse_taint_rule(rule({"pool": "node-0"}, effect=effect)))
    assert placed(world, asks(world, tolerations=tolerations))[0] == node


def test_rules_that_change_and_go_free_their_devices() -> None:
    world = world_with_gpus()
    claims, pod = world.engine.claims, asks(world)
    everything = parse_taint_rule(rule({}))
    claims.observe_taint_rule("ADDED", everything)
    node, why = placed(world, pod)
    assert node == ""
    assert "1 with taints that are not tolerated (broken:NoExecute by DeviceTaintRule r)" in why
    claims.observe_taint_rule("MODIFIED", parse_taint_rule(rule({"pool": "node-0"})))
    assert placed(world, pod)[0] == "node-1"
    claims.observe_taint_rule(DELETED, everything)
    assert placed(world, pod)[0] == "node-0"
    claims.replace_taint_rules([everything])
    assert placed(world, pod)[0] == ""
    claims.replace_taint_rules([])
    assert placed(world, pod)[0] == "node-0"


def test_slices_that_come_after_a_rule_are_tainted() -> None:
    world = world_with_gpus()
    claims, pod = world.engine.claims, asks(world)
    claims.observe_taint_rule("ADDED", parse_taint_rule(rule({"device": "gpu"})))
    spec = {
        "driver": "gpu",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 2, "resourceSliceCount": 1},
        "devices": [device("gpu"), device("new")],
    }
    parts = parse_resource_slice({"metadata": {"name": "s1"}, "spec": spec}).parts
    assert parts is not None
    claims.observe_slice("MODIFIED", parts)
    found = world.engine.dry_run(pod)
    assert found is not None
    best = choose(found)
    assert isinstance(best, Placement)
    assert best.allocations[0].results[0].device.device == "new"


async def test_a_waiting_pod_is_woken_by_the_end_of_a_rule() -> None:
    world = world_with_gpus()
    world.engine.claims.observe_taint_rule("ADDED", parse_taint_rule(rule({})))
    pod = asks(world)
    world.waits(pod)
    await world.settle()
    assert world.nodes_of()["pod"] == ""
    # A rule that touches nothing wakes nobody.
    world.clock.now += 600
    world.engine.claims.observe_taint_rule("ADDED", parse_taint_rule(rule({"driver": "nic"}, name="other")))
    world.engine.claims.observe_taint_rule(DELETED, parse_taint_rule(rule({})))
    await world.settle()
    assert world.nodes_of()["pod"] != ""


def test_a_rule_touches_its_own_nodes_only() -> None:
    world = world_with_gpus()
    claims = world.engine.claims
    before = {name: claims.revision(name) for name in ("node-0", "node-1")}
    claims.observe_taint_rule("ADDED", parse_taint_rule(rule({"pool": "node-0"})))
    assert claims.revision("node-0") != before["node-0"]
    assert claims.revision("node-1") == before["node-1"]


@pytest.mark.parametrize(
    "selector", [{"device": "one"}, {"device": "one", "driver": "gpu"}, {"device": "one", "pool": "node-0"}]
)
def test_a_rule_by_device_name_touches_nodes_that_have_it(selector: dict[str, str]) -> None:
    world = world_with_gpus()
    claims = world.engine.claims
    for at, name in enumerate(("one", "two")):
        pool = {"name": f"node-{at}", "generation": 2, "resourceSliceCount": 1}
        spec = {"driver": "gpu", "nodeName": f"node-{at}", "pool": pool, "devices": [device(name), device("both")]}
        parts = parse_resource_slice({"metadata": {"name": f"s{at}"}, "spec": spec}).parts
        assert parts is not None
        claims.observe_slice("MODIFIED", parts)
    before = {name: claims.revision(name) for name in ("node-0", "node-1")}
    claims.observe_taint_rule("ADDED", parse_taint_rule(rule(selector)))
    assert [name for name in before if claims.revision(name) != before[name]] == ["node-0"]
    # Names of devices that are gone are forgotten.
    before = {name: claims.revision(name) for name in ("node-0", "node-1")}
    claims.observe_taint_rule("ADDED", parse_taint_rule(rule({"device": "gpu"}, name="former")))
    assert before == {name: claims.revision(name) for name in before}
