"""One pod against 5,000 nodes: filter and one score by zones, in columns, beside one sweep of the Go plugin."""

import json
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from bench.figure import Figure, NotMeasurableError
from koord_numa.core.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.score.zone_sweep import SweepResult, ZoneColumns
from koord_numa.core.vocabulary import CpuOwner, KubeletPolicy, KubeletScope, KubeQos, ScoringType
from tests.conformance.nrt import load_pod
from tests.conformance.vectors import folder

_TARGET_MS = 25.0
_ROUNDS = 15
_STRATEGIES = list(enumerate(("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"), start=1))


def figures() -> Iterator[Figure]:
    """The median sweep per strategy; a sweep that disagrees with the recorded answers is an error, not a figure."""
    file = folder() / "bench" / "nrt-5000nodes-a.jsonl"
    if not file.is_file():
        raise NotMeasurableError(f"no {file.name} among the recorded inputs")
    first, *rows = (json.loads(line) for line in file.read_text().splitlines())
    costs = {(a, b): cost for a, row in enumerate(first["costs"]) for b, cost in enumerate(row)}
    pod = load_pod(first["pod"])
    nodes = [(_topology(row, costs), {"cpu": 1, "memory": 1}) for row in rows]
    columns = ZoneColumns(nodes)
    go = _go_medians(folder() / "bench" / "results-go.jsonl") if (folder() / "bench").is_dir() else {}
    for position, name in _STRATEGIES:
        times = []
        for _ in range(_ROUNDS):
            start = time.process_time()
            result = columns.sweep(pod, KubeQos.GUARANTEED, ScoringType(name), {})
            times.append((time.process_time() - start) * 1000)
        _check(result, rows, position)
        note = f"max {max(times):.1f}; Go {go.get(name, float('nan')):.0f} ms"
        yield Figure(f"nrt sweep of 5,000 nodes, {name}", median(times), "ms", _TARGET_MS, note=note)


def _topology(row: Mapping[str, Any], costs: Mapping[tuple[int, int], int]) -> NodeResourceTopology:
    zones = []
    for numa, (cpus, mebibytes) in enumerate(zip(row["cpu"], row["mem_mi"], strict=True)):
        free = {"cpu": cpus * 1000, "memory": mebibytes << 20}
        zones.append(Zone(numa, free, free, free))
    config = KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, topology_scope=KubeletScope(row["scope"]))
    return NodeResourceTopology(
        node="node", owner=CpuOwner.KUBELET, zones=tuple(zones), kubelet=config, distances=costs
    )


def _check(result: SweepResult, rows: list[Mapping[str, Any]], position: int) -> None:
    for fits, score, row in zip(result.fits.tolist(), result.scores.tolist(), rows, strict=True):
        if fits != bool(row["out"][0]) or (fits and score != row["out"][position]):
            raise AssertionError(f"sweep says {fits}, {score}; recorded {row['out']}")


def _go_medians(file: Any) -> dict[str, float]:
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return {line["strategy"]: line["median_sweep_ms"] for line in lines if line["file"] == "nrt-5000nodes-a.jsonl"}
