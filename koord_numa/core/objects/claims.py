"""
ResourceClaims and DeviceClasses (resource.k8s.io/v1): requests, constraints and allocations, and the claims of one pod.

Identities and taints of devices are here too; the devices themselves are in ``core.claims``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple, TypeVar

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field

Amounts = Mapping[str, int]
"""Amounts by name in 10^-9 units: capacities and counters."""


class PoolId(NamedTuple):
    """Key of a pool: driver and name. Two drivers may both name a pool after the node."""

    driver: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


class DeviceId(NamedTuple):
    """Key of a device: driver, pool and name."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """
    A taint of a device.

    ``effect`` is kept as written, because unknown effects are ignored. ``rule`` is the DeviceTaintRule that sets the
    taint, empty for a taint that the driver publishes.
    """

    key: str
    value: str
    effect: str
    rule: str = field(default="", compare=False)

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        by_rule = f" by DeviceTaintRule {self.rule}" if self.rule else ""
        return f"{self.key}{value}:{self.effect}{by_rule}"


class Features(ValueObject):
    """
    Feature gates of Kubernetes 1.36 with their defaults (``featureGates``).

    Fields of a disabled gate are rejected or have no effect.
    """

    admin_access: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    device_taints: bool = True
    extended_resource: bool = True
    partitionable_devices: bool = True
    prioritized_list: bool = True

    @property
    def stable_allocator(self) -> bool:
        """
        True if kube-scheduler uses the allocator for locked gates, without distinctAttribute and capacity requests.

        As ``NewAllocator`` in dynamic-resource-allocation/structured.
        """
        return not self.consumable_capacity and not self.binding_conditions


ALL_FEATURES = Features()

MAX_RESULTS: Final = 32
"""Maximum number of devices of one claim, as resource/v1 AllocationResultsMaxSize."""


class AllocationMode(StrEnum):
    """Allocation mode of a request. It determines the number of devices."""

    EXACT_COUNT = "ExactCount"
    ALL = "All"


class DeviceToleration(ValueObject):
    """A device taint that a request tolerates. An empty key or effect matches all values."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None  # toleration time of a NoExecute taint: irrelevant for placement, copied to the result

    def covers(self, taint: DeviceTaint) -> bool:
        """
        Return whether the toleration matches the taint, as resource/v1 ``DeviceToleration``.

        Exists compares the key only.
        """
        if self.effect and self.effect != taint.effect:
            return False
        # An empty key matches all taints with Exists only, which API validation guarantees.
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


class DeviceRequirements(ValueObject):
    """
    The device requirements of one request, or of one alternative of ``firstAvailable``.

    ``selectors`` are CEL expressions. None stands for a selector of an unknown type. ``mode`` is kept as written.
    """

    name: str
    device_class: str
    selectors: tuple[str | None, ...] = ()
    mode: str = AllocationMode.EXACT_COUNT
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] | None = None  # capacity.requests in 10^-9 units; None when absent

    def first_untolerated(self, taints: Iterable[DeviceTaint]) -> DeviceTaint | None:
        """
        Return the first taint that excludes a device from the request.

        NoSchedule and NoExecute exclude devices. Other effects are ignored.
        """
        for taint in taints:
            if taint.effect in _BLOCKING and not any(it.covers(taint) for it in self.tolerations):
                return taint
        return None


_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


class DeviceRequest(ValueObject):
    """A named request. ``alternatives`` holds one demand, or the demands of ``firstAvailable`` in their order."""

    name: str
    alternatives: tuple[DeviceRequirements, ...]
    prioritized: bool = False  # written as firstAvailable

    def result_name(self, index: int) -> str:
        """Return the request name in results: ``request/alternative`` for a prioritized list."""
        return f"{self.name}/{self.alternatives[index].name}" if self.prioritized else self.name


class DeviceConstraint(ValueObject):
    """Devices of the named requests (or of all) have equal, or pairwise distinct, values of an attribute."""

    attribute: str | None  # None for a constraint of an unknown kind
    distinct: bool = False
    requests: frozenset[str] = frozenset()

    def concerns(self, request: str, result_name: str) -> bool:
        """
        Return whether the constraint applies to the request. A name ``request/alternative`` selects one alternative.
        """
        # A constraint without names applies to all requests of the claim.
        return not self.requests or request in self.requests or result_name in self.requests


class OpaqueConfig(ValueObject):
    """Configuration for a driver. ``parameters`` is JSON text for the driver."""

    driver: str
    parameters: str


class ClaimConfig(ValueObject):
    """Configuration for the named requests, or for all requests. ``opaque`` is None for an unknown type."""

    opaque: OpaqueConfig | None
    requests: tuple[str, ...] = ()


class DeviceClass(ValueObject):
    """A device class: selectors and configuration that apply to every request of the class."""

    name: str
    selectors: tuple[str | None, ...] = ()
    configs: tuple[OpaqueConfig | None, ...] = ()
    extended_resource: str = ""
    problem: str = ""  # reason why the object cannot be parsed
    created: float = 0.0  # seconds since the epoch


