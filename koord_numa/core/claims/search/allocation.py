"""The answer of an allocation: devices, configuration and the nodes that can use them (resource.k8s.io/v1 AllocationResult)."""

from dataclasses import dataclass
from enum import Enum

from koord_numa.core.claims.objects.claim import DeviceToleration, OpaqueConfig
from koord_numa.core.claims.search.inventory import DeviceId
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """
    One device for one request.

    ``consumed`` lists capacities in 10^-9 units. The allocator marks a share by the id ``new``; the writer of the allocation gives
    it a UUID, since the core makes no random numbers.
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
    """Where configuration comes from."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True)
class AllocatedConfig:
    """Configuration of some requests; none named means all."""

    source: ConfigSource
    requests: tuple[str, ...]
    opaque: OpaqueConfig | None


@dataclass(frozen=True, slots=True)
class Allocation:
    """``nodes`` are alternatives; None means that the devices can be used from every node."""

    results: tuple[DeviceResult, ...] = ()
    configs: tuple[AllocatedConfig, ...] = ()
    nodes: tuple[NodeTerm, ...] | None = None

    def with_share_ids(self, ids: "list[str]") -> "Allocation":
        """The allocation with an id for each new share, taken from the end of the list."""
        return replace(
            self,
            results=tuple(replace(it, share_id=ids.pop()) if it.share_id == NEW_SHARE else it for it in self.results),
        )
