"""Extended resources that a DeviceClass offers (KEP-5004), and the ResourceClaim that the scheduler creates for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.claims.claim import ClaimSpec, ClaimToAllocate, Classes, DeviceClass, DeviceDemand, DeviceRequest
from koord_numa.core.claims.resource_claim import PodClaims
from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList, is_native
from koord_numa.core.value_objects import replace

IN_MEMORY: Final = "<extended-resources>"
"""The claim's name until it is created (dynamicresources ``specialClaimInMemName``): no entry of a pod can be named so."""

OTHER_NODES: Final = "the ResourceClaim of an earlier attempt does not serve the pod's extended resources here"

Served = tuple[tuple[str, str], ...]
"""Extended resources with the class that serves each, by name."""


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """Which request of the claim has devices for a container (core/v1 ContainerExtendedResourceRequest)."""

    container: str
    resource: str
    request: str


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """What the claim asks for, in the order of its request names, and who gets what."""

    requests: tuple[DeviceRequest, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()


def served_by_claim(claims: PodClaims, allocatable: ResourceList) -> Served:
    """Of the pod's resources that classes serve those which the node does not advertise (noderesources ``ShouldDelegateResourceToDRA``)."""
    return tuple(it for it in claims.extended if allocatable.get(it[0], 0) <= 0)


def extended_claim(containers: Sequence[Container], served: Served) -> ExtendedClaim:
    """The claim for these resources (dynamicresources ``createRequestsAndMappings``). ``containers`` as in ``PodRequest``."""
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource, device_class in sorted(served):
        found = _of_resource(containers, resource, device_class)
        requests += found.requests
        mappings += found.mappings
    return ExtendedClaim(tuple(sorted(requests, key=lambda it: it.name)), tuple(mappings))


def claims_at(claims: PodClaims, containers: Sequence[Container], allocatable: ResourceList) -> PodClaims | str:
    """
    What the pod's claims are on a node that advertises ``allocatable``, or why the claim that was made for it before is of no use there.
    """
    wanted = extended_claim(containers, served_by_claim(claims, allocatable))
    if claims.made is not None:
        if claims.made.requests != wanted.requests:
            return OTHER_NODES
        # With devices it is among the allocated claims already.
        if claims.made.allocated:
            return replace(claims, extended=(), made=None)
    if not wanted.requests:
        return replace(claims, extended=(), made=None)
    titles = tuple((it.request, f"{it.resource} of container {it.container}") for it in wanted.mappings)
    made = ClaimToAllocate("", IN_MEMORY, ClaimSpec(wanted.requests), titles)
    # After the pod's own claims, as upstream allocates it last.
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
        # Those that start later and stay: their devices are idle while this container runs.
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
    # One request for all init containers: they run one after the other.
    of_init = [replace(it, request=largest.name) if it.request in own else it for it in of_init]
    return ExtendedClaim((largest, *lasting.values()), (*mappings, *of_init))


def _reuse(requests: Iterable[DeviceRequest], wanted: int) -> tuple[list[DeviceRequest], int]:
    """The requests whose devices are used first, in their order, and how many devices are still missing then."""
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
    # By its place among all that the container requests, as upstream's ``createResourceRequestAndMappings``.
    name = f"container-{at}-request-{sorted(container.requests).index(resource)}"
    return DeviceRequest(name, (DeviceDemand(name, device_class, count=count),))


def without(containers: Iterable[Container], resources: Mapping[str, object]) -> tuple[Container, ...]:
    """The containers as a kubelet sees them that does not know these resources."""
    return tuple(
        replace(it, requests=_less(it.requests, resources), limits=_less(it.limits, resources)) for it in containers
    )


def _less(amounts: ResourceList, resources: Mapping[str, object]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name not in resources}


IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resource that every class is by its name (resource/v1 ResourceDeviceClassPrefix)."""

_QUOTA: Final = "requests."
_INSUFFICIENT: Final = "Insufficient "

ClassByResource = Mapping[str, str]
"""The name of the DeviceClass that serves an extended resource."""


def is_offered_by_classes(resource: str) -> bool:
    """May a DeviceClass serve a resource of this name (pkg/scheduler/util ``IsDRAExtendedResourceName``)?"""
    return resource.startswith(IMPLICIT) or not (is_native(resource) or resource.startswith(_QUOTA))


def class_by_resource(classes: Classes) -> dict[str, str]:
    """
    For every resource that classes offer, the class that serves it.

    Of several with one ``extendedResourceName`` the newest one, then the first by name (dynamic-resource-allocation
    ``deviceclass/extendedresourcecache``, ``betterDeviceClass``): so users move from one class to another.
    """
    best: dict[str, DeviceClass] = {}
    for each in sorted(classes.values(), key=lambda it: (-it.created, it.name)):
        if each.extended_resource:
            best.setdefault(each.extended_resource, each)
    explicit = {resource: each.name for resource, each in best.items()}
    # Last, as validation keeps others from naming a resource so.
    return explicit | {f"{IMPLICIT}{name}": name for name in classes}


@once_per_request
def extended_requests(request: PodRequest) -> tuple[str, ...]:
    """The resources that the pod asks for and that a class may serve, by name."""
    return tuple(sorted(name for name in effective_requests(request) if is_offered_by_classes(name)))


def name_classes(verdict: Unschedulable, classes: Classes) -> Unschedulable:
    """
    Where extended resources are not served by claim: the verdict, with the class in the rejections of nodes that have too little of a
    resource which a class offers.
    """
    offered = class_by_resource(classes)
    told = {message: why for message in _messages(verdict.rejections) if (why := _why(message, offered))}
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


def _messages(rejections: Mapping[str, Rejection]) -> set[str]:
    return {it.message for it in rejections.values() if _lacks(it)}


def _lacks(rejection: Rejection) -> bool:
    """Has the node less than the pod asks for even when empty, as one that does not advertise the resource?"""
    return rejection.reason is Reason.RESOURCES and not rejection.resolvable


def _why(message: str, offered: ClassByResource) -> str:
    name = offered.get(message.removeprefix(_INSUFFICIENT), "")
    return (
        f"DeviceClass {name} offers it by claim, which is switched off here (featureGates, DRAExtendedResource): use a ResourceClaim"
        if name
        else ""
    )
