"""Devices of claims on nodes whose kubelet chooses the NUMA nodes."""

from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaPolicy, QosClass
from tests.core.allocation.nodes import GI, pod
from tests.core.claims.worlds import Json, claim_object, device, published
from tests.core.scheduling.claim_nodes import GPU, NUMA, claimed, cpu_claim, cpu_device, decided, gpus, kubelets, names


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

    def test_without_alignment_only_cpus_by_claim_meet_a_policy(self) -> None:
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

    def test_claims_give_exclusive_cpus_if_the_kubelet_pins_none(self) -> None:
        """dra-driver-cpu runs beside the CPU manager policy none."""
        asks = pod(4000, 8 * GI, limit=4000, qos=QosClass.LSR)
        where = kubelets(KubeletPolicy.NONE, "none")
        both = published("dra.cpu", [_numa_cpus(0, "0-7"), _numa_cpus(1, "8-15")])
        found = decided(where, asks, [gpus(0, 1), both], cpu_claim(4), claim_object(GPU))
        assert (names(found), claimed(found)) == (["cpudevnuma000", "gpu-0"], "0-3")
        refused = decided(where, asks, [gpus(0, 1), both], claim_object(GPU))
        assert isinstance(refused, Rejection)
        assert refused.message == "node(s) had a kubelet that pins no CPUs for the pod"


def _numa_cpus(numa: int, ids: str) -> Json:
    attributes = {"dra.cpu/cpuIDs": ids, "dra.cpu/smtLayout": "0-15>1", NUMA: numa}
    return device(
        f"cpudevnuma00{numa}", attributes=attributes, capacity={"dra.cpu/cpu": "8"}, allowMultipleAllocations=True
    )
