"""ResourceClaims and DeviceClasses (resource.k8s.io/v1): device requests, constraints and configuration."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from koord_numa.core.claims.inventory import DeviceTaint
from koord_numa.core.value_objects import ValueObject, value_field

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
