"""
The kubelet of a node admits every placement of the allocator on that node.

The node is one machine described twice: as the objects that the allocator reads, and as the kubelet's own configuration. The
kubelet chooses CPUs itself and is then overruled by the node agent, so only its yes or no matters.
"""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.bounds import refuse_unsure
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, PluginDevice
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.state.inventory import Inventory, inventory
from koord_numa.core.state.ledger import Ledger, holding_of
from tests.core.allocation.nodes import GI
from tests.machines import machine
from tests.strategies import any_of

GPU = "nvidia.com/gpu"


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Inventory, KubeletState]:
    """One machine, as the allocator and as its kubelet see it before the first pod."""
    built = machine(draw(any_of("1x1x4x2", "2x1x3x2", "2x2x2x2", "2x1x4x1")))
    reserved = CpuSet.parse(draw(any_of("0", "0-1", "1,3")))
    gpus = draw(st.integers(0, 2))
    config = KubeletConfig(
        topology_policy=draw(any_of(*KubeletPolicy)),
        topology_scope=draw(any_of(*KubeletScope)),
        cpu_policy=draw(any_of("none", "static", "static")),
        cpu_options={"full-pcpus-only": draw(st.booleans()), "distribute-cpus-across-numa": draw(st.booleans())},
        memory_policy=draw(any_of("None", "Static")),
        reserved_cpus=reserved,
    )
    zones = tuple(
        Zone(numa, offer, offer, offer)
        for numa, bits in built.numa_bits.items()
        for offer in [{"cpu": 1000 * bits.bit_count(), "memory": 8 * GI, GPU: gpus}]
    )
    allocatable = {
        "cpu": 1000 * len(built.all - reserved),
        "memory": 8 * GI * len(zones),
        GPU: gpus * len(zones),
        "pods": 110,
    }
    made = inventory(
        Node("n", allocatable=allocatable),
        NodeResourceTopology("n", CpuOwner.SCHEDULER, zones, machine=built, kubelet=config, reserved=reserved),
    )
    assert isinstance(made, Inventory)
    devices = tuple(PluginDevice(f"gpu-{numa}-{index}", 1 << numa) for numa in built.numa_ids for index in range(gpus))
    memory = {numa: {"memory": 8 * GI} for numa in built.numa_ids}
    node = KubeletNode(built, config, allocatable, memory, {GPU: DevicePool(devices)})
    return made, KubeletState.empty(node)


@st.composite
def containers(draw: st.DrawFn) -> Container:
    """One container, Guaranteed more often than not."""
    requests = {
        "cpu": draw(any_of(0, 500, 1000, 1000, 2000, 2000, 4000)),
        "memory": draw(any_of(0, 1, GI, 3 * GI, 6 * GI)),
    }
    if draw(st.integers(0, 3)) == 0:
        requests[GPU] = draw(st.integers(1, 2))
    requests = {name: amount for name, amount in requests.items() if amount}
    limits = requests if draw(st.integers(0, 3)) else {name: a for name, a in requests.items() if "/" in name}
    return Container("c", draw(any_of(ContainerKind.APP, ContainerKind.APP, *ContainerKind)), requests, limits)


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    """A pod of one to three containers in the kubelet's order, with any QoS class and NUMA policy."""
    parts = draw(st.lists(containers(), min_size=1, max_size=3))
    ordered = sorted(parts, key=lambda part: part.kind is ContainerKind.APP)
    named = tuple(Container(f"c{i}", part.kind, part.requests, part.limits) for i, part in enumerate(ordered))
    policy = draw(any_of(NumaPolicy.NONE, *NumaPolicy))
    return PodRequest(
        containers=named,
        qos=draw(any_of(QosClass.NONE, QosClass.LSR, QosClass.LS)),
        numa=NumaSpec(policy),
    )


@given(hosts(), st.lists(st.tuples(pods(), st.integers(0, 15)), max_size=14))
def test_the_kubelet_admits_what_the_allocator_places(
    host: tuple[Inventory, KubeletState], arrivals: list[tuple[PodRequest, int]]
) -> None:
    """Pods arrive one after the other; beside each, a number names a pod that leaves before, if it is there."""
    where, kubelet = host
    ledger = Ledger()
    for index, (request, leaving) in enumerate(arrivals):
        uid = str(index)
        ledger.release(str(leaving))
        kubelet = kubelet.without(str(leaving))
        wanted = effective_requests(request)
        if any(
            ledger.amounts.get(name, 0) + amount > where.allocatable.get(name, 0) for name, amount in wanted.items()
        ):
            continue  # the plain predicate on resources has refused
        answer = allocate(request, where, ledger, AllocateOptions())
        if not isinstance(answer, Placement):
            continue
        if where.aligner is not None and refuse_unsure(request, where.aligner, ledger):
            continue  # as the whole decision does
        verdict = admit_pod(kubelet, uid, request)
        assert not isinstance(verdict, NotAdmitted), f"{verdict.refusal} for {wanted} after {list(ledger.holdings)}"
        assert isinstance(verdict, Admitted)
        kubelet = verdict.state
        ledger.hold(holding_of(Pod(PodKey("ns", uid, uid), request), answer.assignment))
