"""
The PreBind step of claims (kube-scheduler's dynamicresources Reserve, PreBind, Unreserve).

    decided ──reserve──▶ assumed ──do: finalizer, then allocation and reservation in one write──▶ allocated and reserved
       ▲                    │                         │
       └──── unreserve ─────┘                         └──undo──▶ allocated, the reservation taken back

An allocation stays when the bind fails: the next decision about the pod uses it, and a pod that fits nowhere because of it gives it up
(``deallocation``). After a restart the claims say by themselves how far the cycle had come.

A reservation is taken back only from a pod that surely has no node: a bind may have failed because another leader has bound the pod by
the same reservation, and a kubelet starts no pod without. "Surely" rests on an order: the claim is read, then this process must still
lead and the pod have no node, then exactly the version that was read is written. A later leader, or the pod's next cycle, writes the claim
before it binds, so a request of ours that is late changes nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import Final
from uuid import uuid4

from koord_numa.core.claims.objects.resource_claim import ResourceClaim
from koord_numa.core.claims.search.allocation import NEW_SHARE, Allocation
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.engine.binding.pre_bind import OnConflict
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.engine.handle import Handle
from koord_numa.ports import ClaimWriter, ClusterError, Conflict, Dependencies, Gone

log = getLogger(__name__)

TIMEOUT: Final = 600.0
"""Seconds that binding conditions of devices may take (DynamicResourcesArgs.bindingTimeout)."""

StillWaits = Callable[[PodKey], Awaitable[bool]]
"""Whether a pod surely has no node, and is ours to bind."""

Work = tuple[ResourceClaim, Allocation | None]


@dataclass(slots=True)
class DynamicResources:
    """``PreBindStep`` of resource claims."""

    lister: ClaimLister
    resolver: PodClaimResolver
    writer: ClaimWriter
    waits: StillWaits
    name: str = "DynamicResources"
    timeout: float = TIMEOUT
    on_conflict: OnConflict = OnConflict.DECIDE_AGAIN
    _cycles: dict[str, list[Work]] = field(default_factory=dict)  # by pod uid: claims, with their new allocations

    def applies(self, pod: Pod, placement: Placement) -> bool:  # noqa: ARG002  (the protocol of all steps)
        """Has the pod claims?"""
        return bool(pod.resource_claims)

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Count the devices that were decided on. Raises ``Conflict`` when the claims are not those of the decision any more."""
        claims = list(self.resolver.claims_of(pod))
        wanted = [claim for claim in claims if claim.allocation is None]
        # The decision rests on the claims as they were: other numbers, or one assumed by another pod, make it void.
        if len(wanted) != len(placement.allocations) or any(claim.uid in self.lister.assumed for claim in wanted):
            raise Conflict(f"the claims of pod {pod.key} changed while it was decided on")
        found = iter(placement.allocations)
        # In the pod's order, as allocations are in the order of the claims without one.
        work: list[Work] = [(it, None if it.allocation is not None else _with_shares(next(found))) for it in claims]
        self._cycles[pod.key.uid] = work
        for claim, allocation in work:
            if allocation is not None:
                self.lister.assume(claim, allocation, pod.key.uid)

    def unreserve(self, pod: Pod, placement: Placement) -> None:  # noqa: ARG002  (the protocol of all steps)
        """Devices whose allocation was not written are free again."""
        for claim, allocation in self._cycles.pop(pod.key.uid, ()):
            if allocation is not None:
                self.lister.forget_assumed(claim, pod.key.uid)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """What was written is what counts."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:  # noqa: ARG002  (the protocol of all steps)
        """Write allocations and reservations, then wait until drivers report the binding conditions of the devices."""
        work = self._cycles[pod.key.uid]
        for claim, allocation in work:
            # The answer is taken in at once: the next claim's write may depend on it.
            self.lister.observe_written(await self.writer.reserve(claim, pod.key, allocation))
        while not self._devices_ready(work):
            await self.lister.change()

    async def undo(self, pod: Pod, placement: Placement) -> None:  # noqa: ARG002  (the protocol of all steps)
        """Take reservations back; each on its own, so that one failure leaves the others taken back."""
        for claim, _ in self._cycles.get(pod.key.uid, ()):
            try:
                await self.writer.release(claim, pod.key, partial(self.waits, pod.key))
            except ClusterError as error:
                log.warning("the reservation of claim %s cannot be taken back: %r", claim, error)

    def _devices_ready(self, work: Sequence[Work]) -> bool:
        """Raises ``Conflict`` when a device reports a failure condition, or a claim lost its devices."""
        ready = True
        for claim, _ in work:
            current = self.lister.claim((claim.namespace, claim.name))
            if current is None or current.uid != claim.uid or current.allocation is None:
                # Another uid: deleted and made again while drivers were waited for.
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            for result in current.allocation.results:
                failed = [it for it in result.binding_failure_conditions if (result.device, it) in current.conditions]
                if failed:
                    raise Conflict(f"claim {claim}: device {result.device} reports {failed[0]}")
                # Every condition of every device; one that is missing is waited for.
                ready = ready and all((result.device, it) in current.conditions for it in result.binding_conditions)
        return ready


def _with_shares(allocation: Allocation) -> Allocation:
    return allocation.with_share_ids([str(uuid4()) for it in allocation.results if it.share_id == NEW_SHARE])


def dynamic_resources(handle: Handle) -> DynamicResources | None:
    """The step of this process; none where claims are switched off."""
    writer = handle.dependencies.claim_writer
    if writer is None:
        return None
    return DynamicResources(
        handle.selector.claims, handle.resource_claims, writer, partial(_still_waits, handle.dependencies)
    )


async def _still_waits(dependencies: Dependencies, pod: PodKey) -> bool:
    """A pod that is gone waits no more: its reservations are taken back by the ResourceClaim controller."""
    if not dependencies.lease.fresh():
        return False
    try:
        seen = await dependencies.binder.read_pod(pod)
    except Gone:
        return False
    return not seen.node
