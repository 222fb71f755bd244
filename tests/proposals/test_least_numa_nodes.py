"""KEP-454, LeastNUMANodes: its worked example and its sentences, through wire and engine."""

import pytest

from tests.proposals.cluster import Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

ONLY = "profiles: [{scoringStrategy: {type: LeastNUMANodes}, scoreWeights: {devices: 0}}]\n"
NEAR = {0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}


def kubelets(name: str, *free: str, policy: str = "best-effort", **attributes: str) -> list[Json]:
    """A node with these free CPUs on its NUMA nodes of 8 CPUs. Zones list no memory, as in the proposal's example."""
    zones = [zone(numa, {"cpu": cpu}, NEAR[numa], cpu="8") for numa, cpu in enumerate(free)]
    return [node(name, 16), kubelet_nrt(name, zones, policy, memoryManagerPolicy="None", **attributes)]


async def test_the_worked_example() -> None:
    """Two containers of three CPUs: 2 + 4 free needs two NUMA nodes (82), 8 + 8 one (94)."""
    there = cluster(*kubelets("node-1", "2", "4"), *kubelets("node-2", "8", "8"), settings=ONLY)
    two = pod("a", guaranteed("3"), guaranteed("3"))
    assert there.score(two, "node-1") == 82
    assert there.score(two, "node-2") == 94
    await there.create(two)
    assert there.node_of("a") == "node-2"


async def test_example_containers_are_burstable_and_not_aligned() -> None:
    """CPU requests alone make a pod Burstable: 100 everywhere, as in the plugin's code; see docs/deviations.md."""
    there = cluster(*kubelets("node-1", "2", "4"), *kubelets("node-2", "8", "8"), settings=ONLY)
    printed = pod("a", {"requests": {"cpu": "3"}}, {"requests": {"cpu": "3"}})
    assert [there.score(printed, name) for name in ("node-1", "node-2")] == [100, 100]


async def test_only_resources_without_numa_nodes_need_none() -> None:
    there = cluster(*kubelets("n", "8", "8"), settings=ONLY)
    assert there.score(pod("a", {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}), "n") == 100


@pytest.mark.parametrize("option", ["true", "false", None])
async def test_distance_counts_unless_prefer_closest_is_off(option: str | None) -> None:
    attributes = {} if option is None else {"topologyManagerOptionPreferClosestNumaNodes": option}
    there = cluster(*kubelets("n", "2", "4", **attributes), settings=ONLY)
    assert there.score(pod("a", guaranteed("6")), "n") == (76 if option == "false" else 82)


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted"])
async def test_nodes_of_all_policies_are_scored(policy: str) -> None:
    there = cluster(*kubelets("n", "8", "8", policy=policy), settings=ONLY)
    assert there.score(pod("a", guaranteed("3")), "n") == 94


@pytest.mark.parametrize(("scope", "score"), [("container", 94), ("pod", 82)])
async def test_containers_one_after_the_other_or_the_pod_as_a_whole(scope: str, score: int) -> None:
    """3 + 3 CPUs of 4 + 4: each container needs one NUMA node, the sum of them two."""
    there = cluster(*kubelets("n", "4", "4", scope=scope), settings=ONLY)
    assert there.score(pod("a", guaranteed("3"), guaranteed("3")), "n") == score


async def test_the_strategy_alone_selects_it_on_scheduler_owned_nodes() -> None:
    """The node that needs one NUMA node beats the one that needs two, although its name comes later."""
    there = cluster(
        node("a-two", 16),
        koordlet_nrt("a-two", cores=2, numa=4),
        node("b-one", 16),
        koordlet_nrt("b-one"),
        settings=ONLY,
    )
    wide = pod("wide", guaranteed("6"), qos="LSR")
    assert there.score(wide, "a-two") < there.score(wide, "b-one") == 88 + (100 // 8) // 2
    await there.create(wide)
    assert there.node_of("wide") == "b-one"


async def test_distance_counts_on_scheduler_owned_nodes() -> None:
    """Two NUMA nodes are left on either node: on one they are as close as any two, on the other they are not."""
    ids = range(3)
    near = {(one, other): 10 if one == other else 12 for one in ids for other in ids}
    far = near | {(1, 2): 40, (2, 1): 40}
    there = cluster(
        *(node(name, 24) for name in ("a-far", "b-near")),
        koordlet_nrt("a-far", numa=3, costs=far),
        koordlet_nrt("b-near", numa=3, costs=near),
        settings=ONLY,
    )
    for name in ("a-far", "b-near"):
        await there.create(pod(f"full-{name}", guaranteed("8"), qos="LSR", nodeSelector={"name": name}))
        assert there.numa(f"full-{name}") == [0]
    wide = pod("wide", guaranteed("12"), qos="LSR")
    assert (there.score(wide, "a-far"), there.score(wide, "b-near")) == (76, 82)
    await there.create(wide)
    assert there.node_of("wide") == "b-near"


async def test_guaranteed_pool_pods_use_as_few_numa_nodes_as_hold_them() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"), settings=ONLY)
    assert there.score(pod("small", guaranteed("3")), "n") == 94
    assert there.score(pod("wide", guaranteed("12")), "n") == 82
    assert there.score(pod("burst", {"requests": {"cpu": "3"}}), "n") == 100


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
async def test_zones_in_any_order_are_the_same_numa_nodes(order: tuple[int, ...]) -> None:
    """4, 2 and 8 CPUs free: the first container of 4 empties NUMA node 0, the second of 10 needs the two others."""
    free = {0: "4", 1: "2", 2: "8"}
    zones = [
        zone(numa, {"cpu": free[numa]}, {other: 10 if other == numa else 20 for other in free}, cpu="8")
        for numa in order
    ]
    there = cluster(node("n", 24), kubelet_nrt("n", zones, "best-effort", memoryManagerPolicy="None"), settings=ONLY)
    assert there.score(pod("a", guaranteed("4"), guaranteed("10")), "n") == 82
