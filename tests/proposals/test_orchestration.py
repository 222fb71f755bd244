"""Fine-grained CPU orchestration: filter and score phases, node labels, and what it says of kubelets, through wire and engine."""

import pytest

from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import shared_pools
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

FULL = {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}
BURSTABLE = {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}
KUBELET_OPTION = {
    "kubelet.koordinator.sh/cpu-manager-policy": {
        "policy": "static",
        "options": {"full-pcpus-only": "true"},
        "reservedCPUs": "0-1",
    }
}


def full_cores(source: str) -> Cluster:
    """A node that gives out full cores only, by its label or by its kubelet's option."""
    labels = FULL if source == "label" else {}
    return cluster(
        node("n", 16, labels=labels), koordlet_nrt("n", annotations=KUBELET_OPTION if source == "option" else {})
    )


@pytest.mark.parametrize("source", ["label", "option"])
class TestFullPcpusOnly:
    """Filter phase: QoS Guaranteed or LSE/LSR, request = limit, whole CPUs, whole cores; else Unschedulable."""

    @pytest.mark.parametrize(
        ("created", "fits"),
        [
            pytest.param(pod("a", guaranteed("2")), True, id="guaranteed"),
            pytest.param(pod("a", guaranteed("2"), qos="LSR"), True, id="lsr"),
            pytest.param(pod("a", guaranteed("2"), qos="LSE"), True, id="lse"),
            pytest.param(pod("a", BURSTABLE, qos="LS"), False, id="ls"),
            pytest.param(pod("a", BURSTABLE), False, id="burstable"),
            pytest.param(
                pod("a", {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}, qos="LSR"), False, id="lsr-bursts"
            ),
            pytest.param(pod("a", guaranteed("1500m")), False, id="fraction"),
            pytest.param(pod("a", guaranteed("3"), qos="LSR"), False, id="half-a-core"),
            pytest.param(pod("a", {"requests": {"memory": "1Gi"}}), True, id="no-cpu-at-all"),
            pytest.param(
                pod("a", guaranteed("2"), qos="LSR", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}),
                False,
                id="spread",
            ),
        ],
    )
    async def test_who_is_taken(self, source: str, created: Json, fits: bool) -> None:
        there = full_cores(source)
        await there.create(created)
        assert bool(there.node_of("a")) is fits


async def test_the_label_none_overrides_the_kubelets_option() -> None:
    labels = {"node.koordinator.sh/cpu-bind-policy": "None"}
    there = cluster(node("n", 16, labels=labels), koordlet_nrt("n", annotations=KUBELET_OPTION))
    await there.create(pod("ls", BURSTABLE, qos="LS"), pod("split", guaranteed("3"), qos="LSR"))
    assert there.node_of("ls")
    assert not there.node_of("split")  # that kubelet would answer SMTAlignmentError


@pytest.mark.parametrize("label", ["None", ""])
async def test_the_label_none_overrides_topology_policies(label: str) -> None:
    """The kubelet pins neither CPUs nor memory here. Otherwise its own strict policy would reject the pod, whatever the label says."""
    labels = {"node.koordinator.sh/numa-topology-alignment-policy": label}
    lenient = {"kubelet.koordinator.sh/cpu-manager-policy": {"policy": "none"}}
    nrt = koordlet_nrt("n", policies=["SingleNUMANodePodLevel"], annotations=lenient)
    nrt["attributes"] = [{"name": "memoryManagerPolicy", "value": "None"}]
    there = cluster(node("n", 16, labels=labels), nrt)
    await there.create(pod("wide", guaranteed("12"), qos="LSR"))
    assert there.node_of("wide")
    strict = cluster(node("n", 16), nrt)
    await strict.create(pod("wide", guaranteed("12"), qos="LSR"))
    assert not strict.node_of("wide")


@pytest.mark.parametrize("word", ["single-numa-node", "pod-level-single-numa-node", "SingleNUMANode"])
async def test_every_spelling_of_a_policy_is_read_on_pods(word: str) -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(pod("fits", guaranteed("4"), numa={"numaTopologyPolicy": word}))
    await there.create(pod("wide", guaranteed("10"), numa={"numaTopologyPolicy": word}))
    assert there.numa("fits") == [0]
    assert not there.node_of("wide")


async def test_reported_pools_are_not_read() -> None:
    nrt = koordlet_nrt("n")
    nrt["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"] = "{malformed"
    there = cluster(node("n", 16), nrt)
    await there.create(pod("a", guaranteed("2"), qos="LSR"))
    assert there.cpus("a") == "0-1"


def kubelets(policy: str = "single-numa-node", **attributes: str) -> Cluster:
    zones = [zone(numa, {"cpu": "8", "memory": "32Gi"}) for numa in (0, 1)]
    return cluster(node("n", 16), kubelet_nrt("n", zones, policy, **attributes))


async def test_guaranteed_pods_avoid_kubelets_with_unknown_policies() -> None:
    there = kubelets("dynamic")
    await there.create(pod("sure", guaranteed("10")), pod("burst", BURSTABLE))
    assert not there.node_of("sure")
    assert "dynamic" in there.why("sure")
    assert there.node_of("burst")


