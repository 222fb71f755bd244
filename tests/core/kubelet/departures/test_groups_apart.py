"""Pods that left unseen no longer tie NUMA nodes together: a pod that came after them may be alone on one."""

import pytest

from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from tests.kubelets.law import broken
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import container
from tests.kubelets.test_unseen_departures import life

WIDE, NARROW = 20, 1
"""GiB: more than a NUMA node has, and less."""


def pod(memory: int) -> dict[str, object]:
    return {"containers": [container("app", 1, memory, 0)]}


def tied(policy: KubeletPolicy, *, more: int = 1, restarted: bool = False) -> NodeLife:
    """The memory of so many pods besides a wide one is bound to both NUMA nodes; after a restart it is not known where they are."""
    one = life(policy=policy, scope=KubeletScope.POD, memory="Static")
    one.place(pod(WIDE))
    one.settle()
    for _ in range(more):
        one.place(pod(NARROW))
    one.settle()
    if restarted:
        one.restart(0)
        one.settle()
    return one


@pytest.mark.parametrize("policy", [KubeletPolicy.BEST_EFFORT, KubeletPolicy.NONE])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("more", [1, 2])
def test_a_wide_pod_waits_for_one_that_may_be_alone(policy: KubeletPolicy, restarted: bool, more: int) -> None:
    one = tied(policy, more=more, restarted=restarted)
    one.end(0)
    one.settle()
    for _ in range(more):
        one.end(0)
    one.place(pod(NARROW))
    one.place(pod(WIDE))
    one.settle()
    assert not broken(one)


def test_without_a_pod_on_its_way_it_is_placed() -> None:
    one = tied(KubeletPolicy.BEST_EFFORT, more=2)
    one.end(0)
    one.settle()
    assert isinstance(one.ask(pod(WIDE)), Placement)
