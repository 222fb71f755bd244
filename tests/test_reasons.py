"""Every reason is given in some situation, told by its sentence: one small situation each, and none is missing."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from koord_numa.core.allocation.allocate import AllocateOptions, WithoutTopology
from koord_numa.core.claims.cpus import CpuSite
from koord_numa.core.claims.device_hints import ClaimDevices
from koord_numa.core.claims.pools import NodeDevices, gather_pools
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.devices import device_offer
from koord_numa.core.fit.pod_placement import pod_affinity_counts, spread_counts
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.claims import DeviceId, DeviceUsage, PodClaims
from koord_numa.core.objects.constraints import (
    Constraints,
    DiskKind,
    HostPort,
    InlineDisk,
    LabelSelector,
    NodeTerm,
    Operator,
    PodTerm,
    Requirement,
    SpreadConstraint,
    TaintEffect,
)
from koord_numa.core.objects.devices import DeviceInventory
from koord_numa.core.objects.node import KubeletAllocation, KubeletConfig, Node, NodeResourceTopology, Taint, Zone
from koord_numa.core.objects.request import NumaSpread, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuOwner,
    KubeletPolicy,
    NodeBindPolicy,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.objects.volumes import CsiNode, NodeVolumes, PersistentVolume, PersistentVolumeClaim, Storage
from koord_numa.core.scheduling.filters import evaluate, refuse_everywhere
from koord_numa.core.scheduling.placement import place, place_devices
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot, candidate
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.settings import BackoffSettings, ProfileSettings
from tests.core.allocation import nodes
from tests.core.allocation.nodes import GI, held, pod
from tests.core.claims.worlds import device, published
from tests.core.devices.rack import request
from tests.tables import each_row

LSR = QosClass.LSR
PLAIN = pod(1000, GI)
RULES = Profile()
Situation = Callable[[], Rejection | object]


def ours(name: str = "n", ledger: Ledger | None = None, **fields: Any) -> NodeSnapshot:
    """A node of 16 CPUs that are ours to give."""
    offer = nodes.node(**fields)
    return candidate(Node(name, allocatable=offer.allocatable), offer, ledger or Ledger())


def kubelets(policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE, **config: Any) -> NodeSnapshot:
    """A node of a kubelet with two NUMA nodes of eight CPUs; of 32Gi on each, half is in use by unknown pods."""
    capacity = {"cpu": 8000, "memory": 32 * GI}
    free = {"cpu": 8000, "memory": 16 * GI}
    published = NodeResourceTopology(
        node="n",
        owner=CpuOwner.KUBELET,
        zones=(Zone(0, capacity, capacity, free), Zone(1, capacity, capacity, free)),
        kubelet=KubeletConfig(topology_policy=policy, **config),
    )
    node = Node("n", allocatable={"cpu": 16000, "memory": 64 * GI, "pods": 110})
    return candidate(node, kubelet_view(node, published, ()), Ledger())


def asks(request: PodRequest, where: NodeSnapshot, rules: Profile = RULES) -> Situation:
    """Return the answer of this node."""
    return lambda: evaluate(scheduling_request(request, rules), where, rules)


def demands(where: NodeSnapshot | None = None, **constraints: Any) -> Situation:
    """Return a node's answer to a small pod with these demands."""
    return asks(replace(PLAIN, constraints=Constraints(**constraints)), where or ours())


def with_node(where: NodeSnapshot, **fields: Any) -> NodeSnapshot:
    """The same node with other fields of the Node object."""
    return replace(where, node=replace(where.node, **fields))


def beside_another(**constraints: Any) -> Situation:
    """A small pod with these demands beside a pod that is labelled ``app=x``."""

    def answer() -> Rejection | object:
        where = with_node(ours(), labels={"zone": "a"})
        there = Pod(PodKey("ns", "other", "other"), PLAIN, node="n", labels=(("app", "x"),))
        request = replace(PLAIN, namespace="ns", labels=(("app", "x"),), constraints=Constraints(**constraints))
        placed = [(where.node, there)]
        empty = Node("empty", labels={"zone": "b"})
        ask = replace(
            scheduling_request(request, RULES),
            neighbours=pod_affinity_counts(request, placed, {}),
            spread=spread_counts(request, [where.node, empty], placed) if request.constraints.spread else None,
        )
        return evaluate(ask, where, RULES)

    return answer