async def test_a_kubelet_aligns_guaranteed_pods_only() -> None:
    there = kubelets()
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    cpu_only = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    await there.create(pod("cpu-only", cpu_only, spec=single), pod("whole", guaranteed("1"), spec=single))
    assert not there.node_of("cpu-only")
    assert there.node_of("whole")


async def test_exclusive_policies_on_nodes_of_kubelets() -> None:
    there = kubelets()
    wish = pod("a", guaranteed("2"), spec={"preferredCPUExclusivePolicy": "PCPULevel"})
    assert "no exclusive policy is honored" in there.note(wish, "n")
    demand = pod("b", BURSTABLE, spec={"requiredCPUBindPolicy": "ConstrainedBurst"})
    await there.create(demand)
    assert not there.node_of("b")


async def test_nodes_without_nrt() -> None:
    there = cluster(node("n", 16))
    await there.create(pod("ls", BURSTABLE, qos="LS"), pod("lsr", guaranteed("2"), qos="LSR"))
    assert there.node_of("ls")
    assert not there.node_of("lsr")


async def test_uncertain_amounts_are_not_written() -> None:
    """If a kubelet may take CPUs from either NUMA node, no amounts are written, instead of twice the request."""
    zones = [zone(numa, {"cpu": "6", "memory": "20Gi"}, cpu="8", memory="32Gi") for numa in (0, 1)]
    there = cluster(node("n", 16), kubelet_nrt("n", zones, "best-effort"))
    await there.create(pod("a", guaranteed("4")))
    amounts = [entry["resources"] for entry in there.status("a").get("numaNodeResources", ())]
    assert sum(int(each.get("cpu", "0")) for each in amounts) <= 4


async def test_a_constrained_burst_refusal_names_what_is_short() -> None:
    """The pool is large enough for the limit; it is the request that has no room left."""
    there = cluster(node("n", 8), koordlet_nrt("n", numa=1))
    await there.create(
        pod("used", {"requests": {"cpu": "6"}, "limits": {"cpu": "7"}}, numa={"numaTopologyPolicy": "SingleNUMANode"})
    )
    burst = {"requests": {"cpu": "3"}, "limits": {"cpu": "6"}}
    await there.create(pod("burst", burst, spec={"requiredCPUBindPolicy": "ConstrainedBurst"}))
    why = there.why("burst")
    assert not there.node_of("burst")
    assert "needs a shared pool" not in why


async def test_score_b_of_two_of_eight_numa_nodes() -> None:
    """``score = (8 - 2) * 100 / 8``: four CPUs over two of eight NUMA nodes, under LeastAllocated."""
    settings = "profiles: [{nodeScoring: CPUOrchestration, scoringStrategy: {type: LeastAllocated}}]\n"
    there = cluster(node("n", 16), koordlet_nrt("n", numa=8, cores=1), settings=settings)
    wide = pod("a", guaranteed("4", "8Gi"), qos="LSR")
    placement = there.answer(wide, "n").placement
    assert placement.mask is not None
    assert placement.mask.bit_count() == 2
    # A: each of the two NUMA nodes is left with 0 of 2 CPUs and 28 of 32 GiB (43); B: 75; half of both together.
    assert there.score(wide, "n") == (43 + 75) // 2


@pytest.mark.parametrize(
    ("setting", "kept", "cpus"),
    [
        pytest.param("", "0-1", "", id="by-default"),
        pytest.param("kubeletReservedCPUs: Kept\n", "0-1", "", id="kept"),
        pytest.param("kubeletReservedCPUs: Allocatable\n", "", "0-7", id="allocatable"),
    ],
)
async def test_kubelet_reserved_cpus_are_allocatable_by_a_setting(setting: str, kept: str, cpus: str) -> None:
    """The kubelet keeps 0-1 of 16 CPUs, so 14 are allocatable: a pod of 8 fits NUMA node 0 only with those two."""
    reserved = {"kubelet.koordinator.sh/cpu-manager-policy": {"policy": "none", "reservedCPUs": "0-1"}}
    there = cluster(node("n", 14), koordlet_nrt("n", annotations=reserved), settings=setting)
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    await there.create(pod("other", guaranteed("8"), qos="LSR", spec=single))
    await there.create(pod("a", guaranteed("6"), qos="LSR", spec=single))
    assert there.cpus("other") == (cpus or "8-15")
    assert there.cpus("a") == ("8-13" if cpus else "2-7")
    offer = there.world.engine.cache.nodes["n"].inventory
    assert isinstance(offer, Inventory)
    assert str(offer.reserved) == kept
    assert str(shared_pools(offer, Ledger())[0].cpus) == "0-7"  # the shared pool has them in either case


async def test_allocatable_reserved_cpus_do_not_enlarge_the_node() -> None:
    """16 CPUs, 14 allocatable: two pods of 8 do not fit although each NUMA node has eight."""
    reserved = {"kubelet.koordinator.sh/cpu-manager-policy": {"policy": "none", "reservedCPUs": "0-1"}}
    there = cluster(
        node("n", 14), koordlet_nrt("n", annotations=reserved), settings="kubeletReservedCPUs: Allocatable\n"
    )
    await there.create(*(pod(name, guaranteed("8"), qos="LSR") for name in "ab"))
    assert (there.node_of("a"), there.node_of("b")) == ("n", "")
