"""
Writes allocations and reservations of ResourceClaims (``ports.ClaimWriter``), as kube-scheduler's dynamicresources PreBind.

Each call reads the claim and changes exactly the version that was read; a conflict with another writer is tried again a few times.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import RESOURCE_CLAIMS, Call
from koord_numa.core.claims.objects.resource_claim import ResourceClaim
from koord_numa.core.claims.search.allocation import Allocation
from koord_numa.core.objects.request import PodKey
from koord_numa.ports import Conflict, Gone, StillAllowed
from koord_numa.wire.claims.claim_json import allocation_json
from koord_numa.wire.claims.resource_claims import FINALIZER, parse_resource_claim
from koord_numa.wire.names import RESERVED_AT
from koord_numa.wire.texts import rfc3339_micro

_Json = dict[str, Any]

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
            if allocation is not None and found.deleting:
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

    async def _repeat(self, write: Callable[[], Awaitable[ResourceClaim]]) -> ResourceClaim:
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
