"""CPU exclusive policies of the fine-grained CPU orchestration proposal: within a NUMA node, between NUMA nodes, between nodes."""

from tests.proposals.cluster import cluster, guaranteed, koordlet_nrt, node, pod

SPREAD = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
NUMA_LEVEL = {"preferredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "NUMANodeLevel"}


async def test_the_example_of_resource_status() -> None:
    """SpreadByPCPUs with PCPULevel: four CPUs of four different cores."""
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(pod("test-pod", guaranteed("4"), qos="LSR", spec=SPREAD))
    assert there.status("test-pod")["cpuset"] == "0,2,4,6"


async def test_pcpu_level_prefers_another_numa_node_to_shared_cores() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(*(pod(f"p{i}", guaranteed("4"), qos="LSR", spec=SPREAD) for i in range(2)))
    assert [there.numa(f"p{i}") for i in range(2)] == [[0], [1]]


async def test_pcpu_level_takes_another_node_before_it_shares_cores() -> None:
    there = cluster(*(obj for name in "ab" for obj in (node(name, 16), koordlet_nrt(name))))
    await there.create(*(pod(f"p{i}", guaranteed("4"), qos="LSR", spec=SPREAD) for i in range(5)))
    assert [there.node_of(f"p{i}") for i in range(4)] == ["a", "a", "b", "b"]
    assert there.node_of("p4")  # a wish, not a demand


async def test_numa_node_level_takes_the_other_numa_node() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(*(pod(f"p{i}", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL) for i in range(2)))
    assert [there.numa(f"p{i}") for i in range(2)] == [[0], [1]]


async def test_numa_node_level_prefers_another_node_to_a_downgrade() -> None:
    there = cluster(*(obj for name in "ab" for obj in (node(name, 16), koordlet_nrt(name))))
    await there.create(*(pod(f"p{i}", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL) for i in range(4)))
    assert {(there.node_of(f"p{i}"), *there.numa(f"p{i}")) for i in range(4)} == {
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    }


async def test_numa_node_level_is_downgraded_last_with_a_note() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(*(pod(f"p{i}", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL) for i in range(2)))
    third = pod("p2", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL)
    assert "downgraded to PCPULevel" in there.note(third, "n")
    await there.create(third)
    assert there.node_of("p2") == "n"


async def test_a_policy_that_is_honoured_leaves_no_note() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    first = pod("p0", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL)
    await there.create(first)
    assert there.note(pod("p1", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL), "n") == ""


async def test_other_policies_do_not_repel() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    plain = pod("plain", guaranteed("2"), qos="LSR", spec={"preferredCPUBindPolicy": "FullPCPUs"})
    await there.create(pod("p0", guaranteed("2"), qos="LSR", spec=NUMA_LEVEL), plain)
    assert there.numa("plain") == [0]
