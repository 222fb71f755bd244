"""
PreBind step of claims (Reserve, PreBind and Unreserve of kube-scheduler's dynamicresources).

    decided ──reserve──▶ assumed ──do: finalizer, then allocation and reservation in one write──▶ allocated and reserved
       ▲                    │                         │
       └──── unreserve ─────┘                         └──undo──▶ allocated, the reservation released
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import Final
from uuid import uuid4

from koord_numa.core.claims import IN_MEMORY
from koord_numa.core.objects.claims import NEW_SHARE, Allocation, ClaimAmounts
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.binding.pre_bind import OnConflict
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import ClaimWork, PodClaimResolver, claim_work, is_nowhere, still_waits
from koord_numa.engine.handle import Handle
from koord_numa.ports import ClaimWriter, ClusterError, Conflict

log = getLogger(__name__)

TIMEOUT: Final = 600.0
"""Maximum seconds for binding conditions of devices (DynamicResourcesArgs.bindingTimeout)."""

SHOWN_SECONDS: Final = 30.0
"""Maximum seconds until a created claim is observed. ``waitForExtendedClaimInAssumeCache`` of kube-scheduler continues after 120."""

StillWaits = Callable[[PodKey], Awaitable[bool]]
"""Returns whether a pod certainly has no node and this process may bind it."""


class ClaimPreBind(MutableObject):
    """
    ``PreBindStep`` of resource claims.

    An allocation stays when the bind fails: the next decision about the pod uses it, and ``deallocation`` releases it if the pod fits
    nowhere because of it. After a restart the claims show how far the cycle had come.

    The claim for a pod's extended resources is created first and deleted by ``undo``. If an interrupted cycle left such a claim, it is
    found by its owner, the pod, and used by the next cycle if its requests match.

    A reservation is released only if the pod certainly has no node: the bind may have failed because another leader bound the pod with the
    same reservation, and a kubelet starts no pod without it. Therefore the claim is read, then this process must still lead and the pod
    have no node, then exactly the version that was read is written. A later leader, or the pod's next cycle, writes the claim before it
    binds, so that a late request has no effect.
    """

    lister: ClaimLister
    resolver: PodClaimResolver
    writer: ClaimWriter
    waits: StillWaits
    nowhere: StillWaits  # the same for a pod that may be gone
    name: str = "DynamicResources"
    timeout: float = TIMEOUT
    on_conflict: OnConflict = OnConflict.DECIDE_AGAIN
    _cycles: dict[str, list[ClaimWork]] = value_field(default_factory=dict)  # by pod UID

    def applies(self, pod: Pod, placement: Placement) -> bool:
        """Return whether the pod has claims, extended resources by claim, or an obsolete claim for extended resources in its status."""
        return bool(pod.resource_claims or placement.extended or pod.extended_claim)

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Count the devices of the decision. Raises ``Conflict`` when the claims differ from those of the decision."""
        # Another number of claims, or a claim assumed by another pod, invalidates the decision.
        work = claim_work(self.lister, self.resolver, pod, placement)
        self._cycles[pod.key.uid] = work
        for each in work:
            if each.allocation is not None:
                each.allocation = _with_shares(each.allocation)
                gang = pod.request.gang
                self.lister.assume(each.claim, each.allocation, pod.key.uid, None if gang is None else gang.key)

    def unreserve(self, pod: Pod, placement: Placement) -> None:  # noqa: ARG002  (the protocol of all steps)
        """Release devices whose allocation was not written."""
        for each in self._cycles.pop(pod.key.uid, ()):
            if each.allocation is not None:
                self.lister.forget_assumed(each.claim, pod.key.uid)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """Release the assumption, because the written allocation counts."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:
        """Write allocations and reservations, then wait until drivers report the binding conditions of the devices."""
        work = self._cycles[pod.key.uid]
        for each in work:
            if each.in_memory:
                await self._create(pod, each)
            if each.awaited:
                await self._wait_for_devices(each)
            # The response is processed at once: the next write may depend on it.
            if each.group is None:
                written = await self.writer.reserve(each.claim, pod.key, each.allocation)
            else:
                written = await self.writer.reserve(each.claim, pod.key, each.allocation, each.group)
            self.lister.observe_written(written)
        await self._map_requests(pod, work)
        if placement.claim_amounts:
            await self.writer.write_amounts(pod.key, _named(pod, work, placement))
        while not self._devices_ready(work):
            await self.lister.change()

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Release the reservations independently, so that a failure does not affect the others."""
        if placement.claim_amounts:
            with suppress(ClusterError):
                await self._clear_amounts(pod)
        for each in self._cycles.get(pod.key.uid, ()):
            try:
                await self._take_back(pod, each)
            except ClusterError as error:
                log.warning("the reservation of claim %s cannot be removed: %r", each.claim, error)

    async def _wait_for_devices(self, each: ClaimWork) -> None:
        """Wait until the cycle of another pod of the group has written the allocation. Raises ``Conflict`` when it has ended before."""
        claim = each.claim
        while True:
            current = self.lister.claim((claim.namespace, claim.name))
            if current is not None and current.uid == claim.uid and current.allocation is not None:
                return
            if current is None or current.uid != claim.uid or claim.uid not in self.lister.assumed:
                raise Conflict(f"claim {claim} got no devices for another pod of the group")
            await self.lister.change()

    async def _create(self, pod: Pod, each: ClaimWork) -> None:
        """Create the claim for extended resources and wait until the watch shows it, so that no older list can remove it."""
        created = await self.writer.create(pod.key, each.claim.spec.requests)
        self.lister.assume_created(each.claim, created)
        each.claim = created
        try:
            async with asyncio.timeout(SHOWN_SECONDS):
                while not self.lister.shows(created):
                    await self.lister.change()
        except TimeoutError:
            raise Conflict(f"claim {created} was created and is not shown after {SHOWN_SECONDS:g} s") from None

    async def _map_requests(self, pod: Pod, work: Sequence[ClaimWork]) -> None:
        """Write the claim of the extended resources to the pod's status for the kubelet; remove a former claim."""
        for each in work:
            if each.extended is not None:
                await self.writer.map_requests(pod.key, each.claim.name, each.extended.mappings)
                return
        if pod.extended_claim:
            await self.writer.map_requests(pod.key, "", ())

    async def _clear_amounts(self, pod: Pod) -> None:
        """Clear the amounts of a pod that certainly has no node."""
        if await self.waits(pod.key):
            await self.writer.write_amounts(pod.key, ())

    async def _take_back(self, pod: Pod, each: ClaimWork) -> None:
        if each.group is not None:
            return  # the reservation is that of the group, whose other pods may need it
        if each.extended is None:
            await self.writer.release(each.claim, pod.key, partial(self.waits, pod.key))
            return
        # If the response to its creation was lost, it is known by its owner only.
        claim = self.lister.extended.of(pod.key.uid) if each.in_memory else each.claim
        if claim is not None:
            await self.writer.delete(claim, partial(self.nowhere, pod.key))

    def _devices_ready(self, work: Sequence[ClaimWork]) -> bool:
        """
        Return whether all binding conditions are met.

        Raises ``Conflict`` when a device reports a failure condition, or a claim lost its devices.
        """
        ready = True
        for claim in (each.claim for each in work):
            current = self.lister.claim((claim.namespace, claim.name))
            if current is None or current.uid != claim.uid or current.allocation is None:
                # Another UID: deleted and created again while waiting for drivers.
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            for result in current.allocation.results:
                failed = [it for it in result.binding_failure_conditions if (result.device, it) in current.conditions]
                if failed:
                    raise Conflict(f"claim {claim}: device {result.device} reports {failed[0]}")
                # All conditions of all devices; missing conditions are awaited.
                ready = ready and all((result.device, it) in current.conditions for it in result.binding_conditions)
        return ready


def _named(pod: Pod, work: Sequence[ClaimWork], placement: Placement) -> list[tuple[str, ClaimAmounts]]:
    """Return the amounts with the names of their claims, which are known by now."""
    names = {entry.name: entry.claim for entry in pod.resource_claims if entry.needed}
    for each in work:
        if each.extended is not None:
            names[IN_MEMORY] = each.claim.name
    return [(names.get(amounts.entry, amounts.entry), amounts) for amounts in placement.claim_amounts]


def _with_shares(allocation: Allocation) -> Allocation:
    return allocation.with_share_ids([str(uuid4()) for it in allocation.results if it.share_id == NEW_SHARE])


def dynamic_resources(handle: Handle) -> ClaimPreBind | None:
    """Return the claim step of this process; ``None`` where claims are disabled."""
    writer = handle.dependencies.claim_writer
    if writer is None:
        return None
    outside = handle.dependencies
    return ClaimPreBind(
        handle.selector.claims,
        handle.resource_claims,
        writer,
        partial(still_waits, outside),
        partial(is_nowhere, outside),
    )
