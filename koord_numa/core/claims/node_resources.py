"""
Claims and the resources of nodes: extended resources that a claim serves, and amounts that claimed devices consume.

Extended resources of DeviceClasses (KEP-5004) get a ResourceClaim that the scheduler creates. Devices consume CPUs, memory
and huge pages of the allocatable amounts of their node (KEP-5517): a mapping is the amount of the device, counted once per
claim, and overhead is counted per pod and per container that uses the claim. Both are added to the requests of the pod.
Source: dynamicresources/nodeallocatabledynamicresources.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import own_name
from koord_numa.core.objects.claims import (
    ClaimAmounts,
    ClaimSpec,
    ClaimToAllocate,
    Classes,
    DeviceClass,
    DeviceId,
    DeviceRequest,
    DeviceRequirements,
    DeviceResult,
    Overhead,
    PodClaims,
)
from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI, ResourceList, is_native
from koord_numa.core.value_objects import ValueObject, replace

IN_MEMORY: Final = "<extended-resources>"
"""
Name of the claim before its creation (dynamicresources ``specialClaimInMemName``).

No claim of a pod can have this name.
"""

OTHER_NODES: Final = "the ResourceClaim of an earlier attempt does not serve the pod's extended resources here"

Served = tuple[tuple[str, str], ...]
"""Extended resources and the class that serves each resource, sorted by name."""


class RequestMapping(ValueObject):
    """The request of the claim that holds the devices of a container (core/v1 ContainerExtendedResourceRequest)."""

    container: str
    resource: str
    request: str


class ExtendedClaim(ValueObject):
    """The requests of the claim, sorted by name, and their mapping to containers."""

    requests: tuple[DeviceRequest, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()


def served_by_claim(claims: PodClaims, allocatable: ResourceList) -> Served:
    """
    Return the pod's extended resources that the node does not advertise.

    As noderesources ``ShouldDelegateResourceToDRA``.
    """
    return tuple(it for it in claims.extended if allocatable.get(it[0], 0) <= 0)


def extended_claim(containers: Sequence[Container], served: Served) -> ExtendedClaim:
    """
    Return the claim for the resources.

    As dynamicresources ``createRequestsAndMappings``. ``containers`` are those of ``PodRequest``.
    """
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource, device_class in sorted(served):
        found = _of_resource(containers, resource, device_class)
        requests += found.requests
        mappings += found.mappings
    return ExtendedClaim(tuple(sorted(requests, key=lambda it: it.name)), tuple(mappings))


def claims_at(claims: PodClaims, containers: Sequence[Container], allocatable: ResourceList) -> PodClaims | str:
    """
    Return the pod's claims on a node that advertises ``allocatable``.

    Returns the reason instead when the claim of an earlier attempt does not match this node.
    """
    wanted = extended_claim(containers, served_by_claim(claims, allocatable))
    if claims.made is not None:
        if claims.made.requests != wanted.requests:
            return OTHER_NODES
        # A claim with devices is already among the allocated claims.
        if claims.made.allocated:
            return replace(claims, extended=(), made=None)
    if not wanted.requests:
        return replace(claims, extended=(), made=None)
    titles = tuple((it.request, f"{it.resource} of container {it.container}") for it in wanted.mappings)
    made = ClaimToAllocate("", IN_MEMORY, ClaimSpec(wanted.requests), titles)
    # As upstream, the claim is allocated after the pod's own claims.
    return replace(claims, to_allocate=(*claims.to_allocate, made), extended=(), made=None)


def _of_resource(containers: Sequence[Container], resource: str, device_class: str) -> ExtendedClaim:
    lasting: dict[int, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for at, container in enumerate(containers):
        if container.kind is not ContainerKind.INIT and (wanted := container.requests.get(resource, 0)):
            lasting[at] = _request(at, container, resource, device_class, wanted)
            mappings.append(RequestMapping(container.name, resource, lasting[at].name))
    largest: DeviceRequest | None = None
    of_init: list[RequestMapping] = []
    own: set[str] = set()
    for at, container in enumerate(containers):
        if container.kind is not ContainerKind.INIT or not (wanted := container.requests.get(resource, 0)):
            continue
        # The devices of containers that start later and keep running are idle while the init container runs.
        reused, missing = _reuse((it for index, it in lasting.items() if index > at), wanted)
        of_init += (RequestMapping(container.name, resource, it.name) for it in reused)
        if missing:
            request = _request(at, container, resource, device_class, missing)
            own.add(request.name)
            of_init.append(RequestMapping(container.name, resource, request.name))
            if largest is None or _count(largest) < missing:
                largest = request
    if largest is None:
        return ExtendedClaim(tuple(lasting.values()), (*mappings, *of_init))
    # Init containers run one after the other, so one request serves all of them.
    of_init = [replace(it, request=largest.name) if it.request in own else it for it in of_init]
    return ExtendedClaim((largest, *lasting.values()), (*mappings, *of_init))


def _reuse(requests: Iterable[DeviceRequest], wanted: int) -> tuple[list[DeviceRequest], int]:
    """Return the first requests that cover the wanted devices, in order, and the number of missing devices."""
    reused: list[DeviceRequest] = []
    for request in requests:
        if wanted <= 0:
            break
        reused.append(request)
        wanted -= _count(request)
    return reused, max(0, wanted)


def _count(request: DeviceRequest) -> int:
    return request.alternatives[0].count


def _request(at: int, container: Container, resource: str, device_class: str, count: int) -> DeviceRequest:
    # By position among the container's requested resources, as upstream's ``createResourceRequestAndMappings``.
    name = f"container-{at}-request-{sorted(container.requests).index(resource)}"
    return DeviceRequest(name, (DeviceRequirements(name, device_class, count=count),))


def containers_without(containers: Iterable[Container], resources: Mapping[str, object]) -> tuple[Container, ...]:
    """Return the containers without these resources, for a kubelet that does not account for them."""
    return tuple(
        replace(it, requests=_less(it.requests, resources), limits=_less(it.limits, resources)) for it in containers
    )


def _less(amounts: ResourceList, resources: Mapping[str, object]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name not in resources}


IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the implicit extended resource of every class (resource/v1 ResourceDeviceClassPrefix)."""

