"""Nodes with pods of various priorities on them, in few words, for the tests of preemption."""

from collections.abc import Iterable
from typing import Any

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector, Operator, Requirement
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Assignment, Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.preempt.dry_run import EvictionTerms, Nominee, PreemptionNode
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot, inventory, reserve
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.value_objects import replace
from tests.machines import machine

GI = 2**30
GPU = "vendor.com/gpu"


def request(cpu: int, priority: int = 0, *, numa: str = "", gpus: int = 0, **fields: Any) -> PodRequest:
    """A Guaranteed pod of one container with whole CPUs of its own and 1 GiB; ``numa`` names its policy."""
    amounts = {"cpu": cpu * 1000, "memory": GI, **({GPU: gpus} if gpus else {})}
    return PodRequest(
        containers=(Container("c", ContainerKind.APP, amounts, amounts),),
        qos=fields.pop("qos", QosClass.LSR),
        priority=priority,
        numa=NumaSpec(NumaPolicy(numa)),
        **fields,
    )


def running(name: str, cpus: str, priority: int = 0, *, gpus: int = 0, numa: int | None = 0, **fields: Any) -> Pod:
    """A pod that runs on these CPUs of one NUMA node, or with so many CPUs somewhere (``numa=None``)."""
    owned = CpuSet.parse(cpus)
    asked = request(len(owned), priority, gpus=gpus, constraints=fields.pop("constraints", PodRequest().constraints))
    given = {"cpu": len(owned) * 1000, "memory": GI, **({GPU: gpus} if gpus else {})}
    return Pod(
        PodKey("default", name, name),
        asked,
        node="node",
        created=fields.pop("created", 0.0),
        assignment=None if numa is None else Assignment(owned, ((numa, given),)),
        started=True,
        phase=fields.pop("phase", "Running"),
        labels=fields.pop("labels", (("app", name),)),
        **fields,
    )


def owned_site(*pods: Pod, shape: str = "1x2x4x1", gpus: int = 0, name: str = "node", **fields: Any) -> PreemptionNode:
    """A node whose CPUs are ours to give, by default of two NUMA nodes with four cores each."""
    built = machine(shape)
    amounts = {"cpu": 1000 * len(built.all) // len(built.numa_ids), "memory": 64 * GI, **({GPU: gpus} if gpus else {})}
    zones = tuple(Zone(numa, amounts, amounts, amounts) for numa in built.numa_ids)
    topology = NodeResourceTopology(name, CpuOwner.SCHEDULER, zones, built, **fields.pop("topology", {}))
    node = _node(name, zones)
    nominees = {nominee.pod.key.uid: nominee for nominee in fields.pop("nominees", ())}
    offer = inventory(node, topology)
    ledger = Ledger.of([*(holding_of(pod) for pod in pods), *(nominee.holding for nominee in nominees.values())])
    seen = NodeSnapshot(node, offer, ledger, reserve(node.allocatable, node.reservation), _ports(pods))
    return replace(PreemptionNode(seen, {pod.key.uid: pod for pod in pods}, topology, nominees), **fields)


def kubelet_site(
    *pods: Pod, used: Iterable[tuple[int, int]] = (), policy: str = "single-numa-node", **fields: Any
) -> PreemptionNode:
    """A node whose kubelet chooses, of two NUMA nodes with eight CPUs each; ``used`` are published CPUs and GiB per NUMA node."""
    there = {"cpu": 8000, "memory": 64 * GI}
    busy = dict(enumerate(used))
    zones = tuple(
        Zone(
            numa,
            there,
            there,
            {"cpu": 8000 - 1000 * busy.get(numa, (0, 0))[0], "memory": (64 - busy.get(numa, (0, 0))[1]) * GI},
        )
        for numa in (0, 1)
    )
    config = KubeletConfig(
        KubeletPolicy(policy), fields.pop("scope", KubeletScope.POD), cpu_policy="static", cpu_options={}
    )
    topology = NodeResourceTopology("node", CpuOwner.KUBELET, zones, kubelet=config)
    node = _node("node", zones)
    ledger = Ledger.of(holding_of(pod) for pod in pods)
    unpublished = fields.pop("unpublished", frozenset())
    seen = NodeSnapshot(node, kubelet_view(node, topology, ledger, unpublished), ledger, node.allocatable, _ports(pods))
    return replace(
        PreemptionNode(seen, {pod.key.uid: pod for pod in pods}, topology, unpublished=unpublished), **fields
    )


def nominee(name: str, cpus: str, priority: int, numa: int = 0) -> Nominee:
    """A pod for which the node is being freed already."""
    pod = running(name, cpus, priority, numa=numa)
    return Nominee(pod, holding_of(pod))


def ask(cpu: int, priority: int, numa: str = "SingleNUMANode", **fields: Any) -> SchedulingRequest:
    """Return the request of a pending pod."""
    return scheduling_request(request(cpu, priority, numa=numa, **fields), Profile())


def terms(*budgets: DisruptionBudget) -> EvictionTerms:
    """The default rules."""
    return EvictionTerms(Profile(), budgets)


def budget(name: str, allowed: int, *apps: str, **fields: Any) -> DisruptionBudget:
    """A budget that covers the pods of these ``app`` labels."""
    selector = LabelSelector((Requirement("app", Operator.IN, apps),))
    return DisruptionBudget("default", name, selector, allowed, **fields)


def barred(site: PreemptionNode) -> PreemptionNode:
    """The same node, locked."""
    return replace(site, seen=replace(site.seen, barred=Rejection(Reason.LOCKED, "locked", resolvable=False)))


UNEVEN = (
    running("a", "0-1", 5),
    running("b", "2-3", 1),
    running("c", "4-5", 2, numa=1),
    running("d", "6-7", 2, numa=1),
)


def _node(name: str, zones: tuple[Zone, ...]) -> Node:
    amounts = {key: sum(zone.allocatable[key] for zone in zones) for key in zones[0].allocatable}
    return Node(
        name, f"uid-{name}", {"kubernetes.io/hostname": name, "zone": "a"}, allocatable={**amounts, "pods": 110}
    )


def _ports(pods: Iterable[Pod]) -> Any:
    return tuple(port for pod in pods for port in pod.request.constraints.host_ports)
