"""Devices of claims in the merge of NUMA nodes: GPUs and NICs by claim, CPUs by our cpuset or by claim, memory and huge pages by zones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import DeviceId, PodClaims
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import GI, pod
from tests.core.claims.worlds import NODE, Json, claim_object, device, published, request
from tests.core.scheduling.claim_nodes import (
    GPU,
    LSR,
    NUMA,
    PAIR,
    ROOT,
    claimed,
    cpu_claim,
    cpu_device,
    decided,
    gpus,
    names,
    nics,
    ours,
)
from tests.tables import each_row


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
def test_hard_policies_need_cpus_and_devices_together(policy: NumaPolicy) -> None:
    refused = decided(ours("8-14"), pod(4000, qos=LSR, numa=policy), [gpus(0, 1)], claim_object(GPU), used=["gpu-0"])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.CLAIM_ALIGNMENT


def test_best_effort_keeps_the_pod_together_without_devices() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.BEST_EFFORT)
    found = decided(ours("8-14"), asks, [gpus(0, 1)], claim_object(GPU), used=["gpu-0"])
    assert isinstance(found, Placement)
    assert names(found) == ["gpu-1"]
    assert (found.mask, found.claim_points) == (0b01, 75)


def test_restricted_counts_the_devices_of_an_empty_node() -> None:
    two = claim_object(request("gpu", "gpu", count=2))
    asks = pod(4000, qos=LSR, numa=NumaPolicy.RESTRICTED)
    # One GPU on each NUMA node: two NUMA nodes are what the pod needs; with both on one it has to wait for that one.
    assert getattr(decided(ours(), asks, [gpus(0, 1)], two), "mask", None) == 0b11
    refused = decided(ours(), asks, [gpus(0, 0, 1, 1)], two, used=["gpu-0", "gpu-2"])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.CLAIM_ALIGNMENT


def test_devices_of_a_single_numa_pod_are_on_one_numa_node() -> None:
    found = decided(ours(), pod(numa=NumaPolicy.SINGLE_NUMA_NODE), [gpus(0, 1), nics(1)], PAIR)
    assert names(found) == ["gpu-1", "nic-0"]


def test_devices_without_location_fit_or_use_their_pcie_root() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    rooted = published(
        "gpu", [device("gpu-0", attributes={ROOT: "pci0000:00"}), device("gpu-1", attributes={ROOT: "pci0000:80"})]
    )
    assert getattr(decided(ours(), asks, [gpus(None)], claim_object(GPU)), "mask", None) == 0b01
    unknown = decided(ours("0-7"), asks, [rooted], claim_object(GPU))
    assert names(unknown) == ["gpu-0"]
    told = decided(ours("0-7"), asks, [rooted], claim_object(GPU), roots={"pci0000:00": 0, "pci0000:80": 1})
    assert names(told) == ["gpu-1"]


def test_devices_near_several_numa_nodes_align_with_each() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    near = published("gpu", [device("gpu-0", attributes={NUMA: [1, 0]})])
    first, second = (decided(ours(busy), asks, [near], claim_object(GPU)) for busy in ("0-7", "8-15"))
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert [(it.mask, it.claim_points) for it in (first, second)] == [(0b10, 100), (0b01, 100)]
    # One NUMA node is near both devices.
    nic = published("nic", [device("nic-0", attributes={NUMA: [0]})])
    both = decided(ours(), asks, [near, nic], PAIR)
    assert isinstance(both, Placement)
    assert both.mask == 0b01
    assert isinstance(decided(ours("0-7"), asks, [near, nic], PAIR), Rejection)


def test_the_pcie_roots_of_a_device_are_all_near() -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    rooted = published("gpu", [device("gpu-0", attributes={ROOT: ["pci0000:00", "pci0000:80", "pci0000:ff"]})])
    roots = {"pci0000:00": 0, "pci0000:80": 1}
    for busy, mask in (("0-7", 0b10), ("8-15", 0b01)):
        assert getattr(decided(ours(busy), asks, [rooted], claim_object(GPU), roots=roots), "mask", None) == mask


@each_row("value", [-1, [-1], [4096], {"string": "0"}, {"later": [0]}])
def test_an_unknown_numa_node_is_not_numa_node_0(value: object) -> None:
    asks = pod(4000, qos=LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
    unknown = published("gpu", [device("gpu-0", attributes={NUMA: value})])
    found = decided(ours("0-7"), asks, [unknown], claim_object(GPU))
    assert isinstance(found, Placement)
    assert found.mask == 0b10


def _groups(grouping: str) -> list[Json]:
    """CPUs as dra-driver-cpu publishes them in each grouping, without cpusets: the driver chooses."""
    socket, numas = {"dra.cpu/socketID": 0}, [{NUMA: numa, "dra.cpu/socketID": 0} for numa in (0, 1)]
    if grouping == "individual":
        return [device(f"cpudev{cpu:03}", attributes={**numas[cpu // 8], "dra.cpu/cpuID": cpu}) for cpu in range(16)]
    if grouping == "numanode":
        return [_group(f"cpudevnuma00{numa}", 8, numas[numa]) for numa in (0, 1)]
    return [_group("cpudevsocket000", 16, socket)]


def _group(name: str, cpus: int, attributes: Json) -> Json:
    return device(name, attributes=attributes, capacity={"dra.cpu/cpu": str(cpus)}, allowMultipleAllocations=True)


@each_row("qos", [LSR, QosClass.NONE])
@each_row("policy", [NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE])
@each_row("grouping", ["individual", "numanode", "socket"])
def test_cpus_by_claim_in_every_grouping(grouping: str, policy: NumaPolicy, qos: QosClass) -> None:
    seen = ours()
    assert isinstance(seen.offer, Inventory)
    seen = replace(seen, offer=replace(seen.offer, cpus_by_claim=True))
    claim = cpu_claim(4)
    if grouping == "individual":
        claim = claim_object(request("cpu", "dra.cpu", count=4), name="cpus")
    asks = pod(4000, qos=qos, numa=policy)
    found = decided(seen, asks, [gpus(1), published("dra.cpu", _groups(grouping))], claim, claim_object(GPU))
    if grouping == "socket" and policy is NumaPolicy.SINGLE_NUMA_NODE:
        # The driver may choose CPUs of either NUMA node.
        assert isinstance(found, Rejection)
        assert found.reason is Reason.CLAIM_ALIGNMENT
        return
    assert isinstance(found, Placement)
    assert found.cpus == EMPTY
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        cpus = {"individual": [f"cpudev{cpu:03}" for cpu in range(8, 12)], "numanode": ["cpudevnuma001"]}[grouping]
        assert (found.mask, names(found)) == (0b10, [*cpus, "gpu-0"])


@each_row("name", [NUMA, "dra.net/numaNode", "dra.cpu/numaNodeID", "gpu/numaNode", "numa", "numaNodeID"])
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


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 15)),
    st.sampled_from([NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE]),
    st.integers(1, 6),
)
def test_single_numa_pods_fit_exactly_if_one_numa_node_fits(
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
