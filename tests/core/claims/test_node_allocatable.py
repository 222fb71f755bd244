"""Node resources that devices of claims use: mappings once per claim, overhead per pod and container."""

from collections.abc import Sequence
from typing import Any

import pytest

from koord_numa.core.claims.node_resources import (
    AllocatableError,
    added_amounts,
    check_pod_level,
    claim_amounts,
    counted_with,
)
from koord_numa.core.objects.claims import ClaimAmounts, DeviceId, DeviceResult, Overhead
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.core.claims.worlds import device, published
from tests.tables import each_row

N = 10**9
CONTAINERS = (
    Container("init", ContainerKind.INIT, {"cpu": 100}, claims=(("c", ""),)),
    Container("main", ContainerKind.APP, {"cpu": 1000}, claims=(("c", "r"), ("other", ""))),
    Container("side", ContainerKind.APP, {"memory": 64}),
)


def amounts(resources: Any, *results: Sequence[tuple[str, int]], shared: bool = True) -> ClaimAmounts | None:
    """Return the amounts of a claim that has a device of the driver ``d`` for each result."""
    made = published("d", [device("x") | {"nodeAllocatableResources": resources}])
    devices = {it.id: it for it in made.devices}
    found = [DeviceResult("r", DeviceId("d", made.pool.name, "x"), consumed=tuple(it)) for it in results]
    return claim_amounts("c", found, devices, CONTAINERS)


def by_capacity(key: str = "d/cpu", multiplier: str | None = "1") -> Any:
    return {"cpu": {"mapping": {"capacityKey": key, "capacityMultiplier": multiplier}}}


@each_row(
    ("resources", "results", "mapping"),
    [
        (by_capacity(), [[("d/cpu", 4 * N)]], (("cpu", 4 * N),)),
        (by_capacity(), [[("d/cpu", 4 * N)], [("d/cpu", 2 * N)]], (("cpu", 6 * N),)),
        (by_capacity(multiplier=None), [[("d/cpu", 4 * N)]], (("cpu", 4 * N),)),
        (by_capacity(multiplier="1500m"), [[("d/cpu", 4 * N)]], (("cpu", 6 * N),)),
        (by_capacity("cpu"), [[("d/cpu", 4 * N)]], (("cpu", 4 * N),)),
        (by_capacity("d/cpu"), [[("cpu", 4 * N)]], (("cpu", 4 * N),)),
        ({"cpu": {"mapping": {"deviceMultiplier": "2"}}}, [[], []], (("cpu", 4 * N),)),
        ({"memory": {"mapping": {"deviceMultiplier": "1Gi"}}}, [[]], (("memory", 2**30 * N),)),
    ],
)
def test_a_mapping_is_worth_its_capacity_or_its_devices(resources: Any, results: Any, mapping: Any) -> None:
    found = amounts(resources, *results)
    assert found == ClaimAmounts("c", ("init", "main"), mapping)
    assert found.total == dict(mapping)


def test_overhead_counts_for_the_pod_and_claiming_containers() -> None:
    overhead = {"memory": {"overhead": {"perPod": "100", "perContainer": "10"}}, "cpu": {"overhead": {"perPod": "1m"}}}
    found = amounts(overhead, [])
    assert found == ClaimAmounts(
        "c", ("init", "main"), (), (Overhead("cpu", N // 1000), Overhead("memory", 100 * N, 10 * N))
    )
    assert added_amounts([found]) == {"cpu": 1, "memory": 120}
    assert counted_with(PodRequest(CONTAINERS), [found]) == {"cpu": 1001, "memory": 184}


@each_row("resources", [None, {}, by_capacity("d/none"), {"cpu": {}}])
def test_devices_that_take_nothing(resources: Any) -> None:
    assert amounts(resources, [("d/cpu", N)]) is None


def test_a_capacity_that_a_result_does_not_have_is_an_error() -> None:
    with pytest.raises(AllocatableError, match="device x consumes no capacity, but its cpu is counted by d/cpu"):
        amounts(by_capacity(), [])


def test_fractions_are_rounded_up() -> None:
    assert added_amounts([ClaimAmounts("c", (), (("cpu", 1), ("memory", N + 1)))]) == {"cpu": 1, "memory": 2}
    assert added_amounts([ClaimAmounts("c", (), (("cpu", -N),))]) == {}  # nothing gives amounts back


@pytest.mark.parametrize(("level", "fits"), [(3000, True), (2999, False), (None, True)])
def test_pod_level_amounts_cover_claims(level: int | None, fits: bool) -> None:
    request = PodRequest(CONTAINERS, pod_requests=None if level is None else {"cpu": level})
    two = ClaimAmounts("c", (), (("cpu", 2 * N),))
    if not fits:
        with pytest.raises(AllocatableError, match="pod level request for cpu is insufficient"):
            check_pod_level(request, [two])
        return
    check_pod_level(request, [two])
    assert counted_with(request, [two])["cpu"] == 3000
