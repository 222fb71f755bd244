"""
Deallocation of claims that prevent unschedulable pods from being placed (PostFilter of kube-scheduler's dynamicresources).

A claim is allocated for one node. If the pod cannot be placed there any more, it has to be deallocated. A claim that an earlier attempt
created for the pod's extended resources is deleted; the next attempt creates another.

A cycle that was interrupted, or could not undo its writes, leaves its reservation in the claim. If the pod is unschedulable and other pods
use the claim, only the reservation is released; the ResourceClaim controller keeps the reservations of existing pods. Pods that name the
same claim have the same class, and only the first is attempted, so that the reservations of the whole class are released.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Self

from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.scheduling.placement import NOT_TOGETHER
from koord_numa.engine.claims.late_check import UNAVAILABLE
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver, is_nowhere, still_waits
from koord_numa.ports import ClaimWriter, ClusterError, Dependencies, Lease

log = getLogger(__name__)

_IN_THE_WAY = (UNAVAILABLE, NOT_TOGETHER)
"""Rejections that other devices for the claim could resolve: its devices are on another node, or far from where the pod fits."""


PlacedPods = Callable[[], Iterable[Pod]]
"""All pods that have a node or are assumed."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Claim writer, lease, and checks that a pod has no node: for pods that may be gone, and for pods that must exist."""

    writer: ClaimWriter
    lease: Lease
    nowhere: Callable[[PodKey], Awaitable[bool]]
    waits: Callable[[PodKey], Awaitable[bool]]


class Deallocation:
    """Queue of claims to deallocate. ``consider`` adds to it, ``run`` writes."""

    def __init__(self, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods, outside: Outside) -> None:
        self._lister = lister
        self._resolver = resolver
        self._placed = placed
        self._outside = outside
        self._noted: dict[str, tuple[ResourceClaim, PodKey]] = {}  # by UID of the claim, with the pod
        self._left: dict[tuple[str, str], tuple[ResourceClaim, PodKey]] = {}  # reservations, by UIDs of claim and pod
        self._wake = asyncio.Event()

    @classmethod
    def through(
        cls, ports: Dependencies, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods
    ) -> Self | None:
        """Return the deallocation, ``None`` without a claim writer."""
        if ports.claim_writer is None:
            return None
        outside = Outside(ports.claim_writer, ports.lease, partial(is_nowhere, ports), partial(still_waits, ports))
        return cls(lister, resolver, placed, outside)

    def consider(self, pod: Pod, verdict: Unschedulable, alike: Callable[[], Iterable[Pod]] = tuple) -> None:
        """
        Queue what an unschedulable pod should release.

        This is the first claim, in the pod's order, that keeps the pod from a node and that no other pod uses, and always a claim created
        for the pod. Of claims that others use, it is the reservations of this pod and of the pods ``alike``, which wait in its class.
        """
        # While claims are being listed, pods wait for that only.
        if not self._lister.known:
            return
        if (made := self._lister.made_for(pod.key.uid)) is not None:
            self._note(made, pod)
        if not pod.resource_claims:
            return
        # Only for rejections that other devices could resolve: otherwise the devices would be lost without benefit.
        in_the_way = made is None and any(it.message in _IN_THE_WAY for it in verdict.rejections.values())
        for claim in self._resolver.claims_of(pod):
            if claim.allocation is None:
                continue
            if not self._is_ours(claim, pod):
                self._note_reservations(claim, (pod, *alike()))
            elif in_the_way and claim.allocation.nodes is not None:
                self._note(claim, pod)
                in_the_way = False

    def _note(self, claim: ResourceClaim, pod: Pod) -> None:
        self._noted[claim.uid] = (claim, pod.key)
        self._wake.set()

    def _note_reservations(self, claim: ResourceClaim, waiting: Iterable[Pod]) -> None:
        reserved = frozenset(claim.reserved_for)
        for pod in waiting:
            if pod.key.uid in reserved:
                self._left[claim.uid, pod.key.uid] = (claim, pod.key)
                self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. Failed writes are queued again by the next attempt to place the pod."""
        while True:
            await self._wake.wait()
            # Cleared before the work, so that later additions wake it again.
            self._wake.clear()
            while self._left:
                _, (claim, pod) = self._left.popitem()
                await self._release(claim, pod)
            while self._noted:
                _, (claim, pod) = self._noted.popitem()
                await self._deallocate(claim, pod)

    async def _release(self, claim: ResourceClaim, pod: PodKey) -> None:
        with _contained(f"the reservation of claim {claim} for pod {pod} cannot be taken back"):
            await self._outside.writer.release(claim, pod, partial(self._waits, pod))

    async def _deallocate(self, claim: ResourceClaim, pod: PodKey) -> None:
        current = self._lister.claim((claim.namespace, claim.name))
        if (
            current is None
            or current.uid != claim.uid
            or (current.allocation is None and not current.extended)
            or not await self._allowed(current)
        ):
            return
        with _contained(f"claim {current} cannot be deallocated"):
            allowed = partial(self._allowed, current)
            if not current.extended:
                uid = current.reserved_groups[0] if current.reserved_groups else pod.uid
                self._lister.observe_written(await self._outside.writer.deallocate(current, uid, allowed))
            # The pod is its only user, and may have been bound by a former leader.
            elif await self._outside.nowhere(pod):
                await self._outside.writer.delete(current, allowed)

    async def _waits(self, pod: PodKey) -> bool:
        """Return whether the pod has no node and is not assumed by a later cycle either."""
        return await self._outside.waits(pod) and all(there.key.uid != pod.uid for there in self._placed())

    async def _allowed(self, claim: ResourceClaim) -> bool:
        """Return whether this process leads and no known placed pod uses the claim, even without a reservation."""
        return self._outside.lease.fresh() and not any(self._uses(there, claim) for there in self._placed())

    def _uses(self, pod: Pod, claim: ResourceClaim) -> bool:
        return pod.key.uid == claim.owner if claim.extended else self._resolver.uses(pod, claim)

    def _is_ours(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether the claim is not reserved, or reserved only for this pod, or for its PodGroup without placed pods."""
        groups = {
            group.uid for found, group in self._resolver.claims_with_groups(pod) if group and found.uid == claim.uid
        }
        if claim.other_consumers > len(claim.reserved_groups) or not groups.issuperset(claim.reserved_groups):
            return False
        is_placed = bool(groups) and any(self._uses(there, claim) for there in self._placed())
        return not is_placed and all(uid == pod.key.uid for uid in claim.reserved_for)


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """Log any failure, so that it affects this claim only."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %r", what, error)
    except Exception:
        log.exception("%s", what)
