"""One pod before 5,000 recorded nodes: every verdict and score of NodeResourceTopologyMatch."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope, KubeQos, ScoringType
from koord_numa.core.score.node_scores import score_zones
from tests.conformance.nrt import load_pod
from tests.conformance.nrt_filter import fits_zones
from tests.conformance.vectors import folder

STRATEGIES = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")
WEIGHTS = {"cpu": 1, "memory": 1}


def test_five_thousand_nodes_are_filtered_and_scored_as_recorded() -> None:
    file = folder() / "bench" / "nrt-5000nodes-a.jsonl"
    if not file.is_file():
        pytest.skip("the recorded nodes are not there")
    first, *rows = (json.loads(line) for line in file.read_text().splitlines())
    costs = {(a, b): cost for a, row in enumerate(first["costs"]) for b, cost in enumerate(row)}
    pod = load_pod(first["pod"])
    assert len(rows) == 5000
    for row in rows:
        node = _topology(row, costs)
        fits = fits_zones(pod, KubeQos.GUARANTEED, node, {"cpu": 1, "memory": 1}) is None
        assert fits == bool(row["out"][0]), row
        for position, name in enumerate(STRATEGIES, start=1):
            score = score_zones(pod, KubeQos.GUARANTEED, node, ScoringType(name), WEIGHTS)
            assert not fits or score == row["out"][position], (name, row)


def _topology(row: Mapping[str, Any], costs: Mapping[tuple[int, int], int]) -> NodeResourceTopology:
    zones = []
    for numa, (cpus, mebibytes) in enumerate(zip(row["cpu"], row["mem_mi"], strict=True)):
        free = {"cpu": cpus * 1000, "memory": mebibytes << 20}
        zones.append(Zone(numa, free, free, free))
    config = KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, topology_scope=KubeletScope(row["scope"]))
    return NodeResourceTopology(
        node="node", owner=CpuOwner.KUBELET, zones=tuple(zones), kubelet=config, distances=costs
    )
