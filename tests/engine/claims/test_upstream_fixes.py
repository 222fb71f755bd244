"""Fixes of Kubernetes 1.36.3 to 1.38 that users of claims see: malformed slices, names, finished pods and claims of pod groups."""

from typing import Any

import pytest

from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import ApiError, ApiServer
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import claim_object, decide, device, devices_of, published, request
from tests.engine.claims.test_taint_rules import asks, placed, world_with_gpus
from tests.engine.world import make_pod
from tests.tables import each_row

TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def test_a_device_with_two_selector_terms_costs_its_slice_only() -> None:
    """k/k#141213, #141338: kube-scheduler ended the attempt for every node."""
    world = world_with_gpus()
    spec = {
        "driver": "gpu",
        "pool": {"name": "shared", "generation": 1, "resourceSliceCount": 1},
        "perDeviceNodeSelection": True,
        "devices": [device("broken", nodeSelector={"nodeSelectorTerms": [TERM, TERM]})],
    }
    facts = parse_resource_slice({"metadata": {"name": "broken"}, "spec": spec})
    assert facts.problem == "ResourceSlice broken: spec.devices[0].nodeSelector: 2 terms instead of one"
    assert facts.parts is not None
    world.engine.claims.observe_slice(None, facts.parts)
    assert placed(world, asks(world))[0] == "node-0"


def test_all_devices_of_an_updating_pool_are_sought_elsewhere() -> None:
    """k/k#141898: kube-scheduler ended the attempt for every node."""
    world = world_with_gpus()
    spec = {
        "driver": "gpu",
        "nodeName": "node-0",
        "pool": {"name": "node-0", "generation": 2, "resourceSliceCount": 2},
        "devices": [device("gpu")],
    }
    parts = parse_resource_slice({"metadata": {"name": "s0"}, "spec": spec}).parts
    assert parts is not None
    world.engine.claims.observe_slice("MODIFIED", parts)
    everything = {"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}, "name": "r"}
    claim = replace(parse_resource_claim(claim_object(everything, name="c")), version="1")
    world.engine.claims.observe_claim(None, claim)
    pod = replace(make_pod("pod"), resource_claims=(PodResourceClaim("c", "c"),))
    assert placed(world, pod)[0] == "node-1"


@each_row(
    ("published_name", "asked", "found"),
    [
        ("gpu/model", "gpu/model", True),
        ("model", "gpu/model", True),
        ("a/b", "gpu/a/b", True),  # accepted before 1.38: the first slash ends the domain, as in CEL
        ("gpu/a/b", "gpu/a/b", True),
        ("b", "gpu/a/b", False),
        ("model", "nic/model", False),
    ],
)
def test_the_first_slash_of_a_name_ends_its_domain(published_name: str, asked: str, found: bool) -> None:
    gpus = published("gpu", [device("a", attributes={published_name: "X"}, capacity={published_name: "4"})])
    match = claim_object(request("r", "gpu"), constraints=[{"matchAttribute": asked}])
    assert (devices_of(decide([gpus], [match])) == ["a"]) == found
    consumes = claim_object(request("r", "gpu", capacity={"requests": {asked: "2"}}))
    assert (devices_of(decide([gpus], [consumes])) == ["a"]) == found


SLICES = {
    "attribute": [{"name": "a", "attributes": {"a/b/c": {"int": 1}}}],
    "capacity": [{"name": "a", "capacity": {"/a/b": {"value": "1"}}}],
    "selector": [{"name": "a", "nodeSelector": {"nodeSelectorTerms": [TERM, TERM]}}],
}


@pytest.mark.parametrize("devices", SLICES.values(), ids=list(SLICES))
async def test_the_sandbox_rejects_slices_as_138_does(devices: list[Any]) -> None:
    spec = {"driver": "gpu", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": devices}
    slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    async with ApiServer() as server:
        with pytest.raises(ApiError, match=r"spec\.devices\[0\]\."):
            server.store.create(slice_)


@pytest.mark.parametrize(
    "part",
    [
        {"requests": [request("r", "gpu", capacity={"requests": {"a/b/c": "1"}})]},
        {"requests": [request("r", "gpu")], "constraints": [{"matchAttribute": "a//b"}]},
    ],
)
async def test_the_sandbox_rejects_names_with_two_slashes_in_claims(part: dict[str, Any]) -> None:
    metadata = {"name": "c", "namespace": "default"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    async with ApiServer() as server:
        with pytest.raises(ApiError, match="separated by one slash"):
            server.store.create({**claim, "spec": {"devices": part}})


def test_a_claim_of_a_pod_group_is_used_until_the_group_is_gone() -> None:
    """KEP-5729: the claim is reserved for the PodGroup, and a mapped claim is not shared with it."""
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    raw = claim_object(request("r", "gpu"), name="c")
    result = {"request": "r", "driver": "gpu", "pool": "node-0", "device": "gpu"}
    raw["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [group]}
    claim = parse_resource_claim(raw)
    assert (claim.reserved_for, claim.other_consumers) == ((), 1)
    world = world_with_gpus()
    pod = asks(world)
    world.engine.claims.observe_claim(None, replace(claim, name="of-group", uid="uid-of-group", version="1"))
    # Its device is in use, so that another pod gets the other one.
    assert placed(world, pod)[0] == "node-1"


def test_the_pods_of_a_group_are_refused_with_a_reason() -> None:
    world = world_with_gpus()
    pod = asks(world)
    constraints = replace(pod.request.constraints, unsupported=("schedulingGroup",))
    found = world.engine.dry_run(replace(pod, request=replace(pod.request, constraints=constraints)))
    assert found is not None
    [message] = {each.message for each in found.values() if isinstance(each, Rejection)}
    assert message == "koord-numa does not support: schedulingGroup"
