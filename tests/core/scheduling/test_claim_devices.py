"""
Devices of claims in the merge of NUMA nodes: GPUs and NICs by claim, CPUs by our cpuset or by claim, memory and huge pages by zones.

The machine has two NUMA nodes of eight CPUs: 0-7 and 8-15, two neighbours a core.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.claims.cpus import CpuSite, cpus_of
from koord_numa.core.claims.device_hints import ClaimDevices
from koord_numa.core.claims.objects.pools import gather_pools
from koord_numa.core.claims.pod_claims import PodClaims
from koord_numa.core.claims.search.inventory import DeviceId, PoolId, ResourceSlice
from koord_numa.core.claims.search.node_devices import NodeDevices
from koord_numa.core.claims.search.usage import DeviceUsage
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuOwner, KubeletPolicy, NumaPolicy, QosClass
from koord_numa.core.scheduling.claim_devices import HARD, place_devices, policy_of_devices
from koord_numa.core.scheduling.placement import place
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot, candidate
from koord_numa.wire.claims.resource_claims import parse_resource_claim
from tests.core.allocation.nodes import GI, held, node, pod
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
    ask = replace(scheduling_request(asks, Profile()), claims=pod_claims)
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


@pytest.mark.parametrize("policy", [NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT])
def test_cpus_go_where_the_devices_are_free(policy: NumaPolicy) -> None:
    asks = pod(4000, 8 * GI, qos=LSR, numa=policy)
    # Alone the pod would get the emptier NUMA node 0; its GPU and NIC are free on NUMA node 1 only.
    alone = decided(ours("8-9"), asks, [])
    found = decided(ours("8-9"), asks, [gpus(0, 1), nics(0, 1)], PAIR, used=["gpu-0"])
    assert isinstance(alone, Placement)
    assert alone.mask == 0b01
    assert isinstance(found, Placement)
    assert (found.mask, found.claim_points) == (0b10, 100)
    assert names(found) == ["gpu-1", "nic-1"]
    assert found.cpus <= CpuSet.parse("8-15")


@pytest.mark.parametrize("policy", [NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED])
def test_hard_policies_refuse_a_node_where_cpus_and_devices_do_not_meet(policy: NumaPolicy) -> None:
    refused = decided(ours("8-14"), pod(4000, qos=LSR, numa=policy), [gpus(0, 1)], claim_object(GPU), used=["gpu-0"])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.CLAIM_ALIGNMENT


def test_best_effort_keeps_the_pod_together_where_its_devices_are_elsewhere() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.BEST_EFFORT)
    found = decided(ours("8-14"), asks, [gpus(0, 1)], claim_object(GPU), used=["gpu-0"])
    assert isinstance(found, Placement)
    assert names(found) == ["gpu-1"]
    assert (found.mask, found.claim_points) == (0b01, 75)


def test_restricted_counts_devices_among_what_an_empty_node_would_need() -> None:
    two = claim_object(request("gpu", "gpu", count=2))
    asks = pod(4000, qos=LSR, numa=NumaPolicy.RESTRICTED)
    # One GPU on each NUMA node: two NUMA nodes are what the pod needs; with both on one it has to wait for that one.
    assert getattr(decided(ours(), asks, [gpus(0, 1)], two), "mask", None) == 0b11
    refused = decided(ours(), asks, [gpus(0, 0, 1, 1)], two, used=["gpu-0", "gpu-2"])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.CLAIM_ALIGNMENT


def test_the_devices_of_a_single_numa_pod_without_amounts_are_on_one_numa_node() -> None:
    found = decided(ours(), pod(numa=NumaPolicy.SINGLE_NUMA_NODE), [gpus(0, 1), nics(1)], PAIR)
    assert names(found) == ["gpu-1", "nic-0"]


def test_devices_without_a_place_fit_everywhere_and_pcie_roots_tell_it() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    rooted = published(
        "gpu", [device("gpu-0", attributes={ROOT: "pci0000:00"}), device("gpu-1", attributes={ROOT: "pci0000:80"})]
    )
    assert getattr(decided(ours(), asks, [gpus(None)], claim_object(GPU)), "mask", None) == 0b01
    unknown = decided(ours("0-7"), asks, [rooted], claim_object(GPU))
    assert names(unknown) == ["gpu-0"]
    told = decided(ours("0-7"), asks, [rooted], claim_object(GPU), roots={"pci0000:00": 0, "pci0000:80": 1})
    assert names(told) == ["gpu-1"]


@pytest.mark.parametrize("name", [NUMA, "dra.net/numaNode", "dra.cpu/numaNodeID", "gpu/numaNode", "numa", "numaNodeID"])
def test_every_spelling_of_the_numa_node(name: str) -> None:
    spelled = published("gpu", [device("gpu-0", attributes={name: 0}), device("gpu-1", attributes={name: 1})])
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    assert names(decided(ours("0-7"), asks, [spelled], claim_object(GPU))) == ["gpu-1"]


def test_cpus_by_claim_join_the_merge() -> None:
    asks = pod(4000, 8 * GI, numa=NumaPolicy.SINGLE_NUMA_NODE)
    found = decided(ours(), asks, [gpus(0, 1), cpu_device()], cpu_claim(4), claim_object(GPU), taken="0-3")
    assert isinstance(found, Placement)
    assert (found.mask, claimed(found)) == (0b01, "4-7")
    moved = decided(ours(), asks, [gpus(0, 1), cpu_device()], cpu_claim(4), claim_object(GPU), taken="0-5")
    assert isinstance(moved, Placement)
    assert (moved.mask, claimed(moved), names(moved)) == (0b10, "8-11", ["cpudevmachine", "gpu-1"])
    refused = decided(ours(), asks, [gpus(0, 1), cpu_device()], cpu_claim(4), claim_object(GPU), taken="0-5,8-13")
    assert isinstance(refused, Rejection)


def test_cpus_of_pods_are_not_claimed_again() -> None:
    found = decided(ours("0-7"), pod(2000), [cpu_device()], cpu_claim(4))
    assert claimed(found) == "8-11"


def test_what_a_claim_holds_already_draws_the_pod_to_it() -> None:
    holds = PodClaims(devices=(DeviceId("gpu", NODE, "gpu-1"),))
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    found = decided(ours(), asks, [gpus(0, 1), nics(0, 1)], claim_object(request("nic", "nic")), holds=holds)
    assert isinstance(found, Placement)
    assert (found.mask, names(found)) == (0b10, ["nic-1"])
    refused = decided(ours("8-14"), asks, [gpus(0, 1)], holds=holds)
    assert isinstance(refused, Rejection)
    assert refused.detail == "claims that are allocated already hold devices on NUMA 1"


def test_all_devices_are_asked_for_where_they_are() -> None:
    everything = claim_object({"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}})
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    assert getattr(decided(ours(), asks, [gpus(1, 1)], everything), "mask", None) == 0b10
    assert isinstance(decided(ours(), asks, [gpus(0, 1)], everything), Rejection)


class TestKubelets:
    """Their topology manager knows nothing of claims: it is said, and nodes where both meet are better."""

    def test_devices_follow_where_the_kubelet_puts_the_pod(self) -> None:
        asks = pod(4000, 8 * GI, limit=4000)
        found = decided(kubelets(KubeletPolicy.SINGLE_NUMA_NODE), asks, [gpus(1, 0)], claim_object(GPU))
        assert isinstance(found, Placement)
        assert (names(found), found.claim_points) == (["gpu-1"], 100)
        assert (
            "devices of claims are on NUMA 0, where its kubelet, which does not align devices of claims" in found.note
        )

    def test_a_node_where_they_are_apart_is_worse_and_says_so(self) -> None:
        asks = pod(4000, 8 * GI, limit=4000)
        found = decided(kubelets(KubeletPolicy.SINGLE_NUMA_NODE), asks, [gpus(1)], claim_object(GPU))
        assert isinstance(found, Placement)
        assert found.claim_points == 75
        assert "devices of claims are on NUMA 1, apart from NUMA 0, where its kubelet is expected" in found.note

    def test_a_policy_of_the_pod_refuses_them_apart(self) -> None:
        asks = pod(4000, 8 * GI, limit=4000, numa=NumaPolicy.SINGLE_NUMA_NODE)
        refused = decided(kubelets(KubeletPolicy.SINGLE_NUMA_NODE), asks, [gpus(1)], claim_object(GPU))
        assert isinstance(refused, Rejection)
        assert refused.reason is Reason.CLAIM_ALIGNMENT

    def test_where_it_aligns_nothing_only_cpus_by_claim_meet_a_policy(self) -> None:
        asks = pod(4000, 8 * GI, numa=NumaPolicy.SINGLE_NUMA_NODE)
        where = kubelets(KubeletPolicy.NONE, "none", numa0=4 * GI)
        refused = decided(where, asks, [gpus(0, 1)], claim_object(GPU))
        assert isinstance(refused, Rejection)
        assert refused.reason is Reason.NUMA_POLICY
        both = published("dra.cpu", [_numa_cpus(0, "0-7"), _numa_cpus(1, "8-15")])
        found = decided(where, asks, [gpus(0, 1), both], cpu_claim(4), claim_object(GPU))
        # NUMA node 0 has too little memory.
        assert (names(found), claimed(found)) == (["cpudevnuma001", "gpu-1"], "8-11")
        unknown = decided(where, asks, [gpus(0, 1), cpu_device()], cpu_claim(4), claim_object(GPU))
        assert isinstance(unknown, Rejection)
        assert "does not say on which NUMA nodes its CPUs are" in unknown.detail


def _numa_cpus(numa: int, ids: str) -> Json:
    attributes = {"dra.cpu/cpuIDs": ids, "dra.cpu/smtLayout": "0-15>1", NUMA: numa}
    return device(
        f"cpudevnuma00{numa}", attributes=attributes, capacity={"dra.cpu/cpu": "8"}, allowMultipleAllocations=True
    )


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 15)),
    st.sampled_from([NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE]),
    st.integers(1, 6),
)
def test_single_numa_pods_are_placed_exactly_when_one_numa_node_has_everything(
    places: list[int], used: set[int], busy: set[int], policy: NumaPolicy, size: int
) -> None:
    asks = pod(1000 * size, qos=LSR, numa=policy)
    there = ours(*map(str, sorted(busy)))
    names_used = [f"gpu-{number}" for number in used if number < len(places)]
    found = decided(there, asks, [gpus(*places)], claim_object(GPU), used=names_used)
    sides = [CpuSet.parse("0-7"), CpuSet.parse("8-15")]
    free_gpus = [numa for number, numa in enumerate(places) if number not in used]
    both = [numa for numa in (0, 1) if numa in free_gpus and len(sides[numa] - CpuSet.of(busy)) >= size]
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        assert isinstance(found, Placement) == bool(both)
    if isinstance(found, Placement) and both and policy is not NumaPolicy.NONE:
        (name,) = names(found)
        numa = places[int(name.removeprefix("gpu-"))]
        assert numa in both
        assert found.cpus <= sides[numa]
        assert found.claim_points == 100
    if both and policy is not NumaPolicy.NONE:
        assert isinstance(found, Placement)
