"""What finished init containers still hold, and exporters overlook."""

import pytest

from koord_numa.core.kubelet.inference.init_reuse import without_leftovers
from koord_numa.core.kubelet.managers.aggregates import pod_demand
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.resources import ResourceList
from tests.core.kubelet.nodes import app, init, pod, sidecar


def zone(numa: int, supply: ResourceList, free: ResourceList) -> Zone:
    """A zone without reservation."""
    return Zone(numa, supply, supply, free)


EIGHT, GPUS = {"cpu": 8000}, {"cpu": 8000, "vendor.com/gpu": 2}
CASES: dict[str, tuple[list[Zone], PodRequest, list[ResourceList]]] = {
    "taken over": ([zone(0, EIGHT, {"cpu": 4000})], pod(init(4), app(4)), [{"cpu": 4000}]),
    "left on an unknown NUMA node": (
        [zone(0, EIGHT, {"cpu": 6000}), zone(1, EIGHT, EIGHT)],
        pod(init(5), app(2)),
        [{"cpu": 3000}, {"cpu": 5000}],
    ),
    "counted by the exporter": (
        [zone(0, EIGHT, {"cpu": 3000}), zone(1, EIGHT, EIGHT)],
        pod(init(5), app(2)),
        [{"cpu": 3000}, EIGHT],
    ),
    "beside a sidecar": ([zone(0, EIGHT, {"cpu": 5000})], pod(sidecar(2), init(4), app(1)), [{"cpu": 2000}]),
    "devices, too": (
        [zone(0, GPUS, {"cpu": 7000, "vendor.com/gpu": 2})],
        pod(init(1, gpu=1), app(1)),
        [{"cpu": 7000, "vendor.com/gpu": 1}],
    ),
}


@pytest.mark.parametrize(("zones", "there", "available"), CASES.values(), ids=CASES)
def test_leftovers(zones: list[Zone], there: PodRequest, available: list[ResourceList]) -> None:
    assert [zone.available for zone in without_leftovers(zones, [pod_demand(there)])] == available
