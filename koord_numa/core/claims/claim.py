"""ResourceClaims and DeviceClasses (resource.k8s.io/v1): what users request, what was allocated, and the claims of one pod."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from koord_numa.core.claims.inventory import DeviceTaint

MAX_RESULTS: Final = 32
"""Devices of one claim, as resource/v1 AllocationResultsMaxSize."""


class AllocationMode(StrEnum):
    """How many devices a request wants."""

    EXACT_COUNT = "ExactCount"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """A taint that a request puts up with. Empty key and effect match all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = (
        None  # how long a NoExecute taint is tolerated: of no meaning for placement, copied to the result
    )

    def covers(self, taint: DeviceTaint) -> bool:
        """As resource/v1 ``DeviceToleration``: Exists asks for the key only."""
        if self.effect and self.effect != taint.effect:
            return False
        # An empty key matches all with Exists only, which validation guarantees.
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """
    What one request, or one alternative of ``firstAvailable``, wants of each device.

    ``selectors`` are CEL expressions; None stands for a selector of an unknown kind. ``mode`` is kept as written.
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
        """Return the first taint that keeps the request from a device. NoSchedule and NoExecute do; other effects are ignored."""
        for taint in taints:
            if taint.effect in _BLOCKING and not any(it.covers(taint) for it in self.tolerations):
                return taint
        return None


_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A named request: ``alternatives`` holds one demand, or those of ``firstAvailable`` in their order."""

    name: str
    alternatives: tuple[DeviceDemand, ...]
    prioritized: bool = False  # written as firstAvailable

    def result_name(self, index: int) -> str:
        """The name under which results appear: ``request/alternative`` for a prioritized list."""
        return f"{self.name}/{self.alternatives[index].name}" if self.prioritized else self.name


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """Devices of the named requests (of all when none is named) have equal, or pairwise distinct, values of an attribute."""

    attribute: str | None  # None for a constraint of an unknown kind
    distinct: bool = False
    requests: frozenset[str] = frozenset()

    def concerns(self, request: str, result_name: str) -> bool:
        """Does it bind devices of this request? Alternatives can be named by ``request/alternative`` alone."""
        # No names: all requests of the claim.
        return not self.requests or request in self.requests or result_name in self.requests


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """Configuration for a driver: ``parameters`` is the JSON text that the driver reads."""

    driver: str
    parameters: str


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """Configuration for some requests, for all when none is named. ``opaque`` is None for an unknown kind."""

    opaque: OpaqueConfig | None
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A device class: selectors and configuration that every request of the class gets."""

    name: str
    selectors: tuple[str | None, ...] = ()
    configs: tuple[OpaqueConfig | None, ...] = ()
    extended_resource: str = ""
    problem: str = ""  # why it cannot be read
    created: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    configs: tuple[ClaimConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimToAllocate:
    """A claim as the allocator sees it. ``titles`` are what messages call its requests, by name, where users did not write these."""

    namespace: str
    name: str
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    titles: tuple[tuple[str, str], ...] = ()

    def title(self, request: str) -> str:
        """What messages call a request."""
        return dict(self.titles).get(request) or f"claim {self.name}, request {request}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Classes = Mapping[str, DeviceClass]
