"""
Nodes, claims and published devices for the tests of claim devices, and the placement with devices.

The machine has two NUMA nodes of eight CPUs: 0-7 and 8-15, two neighbours a core.
"""

from collections.abc import Iterable

from koord_numa.core.claims.cpus import CpuSite, cpus_of
from koord_numa.core.claims.device_hints import ClaimDevices
from koord_numa.core.claims.inventory import ResourceSlice
from koord_numa.core.claims.pools import NodeDevices, gather_pools
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.claims import DeviceId, DeviceUsage, PodClaims, PoolId
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuOwner, KubeletPolicy, QosClass
from koord_numa.core.scheduling.placement import HARD, place, place_devices, policy_of_devices
from koord_numa.core.scheduling.request import Profile, scheduling_request, with_claims
from koord_numa.core.state.inventory import NodeSnapshot, candidate
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.core.allocation.nodes import GI, held, node
from tests.core.claims.worlds import NODE, Json, claim_object, device, device_class, published, request
from tests.machines import machine

NUMA = "resource.kubernetes.io/numaNode"
ROOT = "resource.kubernetes.io/pcieRoot"
GPU = request("gpu", "gpu")
PAIR = claim_object(GPU, request("nic", "nic"))
LSR = QosClass.LSR


def gpus(*places: int | None) -> ResourceSlice:
    """GPUs on these NUMA nodes; None for one that does not say where it is."""
    return published("gpu", [_on(f"gpu-{number}", numa) for number, numa in enumerate(places)])


def nics(*places: int | None) -> ResourceSlice:
    """NICs on these NUMA nodes."""
    return published("nic", [_on(f"nic-{number}", numa) for number, numa in enumerate(places)])


def _on(name: str, numa: int | None) -> Json:
    return device(name) if numa is None else device(name, attributes={NUMA: numa})


def cpu_device() -> ResourceSlice:
    """The machine's CPUs by claim."""
    attributes = {"dra.cpu/numCPUs": 16, "dra.cpu/cpuIDs": "0-15", "dra.cpu/smtLayout": "0-15>1"}
    made = device("cpudevmachine", attributes=attributes, capacity={"dra.cpu/cpu": "16"}, allowMultipleAllocations=True)
    return published("dra.cpu", [made])


def cpu_claim(count: int) -> Json:
    """A claim of CPUs."""
    return claim_object(request("cpu", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": str(count)}}), name="cpus")


def ours(*pods: str) -> NodeSnapshot:
    """The machine with scheduler-owned CPUs; each pod holds these CPUs."""
    offer = node("2x1x4x2")
    ledger = Ledger.of(held(f"p{number}", text) for number, text in enumerate(pods))
    return candidate(Node(NODE, allocatable={**offer.allocatable, "pods": 110}), offer, ledger)


def kubelets(policy: KubeletPolicy, cpu_policy: str = "static", **memory: int) -> NodeSnapshot:
    """The machine before a kubelet."""
    zones = []
    for numa in (0, 1):
        room = {"cpu": 8000, "memory": memory.get(f"numa{numa}", 64 * GI)}
        zones.append(Zone(numa, room, room, room))
    config = KubeletConfig(topology_policy=policy, cpu_policy=cpu_policy)
    topology = NodeResourceTopology(NODE, CpuOwner.KUBELET, zones=tuple(zones), kubelet=config)
    found = Node(NODE, allocatable={"cpu": 16000, "memory": 128 * GI, "pods": 110})
    return candidate(found, kubelet_view(found, topology, ()), Ledger())


def decided(
    seen: NodeSnapshot,
    asks: PodRequest,
    slices: Iterable[ResourceSlice],
    *claims: Json,
    used: Iterable[str] = (),
    taken: str = "",
    roots: dict[str, int] | None = None,
    holds: PodClaims | None = None,
) -> Placement | Rejection:
    """The placement with devices. ``used`` GPUs and NICs are in use, ``taken`` CPUs are held by other claims."""
    published_slices = list(slices)
    by_pool = {each.pool: [each] for each in published_slices}
    pools: dict[PoolId, list[ResourceSlice]] = dict(by_pool)
    wanted = tuple(parse_resource_claim(claim).to_allocate() for claim in claims)
    pod_claims = replace(holds or PodClaims(), to_allocate=wanted)
    usage = DeviceUsage(exclusive={DeviceId(name.split("-")[0], NODE, name): 1 for name in used})
    ask = with_claims(scheduling_request(asks, Profile()), pod_claims)
    first = place(ask, seen)
    if isinstance(first, Rejection):
        return first
    site = CpuSite(
        machine("2x1x4x2") if not isinstance(seen.offer, Rejection) and seen.offer.node == "n" else None,
        taken=CpuSet.parse(taken) | seen.ledger.cpus,
        strict=policy_of_devices(ask, seen) in HARD,
    )
    devices = ClaimDevices(
        pod_claims,
        {name: device_class(name) for name in ("gpu", "nic", "dra.cpu")},
        NodeDevices(NODE, {}, gather_pools(published_slices, NODE, {}, pools), numa_by_root=roots or {}),
        usage,
        site,
        CpuPolicies(CpuRequest(0, CpuBindPolicy.FULL_PCPUS)),
    )
    return place_devices(ask, seen, first, devices)


def names(placement: Placement | Rejection) -> list[str]:
    """The devices."""
    assert isinstance(placement, Placement), placement
    return [it.device.device for allocation in placement.allocations for it in allocation.results]


def claimed(placement: Placement | Rejection) -> str:
    """The CPUs by claim."""
    assert isinstance(placement, Placement), placement
    return str(CpuSet.of(cpu for allocation in placement.allocations for cpu in cpus_of(allocation)))
