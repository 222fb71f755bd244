"""A ResourceClaim as an object of the cluster, and the claims of one pod."""

from dataclasses import dataclass, field

from koord_numa.core.claims.allocation import Allocation, DeviceResult
from koord_numa.core.claims.claim import ClaimSpec, ClaimToAllocate, DeviceRequest
from koord_numa.core.claims.inventory import DeviceId
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import NodeTerm


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


@dataclass(frozen=True, slots=True)
class PodResourceClaim:
    """
    An entry of ``spec.resourceClaims``. ``claim`` is the name of the ResourceClaim, empty while a template's is not made yet.

    ``needed`` is false where the controller has said that the template makes none.
    """

    name: str
    claim: str = ""
    from_template: bool = False
    needed: bool = True


@dataclass(frozen=True, slots=True)
class MadeClaim:
    """The claim for extended resources that an earlier attempt of the pod has made: its requests, and whether it has devices."""

    requests: tuple[DeviceRequest, ...]
    allocated: bool = False


@dataclass(frozen=True, slots=True)
class PodClaims:
    """
    What a pod's claims mean for nodes: equal for pods whose claims ask for the same, whatever their names.

    ``problem`` is why the pod cannot be tried yet. ``allocated`` are the nodes that claims which have devices can be used from, ``devices``
    and ``cpus`` what these claims hold: the pod has to be near them as to those that are still to be allocated. ``extended`` are the
    pod's extended resources that DeviceClasses serve, with the class, where a node does not advertise them; ``made`` is the claim for
    them that exists already. ``held`` are results of allocated claims, by entry, whose devices take resources of the node.
    """

    to_allocate: tuple[ClaimToAllocate, ...] = ()
    allocated: tuple[tuple[NodeTerm, ...], ...] = ()
    problem: str = ""
    devices: tuple[DeviceId, ...] = ()
    cpus: CpuSet = EMPTY
    extended: tuple[tuple[str, str], ...] = ()
    made: MadeClaim | None = None
    held: tuple[tuple[str, tuple[DeviceResult, ...]], ...] = ()
