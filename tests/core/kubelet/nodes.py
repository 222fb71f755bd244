"""Small nodes and pods for the tests of the kubelet's admission, in a few words each."""

from collections.abc import Generator, Mapping
from typing import Any, TypeVar, cast

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, PluginDevice
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList
from tests.machines import machine

T = TypeVar("T")

GI = 1 << 30
ROOMY: ResourceList = {"cpu": 10**9, "memory": 10**18, "pods": 110, "vendor.com/gpu": 1000, "hugepages-2Mi": 10**18}


def gpus(*near: int | None, unhealthy: tuple[int, ...] = ()) -> DevicePool:
    """One GPU per mask of NUMA nodes; ``None`` for one without any."""
    return DevicePool(
        tuple(PluginDevice(f"gpu{i}", mask or 0, healthy=i not in unhealthy) for i, mask in enumerate(near))
    )


def node(
    shape: str = "2x1x4x2",
    policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE,
    scope: KubeletScope = KubeletScope.CONTAINER,
    memory: Mapping[int, ResourceList] | None = None,
    **more: Any,
) -> KubeletNode:
    """A node of this shape with static CPUs; with memory amounts the memory manager is Static, too."""
    counts = {name: pool.healthy.bit_count() for name, pool in more.get("devices", {}).items()}
    return KubeletNode(
        machine=machine(shape),
        config=KubeletConfig(
            topology_policy=policy,
            topology_scope=scope,
            topology_options=more.get("topology_options", {}),
            cpu_policy=more.get("cpu_policy", "static"),
            cpu_options=dict.fromkeys(more.get("options", ()), True),
            memory_policy="Static" if memory else "None",
            reserved_cpus=CpuSet.parse(more.get("reserved", "")),
        ),
        allocatable=more.get("allocatable", {**ROOMY, **counts}),
        memory=memory or {},
        devices=more.get("devices", {}),
    )


def container(name: str, kind: ContainerKind, milli: int, /, memory: int = GI, **devices: int) -> Container:
    """A container whose limits equal its requests; devices by keyword: ``gpu=1``, ``pages=2`` MiB-pairs."""
    amounts = {"cpu": milli, "memory": memory}
    if "pages" in devices:
        amounts["hugepages-2Mi"] = devices.pop("pages") * (2 << 20)
    amounts.update({f"vendor.com/{device}": count for device, count in devices.items()})
    return Container(name, kind, amounts, amounts)


def app(cpus: float, name: str = "app", **more: int) -> Container:
    """An app container with so many CPUs."""
    return container(name, ContainerKind.APP, int(cpus * 1000), **more)


def init(cpus: float, name: str = "init", **more: int) -> Container:
    """A regular init container."""
    return container(name, ContainerKind.INIT, int(cpus * 1000), **more)


def sidecar(cpus: float, name: str = "side", **more: int) -> Container:
    """An init container that stays."""
    return container(name, ContainerKind.SIDECAR, int(cpus * 1000), **more)


def pod(*containers: Container, **more: Any) -> PodRequest:
    """A pod of these containers."""
    return PodRequest(containers=containers, **more)


def finished(work: Generator[int, None, T]) -> T:
    """Run work to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)
