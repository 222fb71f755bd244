"""Requests to the kubelet's managers, per container and per pod."""

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from tests.core.kubelet.nodes import GI, app, init, pod, sidecar
from tests.tables import each_row

PODS = {
    "one app": (pod(app(4)), ContainerDemand(4, {"memory": GI}, {})),
    "apps add up": (pod(app(4), app(3, "b")), ContainerDemand(7, {"memory": 2 * GI}, {})),
    "an init container counts alone": (pod(init(6), app(4)), ContainerDemand(6, {"memory": GI}, {})),
    "a sidecar stays": (pod(sidecar(1), app(4)), ContainerDemand(5, {"memory": 2 * GI}, {})),
    "an init container beside an earlier sidecar": (
        pod(sidecar(3), init(4), app(2)),
        ContainerDemand(7, {"memory": 2 * GI}, {}),
    ),
    "an init container before the sidecar": (
        pod(init(4), sidecar(3), app(2)),
        ContainerDemand(5, {"memory": 2 * GI}, {}),
    ),
    "fractions are not pinned": (pod(app(1.5), app(2, "b")), ContainerDemand(2, {"memory": 2 * GI}, {})),
    "overhead is not aligned": (
        pod(app(4), overhead={"cpu": 2000, "memory": GI}),
        ContainerDemand(4, {"memory": GI}, {}),
    ),
    "memory types of init containers only": (pod(init(1, pages=8), app(1)), ContainerDemand(1, {"memory": GI}, {})),
    "devices as limits": (
        pod(init(1, gpu=2), app(1, gpu=1)),
        ContainerDemand(1, {"memory": GI}, {"vendor.com/gpu": 2}),
    ),
    "a device named with nothing": (pod(app(1, gpu=0)), ContainerDemand(1, {"memory": GI}, {"vendor.com/gpu": 0})),
    "pod-level resources pin nothing": (
        pod(app(4, gpu=1), pod_requests={"cpu": 4000, "memory": GI}, pod_limits={"cpu": 4000, "memory": GI}),
        ContainerDemand(0, None, {"vendor.com/gpu": 1}),
    ),
}


@each_row(("request_", "expected"), PODS.values(), ids=PODS)
def test_pod_aggregates(request_: PodRequest, expected: ContainerDemand) -> None:
    assert pod_demand(request_).pod == expected


def test_burstable_pods_get_devices_only() -> None:
    burstable = Container("app", ContainerKind.APP, {"cpu": 2000, "vendor.com/gpu": 1}, {"vendor.com/gpu": 1})
    demand = pod_demand(pod(burstable))
    assert demand.qos is KubeQos.BURSTABLE
    assert demand.containers == ((burstable, ContainerDemand(0, None, {"vendor.com/gpu": 1})),)
