"""Memory that may be bound to several NUMA nodes: more room takes it elsewhere, where the pod's other containers have none."""

from typing import Any

import pytest

from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, container


def life(policy: KubeletPolicy) -> NodeLife:
    """NUMA nodes of 8, 8 and 12 GiB."""
    config = KubeletConfig(
        topology_policy=policy, topology_scope=KubeletScope.POD, cpu_policy="none", memory_policy="Static"
    )
    hardware = replace(Shape(3, 1, 4, 1, 8 * GIB).build(), memory={0: 8 * GIB, 1: 8 * GIB, 2: 12 * GIB})
    return NodeLife(NodeDescription("n", hardware, Style.KUBELET, config))


def pod(app: int, init: int = 0) -> dict[str, Any]:
    inits = [container("init", 1, init)] if init else []
    return {"containers": [container("app", 1, app), container("more", 1, 1)], "initContainers": inits}


@pytest.mark.parametrize("policy", [KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT])
def test_a_pod_may_have_left_too_small_numa_nodes(policy: KubeletPolicy) -> None:
    one = life(policy)
    one.place({"containers": [container("app", 1, 1)]})
    one.settle()
    one.end(0)
    # Beside the pod of 1 GiB it would get NUMA nodes 1 and 2, and without it the first two.
    one.place(pod(12, init=6))
    one.settle()
    assert not one.refusals
    assert isinstance(one.ask(pod(6, init=1)), Placement)


def test_a_pod_waits_that_is_refused_once_another_has_left() -> None:
    one = life(KubeletPolicy.RESTRICTED)
    assert isinstance(one.ask(pod(12, init=6)), Rejection)
    one.place({"containers": [container("app", 1, 1)]})
    one.settle()
    assert isinstance(one.ask(pod(12, init=6)), Rejection)
