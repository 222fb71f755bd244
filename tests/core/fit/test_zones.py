"""The zone filter, unit by unit: which one is refused, and by which numbers."""

import pytest

from koord_numa.core.fit.zones import aligned_request, fits_zones
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope, KubeQos

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
ALLOCATABLE = {"cpu": 8000, "memory": 8, "nvidia.com/gpu": 1}


def node(
    scope: KubeletScope = KubeletScope.CONTAINER, policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE
) -> NodeResourceTopology:
    zones = ({"cpu": 4000, "memory": 4, "nvidia.com/gpu": 1}, {"cpu": 6000, "memory": 4})
    return NodeResourceTopology(
        node="worker",
        owner=CpuOwner.KUBELET,
        zones=tuple(Zone(numa, free, free, free) for numa, free in enumerate(zones)),
        kubelet=KubeletConfig(topology_policy=policy, topology_scope=scope),
    )


def pod(*containers: tuple[ContainerKind, dict[str, int]]) -> PodRequest:
    return PodRequest(containers=tuple(Container(f"c{i}", kind, ask, ask) for i, (kind, ask) in enumerate(containers)))


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        pytest.param([(APP, {"cpu": 6000})], None, id="fits-the-second-zone"),
        pytest.param([(APP, {"cpu": 6000}), (APP, {"cpu": 6000})], "cannot align container", id="apps-consume"),
        pytest.param([(INIT, {"cpu": 6000}), (APP, {"cpu": 6000})], None, id="init-containers-do-not-consume"),
        pytest.param([(INIT, {"cpu": 7000})], "cannot align init container", id="init"),
        pytest.param([(SIDECAR, {"cpu": 7000})], "cannot align sidecar container", id="sidecar"),
        pytest.param(
            [(APP, {"cpu": 5000, "nvidia.com/gpu": 1})], "cannot align container", id="gpu-on-the-smaller-zone"
        ),
        pytest.param([(APP, {"vendor.com/none": 1})], "cannot align container", id="unknown-to-the-node"),
        pytest.param([(APP, {"cpu": 1000, "ephemeral-storage": 1})], None, id="storage-is-not-zonal"),
    ],
)
def test_guaranteed_pods_in_container_scope(
    containers: list[tuple[ContainerKind, dict[str, int]]], message: str | None
) -> None:
    refusal = fits_zones(pod(*containers), KubeQos.GUARANTEED, node(), ALLOCATABLE)
    assert (refusal.message if refusal else None) == message


def test_a_refusal_carries_the_numbers_of_every_zone() -> None:
    refusal = fits_zones(pod((APP, {"cpu": 7000})), KubeQos.GUARANTEED, node(KubeletScope.POD), ALLOCATABLE)
    assert refusal is not None
    assert refusal.message == "cannot align pod"
    assert refusal.numbers == (
        NumaNumbers(numa=0, resource="cpu", total=4000, free=4000, needed=7000),
        NumaNumbers(numa=1, resource="cpu", total=6000, free=6000, needed=7000),
    )


@pytest.mark.parametrize("qos", [KubeQos.BURSTABLE, KubeQos.BEST_EFFORT])
def test_amounts_of_cpu_do_not_bind_lesser_pods(qos: KubeQos) -> None:
    assert fits_zones(pod((APP, {"cpu": 7000})), qos, node(), ALLOCATABLE) is None


def test_other_policies_and_missing_topologies_ask_nothing() -> None:
    ask = pod((APP, {"cpu": 70_000}))
    assert fits_zones(ask, KubeQos.GUARANTEED, None, ALLOCATABLE) is None
    assert fits_zones(ask, KubeQos.GUARANTEED, node(policy=KubeletPolicy.RESTRICTED), ALLOCATABLE) is None


def test_the_pod_as_a_unit_counts_init_containers_and_overhead() -> None:
    request = PodRequest(
        containers=pod((INIT, {"cpu": 5000}), (APP, {"cpu": 1000}), (APP, {"cpu": 2000, "memory": 1})).containers,
        overhead={"cpu": 250},
    )
    assert aligned_request(request) == {"cpu": 5250, "memory": 1}
