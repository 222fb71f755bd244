"""Pods for CPUs of their own on a node whose CPUs a driver hands out: their claims give the CPUs, and no cpuset is chosen beside them."""

from koord_numa.core.allocation.demand import NO_CPUS_WITHOUT_CLAIM
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import DeviceId, PodClaims
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import NodeBindPolicy, NumaPolicy, QosClass
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import pod
from tests.core.claims.worlds import NODE, claim_object
from tests.core.scheduling.claim_nodes import GPU, claimed, cpu_claim, cpu_device, decided, gpus, ours
from tests.tables import each_row

SINGLE = NumaPolicy.SINGLE_NUMA_NODE


def by_claim(**fields: object) -> NodeSnapshot:
    """The machine with a driver for its CPUs."""
    seen = ours()
    assert isinstance(seen.offer, Inventory)
    return replace(seen, offer=replace(seen.offer, cpus_by_claim=True, **fields))  # type: ignore[arg-type]  # named in each case


OWN = {
    "LSR": (pod(4000, qos=QosClass.LSR), {}),
    "LSE": (pod(4000, qos=QosClass.LSE), {}),
    "exclusive by its policy": (pod(4000, numa=SINGLE), {}),
    "bound by the node": (pod(4000), {"bind": NodeBindPolicy.FULL_PCPUS_ONLY}),
}


@each_row(("asks", "fields"), OWN.values(), ids=OWN)
def test_claims_give_the_cpus_of_pods_that_have_their_own(asks: PodRequest, fields: dict[str, object]) -> None:
    found = decided(by_claim(**fields), asks, [gpus(1), cpu_device()], cpu_claim(4), claim_object(GPU), taken="0-1")
    assert isinstance(found, Placement), found
    assert (found.cpus, len(CpuSet.parse(claimed(found)))) == (EMPTY, 4)


@each_row(("asks", "fields"), OWN.values(), ids=OWN)
def test_claims_without_cpus_do_not_open_the_node(asks: PodRequest, fields: dict[str, object]) -> None:
    assert decided(by_claim(**fields), asks, [gpus(1), cpu_device()], claim_object(GPU)) == NO_CPUS_WITHOUT_CLAIM
    assert decided(by_claim(**fields), asks, [gpus(1), cpu_device()]) == NO_CPUS_WITHOUT_CLAIM


def test_cpus_that_a_claim_holds_already_count() -> None:
    holds = PodClaims(devices=(DeviceId("dra.cpu", NODE, "cpudevmachine"),), cpus=CpuSet.parse("8-11"))
    found = decided(by_claim(), pod(4000, numa=SINGLE), [cpu_device()], holds=holds)
    assert isinstance(found, Placement), found
    assert (found.cpus, found.mask) == (EMPTY, 0b10)


def test_the_configured_numa_policy_holds_for_them_too() -> None:
    """BestEffort by default: the GPU is on NUMA node 1, and so are memory and CPUs."""
    asks = pod(4000, 1 << 30, qos=QosClass.LSR)
    found = decided(by_claim(), asks, [gpus(1), cpu_device()], cpu_claim(4), claim_object(GPU))
    assert isinstance(found, Placement), found
    assert (found.mask, claimed(found)) == (0b10, "8-11")


def test_a_kubelet_that_pins_the_pod_too_is_in_the_way() -> None:
    found = decided(by_claim(static_kubelet=True), pod(4000, 1 << 30), [cpu_device()], cpu_claim(4))
    assert isinstance(found, Rejection)
    assert str(found.detail) == "and whose kubelet would pin the pod to other ones"


def test_pods_that_share_cpus_need_no_claim_there() -> None:
    assert isinstance(decided(by_claim(), pod(1500), [gpus(1)], claim_object(GPU)), Placement)
