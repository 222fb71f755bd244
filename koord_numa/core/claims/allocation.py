"""Allocations: the result of a search, and the usage of all allocated devices."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from koord_numa.core.claims.claim import DeviceToleration, OpaqueConfig
from koord_numa.core.claims.inventory import Amounts, DeviceId
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field


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
        """Return the allocation with an id for each new share, taken from the end of the list."""
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

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> "DeviceUsage":
        """Return the usage of the given allocations."""
        usage = cls()
        for allocation in allocations:
            usage.add(allocation)
        return usage


K = TypeVar("K")

_NOTHING: Mapping[str, int] = {}


def _count(counts: dict[K, int], key: K, change: int) -> None:
    value = counts.get(key, 0) + change
    if value:
        counts[key] = value
    else:
        counts.pop(key, None)
