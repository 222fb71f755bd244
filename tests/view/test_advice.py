"""Changes that make a waiting pod fit: kubelet settings, and no proposals for nodes that the pod excludes."""

import pytest

from koord_numa.core.objects.verdicts import Rejection
from koord_numa.view.advice import advise
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone


async def advice(there: Cluster, name: str) -> list[str]:
    waiting = there.world.server.pods[f"uid-{name}"]
    run = there.world.engine.dry_run(waiting)
    assert run is not None
    refused = {name: answer for name, answer in run.items() if isinstance(answer, Rejection)}
    assert len(refused) == len(run)
    return [remedy.text for remedy in await advise(there.world.engine, waiting, refused)]


def kubelets(policy: str, scope: str = "container") -> Cluster:
    zones = [zone(numa, {"cpu": "8", "gpu.example.com/gpu": "4"}) for numa in range(2)]
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", "gpu.example.com/gpu": "8"}
    options = {"memoryManagerPolicy": "None", "cpuManagerPolicyOptions": "full-pcpus-only=false"}
    nrt = kubelet_nrt("k", zones, policy, scope, **options)
    return cluster(node("k", 16) | {"status": {"allocatable": amounts}}, nrt)


def with_gpus(cpu: str, gpus: str) -> Json:
    return dict(guaranteed(cpu, **{"gpu.example.com/gpu": gpus}))


async def test_a_pod_wider_than_a_numa_node_is_told_the_laxer_policy() -> None:
    there = kubelets("single-numa-node")
    await there.create(pod("wide", with_gpus("12", "8")))
    assert not there.node_of("wide")
    told = (
        "if the kubelet of k had topologyManagerPolicy restricted instead of single-numa-node, it fits on k, NUMA 0,1"
    )
    assert told in await advice(there, "wide")


async def test_two_containers_are_told_the_scope_that_keeps_them_apart() -> None:
    there = kubelets("single-numa-node", "pod")
    await there.create(pod("two", with_gpus("6", "3"), with_gpus("6", "3")))
    assert not there.node_of("two")
    told = [text for text in await advice(there, "two") if "topologyManagerScope container instead of pod" in text]
    assert len(told) == 1


async def test_a_pod_wider_than_a_numa_node_gets_a_laxer_proposal() -> None:
    labels = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}
    there = cluster(node("k", 16, labels=labels), koordlet_nrt("k"))
    await there.create(pod("wide", guaranteed("12"), qos="LSR"))
    assert "if k had the NUMA policy Restricted instead of SingleNUMANode, it fits on k, NUMA 0,1" in await advice(
        there, "wide"
    )


async def test_fewer_devices_are_advised_where_they_fit() -> None:
    there = kubelets("single-numa-node")
    await there.create(pod("wide", with_gpus("4", "6")))
    assert "container c0 with 4 gpu.example.com/gpu instead of 6 fits on k, NUMA 0" in await advice(there, "wide")


@pytest.mark.parametrize(("qos", "helps"), [("LSR", False), ("LS", True)])
async def test_permissive_settings_are_proposed_to_pool_pods_only(qos: str, helps: bool) -> None:
    there = cluster(node("n", 16))
    await there.create(pod("a", guaranteed("4"), qos=qos, numa={"numaTopologyPolicy": "SingleNUMANode"}))
    told = await advice(there, "a")
    assert any(text.startswith("publish a NodeResourceTopology for n") for text in told)
    assert any("Permissive" in text for text in told) == helps


async def test_no_settings_are_advised_where_none_helps() -> None:
    there = kubelets("single-numa-node")
    await there.create(pod("huge", with_gpus("20", "1")))
    assert [text for text in await advice(there, "huge") if "kubelet" in text] == []


@pytest.mark.parametrize(
    "excluded",
    [
        pytest.param({"labels": {"node.koordinator.sh/cpu-bind-policy": "Foo"}}, id="malformed"),
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, id="tainted"),
        pytest.param({"nrt": "broken"}, id="broken-topology"),
        pytest.param({}, id="without-topology"),
    ],
)
async def test_nothing_is_advised_for_nodes_that_the_selector_excludes(excluded: Json) -> None:
    other = node("other", 64, labels=excluded.get("labels"))
    other["spec"] = excluded.get("spec", {})
    there = cluster(node("mine", 4, labels={"pool": "a"}), other)
    if excluded.get("nrt"):
        there.nrt({"metadata": {"name": "other"}, "kind": "NodeResourceTopology", "zones": "broken"})
    waits = pod("waits", guaranteed("8"), qos="LSR", nodeSelector={"pool": "a"})
    await there.create(waits)
    assert [text for text in await advice(there, "waits") if "other" in text] == []


async def test_a_cordoned_node_that_the_pod_may_use_is_advised() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cordoned = node("mine", 16) | {"spec": {"unschedulable": True, "taints": [taint]}}
    there = cluster(cordoned)
    await there.create(pod("waits", guaranteed("8")))
    assert "kubectl uncordon mine" in await advice(there, "waits")
