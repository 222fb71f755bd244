"""A view is gathered from the facts of the moment; what is kept from the one before only saves work."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import KubeletAdmission
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, init, pod
from tests.tables import each_row

NODE = Node("n", allocatable={"cpu": 16000, "memory": 8 * GI, "pods": 110, "vendor.com/gpu": 5})
KINDS = (pod(app(2)), pod(init(4), app(1)), pod(app(1, gpu=1)), pod(app(2), app(2)), pod(app(10)), pod(app(0.5)))

POD_LEVEL = pod(app(9), pod_requests={"cpu": 9000, "memory": GI}, pod_limits={"cpu": 9000, "memory": GI})
"""Guaranteed by its pod-level resources."""


def zone(numa: int, cpus: int, gigabytes: int, gpus: int) -> Zone:
    """A NUMA node of eight CPUs, 4 GiB and two GPUs, with so much free."""
    supply = {"cpu": 8000, "memory": 4 * GI, "vendor.com/gpu": 2}
    return Zone(numa, supply, supply, {"cpu": 1000 * cpus, "memory": gigabytes * GI, "vendor.com/gpu": gpus})


def topology(policy: KubeletPolicy | None, *zones: Zone) -> NodeResourceTopology:
    """Return the topology that an exporter publishes."""
    return NodeResourceTopology("n", CpuOwner.KUBELET, zones=zones, kubelet=KubeletConfig(topology_policy=policy))


def held(uid: str, request: PodRequest, *numa: int) -> Holding:
    """A pod on the node, on these NUMA nodes if that is known."""
    there = tuple((one, {"cpu": 1000, "memory": GI}) for one in numa)
    return Holding(PodKey("default", uid, uid), effective_requests(request), numa=there, request=request)


def changed(
    dice: Random, published: NodeResourceTopology, there: list[Holding]
) -> tuple[NodeResourceTopology, list[Holding]]:
    """Some pod came or went, or there is something new from the exporter."""
    match dice.choice(("use", "zones", "gone", "new", "new")):
        case "use":
            left = {"cpu": 1000 * dice.randint(0, 8), "memory": dice.randint(0, 4) * GI, "vendor.com/gpu": 1}
            first, *rest = published.zones
            return replace(published, zones=(replace(first, available=left), *rest)), there
        case "zones":
            sizes = range(dice.randint(1, 3))
            return replace(published, zones=tuple(zone(numa, dice.randint(0, 8), 4, 2) for numa in sizes)), there
        case "gone" if there:
            return published, there[1:]
        case _:
            return published, [*there, held(f"u{dice.random()}", dice.choice(KINDS), *dice.choice(((), (0,), (0, 1))))]


@given(st.integers(0, 2**32), st.sampled_from([None, *KubeletPolicy]))
def test_a_view_is_the_same_whatever_was_there_before(seed: int, policy: KubeletPolicy | None) -> None:
    dice = Random(seed)
    published, there = topology(policy, zone(0, 8, 4, 2), zone(1, 8, 4, 2)), list[Holding]()
    previous = None
    for _ in range(8):
        hidden = {one.pod.uid for one in there if dice.random() < 0.5}
        again = kubelet_view(NODE, published, there, hidden)
        previous = kubelet_view(NODE, published, there, hidden, previous)
        assert previous == again
        published, there = changed(dice, published, there)


def test_what_the_objects_say_is_worked_out_once() -> None:
    published = topology(KubeletPolicy.SINGLE_NUMA_NODE, zone(0, 8, 4, 2))
    first = kubelet_view(NODE, published, ())
    assert kubelet_view(NODE, published, [held("a", pod(app(6)))], (), first).frame is first.frame
    wider = replace(published, zones=(zone(0, 8, 4, 2), zone(1, 8, 4, 2)))
    assert kubelet_view(NODE, wider, (), (), first).frame != first.frame


@each_row(
    ("version", "request_", "known"),
    [
        pytest.param("boot v1.36.2", POD_LEVEL, True, id="modelled"),
        pytest.param("boot v1.37.0-rc.1", POD_LEVEL, False, id="newer"),
        pytest.param("boot v1.37.0", pod(app(2)), True, id="containers-only"),
        pytest.param("boot ", POD_LEVEL, True, id="unknown-version"),
    ],
)
def test_pod_level_resources(version: str, request_: PodRequest, known: bool) -> None:
    """Kubelets of 1.36 bind nothing for them, so 9 CPUs of a container fit no NUMA node and need none; later ones may."""
    node = replace(NODE, kubelet=version)
    view = kubelet_view(node, topology(KubeletPolicy.SINGLE_NUMA_NODE, zone(0, 8, 4, 2), zone(1, 8, 4, 2)), ())
    answer = would_admit(request_, view)
    assert isinstance(answer, KubeletAdmission) is known
    if isinstance(answer, Rejection):
        assert "v1.37.0-rc.1 may give pods with pod-level resources" in answer.detail
