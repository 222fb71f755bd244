"""Extended resources of device classes: which class serves a name, and what refusals say where they are not served by claim."""

from koord_numa.core.claims.node_resources import class_by_resource, extended_requests, name_classes
from koord_numa.core.fit.node_filters import fits_resources
from koord_numa.core.objects.claims import DeviceClass
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.tables import each_row

GPU = "example.com/gpu"
CLASSES = {
    "b-gpu": DeviceClass("b-gpu", extended_resource=GPU),
    "a-gpu": DeviceClass("a-gpu", extended_resource=GPU),
    "nic": DeviceClass("nic"),
}


@each_row(
    ("resource", "name"),
    [
        (GPU, "a-gpu"),
        ("deviceclass.resource.kubernetes.io/nic", "nic"),
        ("deviceclass.resource.kubernetes.io/a-gpu", "a-gpu"),
        ("deviceclass.resource.kubernetes.io/none", None),
        ("example.com/nic", None),
        ("cpu", None),
    ],
)
def test_which_class_offers_a_resource(resource: str, name: str | None) -> None:
    assert class_by_resource(CLASSES).get(resource) == name


def test_the_newest_class_of_a_resource_serves_it() -> None:
    newer = DeviceClass("c-gpu", extended_resource=GPU, created=2.0)
    older = DeviceClass("a-gpu", extended_resource=GPU, created=1.0)
    assert class_by_resource({it.name: it for it in (older, newer)})[GPU] == "c-gpu"


def test_only_extended_resources_may_be_served_by_a_class() -> None:
    implicit = "deviceclass.resource.kubernetes.io/nic"
    amounts = {
        "cpu": 1000,
        "hugepages-2Mi": 1,
        "kubernetes.io/batch-cpu": 1,
        "requests.x/y": 1,
        GPU: 1,
        implicit: 2,
        "x.com/z": 0,
    }
    assert extended_requests(PodRequest((Container("c", ContainerKind.APP, amounts),))) == (implicit, GPU)


def refused(asked: int, there: int) -> Rejection:
    """Return the rejection of a node that advertises this number of GPUs, one of which is in use."""
    found = fits_resources({GPU: asked}, {GPU: there} if there else {}, {GPU: min(1, there)}, 0)
    assert isinstance(found, Rejection)
    return found


def test_with_the_gate_off_a_node_names_the_device_class() -> None:
    elsewhere = Rejection(Reason.TAINT, "node(s) had untolerated taint {a: b}")
    verdict = Unschedulable({"claims": refused(1, 0), "plugin": refused(1, 1), "other": elsewhere})
    told = name_classes(verdict, CLASSES).rejections
    assert told["claims"].message == f"Insufficient {GPU}"
    assert told["claims"].detail == (
        f"needs 1 {GPU}, 0 of 0 free; DeviceClass a-gpu offers it by claim, which is switched off here "
        "(featureGates, DRAExtendedResource): use a ResourceClaim"
    )
    assert (told["plugin"], told["other"]) == (verdict.rejections["plugin"], elsewhere)


def test_verdicts_about_other_resources_stay_as_they_are() -> None:
    verdict = Unschedulable({"n": refused(1, 0)})
    assert name_classes(verdict, {}) is verdict
