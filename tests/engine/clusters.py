"""Random clusters for laws: nodes of many kinds, topologies that fit or not, pods of many kinds. Everything comes from one seed."""

from random import Random

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    NodeTerm,
    Operator,
    PreferredNodeTerm,
    Requirement,
    TaintEffect,
    Toleration,
)
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Taint, Zone
from koord_numa.core.objects.request import Assignment, Container, CpuBind, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuExclusivePolicy,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NodeBindPolicy,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.value_objects import replace

GIB = 1 << 30
SHAPES = ((1, 1, 4, 2), (1, 2, 2, 2), (2, 1, 4, 2), (2, 2, 2, 2), (1, 4, 4, 1), (2, 4, 2, 2))
TAINTS = (Taint("dedicated", TaintEffect.NO_SCHEDULE, "a"), Taint("slow", TaintEffect.PREFER_NO_SCHEDULE))


def random_node(dice: Random, name: str, cpus: int | None = None) -> Node:
    """A node; now and then tainted, cordoned, labelled with policies, or malformed."""
    count = cpus or dice.choice((4, 8, 16, 32))
    amounts = {"cpu": count * 1000, "memory": count * dice.choice((1, 2, 4)) * GIB, "pods": dice.choice((3, 10, 110))}
    if dice.random() < 0.2:
        amounts["nvidia.com/gpu"] = dice.choice((2, 4))
    return Node(
        name=name,
        uid=f"uid-{name}",
        labels={"zone": dice.choice("abc"), "kubernetes.io/hostname": name},
        taints=tuple(taint for taint in TAINTS if dice.random() < 0.15),
        unschedulable=dice.random() < 0.05,
        allocatable=amounts,
        numa_policy=dice.choice((NumaPolicy.NONE, NumaPolicy.NONE, *NumaPolicy)),
        bind_policy=dice.choice((NodeBindPolicy.NONE, NodeBindPolicy.NONE, NodeBindPolicy.NONE, *NodeBindPolicy)),
        amplification={"cpu": 1.5} if dice.random() < 0.1 else {},
        problem="label x is odd" if dice.random() < 0.03 else "",
    )


def random_topology(dice: Random, node: Node) -> NodeResourceTopology:
    """A topology for a node, scheduler-owned or a kubelet's."""
    machine = regular_topology(*dice.choice(SHAPES))
    owner = dice.choice((CpuOwner.SCHEDULER, CpuOwner.SCHEDULER, CpuOwner.KUBELET))
    zones = []
    for numa in machine.numa_ids:
        capacity = {"cpu": machine.cpus_per_numa * 1000, "memory": machine.cpus_per_numa * 2 * GIB}
        if "nvidia.com/gpu" in node.allocatable:
            capacity["nvidia.com/gpu"] = 1
        available = {name: amount - amount // 4 * dice.randint(0, 3) for name, amount in capacity.items()}
        zones.append(Zone(numa, capacity, capacity, available))
    return NodeResourceTopology(
        node=node.name,
        owner=owner,
        zones=tuple(zones),
        machine=machine if owner is CpuOwner.SCHEDULER else None,
        kubelet=KubeletConfig(
            topology_policy=dice.choice((None, *KubeletPolicy)),
            topology_scope=dice.choice(tuple(KubeletScope)),
            cpu_policy=dice.choice((None, "none", "static")),
            memory_policy=dice.choice((None, "None", "Static")),
        ),
        numa_policy=dice.choice((NumaPolicy.NONE, *NumaPolicy)),
        reserved=CpuSet.parse(dice.choice(("", "", "0"))) if owner is CpuOwner.SCHEDULER else CpuSet(),
        distances=machine.distances,
        node_uid=node.uid if dice.random() < 0.9 else "uid-former",
        problem="annotation y is odd" if dice.random() < 0.05 else "",
        resource_version=str(dice.randint(1, 1000)),
    )


def random_request(dice: Random) -> PodRequest:
    """One or two containers, any quality of service, policies and demands."""
    containers = tuple(_container(dice, f"c{i}") for i in range(dice.choice((1, 1, 1, 2))))
    return PodRequest(
        containers=containers,
        qos=dice.choice((QosClass.NONE, QosClass.LSR, QosClass.LSE, QosClass.LS, QosClass.BE)),
        bind=CpuBind(
            required=dice.choice((CpuBindPolicy.NONE, CpuBindPolicy.NONE, CpuBindPolicy.FULL_PCPUS)),
            preferred=dice.choice((CpuBindPolicy.NONE, CpuBindPolicy.DEFAULT, CpuBindPolicy.SPREAD_BY_PCPUS)),
            exclusive=dice.choice((CpuExclusivePolicy.NONE, *CpuExclusivePolicy)),
        ),
        numa=NumaSpec(policy=dice.choice((NumaPolicy.NONE, NumaPolicy.NONE, *NumaPolicy))),
        constraints=_constraints(dice),
    )


def _container(dice: Random, name: str) -> Container:
    amounts = {"cpu": dice.choice((250, 1000, 2000, 3000, 4000, 8000)), "memory": dice.choice((1, 2, 8)) * GIB}
    if dice.random() < 0.1:
        amounts["nvidia.com/gpu"] = dice.choice((1, 2))
    limits = amounts if dice.random() < 0.8 else {}
    return Container(name, ContainerKind.APP, amounts, limits)


def _constraints(dice: Random) -> Constraints:
    if dice.random() < 0.6:
        return Constraints()
    in_zone = Requirement("zone", Operator.IN, (dice.choice("abc"),))
    return Constraints(
        node_selector=(("zone", dice.choice("abc")),) if dice.random() < 0.3 else (),
        node_terms=(NodeTerm(labels=(in_zone,)),) if dice.random() < 0.2 else None,
        preferred_nodes=(PreferredNodeTerm(dice.randint(1, 100), NodeTerm(labels=(in_zone,))),)
        if dice.random() < 0.5
        else (),
        tolerations=(Toleration(exists=True),) if dice.random() < 0.5 else (),
        host_ports=(HostPort(8080),) if dice.random() < 0.2 else (),
    )


def random_pod(dice: Random, name: str, requests: list[PodRequest] | None = None) -> Pod:
    """A pod for our scheduler."""
    request = dice.choice(requests) if requests else random_request(dice)
    return Pod(
        PodKey("default", name, f"uid-{name}"), request, scheduler="koord-numa", created=float(dice.randint(0, 99))
    )


def placed_anyhow(dice: Random, pod: Pod, node: str) -> Pod:
    """The pod bound to a node by any scheduler, with or without a result in its annotations, in any phase."""
    first = dice.randint(0, 3)
    assignment = Assignment(
        cpus=CpuSet.of(range(first, first + 2)) if dice.random() < 0.5 else CpuSet(),
        numa=((dice.randint(0, 1), {"cpu": 2000, "memory": GIB}),) if dice.random() < 0.5 else (),
    )
    return replace(
        pod,
        node=node,
        assignment=assignment if dice.random() < 0.6 else None,
        phase=dice.choice(("Pending", "Running", "Running", "Running", "Succeeded", "Failed")),
        started=dice.random() < 0.5,
        deleting=dice.random() < 0.1,
        resource_version=str(dice.randint(1, 1000)),
    )
