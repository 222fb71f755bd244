"""Writes allocations and reservations of ResourceClaims (``ports.ClaimWriter``), as kube-scheduler's PreBind.

Every call reads the claim and changes only the version that was read. Conflicts with other writers are retried a few
times. The rules are those of kube-scheduler's dynamicresources plugin.
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
from koord_numa.core.gangs.model import PodGroup
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
"""Pause in seconds after a conflict, with at most ``TRIES`` attempts, as in kube-scheduler's ``bindClaim``."""


class ApiClaimWriter:
    """``ports.ClaimWriter`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def reserve(
        self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None, group: PodGroup | None = None
    ) -> ResourceClaim:
        """Add the finalizer if it is missing, then write allocation and reservation in a single update.

        An existing reservation comes from an interrupted cycle, and a request in flight may be about to remove it. An
        annotation then creates a new version of the claim, which such a request does not match.
        """

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            allocated = found.allocation is not None
            if allocation is None and not allocated:
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            # A claim for extended resources loses its finalizer immediately: its reservation does not keep it.
            if found.deleting and (allocation is not None or found.extended):
                raise Conflict(f"claim {claim} got deleted in the meantime")
            # An allocation of an earlier cycle is no conflict if the devices are the same.
            if (
                allocation is not None
                and found.allocation is not None
                and found.allocation.results != allocation.results
            ):
                raise Conflict(f"claim {claim} got allocated elsewhere in the meantime")
            # The reservation of a group is never removed, except with its allocation.
            if allocated and group is not None and group.uid in found.reserved_groups:
                return found
            if allocated and group is None and pod.uid in found.reserved_for:
                return parse_resource_claim(await self._annotate(raw))
            # First the finalizer: an allocated claim without it could be deleted while its pod uses it.
            if not allocated and not found.protected:
                raw = await self._protect(raw)
            return await self._write_status(raw, _reserved(raw, pod, None if allocated else allocation, group))

        return await self._repeat(write)

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Remove the pod's reservation and keep the allocation.

        kube-scheduler patches without a precondition, so that a late request can remove a newer reservation.
        """

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            # Checked again immediately before the write, for the version that was read.
            if pod.uid not in found.reserved_for or not await allowed():
                return found
            status = raw["status"]
            left = [it for it in status["reservedFor"] if it.get("uid") != pod.uid]
            return await self._write_status(raw, {**status, "reservedFor": left})

        await self._repeat(write)

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Remove allocation, reservations and driver status in a single update, unless another pod uses the claim."""

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            groups = found.reserved_groups
            if found.other_consumers > len(groups) or any(uid != pod for uid in (*found.reserved_for, *groups)):
                raise Conflict(f"claim {claim} is used by others by now")
            if found.allocation is None:
                return found
            if not await allowed():
                raise Conflict(f"claim {claim} is not this process's to deallocate any more")
            # The driver status belongs to the allocation.
            kept = {
                key: value
                for key, value in raw["status"].items()
                if key not in ("allocation", "reservedFor", "devices")
            }
            return await self._write_status(raw, kept)

        return await self._repeat(write)

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """Create a claim whose name is derived from the pod's uid.

        An existing claim comes from an earlier attempt whose response was lost.
        """
        document = extended_claim_json(pod, requests)
        body = Body(document, remaining=self._remaining)
        try:
            return parse_resource_claim(await self._api.send(Call("create", RESOURCE_CLAIMS, pod.namespace), body))
        except Conflict:
            name = document["metadata"]["name"]
            found = parse_resource_claim(await self._api.send(Call("get", RESOURCE_CLAIMS, pod.namespace, name)))
        except Forbidden as error:
            # The server responds to an exceeded quota with the same status as to a missing permission.
            if "exceeded quota" in error.args[0]:
                raise Invalid(error.args[0]) from None
            raise
        if not found.extended or found.owner != pod.uid:
            raise Conflict(f"claim {found} exists and is not that of the pod's extended resources")
        if found.deleting or found.spec.requests != tuple(requests):
            raise Conflict(f"claim {found} of an earlier attempt is of no use any more")
        return found

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """Delete exactly the version that was read before ``allowed`` was checked, then remove the finalizer.

        The finalizer protects allocated claims. kube-scheduler's ``deleteClaim`` removes it first and then deletes any
        version.
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
        """Patch the pod status with the uid as a precondition.

        As ``patchPodExtendedResourceClaimStatus`` of kube-scheduler.
        """
        value = mappings_json(claim, mappings) if claim else None
        patch = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": value}}
        call = Call("patch", PODS, pod.namespace, pod.name, "status")
        written: _Json = await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))
        kept = (written.get("status") or {}).get("extendedResourceClaimStatus") or {}
        # A server that does not know the field drops it. The kubelet would then start the pod without its devices.
        if kept.get("resourceClaimName", "") != claim:
            raise Invalid(
                "the API server does not keep status.extendedResourceClaimStatus of pods: its feature gate DRAExtendedResource is off"
            )

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """Patch the pod status with the uid as a precondition.

        As ``patchNodeAllocatableResourceClaimStatus`` of kube-scheduler.
        """
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
        # Every attempt reads the newest version.
        for _ in range(TRIES - 1):
            try:
                return await write()
            except _StaleError:
                await asyncio.sleep(PAUSE_SECONDS)
        return await write()

    async def _read(self, claim: ResourceClaim) -> _Json:
        raw: _Json = await self._api.send(Call("get", RESOURCE_CLAIMS, claim.namespace, claim.name))
        # A later claim of the same name.
        if (raw.get("metadata") or {}).get("uid") != claim.uid:
            raise Gone(f"claim {claim} was re-created")
        return raw

    async def _protect(self, raw: _Json) -> _Json:
        """Add the finalizer, which keeps an allocated claim until it is deallocated."""
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
    """The version that was read is outdated."""


def _reserved(raw: _Json, pod: PodKey, allocation: Allocation | None, group: PodGroup | None) -> _Json:
    status: _Json = dict(raw.get("status") or {})
    if allocation is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status["allocation"] = {**allocation_json(allocation), "allocationTimestamp": now}
    consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
    if group is not None:
        consumer = {
            "apiGroup": group.key.dialect.value,
            "resource": "podgroups",
            "name": group.key.name,
            "uid": group.uid,
        }
    status["reservedFor"] = [*(status.get("reservedFor") or ()), consumer]
    return status
