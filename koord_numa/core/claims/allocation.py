"""Allocations: the result of a search, and everything that is allocated already."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from koord_numa.core.claims.claim import DeviceToleration, OpaqueConfig
from koord_numa.core.claims.inventory import Amounts, DeviceId
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


@dataclass(slots=True)
class DeviceUsage:
    """
    Devices in use over the whole cluster. Results with admin access do not count; foreign ones and those of vanished devices do.

    ``shares`` counts the allocations of a shared device and ``consumed`` sums their capacity in 10^-9 units; all others are exclusive.
    The account is a multiset: what was added twice must be removed twice.
    """

    exclusive: dict[DeviceId, int] = field(default_factory=dict)
    shares: dict[DeviceId, int] = field(default_factory=dict)
    consumed: dict[DeviceId, dict[str, int]] = field(default_factory=dict)

    def add(self, allocation: Allocation) -> None:
        """Count every device of an allocation."""
        self._apply(allocation, 1)

    def remove(self, allocation: Allocation) -> None:
        """Take back what ``add`` counted for the same allocation."""
        self._apply(allocation, -1)

    def _apply(self, allocation: Allocation, sign: int) -> None:
        for result in allocation.results:
            # Admin access neither takes a device nor hinders others.
            if result.admin_access:
                continue
            # A share is recognised by its id (consumable capacity); without one the device is held as a whole.
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
        """Does an allocation hold the device for itself?"""
        return device in self.exclusive

    def shared_by_some(self, device: DeviceId) -> bool:
        """Does an allocation hold a share of it?"""
        return device in self.shares

    def consumed_of(self, device: DeviceId) -> Amounts:
        """Capacity of a shared device that allocations hold."""
        return self.consumed.get(device, _NOTHING)

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> "DeviceUsage":
        """The account of these allocations."""
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