class ClaimSpec(ValueObject):
    """The ``spec.devices`` of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    configs: tuple[ClaimConfig, ...] = ()


class ClaimToAllocate(ValueObject):
    """
    A claim without an allocation, as input of the allocator.

    ``titles`` maps request names to their titles in messages, for requests that users did not write.
    """

    namespace: str
    name: str
    spec: ClaimSpec = value_field(default_factory=ClaimSpec)
    titles: tuple[tuple[str, str], ...] = ()

    def title(self, request: str) -> str:
        """Return the title of a request in messages."""
        return dict(self.titles).get(request) or f"claim {self.name}, request {request}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Classes = Mapping[str, DeviceClass]


class DeviceResult(ValueObject):
    """
    One device that is allocated for one request.

    ``consumed`` lists capacities in 10^-9 units. The allocator marks a new share with the id ``new``. The writer of the
    allocation replaces the mark by a UUID, because the core has no source of randomness.
    """

    request: str
    device: DeviceId
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str = ""
    consumed: tuple[tuple[str, int], ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


NEW_SHARE = "new"


class ConfigSource(Enum):
    """Source of a configuration."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class AllocatedConfig(ValueObject):
    """Configuration of the named requests, or of all requests when none is named."""

    source: ConfigSource
    requests: tuple[str, ...]
    opaque: OpaqueConfig | None


class Allocation(ValueObject):
    """
    The allocated devices and the configuration of one claim.

    ``nodes`` are alternative node selector terms. None means that the devices can be used from every node.
    """

    results: tuple[DeviceResult, ...] = ()
    configs: tuple[AllocatedConfig, ...] = ()
    nodes: tuple[NodeTerm, ...] | None = None

    def with_share_ids(self, ids: "list[str]") -> "Allocation":
        """Return the allocation with an id for each new share. The ids are removed from the end of the list."""
        return replace(
            self,
            results=tuple(replace(it, share_id=ids.pop()) if it.share_id == NEW_SHARE else it for it in self.results),
        )


class DeviceUsage(MutableObject):
    """
    Devices in use in the whole cluster.

    Results with admin access do not count. Results of other drivers and of vanished devices count.

    ``shares`` is the number of allocations of a shared device, and ``consumed`` the sum of their capacity in 10^-9
    units. Other devices are exclusive. The account is a multiset: an allocation that is added twice must be removed
    twice.
    """

    exclusive: dict[DeviceId, int] = value_field(default_factory=dict)
    shares: dict[DeviceId, int] = value_field(default_factory=dict)
    consumed: dict[DeviceId, dict[str, int]] = value_field(default_factory=dict)

    def add(self, allocation: Allocation) -> None:
        """Add every device of an allocation."""
        self._apply(allocation, 1)

    def remove(self, allocation: Allocation) -> None:
        """Remove the devices of an added allocation."""
        self._apply(allocation, -1)

    def _apply(self, allocation: Allocation, sign: int) -> None:
        for result in allocation.results:
            # Admin access neither reserves a device nor blocks other claims.
            if result.admin_access:
                continue
            # A share has an id (consumable capacity). A result without an id holds the whole device.
            if not result.share_id:
                _count(self.exclusive, result.device, sign)
                continue
            _count(self.shares, result.device, sign)
            amounts = self.consumed.setdefault(result.device, {})
            for name, amount in result.consumed:
                _count(amounts, name, sign * amount)
            if not amounts:
                del self.consumed[result.device]

    def in_use(self, device: DeviceId) -> bool:
        """Return whether an allocation holds the device exclusively."""
        return device in self.exclusive

    def shared_by_some(self, device: DeviceId) -> bool:
        """Return whether an allocation holds a share of the device."""
        return device in self.shares

    def consumed_of(self, device: DeviceId) -> Amounts:
        """Return the capacity of a shared device that allocations hold, in 10^-9 units."""
        return self.consumed.get(device, _NOTHING)


K = TypeVar("K")

_NOTHING: Mapping[str, int] = {}


def _count(counts: dict[K, int], key: K, change: int) -> None:
    value = counts.get(key, 0) + change
    if value:
        counts[key] = value
    else:
        counts.pop(key, None)


class ResourceClaim(ValueObject):
    """
    A ResourceClaim.

    ``reserved_for`` are the uids of pods that may use the claim. ``other_consumers`` is the number of other consumers,
    ``reserved_groups`` the uids of the PodGroups among them. ``conditions`` are the conditions with status True that a
    driver reports for an allocated device.
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


class Overhead(ValueObject):
    """
    Overhead of one resource per pod and per container that uses the claim.

    Amounts are in 10^-9 units, or None where no device has an overhead.
    """

    resource: str
    per_pod: int | None = None
    per_container: int | None = None


class ClaimAmounts(ValueObject):
    """
    The node resources that one claim consumes for a pod (core/v1 ``NodeAllocatableResourceClaimStatus``).

    ``entry`` is the entry of the pod's ``resourceClaims``, empty for the claim for extended resources. Amounts are in
    10^-9 units.
    """

    entry: str
    containers: tuple[str, ...] = ()
    mapping: tuple[tuple[str, int], ...] = ()
    overhead: tuple[Overhead, ...] = ()

    @property
    def total(self) -> dict[str, int]:
        """Total amounts for the pod in 10^-9 units, by resource."""
        summed = dict(self.mapping)
        for each in self.overhead:
            amount = (each.per_pod or 0) + (each.per_container or 0) * len(self.containers)
            summed[each.resource] = summed.get(each.resource, 0) + amount
        return summed
