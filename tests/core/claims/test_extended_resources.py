"""Extended resources of device classes: not served by claim, and refused with the name of the class."""

import pytest

from koord_numa.core.claims.extended_resources import name_classes, offering_class
from koord_numa.core.claims.objects.claim import DeviceClass
from koord_numa.core.fit.resources import fits_resources
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable

GPU = "example.com/gpu"
CLASSES = {
    "b-gpu": DeviceClass("b-gpu", extended_resource=GPU),
    "a-gpu": DeviceClass("a-gpu", extended_resource=GPU),
    "nic": DeviceClass("nic"),
}


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (GPU, "a-gpu"),
        ("deviceclass.resource.kubernetes.io/nic", "nic"),
        ("deviceclass.resource.kubernetes.io/none", ""),
        ("example.com/nic", ""),
        ("cpu", ""),
    ],
)
def test_which_class_offers_a_resource(resource: str, name: str) -> None:
    assert offering_class(resource, CLASSES) == name


def refused(asked: int, there: int) -> Rejection:
    """What a node says that advertises so many GPUs, one of which is in use."""
    found = fits_resources({GPU: asked}, {GPU: there} if there else {}, {GPU: min(1, there)}, 0)
    assert isinstance(found, Rejection)
    return found


def test_a_node_that_does_not_advertise_it_names_the_class() -> None:
    elsewhere = Rejection(Reason.TAINT, "node(s) had untolerated taint {a: b}")
    verdict = Unschedulable({"claims": refused(1, 0), "plugin": refused(1, 1), "other": elsewhere})
    told = name_classes(verdict, CLASSES).rejections
    assert told["claims"].message == f"Insufficient {GPU}"
    assert told["claims"].detail == (
        f"needs 1 {GPU}, 0 of 0 free; DeviceClass a-gpu offers it by claim, which extended resources are not served by: "
        "use a ResourceClaim"
    )
    assert (told["plugin"], told["other"]) == (verdict.rejections["plugin"], elsewhere)


def test_verdicts_about_other_resources_stay_as_they_are() -> None:
    verdict = Unschedulable({"n": refused(1, 0)})
    assert name_classes(verdict, {}) is verdict
