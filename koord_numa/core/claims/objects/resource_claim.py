"""A claim as an object of the cluster: what it asks for, what it got, and who may use it."""

from dataclasses import dataclass, field

from koord_numa.core.claims.objects.claim import ClaimSpec, ClaimToAllocate
from koord_numa.core.claims.search.allocation import Allocation
from koord_numa.core.claims.search.inventory import DeviceId


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """
    A ResourceClaim.

    ``reserved_for`` are the uids of pods that may use it, ``other_consumers`` counts further entries. ``conditions`` are those that a
    driver reported as True for an allocated device.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    allocation: Allocation | None = None
    reserved_for: tuple[str, ...] = ()
    other_consumers: int = 0
    owner: str = ""  # uid of the controlling pod of a template's claim, or of one for extended resources
    extended: bool = False  # made by a scheduler for the extended resources of its pod
    deleting: bool = False
    protected: bool = False  # has the finalizer that keeps an allocated claim
    conditions: frozenset[tuple[DeviceId, str]] = frozenset()
    problem: str = ""  # what is malformed; nothing is allocated for the claim then

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_older_than(self, other: "ResourceClaim") -> bool:
        """Was it read before the other one? Versions grow in a cluster; what is no number cannot be compared."""
        try:
            return int(self.version) < int(other.version)
        except ValueError:
            return False

    def to_allocate(self) -> ClaimToAllocate:
        """The claim as the allocator sees it."""
        return ClaimToAllocate(self.namespace, self.name, self.spec)
