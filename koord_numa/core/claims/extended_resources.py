"""
Extended resources that a DeviceClass offers by claim. kube-scheduler serves them on nodes whose kubelet does not advertise them; here they
are refused there, and the refusal names the class. Nodes that advertise them by a device plugin serve them as ever.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from koord_numa.core.claims.objects.claim import Classes
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resource that every class is by its name (resource/v1 ResourceDeviceClassPrefix)."""

_INSUFFICIENT: Final = "Insufficient "


def offering_class(resource: str, classes: Classes) -> str:
    """The DeviceClass that offers the resource, the first by name of several; empty for none."""
    implicit = resource.removeprefix(IMPLICIT)
    if implicit != resource:
        return implicit if implicit in classes else ""
    return min((it.name for it in classes.values() if it.extended_resource == resource), default="")


def name_classes(verdict: Unschedulable, classes: Classes) -> Unschedulable:
    """The verdict, with the class in the rejections of nodes that have too little of a resource which a class offers by claim."""
    told = {message: why for message in _messages(verdict.rejections) if (why := _why(message, classes))}
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


def _why(message: str, classes: Classes) -> str:
    resource = message.removeprefix(_INSUFFICIENT)
    name = offering_class(resource, classes) if "/" in resource else ""
    return (
        f"DeviceClass {name} offers it by claim, which extended resources are not served by: use a ResourceClaim"
        if name
        else ""
    )
