"""A stand-in for the API server's side of claims."""

from collections.abc import Sequence

from koord_numa.core.claims.node_resources import RequestMapping
from koord_numa.core.objects.claims import Allocation, ClaimAmounts, DeviceRequest, ResourceClaim
from koord_numa.core.objects.gangs import PodGroup
from koord_numa.core.objects.request import PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import DELETED, Conflict, StillAllowed
from koord_numa.wire.resource_claims import extended_claim_json, parse_resource_claim


class FakeClaimWriter:
    """``ClaimWriter`` on a lister: it writes as the API server does, and fails when told to."""

    def __init__(self, lister: ClaimLister) -> None:
        self.lister = lister
        self.fails: Exception | None = None
        self.released: list[str] = []
        self.deallocated: list[str] = []
        self.deleted: list[str] = []
        self.amounts: dict[str, list[tuple[str, ClaimAmounts]]] = {}  # by pod
        self.mapped: dict[str, tuple[str, tuple[RequestMapping, ...]]] = {}  # by pod

    async def reserve(
        self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None, group: PodGroup | None = None
    ) -> ResourceClaim:
        if self.fails is not None:
            raise self.fails
        current = self.lister.claims[claim.namespace, claim.name]
        version = str(int(current.version or "0") + 2)
        given = current.allocation or allocation
        if given is None:
            raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
        if group is not None:
            return replace(current, version=version, allocation=given, reserved_groups=(group.uid,), other_consumers=1)
        return replace(current, version=version, allocation=given, reserved_for=(*current.reserved_for, pod.uid))

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        if await allowed():
            self.released.append(pod.uid)

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        if not await allowed():
            raise Conflict("not allowed")
        self.deallocated.append(claim.name)
        return replace(claim, version=str(int(claim.version) + 1), allocation=None, reserved_for=())

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """The watch shows it at once."""
        if self.fails is not None:
            raise self.fails
        document = extended_claim_json(pod, requests)
        document["metadata"] |= {"uid": f"uid-of-{document['metadata']['name']}", "resourceVersion": "1"}
        created = parse_resource_claim(document)
        self.lister.observe_claim("ADDED", created)
        return created

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        if await allowed():
            self.deleted.append(claim.name)
            self.lister.observe_claim(DELETED, claim)

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        if self.fails is not None:
            raise self.fails
        self.mapped[pod.name] = (claim, tuple(mappings))

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        self.amounts[pod.name] = list(amounts)
