"""The simulated kubelet admits every pod that the scheduler places, judged by published objects alone."""

import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import KubeletAdmission
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import Assignment, Pod, PodKey
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.state.ledger import Holding, holding_of
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import DeleteOptions, DirectStore
from koord_numa.sandbox.machines import Fleet, NodeDescription, Shape, Style
from koord_numa.sandbox.machines.description import GIB
from koord_numa.wire import parse_node, parse_pod, parse_topology
from koord_numa.wire.pod_annotations import status_text
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
    """Return the scheduler's knowledge of the pods on the node."""
    for obj in store.list("pods", fields="spec.nodeName=k"):
        pod = parse_pod(obj)
        if not pod.finished:
            yield holding_of(pod)


def play(store: DirectStore, rack: Fleet, dice: random.Random) -> int:
    """Pods come and some go; returns how many were bound."""
    bound: list[PodKey] = []
    unpublished: set[str] = set()
    count = 0
    for number in range(PODS):
        pod = random_pod(store, f"p{number}", dice)
        topology = parse_topology(store.get(TOPOLOGIES, "k"))
        view = kubelet_view(parse_node(store.get("nodes", "k")), topology, holdings(store), unpublished)
        verdict = would_admit(pod.request, view)
        if isinstance(verdict, KubeletAdmission) and not verdict.explores:
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("description", NODES.values(), ids=NODES.keys())
def test_every_pod_is_admitted(store: DirectStore, rack_of: MakeRack, description: NodeDescription, seed: int) -> None:
    rack = rack_of([description])
    bound = play(store, rack, random.Random(seed))
    assert [str(complaint) for complaint in rack.refusals] == []
    assert bound >= PODS // 5


def tight_pod(store: DirectStore, name: str, dice: random.Random) -> Pod:
    """A Guaranteed pod of which few fit on one NUMA node, and for another reason each."""
    limits = {"cpu": dice.choice("1224"), "memory": "1Gi"}
    if dice.random() < 0.3:
        limits["nvidia.com/gpu"] = "1"
    if dice.random() < 0.4:
        limits["hugepages-1Gi"] = dice.choice(("1Gi", "2Gi"))
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    spec = {"containers": [container]}
    return parse_pod(store.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))


@dataclass(slots=True)
class Blind:
    """
    A scheduler whose binds take a while, though they stay in order, and a kubelet whose deeds are unknown until they are published
    it: pods leave before others, that were placed beside them, arrive.
    """

    store: DirectStore
    rack: Fleet
    dice: random.Random
    assumed: deque[tuple[Pod, KubeletAdmission]] = field(default_factory=deque)
    bound: list[PodKey] = field(default_factory=list)
    unpublished: set[str] = field(default_factory=set)
    count: int = 0

    def place(self, number: int) -> None:
        """Decide on one more pod."""
        pod = tight_pod(self.store, f"p{number}", self.dice)
        known = [*holdings(self.store), *(holding_of(other, Assignment(numa=it.numa)) for other, it in self.assumed)]
        topology = parse_topology(self.store.get(TOPOLOGIES, "k"))
        view = kubelet_view(parse_node(self.store.get("nodes", "k")), topology, known, self.unpublished)
        verdict = would_admit(pod.request, view)
        if isinstance(verdict, KubeletAdmission) and not verdict.explores:
            self.assumed.append((pod, verdict))
            self.unpublished.add(pod.key.uid)

    def bind_next(self) -> None:
        """The decision that was made first becomes true."""
        if self.assumed:
            pod, verdict = self.assumed.popleft()
            bind(self.store, pod.key, "k", json.loads(status_text(Assignment(numa=verdict.numa))))
            self.bound.append(pod.key)
            self.count += 1

    def lose_one(self) -> None:
        """A pod leaves."""
        if self.bound:
            gone = self.bound.pop(self.dice.randrange(len(self.bound)))
            self.store.delete("pods", gone.name, options=DeleteOptions(grace=0))

    def publish(self) -> None:
        """The published topology shows what the kubelet has done."""
        self.rack.publish()
        self.unpublished = {pod.key.uid for pod, _ in self.assumed}

    def play(self) -> int:
        """Returns how many pods were bound."""
        for number in range(4 * PODS):
            self.place(number)
            for act, chance in (
                (self.bind_next, 0.6),
                (self.lose_one, 0.4),
                (self.bind_next, 0.4),
                (self.publish, 0.1),
            ):
                if self.dice.random() < chance:
                    act()
        return self.count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize(
    "name", ["single, whole cores", "single, options hidden", "restricted", "restricted, pod scope, hidden"]
)
def test_every_pod_is_admitted_though_others_leave_unseen(
    store: DirectStore, rack_of: MakeRack, name: str, seed: int
) -> None:
    rack = rack_of([NODES[name]])
    bound = Blind(store, rack, random.Random(seed)).play()
    assert [str(complaint) for complaint in rack.refusals] == []
    assert rack.double_holds() == []
    assert bound >= PODS
