"""What the engine writes of ResourceClaims, as a protocol. The errors are those of ``ports``."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.claim import DeviceRequest
from koord_numa.core.claims.extended_resources import RequestMapping
from koord_numa.core.claims.node_allocatable import ClaimAmounts
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.objects.request import PodKey

StillAllowed = Callable[[], Awaitable[bool]]
"""Whether what a write rests on still holds: this process leads, and the pod has no node."""


class ClaimWriter(Protocol):
    """
    Allocates and reserves ResourceClaims. Every call may be repeated, and raises ``Conflict`` when the claim has changed in a way that
    makes the decision void, ``Gone`` when it does not exist or was re-created, and every other ``ClusterError``.
    """

    async def reserve(self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None) -> ResourceClaim:
        """
        Write the allocation, unless it is there already, and reserve the claim for the pod. Returns the claim as written.

        It is written also when both are there: an earlier ``release`` or ``deallocate`` that is late then has no effect.
        """
        ...

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Take the pod's reservation back; the allocation stays. The version is written that was read before ``allowed`` was asked."""
        ...

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Take the allocation back, which no pod but this one (by uid) may use. Returns the claim as written; otherwise as ``release``."""
        ...

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """
        Create the claim for a pod's extended resources, and return it; one that this pod has already is returned as it is.

        Raises ``Conflict`` when that one asks for something else or is being deleted.
        """
        ...

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """Delete such a claim with its devices, unless ``allowed`` says no; one that is gone is no error. Otherwise as ``release``."""
        ...

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        """
        Write into the pod's status which claim (by name) has devices for its extended resources, and for which containers; without a
        name remove that.

        Raises ``Invalid`` where the API server does not keep it.
        """
        ...

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """Write into the pod's status what each claim, by name, takes from the node; nothing clears it."""
        ...
