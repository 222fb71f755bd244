"""A simulated scheduler-owned node accepts every placement of the allocator, within the rules of both."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.state.inventory import inventory
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import DeleteOptions, DirectStore
from koord_numa.sandbox.machines import Fleet, NodeDescription, Shape
from koord_numa.sandbox.machines.description import GIB
from koord_numa.wire import names, parse_node, parse_pod, parse_topology
from koord_numa.wire.pod_annotations import resource_status
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import create

TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
PODS = 60

SHAPE = Shape(2, 2, 4, 2, 16 * GIB, pages={"1Gi": 2}, devices={"nvidia.com/gpu": (0, 0, 1, 3)})
SMT_OFF = replace(SHAPE, threads=1, cores=8)


def labelled(**policies: str) -> dict[str, str]:
    """Koordinator's node labels by the last part of their names."""
    return {f"node.koordinator.sh/{name.replace('_', '-')}": word for name, word in policies.items()}


NODES: dict[str, NodeDescription] = {
    "plain": NodeDescription("n", SHAPE.build()),
    "reserved": NodeDescription("n", SHAPE.build(), reserved=CpuSet.parse("0-1,16")),
    "whole cores": NodeDescription("n", SHAPE.build(), labels=labelled(cpu_bind_policy="FullPCPUsOnly")),
    "spread": NodeDescription("n", SHAPE.build(), labels=labelled(cpu_bind_policy="SpreadByPCPUs")),
    "one NUMA node": NodeDescription("n", SHAPE.build(), labels=labelled(numa_topology_policy="SingleNUMANode")),
    "restricted, fullest first": NodeDescription(
        "n", SHAPE.build(), labels=labelled(numa_topology_policy="Restricted", numa_allocate_strategy="MostAllocated")
    ),
    "best effort, evenly": NodeDescription(
        "n",
        SHAPE.build(),
        labels=labelled(numa_topology_policy="BestEffort", numa_allocate_strategy="DistributeEvenly"),
    ),
    "amplified": NodeDescription("n", SHAPE.build(), amplification={"cpu": 1.5, "memory": 1.25}),
    "amplified, one NUMA node": NodeDescription(
        "n", SHAPE.build(), amplification={"cpu": 2.0}, labels=labelled(numa_topology_policy="SingleNUMANode")
    ),
    "no threads": NodeDescription("n", SMT_OFF.build(), labels=labelled(numa_topology_policy="BestEffort")),
    "static kubelet": NodeDescription(
        "n",
        SHAPE.build(),
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.NONE,
            cpu_policy="static",
            cpu_options={"full-pcpus-only": True},
            reserved_cpus=CpuSet.parse("0,16"),
        ),
    ),
}


def random_pod(dice: random.Random) -> tuple[dict[str, str], dict[str, Any]]:
    """Limits and metadata of some pod: any QoS class, any policies, sometimes devices."""
    qos = dice.choice(["LSE", "LSR", "LS", "BE", ""])
    cpus = dice.choice(["1", "2", "2", "3", "4", "6"] if qos in ("LSE", "LSR") else ["500m", "1", "2500m", "4"])
    limits = {"cpu": cpus, "memory": dice.choice(["512Mi", "2Gi", "5Gi"])}
    if dice.random() < 0.2:
        limits["nvidia.com/gpu"] = "1"
    spec = dice.choice(
        [
            "{}",
            '{"requiredCPUBindPolicy":"FullPCPUs"}',
            '{"requiredCPUBindPolicy":"SpreadByPCPUs"}',
            '{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}',
            '{"preferredCPUBindPolicy":"Default"}',
            '{"preferredCPUBindPolicy":"ConstrainedBurst"}',
        ]
    )
    policy = dice.choice(["", "", "BestEffort", "Restricted", "SingleNUMANode"])
    annotations = {names.RESOURCE_SPEC: spec, names.NUMA_TOPOLOGY_SPEC: f'{{"numaTopologyPolicy":"{policy}"}}'}
    labels = {names.QOS_CLASS: qos, names.PRIORITY_CLASS: "koord-batch" if qos == "BE" else "koord-prod"}
    return limits, {"annotations": annotations, "labels": labels}


def bound_pods(store: DirectStore) -> Iterator[Any]:
    """The pods that hold something on the node."""
    for obj in store.list("pods", fields="spec.nodeName=n"):
        pod = parse_pod(obj)
        if not pod.finished:
            yield pod


def place_one(store: DirectStore, key: PodKey) -> Placement | Rejection:
    """Look, decide, bind: a scheduler of one node that remembers nothing."""
    offer = inventory(parse_node(store.get("nodes", "n")), parse_topology(store.get(TOPOLOGIES, "n")))
    assert not isinstance(offer, Rejection)
    ledger = Ledger.of(holding_of(pod) for pod in bound_pods(store))
    pod = parse_pod(store.get("pods", key.name))
    verdict = allocate(pod.request, offer, ledger, AllocateOptions())
    if isinstance(verdict, Placement):
        binding = {"metadata": {"annotations": resource_status(pod, verdict)}, "target": {"name": "n"}}
        store.bind(key.namespace, key.name, binding)
    return verdict


def play(store: DirectStore, rack: Fleet, dice: random.Random) -> int:
    """Pods come and some go; returns how many were placed."""
    placed: list[PodKey] = []
    count = 0
    for number in range(PODS):
        limits, metadata = random_pod(dice)
        key = create(store, f"p{number}", limits, **metadata)
        if isinstance(place_one(store, key), Placement):
            placed.append(key)
            count += 1
        rack.publish()
        if placed and dice.random() < 0.4:
            gone = placed.pop(dice.randrange(len(placed)))
            store.delete("pods", gone.name, options=DeleteOptions(grace=0))
            rack.publish()
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("description", NODES.values(), ids=NODES.keys())
def test_every_placement_is_taken(
    store: DirectStore, rack_of: MakeRack, description: NodeDescription, seed: int
) -> None:
    rack = rack_of([description])
    placed = play(store, rack, random.Random(seed))
    assert placed >= PODS // 6
    assert [str(complaint) for complaint in rack.refusals] == []
    assert rack.double_holds() == []
