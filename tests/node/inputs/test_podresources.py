"""Answers of a kubelet that make no sense are errors, never amounts; those that do are read exactly."""

import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from koord_numa.core.cpuset import MAX_CPU, CpuSet
from koord_numa.node.kubelet_files import KubeletOptions
from koord_numa.node.podresources import PodResourcesError, read_resources
from koord_numa.node.published_objects import NodeCpuOwner, NodeFacts, topology_object
from koord_numa.node.sysfs import read_host
from koord_numa.sandbox.machines.description import GIB, Shape
from koord_numa.sandbox.machines.node_services import write_sysfs
from koord_numa.wire import parse_topology
from koord_numa.wire.proto import podresources_pb2
from tests.tables import each_row

Listed = podresources_pb2.ListPodResourcesResponse
Allocatable = podresources_pb2.AllocatableResourcesResponse
KUBELET = KubeletOptions(cpu_policy="static", memory_policy="Static", reserved_cpus=CpuSet.of([0]))


def allocatable() -> Any:
    """16 CPUs but the first, two NUMA nodes, two GPUs."""
    answer = Allocatable(cpu_ids=range(1, 16))
    for numa in (0, 1):
        answer.memory.add(memory_type="memory", size=16 * GIB).topology.nodes.add(ID=numa)
        answer.devices.add(resource_name="nvidia.com/gpu", device_ids=[f"g{numa}"]).topology.nodes.add(ID=numa)
    return answer


def listed() -> Any:
    """Two pods, one of which holds CPUs, memory and a GPU."""
    answer = Listed()
    answer.pod_resources.add(name="b", namespace="default").containers.add(name="c")
    container = answer.pod_resources.add(name="a", namespace="default").containers.add(name="c", cpu_ids=[1, 2, 3])
    container.memory.add(memory_type="memory", size=GIB).topology.nodes.add(ID=0)
    container.devices.add(resource_name="nvidia.com/gpu", device_ids=["g1"]).topology.nodes.add(ID=1)
    return answer


def test_what_is_held_is_not_available() -> None:
    found = read_resources(listed(), allocatable())
    assert found.held_cpus == CpuSet.parse("1-3")
    assert found.held_memory == {0: {"memory": GIB}}
    assert found.held_devices == {"nvidia.com/gpu": frozenset({"g1"})}
    assert found.devices == {"nvidia.com/gpu": {"g0": frozenset({0}), "g1": frozenset({1})}}
    assert [pod.key for pod in found.pods] == [("default", "b"), ("default", "a")]


def damage(answer: Any, what: str) -> None:
    """Make one thing of the answer impossible."""
    pod = answer.pod_resources[1]
    if what == "a CPU below 0":
        pod.containers[0].cpu_ids.append(-1)
    elif what == "a CPU that no machine has":
        pod.containers[0].cpu_ids.append(MAX_CPU + 1)
    elif what == "a CPU that is reserved":
        pod.containers[0].cpu_ids.append(0)
    elif what == "a CPU of two pods":
        answer.pod_resources[0].containers[0].cpu_ids.append(1)
    elif what == "a pod twice":
        answer.pod_resources.add(name="a", namespace="default")
    elif what == "a NUMA node that no machine has":
        pod.containers[0].memory[0].topology.nodes.add(ID=1 << 40)
    elif what == "more memory than there is":
        pod.containers[0].memory[0].size = 2**64 - 1


@each_row(
    "what",
    [
        "a CPU below 0",
        "a CPU that no machine has",
        "a CPU that is reserved",
        "a CPU of two pods",
        "a pod twice",
        "a NUMA node that no machine has",
        "more memory than there is",
    ],
)
def test_answers_that_make_no_sense(what: str) -> None:
    answer = listed()
    damage(answer, what)
    with pytest.raises(PodResourcesError):
        read_resources(answer, allocatable())


def test_fuzzed_answers(tmp_path: Path, fuzz_rounds: int) -> None:
    """Bytes that are flipped, cut or doubled: an error, or a topology that our reader takes and that promises no more than there is."""
    dice = random.Random(5)
    host = read_host(write_sysfs(tmp_path, Shape(cores=4).build()))
    whole, can = listed().SerializeToString(), allocatable().SerializeToString()
    read = 0
    for _ in range(fuzz_rounds * 4):
        first, second = (_mutated(text, dice) for text in (whole, can))
        try:
            resources = read_resources(Listed.FromString(first), Allocatable.FromString(second))
        except (DecodeError, PodResourcesError):
            continue
        read += 1
        facts = NodeFacts(name="n0", host=host, owner=NodeCpuOwner.KUBELET, kubelet=KUBELET, resources=resources)
        topology = parse_topology(topology_object(facts))
        for zone in topology.zones:
            for name, amount in zone.available.items():
                assert 0 <= amount <= zone.allocatable[name] <= zone.capacity[name]
            assert zone.capacity["cpu"] == 8000
    assert read


def _mutated(text: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(dice.randrange(3)):
        place = dice.randrange(len(damaged))
        match dice.randrange(3):
            case 0:
                damaged[place] ^= 1 << dice.randrange(8)
            case 1:
                del damaged[place:]
                break
            case _:
                damaged[place:place] = damaged[place : place + dice.randrange(1, 9)]
    return bytes(damaged)
