"""Simulated nodes that the tests of the agent run on."""

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines.description import GIB, NodeDescription, Shape, Style
from koord_numa.sandbox.machines.simulated_node import container_id
from tests.node.nodes import NODE, World

SHAPE = Shape(sockets=2, cores=4, threads=2, memory=16 * GIB, devices={"nvidia.com/gpu": (0, 1)})

KUBELET = KubeletConfig(
    topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
    topology_scope=KubeletScope.POD,
    cpu_policy="static",
    cpu_options={"full-pcpus-only": False},
    memory_policy="Static",
    reserved_cpus=CpuSet.of([0]),
)

STATIC = NodeDescription(
    name=NODE, hardware=SHAPE.build(), style=Style.KUBELET, kubelet=KUBELET, reserved=CpuSet.of([0])
)

PLAIN = NodeDescription(name=NODE, hardware=SHAPE.build())
GUARANTEED = {"cpu": "3", "memory": "1Gi"}


def effective(around: World, uid: str) -> str:
    """The CPUs that the pod's container may use."""
    return str(around.services.cgroups.effective(container_id(uid, "c")))