def with_storage(storage: Storage, **constraints: Any) -> Situation:
    """Return the answer of a node of zone ``a`` to a small pod with these demands and volumes."""
    where = with_node(ours(), labels={"topology.kubernetes.io/zone": "a"})
    request = replace(PLAIN, constraints=Constraints(**constraints))
    return lambda: evaluate(replace(scheduling_request(request, RULES), storage=storage), where, RULES)


def resting() -> Rejection | None:
    """A kubelet that has just refused such a pod."""
    cooling, request_class = NodeBackoff(BackoffSettings()), RequestClass(0, "plain", ProfileSettings(), PLAIN, {})
    cooling.refused("n", request_class, "SMTAlignmentError", 0.0)
    return cooling.refusal("n", request_class, 0.0)


def barred(**fields: Any) -> Rejection | None:
    """Return the engine's answer about a node in this state."""
    record = NodeInfo("n")
    for name, value in fields.items():
        setattr(record, name, value)
    return record.barred()


def everywhere(**constraints: Any) -> Rejection | None:
    """Return the rejection before any node is evaluated."""
    ask: SchedulingRequest = scheduling_request(replace(PLAIN, constraints=Constraints(**constraints)), RULES)
    return refuse_everywhere(replace(ask, storage=Storage(known=False)))


DISK = InlineDisk(DiskKind.AWS, "disk-1")
FAR_VOLUME = PersistentVolume("pv", zones=(("topology.kubernetes.io/zone", ("b",)),), driver="d", handle="h")
BOUND_CLAIM = Storage(
    claims={("default", "data"): PersistentVolumeClaim("default", "data", volume="pv", bound=True)},
    volumes={"pv": FAR_VOLUME},
)

X = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
NEAR = PodTerm("zone", X, ("ns",))
ELSEWHERE = NodeTerm(labels=(Requirement("zone", Operator.IN, ("far",)),))
MALFORMED = replace(ours(), offer=replace(nodes.node(), machine=None, zones=(), problem="annotation x is odd"))
BARE = replace(ours(), offer=replace(nodes.node(), machine=None, zones=()))
SHARED_CORES = Ledger.of([held(f"p{core}", str(2 * core)) for core in range(8)])

CLASHING = NodeResourceTopology(
    node="n",
    owner=CpuOwner.SCHEDULER,
    kubelet_pods=(KubeletAllocation("ns", "by-the-kubelet", "k", CpuSet.parse("2-5"), managed_by_kubelet=True),),
)


def far_from_its_claim() -> Rejection | object:
    """A claim holds a GPU on NUMA node 1, where CPUs are left for half of the pod only."""
    gpu = published("gpu", [device("gpu-0", attributes={"resource.kubernetes.io/numaNode": 1})])
    held_by_claim = PodClaims(devices=(DeviceId("gpu", "node-1", "gpu-0"),))
    seen = ours(ledger=Ledger.of([held("other", "10-15")]))
    ask = replace(scheduling_request(pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE), RULES), claims=held_by_claim)
    placed = place(ask, seen)
    assert isinstance(placed, Placement)
    there = NodeDevices("n", pools=gather_pools([gpu], "node-1", {}, {}))
    return place_devices(
        ask, seen, placed, ClaimDevices(held_by_claim, {}, there, DeviceUsage(), CpuSite(), CpuPolicies(CpuRequest(0)))
    )


