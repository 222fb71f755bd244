"""Effective requests and Kubernetes QoS, as tables in the shorthand ``kind: requests / limits``."""

import pytest

from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from koord_numa.core.pod_resources import effective_limits, effective_requests, is_limited, kube_qos
from koord_numa.core.resources import ResourceList
from tests.tables import each_row

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def container(kind: ContainerKind, requests: ResourceList, limits: ResourceList | None = None) -> Container:
    return Container("c", kind, requests, limits or {})


def cpu(kind: ContainerKind, amount: int) -> Container:
    return container(kind, {"cpu": amount}, {"cpu": amount})


@each_row(
    ("pod", "requests"),
    [
        pytest.param(PodRequest(), {}, id="nothing"),
        pytest.param(PodRequest((cpu(APP, 1000), cpu(APP, 500))), {"cpu": 1500}, id="apps-add-up"),
        pytest.param(PodRequest((cpu(INIT, 3000), cpu(INIT, 2000), cpu(APP, 1000))), {"cpu": 3000}, id="largest-init"),
        pytest.param(PodRequest((cpu(SIDECAR, 1000), cpu(APP, 1000))), {"cpu": 2000}, id="sidecar-stays"),
        pytest.param(
            PodRequest((cpu(SIDECAR, 1000), cpu(INIT, 3000), cpu(APP, 1000))), {"cpu": 4000}, id="init-beside-sidecar"
        ),
        pytest.param(
            PodRequest((cpu(INIT, 3000), cpu(SIDECAR, 1000), cpu(APP, 1000))), {"cpu": 3000}, id="init-before-sidecar"
        ),
        pytest.param(
            PodRequest((container(INIT, {"memory": 9}), container(APP, {"cpu": 1000, "memory": 5, "gpu": 0}))),
            {"cpu": 1000, "memory": 9},
            id="per-resource-and-no-zeros",
        ),
        pytest.param(
            PodRequest((cpu(APP, 1000),), overhead={"cpu": 250, "memory": 7}), {"cpu": 1250, "memory": 7}, id="overhead"
        ),
        pytest.param(
            PodRequest((cpu(APP, 1000),), pod_requests={"cpu": 4000, "nvidia.com/gpu": 9}, overhead={"cpu": 250}),
            {"cpu": 4250},
            id="pod-level-replaces-what-it-may",
        ),
    ],
)
def test_effective_requests(pod: PodRequest, requests: ResourceList) -> None:
    assert effective_requests(pod) == requests


@each_row(
    ("pod", "limits", "limited"),
    [
        pytest.param(PodRequest((cpu(APP, 1000), cpu(INIT, 3000))), {"cpu": 3000}, True, id="as-requests"),
        pytest.param(PodRequest((cpu(APP, 1000), container(APP, {"cpu": 1}))), {"cpu": 1000}, False, id="one-without"),
        pytest.param(
            PodRequest((cpu(APP, 1000),), overhead={"cpu": 1, "memory": 1}), {"cpu": 1001}, True, id="overhead"
        ),
        pytest.param(PodRequest((container(APP, {}),), pod_limits={"cpu": 7}), {"cpu": 7}, True, id="pod-level"),
        pytest.param(PodRequest(), {}, False, id="nothing"),
    ],
)
def test_effective_limits(pod: PodRequest, limits: ResourceList, limited: bool) -> None:
    assert (effective_limits(pod), is_limited(pod, "cpu")) == (limits, limited)


FULL = {"cpu": 1000, "memory": 1}


@each_row(
    ("pod", "qos"),
    [
        pytest.param(PodRequest(), KubeQos.BEST_EFFORT, id="no-containers"),
        pytest.param(PodRequest((container(APP, {}),)), KubeQos.BEST_EFFORT, id="nothing-asked"),
        pytest.param(PodRequest((container(APP, {"nvidia.com/gpu": 1}),)), KubeQos.BEST_EFFORT, id="other-resources"),
        pytest.param(PodRequest((container(APP, {"cpu": 0}, {"cpu": 0}),)), KubeQos.BEST_EFFORT, id="zero-is-nothing"),
        pytest.param(PodRequest((container(APP, FULL, FULL),)), KubeQos.GUARANTEED, id="all-equal"),
        pytest.param(
            PodRequest((container(APP, {"cpu": 1000}, {"cpu": 1000}),)), KubeQos.BURSTABLE, id="no-memory-limit"
        ),
        pytest.param(
            PodRequest((container(APP, FULL, {"cpu": 2000, "memory": 1}),)), KubeQos.BURSTABLE, id="limit-above-request"
        ),
        pytest.param(
            PodRequest((container(APP, FULL, FULL), container(APP, {}))), KubeQos.BURSTABLE, id="one-container-open"
        ),
        pytest.param(
            PodRequest((container(INIT, {}), container(APP, FULL, FULL))), KubeQos.BURSTABLE, id="init-counts-too"
        ),
        pytest.param(
            PodRequest((container(APP, {}),), pod_requests=FULL, pod_limits=FULL),
            KubeQos.GUARANTEED,
            id="pod-level-decides",
        ),
        pytest.param(
            PodRequest((container(APP, FULL, FULL),), pod_requests={"cpu": 1000}),
            KubeQos.BURSTABLE,
            id="pod-level-without-limits",
        ),
    ],
)
def test_kubernetes_qos(pod: PodRequest, qos: KubeQos) -> None:
    assert kube_qos(pod) is qos
