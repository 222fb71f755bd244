"""
Arithmetic on amounts of resources: plain mappings from resource name to integer.

``cpu`` is counted in milli-CPU, everything else in whole base units (bytes, pieces; ``kubernetes.io/batch-cpu`` in
milli-CPU as its definition says). Amounts are changed in place only by the code that made them.
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
"""One whole CPU in the unit of ``cpu`` amounts."""

NOTHING: Final[ResourceList] = {}


def add(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Every resource of either, summed."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def total(parts: Iterable[ResourceList]) -> dict[str, int]:
    """The sum of all parts."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def subtract(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """``left - right``; may go negative, and a resource known only on the right appears as its negative."""
    rest = dict(left)
    for name, amount in right.items():
        rest[name] = rest.get(name, 0) - amount
    return rest


def subtract_to_zero(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """``left - right``, floored at zero; a resource known only on the right is present with 0 (Koordinator's SubtractNonNegative)."""
    rest = {name: max(0, amount - right.get(name, 0)) for name, amount in left.items()}
    for name in right:
        rest.setdefault(name, 0)
    return rest


def largest(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Per resource the larger of the two."""
    result = dict(left)
    for name, amount in right.items():
        result[name] = max(amount, result.get(name, amount))
    return result


def without_zeros(amounts: ResourceList) -> dict[str, int]:
    """Only the resources of which there is any."""
    return {name: amount for name, amount in amounts.items() if amount}


def is_native(resource: str) -> bool:
    """Kubernetes' own resources: no slash in the name, or the ``kubernetes.io/`` domain."""
    return "/" not in resource or "kubernetes.io/" in resource


def is_hugepages(resource: str) -> bool:
    """Is this one of the ``hugepages-<size>`` resources?"""
    return resource.startswith(HUGEPAGES_PREFIX)


def is_batch(resource: str) -> bool:
    """Is this one of Koordinator's resources for batch pods, which are computed from what others leave over?"""
    return "/batch-" in resource
