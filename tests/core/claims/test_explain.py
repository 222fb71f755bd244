"""The numbers of rejections by claims: what is free, and which capacity, taint or constraint is in the way."""

from typing import Any

import pytest

from koord_numa.core.claims.demands import numbers_of
from koord_numa.core.claims.pools import NodeDevices, gather_pools
from koord_numa.core.objects.claims import DeviceId, DeviceUsage
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.core.claims.worlds import NODE, Json, claim_object, device, device_class, published, request
from tests.tables import each_row

NUMA = "resource.kubernetes.io/numaNode"


def told(driver: str, devices: list[Json], claim: Json, usage: DeviceUsage | None = None) -> str:
    """The numbers for a claim on a node with these devices."""
    made = published(driver, devices)
    node = NodeDevices(NODE, {}, gather_pools([made], NODE, {}, {made.pool: [made]}))
    wanted = parse_resource_claim(claim).to_allocate()
    return numbers_of([wanted], {driver: device_class(driver)}, node, usage or DeviceUsage())


def _group(name: str, cpus: int) -> Json:
    return device(name, capacity={"dra.cpu/cpu": str(cpus)}, allowMultipleAllocations=True)


@each_row(
    ("wanted", "held", "expected"),
    [
        ("20", 0, "0 free, 2 without the capacity (20 of dra.cpu/cpu wanted, at most 16 of 16 left on a device)"),
        ("12", 6, "1 free, 1 without the capacity (12 of dra.cpu/cpu wanted, at most 10 of 16 left on a device)"),
        ("500m", 16, "1 free, 1 without the capacity (500m of dra.cpu/cpu wanted, at most 0 of 16 left on a device)"),
        ("4", 6, "2 free"),
    ],
)
def test_a_capacity_that_runs_short_is_named(wanted: str, held: int, expected: str) -> None:
    taken = DeviceId("dra.cpu", NODE, "a")
    usage = DeviceUsage(shares={taken: 1}, consumed={taken: {"dra.cpu/cpu": held * 10**9}}) if held else DeviceUsage()
    asks = claim_object(request("cpus", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": wanted}}))
    said = told("dra.cpu", [_group("a", 16), _group("b", 16)], asks, usage)
    assert said == f"claim claim, request cpus: 1 wanted, 2 of 2 devices match, {expected}"


def test_an_impossible_capacity_is_named() -> None:
    asks = claim_object(request("r", "gpu", capacity={"requests": {"memory": "1Gi"}}))
    assert told("gpu", [device("a")], asks).endswith(
        "0 free, 1 without the capacity (1Gi of memory wanted, which no device has)"
    )
    policy = {"requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "4"}}}
    bounded = device("a", allowMultipleAllocations=True) | {"capacity": {"memory": {"value": "8", **policy}}}
    asks = claim_object(request("r", "gpu", capacity={"requests": {"memory": "5"}}))
    assert "5 of memory wanted, the request policy permits 1 to 4, at most 8 of 8 left" in told("gpu", [bounded], asks)


def test_taints_that_are_not_tolerated_are_counted() -> None:
    tainted = device("a", taints=[{"key": "broken", "effect": "NoExecute"}])
    said = told("gpu", [tainted, device("b")], claim_object(request("r", "gpu", count=2)))
    assert said.endswith("1 free, 1 with taints that are not tolerated (broken:NoExecute)")


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("distinct", [0, 0, 1, 1], f"distinctAttribute {NUMA}: r has 0 (2 free) or 1 (2 free)"),
        ("match", [0, [1, 2], None], f"matchAttribute {NUMA}: r has 0 (1 free) or 1+2 (1 free) or no value (1 free)"),
    ],
)
def test_a_constraint_is_named_with_the_values_of_free_devices(kind: str, values: list[Any], expected: str) -> None:
    devices = [
        device(f"d{at}", **({"attributes": {NUMA: it}} if it is not None else {})) for at, it in enumerate(values)
    ]
    asks = claim_object(request("r", "gpu", count=3), constraints=[{f"{kind}Attribute": NUMA}])
    assert told("gpu", devices, asks).endswith(f"; {expected}")
    # Too few devices are the reason, and not the constraint.
    assert "Attribute" not in told("gpu", devices[:2], asks)
