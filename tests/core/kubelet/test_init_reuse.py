"""Resources that finished init containers still hold and exporters overlook."""

from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.inferred_state import parted_cpus, without_leftovers
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList
from tests.core.kubelet.nodes import app, init, node, pod, sidecar
from tests.tables import each_row


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


@each_row(("zones", "there", "available"), CASES.values(), ids=CASES)
def test_leftovers(zones: list[Zone], there: PodRequest, available: list[ResourceList]) -> None:
    assert [zone.available for zone in without_leftovers(zones, [pod_demand(there)])] == available


@each_row(
    ("policy", "scope", "devices", "held"),
    [
        (KubeletPolicy.BEST_EFFORT, KubeletScope.CONTAINER, ["vendor.com/gpu"], 2),
        (KubeletPolicy.BEST_EFFORT, KubeletScope.CONTAINER, [], 0),  # nothing keeps the app from the CPUs
        (KubeletPolicy.BEST_EFFORT, KubeletScope.POD, ["vendor.com/gpu"], 0),  # one hint for all
        (KubeletPolicy.RESTRICTED, KubeletScope.CONTAINER, ["vendor.com/gpu"], 0),  # refuses the app elsewhere
    ],
)
def test_an_app_that_devices_keep_away_takes_nothing_over(
    policy: KubeletPolicy, scope: KubeletScope, devices: list[str], held: int
) -> None:
    """The init container had 2 of 5 CPUs of NUMA node 0, the app has 6 of the other one: 8 are held, and 6 are shown."""
    there = [pod_demand(pod(init(2), app(6, gpu=2)))]
    zones = [zone(0, {"cpu": 5000}, {"cpu": 5000}), zone(1, {"cpu": 6000}, {"cpu": 0})]
    parted = parted_cpus(there, node("2x1x6x1", policy, scope), devices)
    left = [each.available["cpu"] for each in without_leftovers(zones, there, parted)]
    assert left == [5000 - held * 1000, -held * 1000]