SITUATIONS: dict[Reason, Situation] = {
    Reason.RESOURCES: asks(pod(99000), ours()),
    Reason.CPUS: asks(
        pod(4000, qos=LSR, required=CpuBindPolicy.FULL_PCPUS),
        ours(ledger=SHARED_CORES),
        Profile(allocate=AllocateOptions(numa_policy=NumaPolicy.NONE)),
    ),
    Reason.CPU_COUNT: asks(pod(1500, qos=LSR), ours()),
    Reason.BIND_POLICY: asks(
        pod(4000, qos=LSR, required=CpuBindPolicy.SPREAD_BY_PCPUS), ours(bind=NodeBindPolicy.FULL_PCPUS_ONLY)
    ),
    Reason.NUMA_POLICY: asks(pod(1000, numa=NumaPolicy.RESTRICTED), ours(policy=NumaPolicy.SINGLE_NUMA_NODE)),
    Reason.NUMA_AFFINITY: asks(pod(12000, numa=NumaPolicy.SINGLE_NUMA_NODE), ours()),
    Reason.NUMA_SPREAD: asks(
        replace(PLAIN, numa_spread=NumaSpread(LabelSelector((Requirement("app", Operator.EXISTS),)), required=True)),
        kubelets(),
    ),
    Reason.NO_TOPOLOGY: asks(pod(4000, qos=LSR), BARE),
    Reason.BAD_TOPOLOGY: asks(pod(4000, qos=LSR), MALFORMED),
    Reason.BAD_NODE: asks(PLAIN, with_node(ours(), problem="label x is odd")),
    Reason.BAD_POD: asks(pod(4000, qos=LSR, limit=5000), ours()),
    Reason.KUBELET_ALIGNMENT: asks(pod(10000, GI), kubelets(cpu_policy="static")),
    Reason.KUBELET_SMT: asks(replace(pod(3000, GI), replaceable=False), kubelets()),
    Reason.KUBELET_ALLOCATION: asks(pod(2000, 40 * GI), kubelets(KubeletPolicy.NONE, cpu_policy="static")),
    Reason.UNTRUSTED: lambda: barred(node=Node("n"), topology=CLASHING, ledger=Ledger.of([held("by-us", "0-3")])),
    Reason.COOLING_DOWN: resting,
    Reason.NODE_NAME: demands(node_name="another"),
    Reason.UNSCHEDULABLE: asks(PLAIN, with_node(ours(), unschedulable=True)),
    Reason.NODE_AFFINITY: demands(node_terms=(ELSEWHERE,)),
    Reason.NODE_FEATURE: demands(features=("UserNamespacesHostNetworkSupport",)),
    Reason.TAINT: asks(PLAIN, with_node(ours(), taints=(Taint("dedicated", TaintEffect.NO_SCHEDULE, "x"),))),
    Reason.HOST_PORT: demands(replace(ours(), ports=(HostPort(80),)), host_ports=(HostPort(80),)),
    Reason.VOLUME: lambda: everywhere(claims=("missing",)),
    Reason.VOLUME_ZONE: with_storage(BOUND_CLAIM, claims=("data",)),
    Reason.DISK_CONFLICT: with_storage(Storage(on_node={"n": NodeVolumes(disks=Counter([DISK]))}), disks=(DISK,)),
    Reason.VOLUME_LIMIT: with_storage(
        replace(BOUND_CLAIM, csi_nodes={"n": CsiNode("n", (("d", 0),))}), claims=("data",)
    ),
    Reason.POD_AFFINITY: beside_another(anti_affinity=(NEAR,)),
    Reason.SPREAD: beside_another(spread=(SpreadConstraint("zone", 1, hard=True, selector=X),)),
    Reason.UNSUPPORTED: lambda: everywhere(unsupported=("resource claims",)),
    Reason.LOCKED: lambda: barred(locked="by rebind x"),
    Reason.BIND_QUEUE: lambda: barred(long_bind_line=True),
    Reason.CLAIM_ALIGNMENT: far_from_its_claim,
    Reason.DEVICES: asks(
        request({"gpu": 100}), replace(ours(), devices=device_offer(DeviceInventory("n"), "", held=False))
    ),
    Reason.RESOURCE_CLAIMS: lambda: refuse_everywhere(
        replace(scheduling_request(PLAIN, Profile()), claims=PodClaims(problem="resourceclaim not found"))
    ),
}


@each_row("reason", list(Reason), ids=lambda reason: reason.value)
def test_every_reason_is_given(reason: Reason) -> None:
    answer = SITUATIONS[reason]()
    assert isinstance(answer, Rejection), answer
    assert answer.reason is reason, answer
    assert answer.message


def test_a_profile_can_permit_nodes_without_topology() -> None:
    """The reason ``no-topology`` is a matter of configuration where only an alignment is missing."""
    aligned = pod(1000, GI, limit=2000, numa=NumaPolicy.SINGLE_NUMA_NODE)
    permissive = Profile(allocate=AllocateOptions(without_topology=WithoutTopology.PERMIT))
    assert isinstance(asks(aligned, BARE)(), Rejection)
    assert not isinstance(asks(aligned, BARE, permissive)(), Rejection)
