"""
CPUs, memory and huge pages that claimed devices consume from the allocatable amounts of a node (KEP-5517).

A mapping is the amount of the device itself, counted once per claim. Overhead is counted per pod and per container that
uses the claim. Both are added to the requests of the pod. Source: dynamicresources/nodeallocatabledynamicresources.go.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import own_name
from koord_numa.core.objects.claims import ClaimAmounts, DeviceId, DeviceResult, Overhead
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.value_objects import replace

NANO: Final = 10**9


class AllocatableError(Exception):
    """The amounts that the devices consume cannot be determined. The message states the reason."""


def claim_amounts(
    entry: str, results: Iterable[DeviceResult], devices: Mapping[DeviceId, Device], containers: Iterable[Container]
) -> ClaimAmounts | None:
    """
    Return the node resources that the devices of a claim consume, or None for no resources.

    Raises ``AllocatableError``.
    """
    mapping: dict[str, int] = {}
    overhead: dict[str, Overhead] = {}
    for result in results:
        device = devices.get(result.device)
        for each in () if device is None else device.allocatable:
            if (amount := _mapped(each.resource, result, each.capacity_key, each.multiplier)) is not None:
                mapping[each.resource] = mapping.get(each.resource, 0) + amount
            if each.per_pod is not None or each.per_container is not None:
                before = overhead.get(each.resource, Overhead(each.resource))
                overhead[each.resource] = Overhead(
                    each.resource, _sum(before.per_pod, each.per_pod), _sum(before.per_container, each.per_container)
                )
    if not mapping and not overhead:
        return None
    users = tuple(it.name for it in containers for name, _ in it.claims if name == entry)
    return ClaimAmounts(
        entry, users, tuple(sorted(mapping.items())), tuple(overhead[name] for name in sorted(overhead))
    )


def _mapped(resource: str, result: DeviceResult, key: str, multiplier: int | None) -> int | None:
    """
    Return the amount of a mapping, or None without a mapping.

    The amount is the multiplier, times the consumed capacity if there is a key. Raises ``AllocatableError``.
    """
    if multiplier is None:
        return None
    if not key:
        return multiplier
    consumed = dict(result.consumed)
    if not consumed:
        raise AllocatableError(
            f"device {result.device.device} consumes no capacity, but its {resource} is counted by {key}"
        )
    amount = consumed.get(own_name(key, result.device.driver, consumed))
    # A capacity that the result lacks does not affect the allocation.
    return None if amount is None else amount * multiplier // NANO


def _sum(first: int | None, second: int | None) -> int | None:
    return second if first is None else first + (second or 0)


def added_amounts(claims: Iterable[ClaimAmounts]) -> dict[str, int]:
    """
    Return the amounts that the claims add to the request of a pod: milli-CPU, and whole units of other resources,
    rounded up.
    """
    summed: dict[str, int] = {}
    for claim in claims:
        for name, amount in claim.total.items():
            summed[name] = summed.get(name, 0) + amount
    return {name: -(-amount * (MILLI if name == CPU else 1) // NANO) for name, amount in summed.items() if amount > 0}


def counted_with(request: PodRequest, claims: Iterable[ClaimAmounts]) -> ResourceList:
    """Return the request of the pod including the amounts of its claims. Pod-level amounts include the claims."""
    counted, pod_level = effective_requests(request), request.pod_requests or {}
    added = {name: amount for name, amount in added_amounts(claims).items() if name not in pod_level}
    return {**counted, **{name: counted.get(name, 0) + amount for name, amount in added.items()}}


def check_pod_level(request: PodRequest, claims: Iterable[ClaimAmounts]) -> None:
    """
    Check that pod-level amounts cover the containers and the claims.

    Raises ``AllocatableError``. Source: ``validatePodLevelResourcesCoverDRA``.
    """
    if not request.pod_requests:
        return
    alone = effective_requests(replace(request, pod_requests=None, overhead={}, counted=None))
    for name, amount in added_amounts(claims).items():
        if name in request.pod_requests and alone.get(name, 0) + amount > request.pod_requests[name]:
            raise AllocatableError(
                f"pod level request for {name} is insufficient to cover the aggregated container and node-allocatable DRA requests"
            )
