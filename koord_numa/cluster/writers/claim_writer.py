"""
Writes allocations and reservations of ResourceClaims (``ports.ClaimWriter``), as kube-scheduler's dynamicresources PreBind.

Each call reads the claim and changes exactly the version that was read; a conflict with another writer is tried again a few times.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import PODS, RESOURCE_CLAIMS, Call
from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.claim import DeviceRequest
from koord_numa.core.claims.extended_resources import RequestMapping
from koord_numa.core.claims.node_allocatable import ClaimAmounts
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.objects.request import PodKey
from koord_numa.ports import Conflict, Forbidden, Gone, Invalid, StillAllowed
from koord_numa.wire.claims.claim_json import allocation_json, claim_amounts_json, extended_claim_json, mappings_json
from koord_numa.wire.claims.resource_claims import FINALIZER, parse_resource_claim
from koord_numa.wire.metadata import rfc3339_micro
from koord_numa.wire.names import RESERVED_AT

_Json = dict[str, Any]
T = TypeVar("T")

TRIES: Final = 5
PAUSE_SECONDS: Final = 0.01
"""Conflicts in a row, and the pause between them, as kube-scheduler's ``bindClaim``."""


class ApiClaimWriter:
    """``ports.ClaimWriter`` over one API server. ``remaining`` is the lease's: nothing is written after it has ended."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def reserve(self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None) -> ResourceClaim:
        """
        The finalizer first where it is missing, then allocation and reservation in one write.

        A reservation that is there already, of a cycle that was cut off, may be about to be taken back by a request that is still on
        its way. An annotation then makes a new version of the claim, which such a request does not match.
        """

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            allocated = found.allocation is not None
            if allocation is None and not allocated:
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            # One for extended resources loses its finalizer at once: it is not kept by the reservation that it has.
            if found.deleting and (allocation is not None or found.extended):
                raise Conflict(f"claim {claim} got deleted in the meantime")
            # Allocated by a cycle of before is no conflict as long as the devices are the same.
            if (
                allocation is not None
                and found.allocation is not None
                and found.allocation.results != allocation.results
            ):
                raise Conflict(f"claim {claim} got allocated elsewhere in the meantime")
            if allocated and pod.uid in found.reserved_for:
                return parse_resource_claim(await self._annotate(raw))
            # First the finalizer: an allocated claim without it could be deleted under its pod.
            if not allocated and not found.protected:
                raw = await self._protect(raw)
            return await self._write_status(raw, _reserved(raw, pod, None if allocated else allocation))

        return await self._repeat(write)

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Take the pod's entry out; the allocation stays. kube-scheduler patches blindly, which a late request makes harmful."""

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            # Asked again at the last moment, on the version that is going to be written.
            if pod.uid not in found.reserved_for or not await allowed():
                return found
            status = raw["status"]
            left = [it for it in status["reservedFor"] if it.get("uid") != pod.uid]
            return await self._write_status(raw, {**status, "reservedFor": left})

        await self._repeat(write)

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Allocation, reservations and what drivers reported go in one write, unless another pod uses the claim by now."""

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            if found.other_consumers or any(uid != pod for uid in found.reserved_for):
                raise Conflict(f"claim {claim} is used by others by now")
            if found.allocation is None:
                return found
            if not await allowed():
                raise Conflict(f"claim {claim} is not this process's to deallocate any more")
            # What drivers reported belongs to the allocation and goes with it.
            kept = {
                key: value
                for key, value in raw["status"].items()
                if key not in ("allocation", "reservedFor", "devices")
            }
            return await self._write_status(raw, kept)

        return await self._repeat(write)

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """The name is made of the pod's uid: a claim that exists already is that of an earlier try whose answer was lost."""
        document = extended_claim_json(pod, requests)
        body = Body(document, remaining=self._remaining)
        try:
            return parse_resource_claim(await self._api.send(Call("create", RESOURCE_CLAIMS, pod.namespace), body))
        except Conflict:
            name = document["metadata"]["name"]
            found = parse_resource_claim(await self._api.send(Call("get", RESOURCE_CLAIMS, pod.namespace, name)))
        except Forbidden as error:
            # The server answers a quota as it answers a missing right.
            if "exceeded quota" in error.args[0]:
                raise Invalid(error.args[0]) from None
            raise
        if not found.extended or found.owner != pod.uid:
            raise Conflict(f"claim {found} exists and is not that of the pod's extended resources")
        if found.deleting or found.spec.requests != tuple(requests):
            raise Conflict(f"claim {found} of an earlier attempt is of no use any more")
        return found

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """
        Of exactly the version that was read before ``allowed`` was asked; then the finalizer, which keeps an allocated claim, goes.

        kube-scheduler's ``deleteClaim`` removes the finalizer first, and then deletes whatever is there.
        """

        async def write() -> None:
            raw = await self._read(claim)
            if not await allowed():
                return
            metadata = raw["metadata"]
            if not metadata.get("deletionTimestamp"):
                await self._delete(metadata)
                if not metadata.get("finalizers"):
                    return
                metadata = (raw := await self._read(claim))["metadata"]
            kept = [it for it in metadata.get("finalizers") or () if it != FINALIZER]
            await self._put({**raw, "metadata": {**metadata, "finalizers": kept}}, "")

        try:
            await self._repeat(write)
        except Gone:
            return

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        """As kube-scheduler's ``patchPodExtendedResourceClaimStatus``; the uid in the patch is a precondition."""
        value = mappings_json(claim, mappings) if claim else None
        patch = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": value}}
        call = Call("patch", PODS, pod.namespace, pod.name, "status")
        written: _Json = await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))
        kept = (written.get("status") or {}).get("extendedResourceClaimStatus") or {}
        # A server that does not know the field drops it, and a kubelet would start the pod without its devices.
        if kept.get("resourceClaimName", "") != claim:
            raise Invalid(
                "the API server does not keep status.extendedResourceClaimStatus of pods: its feature gate DRAExtendedResource is off"
            )

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """As kube-scheduler's ``patchNodeAllocatableResourceClaimStatus``; the uid in the patch is a precondition."""
        statuses = [claim_amounts_json(name, each) for name, each in sorted(amounts, key=lambda it: it[0])]
        patch = {"metadata": {"uid": pod.uid}, "status": {"nodeAllocatableResourceClaimStatuses": statuses}}
        call = Call("patch", PODS, pod.namespace, pod.name, "status")
        await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))

    async def _delete(self, metadata: _Json) -> None:
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        call = Call("delete", RESOURCE_CLAIMS, metadata["namespace"], metadata["name"])
        try:
            await self._api.send(call, Body(options, remaining=self._remaining))
        except Conflict as error:
            raise _StaleError(str(error)) from None

    async def _repeat(self, write: Callable[[], Awaitable[T]]) -> T:
        # Each try reads again, so that it acts on the newest version.
        for _ in range(TRIES - 1):
            try:
                return await write()
            except _StaleError:
                await asyncio.sleep(PAUSE_SECONDS)
        return await write()

    async def _read(self, claim: ResourceClaim) -> _Json:
        raw: _Json = await self._api.send(Call("get", RESOURCE_CLAIMS, claim.namespace, claim.name))
        # A claim of the same name that came after it.
        if (raw.get("metadata") or {}).get("uid") != claim.uid:
            raise Gone(f"claim {claim} was re-created")
        return raw

    async def _protect(self, raw: _Json) -> _Json:
        """An allocated claim must not vanish before its devices are given back."""
        metadata = raw["metadata"]
        metadata = {**metadata, "finalizers": [*(metadata.get("finalizers") or ()), FINALIZER]}
        return await self._put({**raw, "metadata": metadata}, "")

    async def _annotate(self, raw: _Json) -> _Json:
        metadata = raw["metadata"]
        annotations = {**(metadata.get("annotations") or {}), RESERVED_AT: rfc3339_micro(datetime.now(UTC))}
        return await self._put({**raw, "metadata": {**metadata, "annotations": annotations}}, "")

    async def _write_status(self, raw: _Json, status: _Json) -> ResourceClaim:
        return parse_resource_claim(await self._put({**raw, "status": status}, "status"))

    async def _put(self, document: _Json, subresource: str) -> _Json:
        metadata = document["metadata"]
        call = Call("update", RESOURCE_CLAIMS, metadata["namespace"], metadata["name"], subresource)
        try:
            written: _Json = await self._api.send(call, Body(document, remaining=self._remaining))
        except Conflict as error:
            raise _StaleError(str(error)) from None
        return written


class _StaleError(Conflict):
    """Another writer was faster: what was read is out of date."""


def _reserved(raw: _Json, pod: PodKey, allocation: Allocation | None) -> _Json:
    status: _Json = dict(raw.get("status") or {})
    if allocation is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status["allocation"] = {**allocation_json(allocation), "allocationTimestamp": now}
    consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
    status["reservedFor"] = [*(status.get("reservedFor") or ()), consumer]
    return status
