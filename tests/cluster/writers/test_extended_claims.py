"""Claims for pods' extended resources against a server that behaves as a real one does: one a pod, and deleted only by its maker."""

from typing import Any

import pytest

from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import Call
from koord_numa.cluster.writers import ApiClaimWriter
from koord_numa.core.claims.node_resources import RequestMapping
from koord_numa.core.objects.claims import (
    Allocation,
    DeviceId,
    DeviceRequest,
    DeviceRequirements,
    DeviceResult,
    ResourceClaim,
)
from koord_numa.core.objects.request import PodKey
from koord_numa.ports import Conflict, Forbidden, Invalid, UnknownOutcome
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.wire.resource_claims import extended_claim_json, extended_claim_name, parse_resource_claim
from tests.cluster.objects import JsonObject, pod

CLAIMS = "resourceclaims.resource.k8s.io"
NAME = "container-0-request-1"
REQUESTS = (DeviceRequest(NAME, (DeviceRequirements(NAME, "gpu", count=2),)),)
ALLOCATION = Allocation((DeviceResult(NAME, DeviceId("gpu.example.com", "pool", "a")),))


@pytest.fixture
def writer(api: Api) -> ApiClaimWriter:
    return ApiClaimWriter(api)


@pytest.fixture
def key(server: ApiServer) -> PodKey:
    return PodKey("default", "pod", server.store.create(pod("pod"))["metadata"]["uid"])


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def claims(server: ApiServer) -> list[JsonObject]:
    return server.store.list(CLAIMS)


async def test_the_claim_is_as_kube_schedulers(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    made = await writer.create(key, REQUESTS)
    (raw,) = claims(server)
    assert raw["metadata"]["name"].startswith("pod-extended-resources-")
    assert raw["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert raw["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "pod",
            "uid": key.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    assert raw["spec"]["devices"]["requests"] == [{"name": NAME, "exactly": exactly}]
    assert (made.extended, made.owner, made.spec.requests) == (True, key.uid, REQUESTS)


async def test_a_create_whose_answer_was_lost_is_found_by_the_next_one(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, verb="create", resource="resourceclaims", count=1))
    with pytest.raises(UnknownOutcome):
        await writer.create(key, REQUESTS)
    made = await writer.create(key, REQUESTS)
    (raw,) = claims(server)
    assert raw["metadata"]["uid"] == made.uid


async def test_an_earlier_claim_with_other_requests_is_not_reused(writer: ApiClaimWriter, key: PodKey) -> None:
    await writer.create(key, REQUESTS)
    with pytest.raises(Conflict, match="no longer needed"):
        await writer.create(key, ())


async def test_anothers_claim_of_this_name_is_left_alone(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    document = extended_claim_json(key, REQUESTS)
    del document["metadata"]["annotations"]
    server.store.create(document)
    with pytest.raises(Conflict, match="is not that of the pod's extended resources"):
        await writer.create(key, REQUESTS)


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = (extended_claim_name(PodKey("default", "p" * 200, uid)) for uid in ("1", "2"))
    assert (len(first), first[:53]) == (63, "p" * 53)
    assert first != second


async def test_a_quota_is_no_missing_right(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    message = "resourceclaims is forbidden: exceeded quota: devices"
    number = server.faults.add(Fault(verb="create", resource="resourceclaims", status=403, message=message))
    with pytest.raises(Invalid, match="exceeded quota: devices") as told:
        await writer.create(key, REQUESTS)
    assert "missing rule" not in str(told.value)
    server.faults.remove(number)
    server.faults.add(Fault(verb="create", resource="resourceclaims", status=403))
    with pytest.raises(Forbidden, match=r"missing rule: create resourceclaims\.resource\.k8s\.io"):
        await writer.create(key, REQUESTS)


async def allocated(writer: ApiClaimWriter, key: PodKey) -> ResourceClaim:
    return await writer.reserve(await writer.create(key, REQUESTS), key, ALLOCATION)


async def test_an_allocated_claim_is_deleted_with_its_devices(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    made = await allocated(writer, key)
    await writer.delete(made, yes)
    assert claims(server) == []
    await writer.delete(made, yes)  # once more does no harm


async def test_a_claim_without_devices_is_deleted(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    await writer.delete(await writer.create(key, REQUESTS), yes)
    assert claims(server) == []


async def test_a_deletion_that_was_cut_off_is_carried_through(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    made = await allocated(writer, key)
    server.store.delete(CLAIMS, made.name, "default")
    assert claims(server)[0]["metadata"]["deletionTimestamp"]
    await writer.delete(made, yes)
    assert claims(server) == []


async def test_a_cycle_stops_at_a_claim_in_deletion(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    made = await allocated(writer, key)
    server.store.delete(CLAIMS, made.name, "default")
    with pytest.raises(Conflict, match="got deleted in the meantime"):
        await writer.reserve(made, key, None)


async def test_a_claim_that_its_pod_uses_stays(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    made = await allocated(writer, key)
    before = claims(server)
    await writer.delete(made, no)
    assert claims(server) == before


async def test_finalizers_of_others_are_left_to_them(server: ApiServer, writer: ApiClaimWriter, key: PodKey) -> None:
    made = await allocated(writer, key)
    (raw,) = claims(server)
    finalizers = [*raw["metadata"]["finalizers"], "example.com/mine"]
    server.store.update({**raw, "metadata": {**raw["metadata"], "finalizers": finalizers}})
    await writer.delete(made, yes)
    assert claims(server)[0]["metadata"]["finalizers"] == ["example.com/mine"]


async def test_a_late_deletion_keeps_a_claim_of_a_newer_cycle(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    """A former leader has looked at the claim and the pod; before it deletes, the new leader goes on with the same claim."""
    made = await allocated(writer, key)
    asked = []

    async def overtaken() -> bool:
        asked.append(True)
        if len(asked) == 1:
            await writer.reserve(made, key, None)
        return len(asked) == 1

    await writer.delete(made, overtaken)
    assert len(asked) == 2
    assert "deletionTimestamp" not in claims(server)[0]["metadata"]


async def test_the_pods_status_names_the_claim_until_it_is_cleared(
    server: ApiServer, writer: ApiClaimWriter, key: PodKey
) -> None:
    await writer.map_requests(key, "claim", (RequestMapping("main", "example.com/gpu", NAME),))
    assert server.store.get("pods", "pod", "default")["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": "claim",
        "requestMappings": [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": NAME}],
    }
    await writer.map_requests(key, "", ())
    assert "extendedResourceClaimStatus" not in server.store.get("pods", "pod", "default")["status"]


class _FakeForgetfulApi(Api):
    """A server that does not know the field, and drops it."""

    def __init__(self) -> None:
        """Connected to nothing."""

    async def send(self, call: Call, body: Body | None = None, params: Any = None, decode: Any = None) -> Any:
        assert body is not None
        assert params is decode is None
        assert (call.verb, call.subresource) == ("patch", "status")
        return {"metadata": {"name": "pod"}, "status": {"phase": "Pending"}}


async def test_a_server_that_does_not_keep_the_status_is_told_of() -> None:
    with pytest.raises(Invalid, match="feature gate DRAExtendedResource is off"):
        await ApiClaimWriter(_FakeForgetfulApi()).map_requests(PodKey("default", "pod", "uid"), "claim", ())


def test_the_annotation_makes_the_claim() -> None:
    document = extended_claim_json(PodKey("default", "pod", "uid"), REQUESTS)
    assert parse_resource_claim(document).extended
    document["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "false"}
    assert not parse_resource_claim(document).extended
