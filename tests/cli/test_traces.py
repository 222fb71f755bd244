"""Traces as CSV files, read without conversion: machines by ``--from``, pods with their lifetimes by ``-f``."""

import json
import os
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from koord_numa.cli import main

MACHINES: Final = "sn,cpu_milli,memory_mib,gpu,model\nn-0,32000,65536,2,T4\nn-1,8000,16384,0,\n"
HEADING: Final = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
SHARED: Final = Path(os.environ.get("KOORD_NUMA_SHARED", Path(__file__).parents[3] / "shared")) / "traces"


def run(folder: Path, *rows: str, machines: str = MACHINES, options: tuple[str, ...] = ()) -> Result:
    nodes, pods = folder / "machines.csv", folder / "pods.csv"
    nodes.write_text(machines)
    pods.write_text("\n".join([HEADING, *rows, ""]))
    return CliRunner().invoke(main, ["simulate", "-f", str(pods), "--from", str(nodes), *options])


def test_pods_come_and_go(tmp_path: Path) -> None:
    rows = ("late,16000,1024,0,0,,LS,Running,20,30,20", "early,32000,1024,0,0,,LS,Running,0,20,0")
    gone = run(tmp_path, *rows)
    assert "2 of 2 pods would be placed." in gone.output
    assert gone.output.startswith("trace/early  32 CPU 1Gi")
    assert "n-0, NUMA 0,1, CPUs 0-31" in gone.output
    stays = run(tmp_path, *rows, options=("--stay", "-o", "json"))
    assert stays.exit_code == 1
    found = json.loads(stays.output)
    assert [one["outcome"] for one in found["items"]] == ["PLACED", "WAITS"]
    assert found["summary"] == {
        "pods": 2, "placed": 1, "afterEvictions": 0, "nodes": 1, "aligned": 1, "alignmentAsked": 1,
    }  # fmt: skip


def test_gpus_are_shares_of_a_thousand(tmp_path: Path) -> None:
    rows = [f"p-{at},2000,1024,1,500,,LS,Running,0,99,0" for at in range(5)]
    answer = run(tmp_path, *rows)
    assert "4 of 5 pods would be placed." in answer.output
    assert "Insufficient nvidia.com/gpu" in answer.output


def test_many_pods_are_summed_up(tmp_path: Path) -> None:
    rows = [f"p-{at:03},1000,512,0,0,,BE,Running,{at},{at + 300},0" for at in range(120)]
    answer = run(tmp_path, *rows, options=("--stay",))
    assert len(answer.output.splitlines()) < 12
    assert "of 120 pods would be placed." in answer.output
    assert "They would be on 2 nodes" in answer.output


def test_two_configurations_on_a_trace(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.yaml" for name in ("MostAllocated", "LeastAllocated")]
    for path in paths:
        path.write_text(f"profiles: [{{scoringStrategy: {{type: {path.stem}}}}}]")
    rows = [f"p-{at:03},1000,512,0,0,,LS,Running,{at},999,0" for at in range(8)]
    answer = run(tmp_path, *rows, options=("--compare", *map(str, paths)))
    assert answer.exit_code == 0
    assert "MostAllocated.yaml: 8 of 8 placed on 1 node" in answer.output
    assert "LeastAllocated.yaml: 8 of 8 placed on 2 nodes" in answer.output


@pytest.mark.parametrize(
    ("machines", "row", "error"),
    [
        pytest.param("a,b\n1,2\n", "", "is not a trace of this kind: it has no column cpu_milli, gpu, memory_mib, sn", id="columns"),
        pytest.param(MACHINES.replace("32000", "many"), "", "n-0: cpu_milli is not a whole number: 'many'", id="number"),
        pytest.param(MACHINES, "p,1,1,1,1000,V100M16|V100M32,LS,Running,0,9,0", "p asks for GPU models (V100M16|V100M32)", id="models"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(machines: str, row: str, error: str, tmp_path: Path) -> None:
    answer = run(tmp_path, row, machines=machines)
    assert answer.exit_code == 1
    assert error in answer.output
    assert len(answer.output.splitlines()) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the production trace is not part of the repository")
def test_the_published_trace_is_read_as_it_is(tmp_path: Path) -> None:
    head = (SHARED / "openb_pod_list_default.csv").read_text().splitlines()[:301]
    pods = tmp_path / "pods.csv"
    pods.write_text("\n".join(head))
    answer = CliRunner().invoke(
        main, ["simulate", "-f", str(pods), "--from", str(SHARED / "openb_node_list_all_node.csv")]
    )
    assert answer.exit_code == 0
    assert "300 of 300 pods would be placed." in answer.output
