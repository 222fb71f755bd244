"""Containers whose CPU requests differ from the CPUs of their claims, which the driver does not let start."""

import pytest

from koord_numa.core.claims.container_cpus import unequal_cpus
from koord_numa.core.claims.objects.claim import OpaqueConfig
from koord_numa.core.claims.search.allocation import AllocatedConfig, Allocation, ConfigSource, DeviceResult
from koord_numa.core.claims.search.inventory import DeviceId
from koord_numa.core.objects.request import Container
from koord_numa.core.objects.vocabulary import ContainerKind


def allocation(**cpusets: str) -> Allocation:
    """CPUs by request; ``_`` in a name stands for the slash of an alternative."""
    names = {name.replace("_", "/"): text for name, text in cpusets.items()}
    device = DeviceId("dra.cpu", "n", "cpudevmachine")
    return Allocation(
        tuple(DeviceResult(name, device) for name in names),
        tuple(
            AllocatedConfig(
                ConfigSource.CLAIM, (name,), OpaqueConfig("dra.cpu", f'{{"cpuConfig":{{"cpuset":"{text}"}}}}')
            )
            for name, text in names.items()
        ),
    )


TWO = {"cpus": allocation(a="0-3", b_large="4-5"), "gpu": Allocation()}


@pytest.mark.parametrize(
    ("cpu", "claims", "claimed"),
    [
        pytest.param(6000, (("cpus", ""),), None, id="equal"),
        pytest.param(6010, (("cpus", ""),), None, id="within a hundredth"),
        pytest.param(6011, (("cpus", ""),), 6, id="more"),
        pytest.param(4000, (("cpus", ""),), 6, id="less"),
        pytest.param(4000, (("cpus", "a"),), None, id="one request"),
        pytest.param(4000, (("cpus", "b"),), 2, id="an alternative of a request"),
        pytest.param(6000, (("cpus", "a"), ("cpus", "b"), ("gpu", "")), None, id="several requests"),
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
        else [
            f"container main requests {cpu / 1000:g} CPUs and claims {claimed}, so that dra-driver-cpu does not let it start"
        ]
    )
    assert [*unequal_cpus([container], TWO)] == expected
