"""Nodes and pods in few words, for the tests of allocation."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Container, CpuBind, NumaSpec, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Alignment, Placement, Rejection
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from tests.machines import machine

GI = 2**30
SINGLE, RESTRICTED, BEST_EFFORT = NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT
FULL, SPREAD, BURST = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS, CpuBindPolicy.CONSTRAINED_BURST
LSR, LSE, LS, BE = QosClass.LSR, QosClass.LSE, QosClass.LS, QosClass.BE
ALIGNED, UNALIGNED = Alignment.ALIGNED, Alignment.UNALIGNED
UNASKED = AllocateOptions(numa_policy=NumaPolicy.NONE)
DEFAULTS = AllocateOptions()


def place(
    request: PodRequest, where: Inventory, *holdings: Holding, options: AllocateOptions = DEFAULTS
) -> Placement | Rejection:
    """The answer of one node on which these pods hold something."""
    return allocate(request, where, Ledger.of(holdings), options)


def cpus(text: str, bind: CpuBindPolicy = FULL, **fields: object) -> Placement:
    """A placement of these CPUs on the node of these tests."""
    return replace(Placement("n", cpus=CpuSet.parse(text), bind=bind), **fields)  # type: ignore[arg-type]  # named in each case


def node(shorthand: str = "2x1x4x2", *, gpus: int = 0, memory: int = 64 * GI, **fields: Any) -> Inventory:
    """A node whose zones offer all CPUs, the same memory each, and perhaps GPUs. ``reserved`` as a cpu list."""
    built = machine(shorthand)
    reserved = CpuSet.parse(fields.pop("reserved", ""))
    zones = []
    for numa, bits in built.numa_bits.items():
        offer = {"cpu": 1000 * (CpuSet(bits) - reserved).__len__(), "memory": memory}
        zones.append((numa, {**offer, "nvidia.com/gpu": gpus} if gpus else offer))
    return Inventory(
        node="n",
        machine=built,
        zones=tuple(zones),
        reserved=reserved,
        allocatable={"cpu": 1000 * len(built.all - reserved), "memory": memory * len(zones)},
        **fields,
    )


def pod(
    cpu: int = 0,
    memory: int = 0,
    *,
    limit: int | None = None,
    qos: QosClass = QosClass.NONE,
    priority: int = 0,
    numa: NumaPolicy = NumaPolicy.NONE,
    exclusive: NumaExclusive = NumaExclusive.NONE,
    required: CpuBindPolicy = CpuBindPolicy.NONE,
    preferred: CpuBindPolicy = CpuBindPolicy.NONE,
    cpu_exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE,
    gpus: int = 0,
    others: Mapping[str, int] | None = None,
) -> PodRequest:
    """A pod of one container; its limits equal its requests unless ``limit`` says another CPU limit. Amounts in our units."""
    asked = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus, **(others or {})}
    requests = {name: amount for name, amount in asked.items() if amount}
    limits: dict[str, int] = requests if limit is None else {**requests, "cpu": limit}
    return PodRequest(
        containers=(Container("c", ContainerKind.APP, requests, limits),),
        qos=qos,
        priority=priority,
        bind=CpuBind(required, preferred, cpu_exclusive),
        numa=NumaSpec(numa, exclusive),
    )


def held(name: str, cpus: str = "", numa: Mapping[int, ResourceList] | None = None, **amounts: int) -> Holding:
    """Return a pod's holdings: exclusive CPUs, amounts per NUMA node, and amounts of the whole node (by default their sum)."""
    given = CpuSet.parse(cpus)
    by_numa = {} if numa is None else dict(numa)
    whole: dict[str, int] = {"cpu": 1000 * len(given)} if cpus else {}
    for amounts_there in by_numa.values():
        for resource, amount in amounts_there.items():
            if not (cpus and resource == "cpu"):
                whole[resource] = whole.get(resource, 0) + amount
    return Holding(PodKey("ns", name, name), amounts or whole, given, numa=tuple(sorted(by_numa.items())))
