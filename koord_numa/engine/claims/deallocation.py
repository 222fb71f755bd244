"""
Pods that fit nowhere give up allocated claims that stand in the way (kube-scheduler's dynamicresources PostFilter).

A claim is allocated for one node; if the pod cannot go there any more, the claim would keep it from every other node for ever. A claim that
was made for the pod's extended resources by an earlier attempt is deleted: the next attempt makes another one.

A cycle that was cut off, or that could not undo what it had written, leaves its reservation in the claim. The pod's next cycle goes on
from there, but a pod that fits nowhere has none: where other pods use the claim too, so that it is not given up, the reservation is taken
back here. No other process does so: the ResourceClaim controller keeps the reservations of all pods that exist. One attempt answers for all
pods of a class, so that those of the whole class are looked at: pods that name one claim are of one class, and only the first is tried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
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
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.ports import ClaimWriter, ClusterError, Dependencies, Lease

log = getLogger(__name__)

_IN_THE_WAY = (UNAVAILABLE, NOT_TOGETHER)
"""Refusals that other devices for the claim could lift: it holds devices of another node, or far from where the pod fits."""


PlacedPods = Callable[[], Iterable[Pod]]
"""All pods that have a node, or are about to have one."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Who writes, whether it may, and whether a pod surely has no node: one that may be gone, and one that must be there."""

    writer: ClaimWriter
    lease: Lease
    nowhere: Callable[[PodKey], Awaitable[bool]]
    waits: Callable[[PodKey], Awaitable[bool]]


class Deallocation:
    """``consider`` notes what a pod should give up, ``run`` writes it."""

    def __init__(self, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods, outside: Outside) -> None:
        self._lister = lister
        self._resolver = resolver
        self._placed = placed
        self._outside = outside
        self._noted: dict[str, tuple[ResourceClaim, PodKey]] = {}  # by uid of the claim, with the pod
        self._left: dict[tuple[str, str], tuple[ResourceClaim, PodKey]] = {}  # reservations, by uids of claim and pod
        self._wake = asyncio.Event()

    @classmethod
    def through(
        cls, ports: Dependencies, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods
    ) -> Self | None:
        """``None`` where no claims are written: nothing gives any up."""
        if ports.claim_writer is None:
            return None
        outside = Outside(ports.claim_writer, ports.lease, partial(is_nowhere, ports), partial(still_waits, ports))
        return cls(lister, resolver, placed, outside)

    def consider(self, pod: Pod, verdict: Unschedulable, alike: Callable[[], Iterable[PendingPod]] = tuple) -> None:
        """
        The first claim, in the pod's order, that keeps the pod from a node and that no other pod uses; one made for the pod always. Of
        claims that others use, the reservations of this pod and of those ``alike``, which wait in its class.
        """
        # While claims are listed, pods wait for that alone.
        if not self._lister.known:
            return
        if (made := self._lister.made_for(pod.key.uid)) is not None:
            self._note(made, pod)
        if not pod.resource_claims:
            return
        # Only refusals that other devices could lift: giving a claim up for less would lose devices for nothing.
        in_the_way = made is None and any(it.message in _IN_THE_WAY for it in verdict.rejections.values())
        for claim in self._resolver.claims_of(pod):
            if claim.allocation is None:
                continue
            if not _is_ours(claim, pod):
                self._note_reservations(claim, (pod, *(each.pod for each in alike())))
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
        """Write until cancelled. What fails is noted again by the next attempt to place the pod."""
        while True:
            await self._wake.wait()
            # Cleared before the work, so that what is noted meanwhile wakes it again.
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
                self._lister.observe_written(await self._outside.writer.deallocate(current, pod.uid, allowed))
            # The pod is its only user, and may have been bound by a leader of before.
            elif await self._outside.nowhere(pod):
                await self._outside.writer.delete(current, allowed)

    async def _waits(self, pod: PodKey) -> bool:
        """Nor is the pod about to be bound by a cycle that has begun since."""
        return await self._outside.waits(pod) and all(there.key.uid != pod.uid for there in self._placed())

    async def _allowed(self, claim: ResourceClaim) -> bool:
        """This process leads, and no pod that it knows of uses the claim: one whose reservation is missing uses it all the same."""
        return self._outside.lease.fresh() and not any(_uses(there, claim) for there in self._placed())


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """Whatever goes wrong costs this claim only."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %r", what, error)
    except Exception:
        log.exception("%s", what)


def _uses(pod: Pod, claim: ResourceClaim) -> bool:
    if claim.extended:
        return pod.key.uid == claim.owner
    return pod.key.namespace == claim.namespace and any(it.claim == claim.name for it in pod.resource_claims)


def _is_ours(claim: ResourceClaim, pod: Pod) -> bool:
    consumers: Sequence[str] = claim.reserved_for
    # Reserved for this pod alone, if for any.
    return not claim.other_consumers and all(uid == pod.key.uid for uid in consumers)
