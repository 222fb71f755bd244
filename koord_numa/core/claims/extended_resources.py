"""
Extended resources that a DeviceClass offers by claim (KEP-5004): which names they are, and which class serves them.

A node whose kubelet advertises such a resource serves it by its device plugin as ever; any other node serves it by a ResourceClaim that the
scheduler makes (``extended_claim``).
"""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.claims.objects.claim import Classes, DeviceClass
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import is_native
from koord_numa.core.value_objects import replace

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
