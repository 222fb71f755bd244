"""Where the scheduler foresees that a kubelet will admit a pod, the simulated kubelet does: judged by published objects alone."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.answers import KubeletAdmission
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.ledger import Holding, holding_of
from koord_numa.core.node import KubeletConfig
from koord_numa.core.request import Pod, PodKey
from koord_numa.core.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.apiserver import DeleteOptions, DirectStore
from koord_numa.sandbox.machines import NodeDescription, Rack, Shape, Style
from koord_numa.sandbox.machines.hardware import GIB
from koord_numa.wire import parse_node, parse_pod, parse_topology
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import bind

TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
PODS = 50
SHAPE = Shape(2, 1, 6, 2, 16 * GIB, pages={"1Gi": 2}, devices={"nvidia.com/gpu": (0, 0, 1), "vendor.example/nic": (1,)})


def node(policy: KubeletPolicy, scope: KubeletScope = KubeletScope.CONTAINER, **options: bool) -> NodeDescription:
    """A node whose kubelet pins CPUs and memory under this policy."""
    reserved = CpuSet.parse("0,12")
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=scope,
        cpu_policy="static",
        cpu_options={name.replace("_", "-"): value for name, value in options.items()},
        memory_policy="Static",
        reserved_cpus=reserved,
    )
    return NodeDescription("k", SHAPE.build(), Style.KUBELET, config, reserved=reserved, reserved_memory=GIB)


SINGLE = node(KubeletPolicy.SINGLE_NUMA_NODE)
NODES: dict[str, NodeDescription] = {
    "single": SINGLE,
    "single, pod scope": node(KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.POD),
    "single, whole cores": node(KubeletPolicy.SINGLE_NUMA_NODE, full_pcpus_only=True),
    "single, options hidden": replace(SINGLE, hidden=True),
    "restricted": node(KubeletPolicy.RESTRICTED),
    "restricted, pod scope, hidden": replace(node(KubeletPolicy.RESTRICTED, KubeletScope.POD), hidden=True),
    "best effort": node(KubeletPolicy.BEST_EFFORT),
    "none": node(KubeletPolicy.NONE),
}


def random_pod(store: DirectStore, name: str, dice: random.Random) -> Pod:
    """One or two containers, some Guaranteed, some with devices or huge pages, sometimes an init container."""

    def container(label: str) -> dict[str, object]:
        limits = {"cpu": dice.choice(["1", "2", "4", "1500m"]), "memory": dice.choice(["512Mi", "2Gi", "4Gi"])}
        if dice.random() < 0.2:
            limits[dice.choice(["nvidia.com/gpu", "vendor.example/nic"])] = "1"
        if dice.random() < 0.1:
            limits["hugepages-1Gi"] = "1Gi"
        requests = dict(limits) if dice.random() < 0.7 else {**limits, "cpu": "500m"}
        return {"name": label, "image": "i", "resources": {"limits": limits, "requests": requests}}

    spec: dict[str, object] = {"containers": [container(f"c{number}") for number in range(dice.choice([1, 1, 2]))]}
    if dice.random() < 0.15:
        spec["initContainers"] = [container("init")]
    return parse_pod(store.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))


def holdings(store: DirectStore) -> Iterator[Holding]:
    """What the scheduler knows of the pods on the node."""
    for obj in store.list("pods", fields="spec.nodeName=k"):
        pod = parse_pod(obj)
        if not pod.finished:
            yield holding_of(pod)


def play(store: DirectStore, rack: Rack, dice: random.Random) -> int:
    """Pods come and some go; returns how many were bound."""
    bound: list[PodKey] = []
    unpublished: set[str] = set()
    count = 0
    for number in range(PODS):
        pod = random_pod(store, f"p{number}", dice)
        topology = parse_topology(store.get(TOPOLOGIES, "k"))
        view = kubelet_view(parse_node(store.get("nodes", "k")), topology, holdings(store), unpublished)
        if isinstance(would_admit(pod.request, view), KubeletAdmission):
            bind(store, pod.key, "k")
            bound.append(pod.key)
            unpublished.add(pod.key.uid)
            count += 1
        if dice.random() < 0.7:
            rack.publish()
            unpublished.clear()
        if bound and dice.random() < 0.45:
            gone = bound.pop(dice.randrange(len(bound)))
            store.delete("pods", gone.name, options=DeleteOptions(grace=0))
            rack.publish()
            unpublished.clear()
    return count


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("description", NODES.values(), ids=NODES.keys())
def test_every_pod_is_admitted(store: DirectStore, rack_of: MakeRack, description: NodeDescription, seed: int) -> None:
    rack = rack_of([description])
    bound = play(store, rack, random.Random(seed))
    assert [str(complaint) for complaint in rack.refusals] == []
    assert bound >= PODS // 5
