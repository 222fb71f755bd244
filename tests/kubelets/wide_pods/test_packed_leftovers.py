"""CPUs that init containers hold only if an option keeps the kubelet from packing CPUs: a pod that needs them finds out."""

from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.options import BY_CACHE
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, container


def life(policy: KubeletPolicy, *options: str) -> NodeLife:
    """Two NUMA nodes of 10 cores of two threads each, of which 38 CPUs are exclusive, with options that are not published."""
    kept = CpuSet.of((0, 1))
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=KubeletScope.POD,
        cpu_policy="static",
        cpu_options=dict.fromkeys(options, True),
        memory_policy="None",
        reserved_cpus=kept,
    )
    shape = Shape(2, 1, 10, 2, 16 * GIB)
    one = NodeLife(NodeDescription("n", shape.build(), Style.KUBELET, config, reserved=kept, hidden=True))
    one.place(pod(1))  # shows that cores may be split
    one.admit()
    one.hear()
    return one


def pod(cpus: int, init: int = 0) -> dict[str, Any]:
    inits = {"initContainers": [container("init", init, 1)]} if init else {}
    return {"containers": [container("app", cpus, 1)], **inits}


@pytest.mark.parametrize("policy", [KubeletPolicy.NONE, KubeletPolicy.RESTRICTED])
def test_a_pod_explores_what_only_an_option_keeps_from_it(policy: KubeletPolicy) -> None:
    """``init 4, app 2`` holds 4 of 37 CPUs if CPUs are packed into cores, and 6 with an option."""
    one = life(policy)
    one.place(pod(2, init=4))
    one.admit()
    one.hear()
    fits, needs_more = one.ask(pod(31)), one.ask(pod(32))
    assert isinstance(fits, Placement)
    assert not fits.explores
    assert isinstance(needs_more, Placement)
    assert BY_CACHE in needs_more.explores
