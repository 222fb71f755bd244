"""Containers whose CPU requests differ from the CPUs of their claims, which the driver does not let start."""

import pytest

from koord_numa.core.claims.cpus import unequal_cpus
from koord_numa.core.objects.claims import Allocation, DeviceId, DeviceResult
from koord_numa.core.objects.request import Container
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.tables import each_row


def group(name: str, cpus: int) -> DeviceResult:
    """CPUs of a group of CPUs."""
    return DeviceResult(name, DeviceId("dra.cpu", "n", "cpudevnuma000"), consumed=(("dra.cpu/cpu", cpus * 10**9),))


def single(name: str, cpu: int) -> DeviceResult:
    """An individual CPU."""
    return DeviceResult(name, DeviceId("dra.cpu", "n", f"cpudev{cpu:03}"))


TWO = {
    "cpus": Allocation((group("a", 4), group("b/large", 2))),
    "singles": Allocation(tuple(single("a", cpu) for cpu in range(3))),
    "gpu": Allocation((DeviceResult("gpu", DeviceId("gpu", "n", "gpu-0")),)),
}


@each_row(
    ("cpu", "claims", "claimed"),
    [
        pytest.param(6000, (("cpus", ""),), None, id="equal"),
        pytest.param(6010, (("cpus", ""),), None, id="within a hundredth"),
        pytest.param(6011, (("cpus", ""),), 6, id="more"),
        pytest.param(4000, (("cpus", ""),), 6, id="less"),
        pytest.param(4000, (("cpus", "a"),), None, id="one request"),
        pytest.param(4000, (("cpus", "b"),), 2, id="an alternative of a request"),
        pytest.param(6000, (("cpus", "a"), ("cpus", "b"), ("gpu", "")), None, id="several requests"),
        pytest.param(3000, (("singles", ""),), None, id="individual CPUs"),
        pytest.param(4000, (("singles", ""),), 3, id="too few individual CPUs"),
        pytest.param(0, (("cpus", ""),), None, id="no request"),
        pytest.param(4000, (("gpu", ""),), None, id="a claim without CPUs"),
        pytest.param(4000, (("cpus", ""), ("shared", "")), None, id="a claim that is not known"),
        pytest.param(4000, (), None, id="no claim"),
    ],
)
def test_what_the_driver_compares(cpu: int, claims: tuple[tuple[str, str], ...], claimed: int | None) -> None:
    container = Container("main", ContainerKind.APP, {"cpu": cpu}, claims=claims)
    expected = (
        []
        if claimed is None
        else [f"container main requests {cpu / 1000:g} CPUs and claims {claimed}, so dra-driver-cpu does not start it"]
    )
    assert [*unequal_cpus([container], TWO)] == expected
