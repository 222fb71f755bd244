"""Reservations of claims against a server that behaves as a real one does: a request that is late changes nothing."""

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.writers import ApiClaimWriter
from koord_numa.core.objects.claims import Allocation, DeviceId, DeviceResult, ResourceClaim
from koord_numa.core.objects.gangs import Dialect, GangKey, GangSpec, PodGroup
from koord_numa.core.objects.request import PodKey
from koord_numa.core.value_objects import replace
from koord_numa.ports import Conflict, Gone, NotLeader
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.cluster.objects import JsonObject

CLAIMS = "resourceclaims.resource.k8s.io"
POD = PodKey("default", "pod", "uid-pod")
ALLOCATION = Allocation((DeviceResult("r", DeviceId("gpu.example.com", "pool", "a")),))


@pytest.fixture
def writer(api: Api) -> ApiClaimWriter:
    return ApiClaimWriter(api)


@pytest.fixture
def claim(server: ApiServer) -> ResourceClaim:
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
    metadata = {"name": "claim", "namespace": "default"}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return parse_resource_claim(server.store.create({**made, "spec": {"devices": devices}}))


def stored(server: ApiServer) -> JsonObject:
    return server.store.get(CLAIMS, "claim", "default")


def reserved_for(server: ApiServer) -> list[str]:
    return [it["uid"] for it in stored(server)["status"].get("reservedFor") or ()]


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def test_a_reservation_is_made_and_taken_back(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    await writer.reserve(claim, POD, ALLOCATION)
    assert reserved_for(server) == ["uid-pod"]
    await writer.release(claim, POD, yes)
    assert reserved_for(server) == []
    assert stored(server)["status"]["allocation"]["devices"]["results"][0]["device"] == "a"


async def test_the_claim_of_a_group_has_one_reservation(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    group = PodGroup(GangKey(Dialect.KUBERNETES, "default", "g"), GangSpec(2), uid="uid-g")
    other = replace(POD, name="other", uid="uid-other")
    await writer.reserve(claim, POD, ALLOCATION, group)
    before = stored(server)
    await writer.reserve(claim, other, None, group)
    assert stored(server) == before
    consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    assert before["status"]["reservedFor"] == [consumer]
    with pytest.raises(Conflict, match="used by others"):
        await writer.deallocate(claim, POD.uid, yes)
    assert (await writer.deallocate(claim, "uid-g", yes)).allocation is None


async def test_other_reservations_stay(server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim) -> None:
    other = replace(POD, name="other", uid="uid-other")
    await writer.reserve(claim, POD, ALLOCATION)
    await writer.reserve(claim, other, None)
    await writer.release(claim, POD, yes)
    assert reserved_for(server) == ["uid-other"]


async def test_nothing_is_taken_back_without_leave(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    await writer.reserve(claim, POD, ALLOCATION)
    await writer.release(claim, POD, no)
    with pytest.raises(Conflict, match="no longer"):
        await writer.deallocate(claim, POD.uid, no)
    assert reserved_for(server) == ["uid-pod"]


class FakeLeadership:
    """Fake leadership that permits writes at first. A newer cycle then reserves the same claim."""

    def __init__(self, writer: ApiClaimWriter, claim: ResourceClaim) -> None:
        self.asked = 0
        self._writer = writer
        self._claim = claim

    async def __call__(self) -> bool:
        self.asked += 1
        if self.asked == 1:
            await self._writer.reserve(self._claim, POD, None)
        return self.asked == 1


async def test_a_late_release_keeps_the_reservation_of_a_newer_cycle(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    """A former leader has looked at the claim and the pod; before it writes, the new leader goes on with the same reservation."""
    overtaken = FakeLeadership(writer, claim)
    await writer.reserve(claim, POD, ALLOCATION)
    await writer.release(claim, POD, overtaken)
    assert overtaken.asked == 2
    assert reserved_for(server) == ["uid-pod"]


async def test_a_late_deallocation_keeps_devices_of_a_newer_cycle(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    await writer.reserve(claim, POD, ALLOCATION)
    with pytest.raises(Conflict):
        await writer.deallocate(claim, POD.uid, FakeLeadership(writer, claim))
    assert stored(server)["status"]["allocation"]


async def test_a_claim_is_deallocated_whole(server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim) -> None:
    await writer.reserve(claim, POD, ALLOCATION)
    await writer.deallocate(claim, POD.uid, yes)
    assert not stored(server)["status"].keys() & {"allocation", "reservedFor"}


async def test_a_claim_that_was_created_again_is_another_one(
    server: ApiServer, writer: ApiClaimWriter, claim: ResourceClaim
) -> None:
    server.store.delete(CLAIMS, "claim", "default", DeleteOptions(grace=0))
    again = {**stored_parts(claim), "spec": {"devices": {}}}
    server.store.create(again)
    with pytest.raises(Gone):
        await writer.release(claim, POD, yes)


def stored_parts(claim: ResourceClaim) -> JsonObject:
    metadata = {"name": claim.name, "namespace": claim.namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}


async def test_nothing_is_written_when_the_lease_is_about_to_end(
    server: ApiServer, api: Api, claim: ResourceClaim
) -> None:
    before = stored(server)["metadata"]["resourceVersion"]
    with pytest.raises(NotLeader):
        await ApiClaimWriter(api, remaining=lambda: 0.0).reserve(claim, POD, ALLOCATION)
    assert stored(server)["metadata"]["resourceVersion"] == before
