"""
Arithmetic on amounts of resources: mappings from resource name to integer.

``cpu`` is in milli-CPU, all other resources in whole base units (bytes, pieces; ``kubernetes.io/batch-cpu`` in
milli-CPU by its definition). Only the code that created amounts may modify them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

ResourceList = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
HUGEPAGES_PREFIX: Final = "hugepages-"
MILLI: Final = 1000
"""One CPU in the unit of ``cpu`` amounts."""

NOTHING: Final[ResourceList] = {}


def add(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return the sum by resource, with every resource of either."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def total(parts: Iterable[ResourceList]) -> dict[str, int]:
    """Return the sum of all parts."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def subtract(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return ``left - right``. May be negative, also for a resource that is only in ``right``."""
    rest = dict(left)
    for name, amount in right.items():
        rest[name] = rest.get(name, 0) - amount
    return rest


def subtract_to_zero(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return ``left - right``, at least zero. Includes resources that are only in ``right`` (Koordinator's SubtractNonNegative)."""
    rest = {name: max(0, amount - right.get(name, 0)) for name, amount in left.items()}
    for name in right:
        rest.setdefault(name, 0)
    return rest


def largest(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return the maximum by resource."""
    result = dict(left)
    for name, amount in right.items():
        result[name] = max(amount, result.get(name, amount))
    return result


def without_zeros(amounts: ResourceList) -> dict[str, int]:
    """Return the resources with a non-zero amount."""
    return {name: amount for name, amount in amounts.items() if amount}


def is_native(resource: str) -> bool:
    """Return whether this is a native resource: no slash in the name, or the ``kubernetes.io/`` domain."""
    return "/" not in resource or "kubernetes.io/" in resource


def is_hugepages(resource: str) -> bool:
    """Return whether this is a ``hugepages-<size>`` resource."""
    return resource.startswith(HUGEPAGES_PREFIX)


def is_batch(resource: str) -> bool:
    """Return whether this is a resource of Koordinator for batch pods, which is computed from unused resources."""
    return "/batch-" in resource