_QUOTA: Final = "requests."
_INSUFFICIENT: Final = "Insufficient "

ClassByResource = Mapping[str, str]
"""Name of the DeviceClass, by extended resource."""


def is_offered_by_classes(resource: str) -> bool:
    """
    Return whether a DeviceClass may serve a resource of this name (pkg/scheduler/util ``IsDRAExtendedResourceName``).
    """
    return resource.startswith(IMPLICIT) or not (is_native(resource) or resource.startswith(_QUOTA))


def class_by_resource(classes: Classes) -> dict[str, str]:
    """
    Return the DeviceClass for every extended resource that classes offer.

    Among classes with the same ``extendedResourceName`` the newest class wins, then the first by name, so that users
    can migrate from one class to another. As dynamic-resource-allocation ``deviceclass/extendedresourcecache``,
    ``betterDeviceClass``.
    """
    best: dict[str, DeviceClass] = {}
    for each in sorted(classes.values(), key=lambda it: (-it.created, it.name)):
        if each.extended_resource:
            best.setdefault(each.extended_resource, each)
    explicit = {resource: each.name for resource, each in best.items()}
    # Implicit names come last. API validation prevents an explicit name with this prefix.
    return explicit | {f"{IMPLICIT}{name}": name for name in classes}


@once_per_request
def extended_requests(request: PodRequest) -> tuple[str, ...]:
    """Return the requested resources that a DeviceClass may serve, sorted by name."""
    return tuple(sorted(name for name in effective_requests(request) if is_offered_by_classes(name)))


def name_classes(verdict: Unschedulable, classes: Classes) -> Unschedulable:
    """
    Add the offering DeviceClass to rejections of nodes that lack an extended resource.

    For clusters where claims do not serve extended resources.
    """
    offered = class_by_resource(classes)
    told = {
        message: why
        for message in {it.message for it in verdict.rejections.values() if _lacks(it)}
        if (why := _why(message, offered))
    }
    if not told:
        return verdict
    return Unschedulable(
        {
            node: replace(it, detail="; ".join(filter(None, (it.detail, told[it.message]))))
            if _lacks(it) and it.message in told
            else it
            for node, it in verdict.rejections.items()
        }
    )


def _lacks(rejection: Rejection) -> bool:
    """Return whether even the empty node has too few resources, such as a node that does not advertise the resource."""
    return rejection.reason is Reason.RESOURCES and not rejection.resolvable


def _why(message: str, offered: ClassByResource) -> str:
    name = offered.get(message.removeprefix(_INSUFFICIENT), "")
    return (
        f"DeviceClass {name} offers it by claim, which is switched off here (featureGates, DRAExtendedResource): use a ResourceClaim"
        if name
        else ""
    )


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
