"""
The law of kubelet-owned nodes: what the engine places is admitted, whatever the kubelet, churn and lag, apart from first explorations.

Fifteen examples, the same in every run; ``--law-examples`` asks for more, new ones each time, as ``make chaos`` does.
"""

from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa import merge
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.law import broken, live
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, Action, actions, container, nodes, specs

FIXED: Final = 100
"""So many examples are the same in every run, so that a run of the suite depends on nothing but the code."""


@given(nodes(), st.lists(specs(), min_size=1, max_size=6), actions())
def what_is_placed_is_admitted(node: NodeDescription, pods: list[dict[str, Any]], what: list[Action]) -> None:
    """One example of the law."""
    found = broken(live(node, pods, what))
    assert not found, "\n".join(found)


def test_what_is_placed_is_admitted(pytestconfig: pytest.Config) -> None:
    count = int(pytestconfig.getoption("--law-examples"))
    profile = settings(max_examples=count, derandomize=count <= FIXED, database=None)
    profile(what_is_placed_is_admitted)()


@given(nodes(), st.lists(specs(), min_size=1, max_size=6), actions(), st.randoms(use_true_random=False))
def what_is_placed_is_admitted_in_any_order(
    node: NodeDescription, pods: list[dict[str, Any]], what: list[Action], order: Random
) -> None:
    """One example of the law for a kubelet that may choose any of the equally good sets of NUMA nodes."""
    options = {**node.kubelet.topology_options, "numa-allocation-strategy": True}
    node = replace(node, kubelet=replace(node.kubelet, topology_options=options), hidden=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "_choose", lambda level, distances: order.choice(list(level)))
        found = broken(live(node, pods, what))
    assert not found, "\n".join(found)


def test_what_is_placed_is_admitted_in_any_order_of_numa_nodes(pytestconfig: pytest.Config) -> None:
    count = int(pytestconfig.getoption("--law-examples"))
    profile = settings(max_examples=count, derandomize=count <= FIXED, database=None, deadline=None)
    profile(what_is_placed_is_admitted_in_any_order)()


def test_an_option_about_the_order_of_numa_nodes_keeps_the_node_open() -> None:
    config = KubeletConfig(
        topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
        topology_options={"numa-allocation-strategy": True},
        cpu_policy="static",
        memory_policy="None",
        reserved_cpus=CpuSet.of((0,)),
    )
    hardware = Shape(1, 2, 4, 1, 16 * GIB).build()
    life = NodeLife(NodeDescription("n", hardware, Style.KUBELET, config, reserved=CpuSet.of((0,))))
    life.scan()
    life.deliver()
    pod = {"containers": [container("app", 2, 1)]}
    life.place(pod)
    # The first pod may be on any NUMA node, and the other has 4 CPUs or 3.
    assert not isinstance(life.ask({"containers": [container("app", 1, 1)]}), Rejection)
    refused = life.ask({"containers": [container("app", 3, 1)]})
    assert isinstance(refused, Rejection)
    assert "numa-allocation-strategy" in refused.detail
    life.settle()
    assert not isinstance(life.ask({"containers": [container("app", 3, 1)]}), Rejection)
    assert not life.refusals


def test_whole_cores_are_those_left_by_placed_pods() -> None:
    """Two pods hold the last whole cores and no topology shows them yet; the other CPUs share cores with reserved ones."""
    config = KubeletConfig(
        topology_policy=KubeletPolicy.NONE,
        cpu_policy="static",
        cpu_options={"full-pcpus-only": True},
        memory_policy="None",
        reserved_cpus=CpuSet.of((0, 1)),
    )
    hardware = Shape(1, 1, 4, 2, 16 * GIB).build()
    life = NodeLife(NodeDescription("n", hardware, Style.KUBELET, config, reserved=CpuSet.of((0, 1))))
    for _ in range(3):
        life.place({"containers": [container("app", 2, 1)]})
    life.settle()
    assert life.placed == 2
    assert not life.refusals
