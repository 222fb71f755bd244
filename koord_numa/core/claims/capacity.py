"""
Consumable capacity: what a request consumes of a device under its request policies (structured/internal/incubating/
allocator_incubating.go and resourceslice consumable capacity helpers). All amounts in 10^-9 units.
"""

from collections.abc import Container
from dataclasses import dataclass

from koord_numa.core.claims.allocation import DeviceUsage
from koord_numa.core.claims.claim import DeviceDemand
from koord_numa.core.claims.inventory import Amounts, Capacity, CapacityPolicy, CapacityRange, Device
from koord_numa.core.claims.pools import Features
from koord_numa.core.quantity import format_nano


def room_for(
    device: Device, demand: DeviceDemand, usage: DeviceUsage, features: Features, held: Amounts
) -> dict[str, int] | None:
    """
    What the request consumes of every capacity of the device, beside what allocations and this search (``held``) have of it.

    None when it asks for what the device or a policy does not offer, or when there is no room. Devices that cannot be shared are
    compared as well: a request then says how large they must be.
    """
    if not features.consumable_capacity:
        return {}
    requests = _requests(device, demand)
    # A capacity that the device does not have: refused, as upstream's CmpRequestOverCapacity does.
    if not requests.keys() <= device.capacity.keys():
        return None
    allocated = usage.consumed_of(device.id)
    consumed: dict[str, int] = {}
    for name, capacity in device.capacity.items():
        amount = _consumed(capacity, requests.get(name))
        if not _permitted(capacity.policy, amount):
            return None
        if amount + allocated.get(name, 0) + held.get(name, 0) > capacity.value:
            return None
        consumed[name] = amount
    return consumed


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """The first capacity of which a device has less than a request consumes, in 10^-9 units. ``value`` is 0 where it has none."""

    name: str
    wanted: int
    left: int
    value: int
    policy: CapacityPolicy | None = None  # the request policy of the device, if it does not permit the amount

    @property
    def permitted(self) -> bool:
        """Whether the request policy of the device permits the amount."""
        return self.policy is None

    def __str__(self) -> str:
        wanted = f"{format_nano(self.wanted)} of {self.name} wanted"
        if not self.value:
            return f"{wanted}, which no device has"
        beyond = f", the request policy permits {_policy_text(self.policy)}" if self.policy else ""
        return f"{wanted}{beyond}, at most {format_nano(self.left)} of {format_nano(self.value)} left on a device"


def capacity_shortage(
    device: Device, demand: DeviceDemand, usage: DeviceUsage, features: Features
) -> CapacityShortage | None:
    """Return what ``room_for`` refuses a device for, beside allocations."""
    if not features.consumable_capacity:
        return None
    requests = _requests(device, demand)
    for name in requests.keys() - device.capacity.keys():
        return CapacityShortage(name, requests[name], 0, 0)
    allocated = usage.consumed_of(device.id)
    for name, capacity in device.capacity.items():
        amount = _consumed(capacity, requests.get(name))
        left = capacity.value - allocated.get(name, 0)
        if amount > left or not _permitted(capacity.policy, amount):
            policy = None if _permitted(capacity.policy, amount) else capacity.policy
            return CapacityShortage(name, amount, left, capacity.value, policy)
    return None


def _policy_text(policy: CapacityPolicy) -> str:
    """``1 to 16 in steps of 1``, or the values of a list."""
    limits = policy.valid_range
    if limits is None:
        return ", ".join(map(format_nano, policy.valid_values))
    most = "" if limits.maximum is None else f" to {format_nano(limits.maximum)}"
    steps = f" in steps of {format_nano(limits.step)}" if limits.step else ""
    return f"{format_nano(limits.minimum)}{most or ' or more'}{steps}"


def _requests(device: Device, demand: DeviceDemand) -> dict[str, int]:
    """Return the requested amounts by the names of the device, which may leave its driver's domain out (Kubernetes 1.37)."""
    return {own_name(name, device.id.driver, device.capacity): amount for name, amount in demand.capacity or ()}


def own_name(name: str, driver: str, names: Container[str]) -> str:
    """Return the spelling of a name that is among the names: with the driver's domain or without it; else the name as it is."""
    if name in names:
        return name
    domain, slash, bare = name.partition("/")
    other = f"{driver}/{name}" if not slash else bare if domain == driver else name
    return other if other in names else name


def _consumed(capacity: Capacity, requested: int | None) -> int:
    policy = capacity.policy
    # Without a request the policy's default, else the whole capacity.
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None:
        return _in_range(policy.valid_range, requested)
    # The next larger permitted value; none larger is refused by ``_permitted``.
    larger = [value for value in policy.valid_values if value >= requested]
    return min(larger) if larger else requested


def _in_range(limits: CapacityRange, requested: int) -> int:
    if requested <= limits.minimum:
        return limits.minimum
    if not limits.step:
        return requested
    return limits.minimum + -(-(requested - limits.minimum) // limits.step) * limits.step


def _permitted(policy: CapacityPolicy | None, amount: int) -> bool:
    """The default is always permitted, whatever the range says."""
    if policy is None or amount == policy.default:
        return True
    limits = policy.valid_range
    if limits is not None:
        if limits.maximum is not None and amount > limits.maximum:
            return False
        return not limits.step or (amount - limits.minimum) % limits.step == 0
    return not policy.valid_values or amount in policy.valid_values
