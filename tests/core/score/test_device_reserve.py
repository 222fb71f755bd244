"""CPUs are kept for the devices beside them."""

import pytest

from koord_numa.core.resources import ResourceList
from koord_numa.core.score.node_scores import score_sparing
from tests.tables import each_row

GPU = "nvidia.com/gpu"
NODE = {"cpu": 10_000, "memory": 100, GPU: 4, "pods": 110}


@each_row(
    ("wanted", "offer", "held", "score"),
    [
        pytest.param({"cpu": 5_000}, {"cpu": 10_000, "memory": 100}, {}, 100, id="no devices, nothing at risk"),
        pytest.param({"cpu": 5_000}, NODE, {}, 50, id="half of the CPUs gone, all GPUs left"),
        pytest.param({"cpu": 5_000, GPU: 2}, NODE, {}, 100, id="half of both"),
        pytest.param({"cpu": 1_000, GPU: 4}, NODE, {}, 100, id="devices may run ahead"),
        pytest.param({"cpu": 1_000, "memory": 80}, NODE, {}, 20, id="the fuller of CPU and memory counts"),
        pytest.param({"cpu": 1_000}, NODE, {"cpu": 4_000, GPU: 1}, 75, id="what is held counts too"),
        pytest.param({"cpu": 5_000, GPU: 2}, {**NODE, "vendor/nic": 2}, {}, 50, id="the least used device counts"),
        pytest.param({"cpu": 5_000}, {**NODE, GPU: 0}, {}, 100, id="devices that are broken are not at risk"),
        pytest.param(
            {"cpu": 5_000}, {"cpu": 10_000, "kubernetes.io/batch-cpu": 4_000}, {}, 100, id="batch CPU is no device"
        ),
        pytest.param({"cpu": 20_000}, NODE, {}, 0, id="never below zero"),
    ],
)
def test_sparing(wanted: ResourceList, offer: ResourceList, held: ResourceList, score: int) -> None:
    assert score_sparing(wanted, offer, held) == score
