"""
Devices by id: decisions at 5,000 nodes with eight GPUs and four NICs each, two thirds of the GPUs in use in random sets.

Pods ask for two GPUs and a NIC on one PCIe switch, with CPUs on the same NUMA node. CPU time of this process, not wall time.
"""

import gc
import time
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import Final

from bench.engine.engine import new_engine
from bench.figure import Figure
from koord_numa.app.tasks import THRESHOLDS
from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.devices import DeviceGrant, DeviceInventory, DeviceSpec, DeviceTopology, NodeDevice
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, NumaPolicy
from koord_numa.engine import Scheduler

NODES: Final = 5000
GIB: Final = 1 << 30
GPU: Final = (
    ("koordinator.sh/gpu-core", 100),
    ("koordinator.sh/gpu-memory", 80 * GIB),
    ("koordinator.sh/gpu-memory-ratio", 100),
)
SAME: Final = DeviceSpec(joint=("gpu", "rdma"), same_pcie=True)


def _devices() -> tuple[NodeDevice, ...]:
    """Two GPUs and a NIC on each of four PCIe switches of two NUMA nodes."""
    gpus = [NodeDevice("gpu", minor, GPU, DeviceTopology(minor // 4, f"pci0000:{minor // 2}")) for minor in range(8)]
    share = (("koordinator.sh/rdma", 100),)
    nics = [NodeDevice("rdma", minor, share, DeviceTopology(minor // 2, f"pci0000:{minor}")) for minor in range(4)]
    return (*gpus, *nics)


def _request(gpus: int, cpus: int) -> PodRequest:
    amounts = {"cpu": cpus * 1000, "memory": cpus * GIB, "koordinator.sh/gpu": 100 * gpus, "koordinator.sh/rdma": 1}
    container = Container("app", ContainerKind.APP, amounts, amounts)
    return PodRequest((container,), numa=NumaSpec(NumaPolicy.SINGLE_NUMA_NODE), devices=SAME)


def _scheduler(dice: Random, free: float) -> Scheduler:
    """The cluster. Each GPU is free with this probability."""
    engine, machine, devices = new_engine(), regular_topology(2, 1, 32, 2), _devices()
    share = {"cpu": 64_000, "memory": 256 * GIB}
    zones = tuple(Zone(numa, share, share, share) for numa in range(2))
    for number in range(NODES):
        name = f"node-{number:04}"
        allocatable = {"cpu": 128_000, "memory": 512 * GIB, "pods": 110}
        engine.handlers.nodes.observe("ADDED", Node(name=name, uid=name, allocatable=allocatable))
        engine.handlers.topologies.observe(
            "ADDED", NodeResourceTopology(node=name, owner=CpuOwner.SCHEDULER, zones=zones, machine=machine)
        )
        engine.handlers.devices.observe("ADDED", DeviceInventory(name, devices))
        held = [minor for minor in range(8) if dice.random() >= free]
        for minor in held:
            pod = Pod(PodKey("bench", f"{name}-{minor}", f"{name}-{minor}"), PodRequest(), node=name)
            grants = (DeviceGrant("gpu", minor, dict(GPU)), DeviceGrant("rdma", minor // 2, {"koordinator.sh/rdma": 1}))
            placed = Pod(pod.key, pod.request, node=name, devices=grants)
            engine.handlers.bound_pods.observe("ADDED", placed)
    # The first decision builds the table of nodes, which is not about devices.
    _choose(engine, Pod(PodKey("bench", "first", "first"), PodRequest(), "koord-numa"))
    # Building the cluster leaves garbage, which the first measured decision would pay for.
    gc.collect()
    gc.set_threshold(*THRESHOLDS)  # as the operator does
    return engine


def _choose(engine: Scheduler, pod: Pod) -> Placement | None:
    request_class = engine.classes.of(pod)
    if request_class is None:
        raise LookupError("the pods of the bench name a scheduler that is not configured")
    return engine.handle.selector.choose(request_class)


def _pod(number: int, request: PodRequest) -> Pod:
    return Pod(PodKey("bench", f"pod-{number}", f"uid-{number}"), request, "koord-numa")


def figures() -> Iterator[Figure]:
    """Cold and warm decisions, and a class that no node takes."""
    engine = _scheduler(Random(7), 1 / 3)
    seconds, request = [], _request(2, 8)  # one object, as parsed pods of a workload share their request
    for number in range(300):
        pod = _pod(number, request)
        began = time.process_time()
        found = _choose(engine, pod)
        if found is None:
            raise LookupError("the pods of the bench do not fit")
        engine.cache.hold(pod, found)
        seconds.append(time.process_time() - began)
    yield Figure("devices cold sweep, 5,000 nodes", seconds[0] * 1e3, "ms", 50.0, note="first decision of a class")
    warm = median(seconds[1:]) * 1e3
    yield Figure("devices decision warm, 5,000 nodes", warm, "ms", 0.3, note="median, with assume")
    # No node has more than four GPUs of a NUMA node free together with its NICs: every state is evaluated.
    full = _scheduler(Random(8), 1 / 20)
    pod = _pod(0, _request(4, 8))
    began = time.process_time()
    found = _choose(full, pod)
    value = time.process_time() - began
    what = "nothing fits" if found is None else "fits"
    yield Figure("devices cold sweep of full nodes, 5,000 nodes", value * 1e3, "ms", 50.0, note=what)
