"""Plain resources and host ports of the whole node."""

import pytest

from koord_numa.core.fit.node_filters import fits_ports, fits_resources
from koord_numa.core.objects.constraints import Constraints, HostPort
from tests.core.fit.builders import asks
from tests.tables import each_row

ALLOCATABLE = {"cpu": 8000, "memory": 1000, "pods": 3, "nvidia.com/gpu": 2}


@each_row(
    ("wanted", "held", "pods", "message"),
    [
        pytest.param({"cpu": 4000}, {"cpu": 4000}, 2, None, id="exactly-fits"),
        pytest.param({"cpu": 4001}, {"cpu": 4000}, 2, "Insufficient cpu", id="cpu"),
        pytest.param({"memory": 1001, "cpu": 9000}, {}, 0, "Insufficient cpu", id="cpu-is-named-before-memory"),
        pytest.param({"memory": 1001}, {}, 0, "Insufficient memory", id="memory"),
        pytest.param({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}, 0, "Insufficient nvidia.com/gpu", id="device"),
        pytest.param({"vendor.com/x": 1}, {}, 0, "Insufficient vendor.com/x", id="unknown-to-the-node"),
        pytest.param({"vendor.com/x": 0}, {}, 0, None, id="nothing-of-an-unknown-resource"),
        pytest.param({}, {}, 3, "Too many pods", id="pods"),
        pytest.param({"memory": 1}, {"cpu": 9000}, 0, None, id="overcommitted-cpu-does-not-matter-to-memory"),
    ],
)
def test_resources(wanted: dict[str, int], held: dict[str, int], pods: int, message: str | None) -> None:
    refusal = fits_resources(wanted, ALLOCATABLE, held, pods)
    assert (refusal.message if refusal else None) == message


def test_a_rejection_has_amounts_and_whether_eviction_helps() -> None:
    refusal = fits_resources({"cpu": 4500}, ALLOCATABLE, {"cpu": 6000}, 0)
    assert refusal is not None
    assert (refusal.detail, refusal.resolvable) == ("needs 4.5 CPUs, 2 of 8 free", True)
    hopeless = fits_resources({"cpu": 9000}, ALLOCATABLE, {}, 0)
    assert hopeless is not None
    assert not hopeless.resolvable


@each_row(
    ("wanted", "used", "fits"),
    [
        pytest.param(HostPort(80), HostPort(81), True, id="another-port"),
        pytest.param(HostPort(80), HostPort(80), False, id="same"),
        pytest.param(HostPort(80), HostPort(80, "UDP"), True, id="another-protocol"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), True, id="another-address"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80), False, id="wildcard-is-there"),
        pytest.param(HostPort(80), HostPort(80, ip="10.0.0.1"), False, id="wildcard-is-wanted"),
    ],
)
def test_host_ports(wanted: HostPort, used: HostPort, *, fits: bool) -> None:
    assert (fits_ports(asks(Constraints(host_ports=(wanted,))), [used]) is None) == fits
