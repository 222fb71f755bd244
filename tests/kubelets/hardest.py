"""The node on which a decision takes most work: eight NUMA nodes, best-effort, static memory, pods on their way and pods gone unseen."""

from random import Random
from typing import Any

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, GPU, container

QUESTIONS = (
    {"containers": [container("a", 6, 12), container("b", 5, 12)]},
    {"initContainers": [container("i", 7, 1)], "containers": [container("a", 9, 18, 1), container("b", 3, 3)]},
    {"containers": [container("a", 1, 1, 2)]},
)
"""Specs that are asked about."""


def hardest(
    policy: KubeletPolicy = KubeletPolicy.BEST_EFFORT, seed: int = 2, pods: int = 7, of: type[NodeLife] = NodeLife
) -> NodeLife:
    """Return the node after arrivals and departures of which no event has come yet."""
    dice = Random(seed)
    hardware = Shape(4, 2, 4, 2, 16 * GIB, devices={GPU: tuple(range(8))}).build()
    reserved = CpuSet.of((0,))
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=KubeletScope.CONTAINER,
        cpu_policy="static",
        memory_policy="Static",
        reserved_cpus=reserved,
    )
    life = of(NodeDescription("n", hardware, Style.KUBELET, config, reserved=reserved))
    for number in range(pods):
        spec: dict[str, Any] = {
            "initContainers": [container("i", dice.randint(1, 5), 1)] if dice.random() < 0.5 else [],
            "containers": [container("a", dice.randint(1, 6), dice.randint(1, 9), dice.randint(0, 1))],
        }
        if isinstance(life.ask(spec), Placement):
            life.place(spec)
            if number < pods // 2:
                life.settle()
        if number % 4 == 3 and life.running:
            life.end(dice.randrange(len(life.running)))
    return life
