"""Device configurations that are nested more deeply than can be written back are refused by name, and lose no device."""

from typing import Any

import pytest

from koord_numa.wire.resource_claims import DEEPEST, parse_device_class, parse_resource_claim
from tests.tables import each_row


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def config(levels: int) -> list[dict[str, Any]]:
    return [{"opaque": {"driver": "gpu.example.com", "parameters": nested(levels)}}]


def claim(levels: int) -> dict[str, Any]:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "node", "device": "gpu-0"}
    return {
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": [result], "config": config(levels)}}},
    }


@pytest.mark.parametrize("levels", [DEEPEST + 1, 300, 5000])
def test_a_claim_with_too_deep_parameters_is_rejected_by_name(levels: int) -> None:
    raw = claim(1)
    raw["spec"]["devices"]["config"] = config(levels)
    assert "nested more than 200 levels deep" in parse_resource_claim(raw).problem
    assert (
        "nested more than 200 levels deep"
        in parse_device_class({"metadata": {"name": "c"}, "spec": {"config": config(levels)}}).problem
    )


@each_row("levels", [1, DEEPEST, DEEPEST + 1, 5000])
def test_devices_stay_in_use_with_any_configuration(levels: int) -> None:
    found = parse_resource_claim(claim(levels))
    assert found.allocation is not None
    assert [each.device.device for each in found.allocation.results] == ["gpu-0"]
    assert bool(found.problem) == (levels > DEEPEST)


def test_invalid_parameters_affect_only_their_claim() -> None:
    """Integers beyond 64 bits are valid JSON; no reader of ours could give them to the driver unchanged."""
    opaque = {"driver": "gpu.example.com", "parameters": {"size": 10**30}}
    spec = {"devices": {"requests": [], "config": [{"opaque": opaque}]}}
    raw = {"metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": spec}
    assert "cannot be passed on" in parse_resource_claim(raw).problem
