"""ResourceClaims as cluster objects, and the claims of one pod."""

from koord_numa.core.claims.allocation import Allocation, DeviceResult
from koord_numa.core.claims.claim import ClaimSpec, ClaimToAllocate, DeviceRequest
from koord_numa.core.claims.inventory import DeviceId
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.value_objects import ValueObject, value_field


class ResourceClaim(ValueObject):
    """
    A ResourceClaim.

    ``reserved_for`` are the uids of pods that may use the claim. ``other_consumers`` is the number of other consumers, ``reserved_groups``
    the uids of the PodGroups among them.
    ``conditions`` are the conditions with status True that a driver reports for an allocated device.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    spec: ClaimSpec = value_field(default_factory=ClaimSpec)
    allocation: Allocation | None = None
    reserved_for: tuple[str, ...] = ()
    other_consumers: int = 0
    reserved_groups: tuple[str, ...] = ()
    owner: str = (
        ""  # uid of the controlling pod or PodGroup of a template's claim, or of a claim for extended resources
    )
    extended: bool = False  # created by a scheduler for the extended resources of its pod
    deleting: bool = False
    protected: bool = False  # has the finalizer that protects an allocated claim
    conditions: frozenset[tuple[DeviceId, str]] = frozenset()
    problem: str = ""  # reason why the object is malformed; such a claim gets no devices

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_older_than(self, other: "ResourceClaim") -> bool:
        """
        Return whether this object was read before the other.

        Resource versions increase within a cluster. Versions that are not numbers cannot be compared.
        """
        try:
            return int(self.version) < int(other.version)
        except ValueError:
            return False

    def to_allocate(self) -> ClaimToAllocate:
        """Return the claim as input of the allocator."""
        return ClaimToAllocate(self.namespace, self.name, self.spec)


class PodResourceClaim(ValueObject):
    """
    An entry of ``spec.resourceClaims``.

    ``claim`` is the name of the ResourceClaim, empty until the claim of a template is created. ``needed`` is false
    after the controller has reported that the template creates no claim. ``template`` is the name of the template.
    """

    name: str
    claim: str = ""
    from_template: bool = False
    needed: bool = True
    template: str = ""


class MadeClaim(ValueObject):
    """The claim for extended resources from an earlier attempt of the pod: its requests, and whether it has devices."""

    requests: tuple[DeviceRequest, ...]
    allocated: bool = False


class PodClaims(ValueObject):
    """
    The claims of a pod as input of node decisions. Equal for pods with equal claims, whatever the names.

    ``problem`` is the reason why the pod cannot be tried yet. ``allocated`` are the node selectors of allocated claims,
    ``devices`` and ``cpus`` their devices and CPUs: the pod must be near them, as with devices that are not yet
    allocated. ``extended`` are the pod's extended resources and the DeviceClass of each, used on nodes that do not
    advertise them. ``made`` is the existing claim for them. ``held`` are results of allocated claims, by entry, whose
    devices consume resources of the node.
    """

    to_allocate: tuple[ClaimToAllocate, ...] = ()
    allocated: tuple[tuple[NodeTerm, ...], ...] = ()
    problem: str = ""
    devices: tuple[DeviceId, ...] = ()
    cpus: CpuSet = EMPTY
    extended: tuple[tuple[str, str], ...] = ()
    made: MadeClaim | None = None
    held: tuple[tuple[str, tuple[DeviceResult, ...]], ...] = ()
