"""A NodeResourceTopology beyond any size limit costs its node only, in every command that reads a cluster."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result

from koord_numa.cli import main
from koord_numa.core.cpu_topology import MAX_NUMA, MAX_NUMA_ID
from koord_numa.core.cpuset import MAX_CPU
from koord_numa.wire.parsing import LONGEST_JSON
from koord_numa.wire.zones import MOST_DEVICES, MOST_RESOURCES
from tests.proposals.cluster import guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

Json = dict[str, Any]
CPU: Final = {"cpu": "2"}
TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"


def zones(count: int) -> list[Json]:
    return [zone(numa, CPU) for numa in range(count)]


def cpus(numbers: Sequence[int], numa: Sequence[int]) -> dict[str, Json]:
    detail = [{"id": cpu, "core": cpu, "socket": 0, "node": there} for cpu, there in zip(numbers, numa, strict=True)]
    return {TOPOLOGY: {"detail": detail}}


def owned(listed: Sequence[Json], annotations: dict[str, Any]) -> Json:
    return koordlet_nrt("big", annotations=annotations) | {"zones": list(listed)}


def devices(count: int) -> Json:
    return zone(0, {"cpu": "16", "vendor/x": str(count)})


TOO_LARGE: Final = {
    "kubelet-numa-nodes": (kubelet_nrt("big", zones(MAX_NUMA + 1)), f"at most {MAX_NUMA} are supported"),
    "kubelet-many-numa-nodes": (kubelet_nrt("big", zones(1000)), f"at most {MAX_NUMA} are supported"),
    "numa-nodes": (
        owned(zones(MAX_NUMA + 1), cpus(range(130), [cpu // 2 for cpu in range(130)])),
        f"at most {MAX_NUMA} are supported",
    ),
    "numa-nodes-of-cpus-alone": (owned(zones(1), cpus(range(65), range(65))), f"at most {MAX_NUMA} are supported"),
    "numa-nodes-of-both": (
        owned(zones(40), cpus(range(30), range(40, 70))),
        f"70 NUMA nodes are too many, at most {MAX_NUMA} are supported",
    ),
    "numa-id": (kubelet_nrt("big", [zone(MAX_NUMA_ID + 1, CPU)]), f"is not in 0 to {MAX_NUMA_ID}"),
    "numa-id-of-a-cpu": (owned(zones(1), cpus([0], [MAX_NUMA_ID + 1])), f"is not in 0 to {MAX_NUMA_ID}"),
    "cpus": (kubelet_nrt("big", [zone(0, {"cpu": str(MAX_CPU + 2)})]), f"at most {MAX_CPU + 1} are supported"),
    "cpus-of-two-numa-nodes": (
        kubelet_nrt("big", [zone(numa, {"cpu": str(MAX_CPU)}) for numa in range(2)]),
        f"at most {MAX_CPU + 1} are supported",
    ),
    "cpu-id": (owned(zones(1), cpus([MAX_CPU + 1], [0])), f"is above {MAX_CPU}"),
    "devices": (kubelet_nrt("big", [devices(MOST_DEVICES + 1)]), f"at most {MOST_DEVICES} are supported"),
    "resources": (
        kubelet_nrt("big", [zone(0, {f"vendor/r{number}": "1" for number in range(MOST_RESOURCES + 1)})]),
        f"at most {MOST_RESOURCES} are supported",
    ),
    "text": (
        owned(zones(1), {TOPOLOGY: {"detail": [], "more": "x" * LONGEST_JSON}}),
        f"at most {LONGEST_JSON} are read",
    ),
}


@pytest.fixture(params=list(TOO_LARGE))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file with a node of each kind, one of them too large, and a part of the sentence about it."""
    nrt, told = TOO_LARGE[request.param]
    waits = pod("waits", guaranteed("40"), qos="LSR")
    items = [node("big", 128), nrt, node("good", 16), koordlet_nrt("good"), waits]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod("new", guaranteed("4"), qos="LSR")))
    return tmp_path, told


def run(folder: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--from", str(folder / "cluster.json")])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def one_line(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_topology_beyond_a_limit_costs_its_node_in_commands(case: tuple[Path, str]) -> None:
    folder, told = case
    nodes = run(folder, "nodes")
    assert told in nodes.output
    assert [line.split()[-1] for line in nodes.output.splitlines() if line.startswith("good")] == ["ok"]
    assert told in run(folder, "node", "big").output
    assert "good, NUMA 0" in one_line(run(folder, "simulate", "-f", str(folder / "pod.yaml")))
    assert told in one_line(run(folder, "explain", "waits"))
    assert run(folder, "explain").exit_code == 0
    assert run(folder, "page", "-o", str(folder / "page.html")).exit_code == 0
    assert told in (folder / "page.html").read_text()
    assert run(folder, "rebind", "big", "--dry-run").exit_code == 1


@pytest.mark.parametrize("owner", ["kubelet", "scheduler"])
def test_the_largest_number_of_numa_nodes_is_shown(owner: str, tmp_path: Path) -> None:
    ids = [cpu // 2 for cpu in range(2 * MAX_NUMA)]
    kubelet = kubelet_nrt("big", zones(MAX_NUMA))
    nrt = kubelet if owner == "kubelet" else owned(zones(MAX_NUMA), cpus(range(2 * MAX_NUMA), ids))
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [node("big", 128), nrt]}))
    assert run(tmp_path, "nodes").output.splitlines()[1].split()[4] == str(MAX_NUMA)
