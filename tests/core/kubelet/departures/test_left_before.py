"""Several pods left unseen before pods on their way came, so that a group of NUMA nodes came to be that a pod after them cuts through."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.departures import some_away
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.law import broken
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, GPU, container

NEAR_GPUS = (0, 2, 5, 7)
"""The NUMA nodes with a GPU each."""

LITTLE = {"containers": [container("app", 2, 5)]}
"""It leaves 2 CPUs of NUMA node 0, which two are reserved of."""

MOST = {"containers": [container("app", 5, 2)]}
"""It takes a NUMA node as good as whole: 1 while that is free."""

WIDE = {"initContainers": [container("init", 2, 4, 3)], "containers": [container("app", 4, 3, 3)]}
"""Its memory is bound to three NUMA nodes with GPUs."""

ASKED = {
    "initContainers": [container("init0", 1, 2), container("init1", 2, 2), container("init2", 5, 2)],
    "containers": [container("app", 3, 1)],
}


def life() -> NodeLife:
    """Eight NUMA nodes of 6 CPUs, best-effort, with bound memory; both a little pod and one that takes most of a NUMA node run."""
    config = KubeletConfig(
        topology_policy=KubeletPolicy.BEST_EFFORT,
        topology_scope=KubeletScope.CONTAINER,
        cpu_policy="static",
        memory_policy="Static",
        reserved_cpus=CpuSet.of((0, 1)),
    )
    hardware = Shape(4, 2, 3, 2, 8 * GIB, devices={GPU: NEAR_GPUS}).build()
    one = NodeLife(NodeDescription("n", hardware, Style.KUBELET, config, reserved=CpuSet.of((0, 1))))
    one.place(LITTLE)
    one.place(MOST)
    one.settle()
    return one


def leave_unseen(one: NodeLife, *which: int) -> list[str]:
    """The refusals where these have left, before the pods on their way came."""
    for each in which:
        one.end(each)
    one.place(MOST)
    one.place(WIDE)
    one.place(ASKED)
    one.settle()
    return broken(one)


@pytest.mark.parametrize("which", [(), (0,), (1,), (0, 0)])
def test_what_is_placed_is_admitted_whichever_have_left(which: tuple[int, ...]) -> None:
    assert not leave_unseen(life(), *which)


def test_only_both_departures_make_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_away, "BEFORE_ARRIVALS", -1)
    assert [bool(leave_unseen(life(), *which)) for which in ((), (0,), (1,), (0, 0))] == [False, False, False, True]


def test_a_pod_that_no_such_group_is_cut_by_is_placed() -> None:
    one = life()
    one.place(MOST)
    one.place(WIDE)
    assert not isinstance(one.ask(ASKED), Placement)
    assert isinstance(one.ask(LITTLE), Placement)
