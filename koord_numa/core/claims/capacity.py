"""
Consumable capacity: the amounts that a request consumes of a device under its request policies.

Follows structured/internal/incubating/allocator_incubating.go and the resourceslice helpers for consumable capacity.
All amounts are in 10^-9 units.
"""

from collections.abc import Container

from koord_numa.core.claims.allocation import DeviceUsage
from koord_numa.core.claims.claim import DeviceRequirements
from koord_numa.core.claims.inventory import Amounts, Capacity, CapacityPolicy, CapacityRange, Device
from koord_numa.core.claims.pools import Features
from koord_numa.core.resources import format_nano
from koord_numa.core.value_objects import ValueObject


def room_for(
    device: Device, demand: DeviceRequirements, usage: DeviceUsage, features: Features, held: Amounts
) -> dict[str, int] | None:
    """
    Return the amount that the request consumes of every capacity of the device, or None if the device does not fit.

    Allocations and the picks of this search (``held``) reduce the free capacity. The result is None when the device
    lacks a requested capacity, a request policy forbids the amount, or too little capacity is free. Capacity requests
    also apply to devices that cannot be shared: they then state the required size.
    """
    if not features.consumable_capacity:
        return {}
    requests = _requests(device, demand)
    # As in upstream's CmpRequestOverCapacity, a capacity that the device lacks is a mismatch.
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


class CapacityShortage(ValueObject):
    """
    The first capacity of a device that is too small for a request, in 10^-9 units.

    ``value`` is 0 for a missing capacity.
    """

    name: str
    wanted: int
    left: int
    value: int
    policy: CapacityPolicy | None = None  # the violated request policy of the device, if any

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
    device: Device, demand: DeviceRequirements, usage: DeviceUsage, features: Features
) -> CapacityShortage | None:
    """Return the reason why ``room_for`` rejects a device, without the picks of a search."""
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
    """Return the policy as text: ``1 to 16 in steps of 1``, or a list of values."""
    limits = policy.valid_range
    if limits is None:
        return ", ".join(map(format_nano, policy.valid_values))
    most = "" if limits.maximum is None else f" to {format_nano(limits.maximum)}"
    steps = f" in steps of {format_nano(limits.step)}" if limits.step else ""
    return f"{format_nano(limits.minimum)}{most or ' or more'}{steps}"


def _requests(device: Device, demand: DeviceRequirements) -> dict[str, int]:
    """
    Return the requested amounts, keyed by the names of the device, which may omit the domain of its driver (Kubernetes
    1.37).
    """
    return {own_name(name, device.id.driver, device.capacity): amount for name, amount in demand.capacity or ()}


def own_name(name: str, driver: str, names: Container[str]) -> str:
    """
    Return the spelling of ``name`` that is in ``names``, with or without the driver's domain, otherwise ``name``
    unchanged.
    """
    if name in names:
        return name
    domain, slash, bare = name.partition("/")
    other = f"{driver}/{name}" if not slash else bare if domain == driver else name
    return other if other in names else name


def _consumed(capacity: Capacity, requested: int | None) -> int:
    policy = capacity.policy
    # The default without a request is the policy's default, or the whole capacity.
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None:
        return _in_range(policy.valid_range, requested)
    # The next larger permitted value. ``_permitted`` rejects a request above all permitted values.
    larger = [value for value in policy.valid_values if value >= requested]
    return min(larger) if larger else requested


def _in_range(limits: CapacityRange, requested: int) -> int:
    if requested <= limits.minimum:
        return limits.minimum
    if not limits.step:
        return requested
    return limits.minimum + -(-(requested - limits.minimum) // limits.step) * limits.step


def _permitted(policy: CapacityPolicy | None, amount: int) -> bool:
    """Return whether the policy permits the amount. The default value is always permitted, also outside the range."""
    if policy is None or amount == policy.default:
        return True
    limits = policy.valid_range
    if limits is not None:
        if limits.maximum is not None and amount > limits.maximum:
            return False
        return not limits.step or (amount - limits.minimum) % limits.step == 0
    return not policy.valid_values or amount in policy.valid_values
