"""The demo: what it shows of a small fleet, that it ends badly when something was wrong, and that nothing is left of it."""

import re
import sys
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGTERM, Signals, default_int_handler, signal
from typing import Final

import pytest
import yaml
from click.testing import CliRunner, Result

from koord_numa.cli import main
from koord_numa.cli.demo import sandbox_cluster
from koord_numa.cli.demo import show as demo_command
from koord_numa.cli.demo.pods import load_pods
from koord_numa.cli.demo.show import next_wave
from koord_numa.sandbox import DEMO_PODS, DEMO_RACK
from koord_numa.sandbox.machines import Fleet, load_descriptions
from tests.cli.processes import is_open, left_in, line_with, processes_about, started
from tests.cli.small import RACK

pytestmark = pytest.mark.e2e

PODS = """
pods:
  - {name: engine, count: 2, qos: LSE, cpu: "6", memory: 1Gi, bind: FullPCPUs, numa: SingleNUMANode, where: {kind: own}}
  - {name: report, count: 3, qos: BE, where: {kind: own}}
  - {name: pinned, count: 2, cpu: "6", memory: 1Gi, where: {kubernetes.io/hostname: theirs}}
  - {name: wide, qos: LSR, cpu: "4", memory: 1Gi, numa: SingleNUMANode}
"""


WAITS = (
    "  0/2 nodes are available: 1 node(s) cannot meet NUMA policy SingleNUMANode, 1 node(s) whose kubelet",
    "    cannot align the pod to NUMA nodes.",
    "  own: NUMA 0 has 2 of 8 CPUs free, NUMA 1 has 2 of 8; needs 4 CPUs, 1Gi memory in one NUMA node;",
    "    the largest that fits is 2 CPUs, 1Gi memory",
    "  theirs: NUMA 0 has 2 of 8 CPUs free, NUMA 1 has 2 of 8; container main: needs 4 CPUs, 1Gi memory",
    "    in one NUMA node; the largest that fits is 2 CPUs, 1Gi memory",
)


class FakeRefusingFleet(Fleet):
    """Its first node turns away the first pod that it could take."""

    def start(self) -> None:
        super().start()
        next(iter(self.nodes.values())).refuse_next("UnexpectedAdmissionError", "out of luck")


def files(folder: Path) -> dict[str, Path]:
    """Two machines and a few pods, by the names that the demo has for its own."""
    written = {}
    for name, text in (("DEMO_RACK", yaml.safe_dump(RACK)), ("DEMO_PODS", PODS)):
        written[name] = folder / f"{name}.yaml"
        written[name].write_text(text)
    return written


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo of two machines and a few pods."""
    for name, path in files(tmp_path).items():
        monkeypatch.setattr(demo_command, name, path)


SMALL: Final = """
import sys
from pathlib import Path
from koord_numa.cli import main
from koord_numa.cli.demo import show
show.DEMO_RACK, show.DEMO_PODS = map(Path, sys.argv.pop(1).split(","))
main()
"""
"""The same demo as a process of its own."""


def run() -> Result:
    return CliRunner().invoke(main, ["demo", "--speed", "10"])


@pytest.mark.usefixtures("small")
def test_what_it_shows() -> None:
    answer = run()
    assert answer.exit_code == 0, answer.output
    _, _, shown = answer.output.partition("POD ")
    assert re.sub(r"in \d+\.\d s", "in ... s", "POD " + shown).splitlines() == [
        "POD                  QOS  REQUESTS   POLICY                    NUMA  CPUS",
        "own  2 sockets, 2 NUMA nodes, 16 CPUs",
        "  engine-1             LSE  6 CPU 1Gi  FullPCPUs SingleNUMANode  0     0-2,8-10",
        "  engine-2             LSE  6 CPU 1Gi  FullPCPUs SingleNUMANode  1     4-6,12-14",
        "  report-1 … (3 pods)  BE   -          -                         -     shared",
        "theirs  2 sockets, 2 NUMA nodes, 16 CPUs, CPUs chosen by its kubelet (single-numa-node)",
        "  pinned-1             -    6 CPU 1Gi  -                         0     0-2,8-10",
        "  pinned-2             -    6 CPU 1Gi  -                         1     4-6,12-14",
        "",
        "Waiting",
        "",
        "wide  4 CPU 1Gi  SingleNUMANode",
        *WAITS,
        "",
        "own",
        "",
        "NUMA 0  socket 0  2 of 8 CPUs free",
        "  cpu   0",
        "  t0    A A A ·",
        "  t1    A A A ·",
        "NUMA 1  socket 1  2 of 8 CPUs free",
        "  cpu   4",
        "  t0    B B B ·",
        "  t1    B B B ·",
        "  A engine-1  0-2,8-10  FullPCPUs SingleNUMANode",
        "  B engine-2  4-6,12-14  FullPCPUs SingleNUMANode",
        "  · free   t0, t1: threads of a core",
        "",
        "7 of 8 pods placed in ... s, 1 waits with a reason, 0 rejected by a node, 0 CPUs held twice.",
    ]


@pytest.mark.usefixtures("small")
def test_a_pod_that_a_node_refuses_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_cluster, "Fleet", FakeRefusingFleet)
    answer = run()
    assert answer.exit_code == 1
    assert "wrong:" in answer.output
    assert "UnexpectedAdmissionError" in answer.output


@pytest.mark.usefixtures("small")
def test_an_operator_that_does_not_even_start_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    answer = run()
    assert answer.exit_code == 1
    assert "The operator has ended" in answer.output


def server_in(folder: Path) -> str:
    """The address in the kubeconfig that the demo wrote."""
    found = yaml.safe_load(next(folder.glob("*/kubeconfig")).read_text())
    return str(found["clusters"][0]["cluster"]["server"])


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
async def test_nothing_is_left_of_an_interrupted_demo(tmp_path: Path, number: Signals) -> None:
    """SIGTERM ends it where SIGINT is ignored, too, as in the background of a shell."""
    # Inherited by the demo: in the background of a shell, SIGINT is ignored here as well.
    before = signal(SIGINT, SIG_IGN if number is SIGTERM else default_int_handler)
    folder = tmp_path / "of the demo"
    folder.mkdir()
    program = ("-c", SMALL, ",".join(map(str, files(tmp_path).values())))
    try:
        async with started("demo", program=program, TMPDIR=str(folder)) as process:
            await line_with(process, "8 of")
            url = server_in(folder)
            assert await is_open(url)
            assert processes_about(str(folder))
            process.send_signal(number)
            assert await process.wait() == 130
            assert not await is_open(url)
    finally:
        signal(SIGINT, before)
    assert left_in(folder) == []
    assert processes_about(str(folder)) == []


def test_of_pods_with_claims_one_is_submitted_at_a_time() -> None:
    """Each is tried in vain before its claims are made, and which is tried again first would depend on timing."""
    left = pods = load_pods(DEMO_PODS)
    waves = []
    while left:
        waves.append(next_wave(left, 8))
        left = left[len(waves[-1]) :]
    assert [pod for wave in waves for pod in wave] == pods
    assert max(map(len, waves)) == 8
    claims = [sum("resourceClaims" in pod["spec"] for pod in wave) for wave in waves]
    assert (max(claims), sum(claims)) == (1, 5)


def test_the_rack_is_nine_machines_of_four_kinds_and_both_owners() -> None:
    nodes = load_descriptions(DEMO_RACK)
    kinds = {node.all_labels["kind"] for node in nodes}
    assert (len(nodes), kinds, len({node.style for node in nodes})) == (9, {"xeon", "gpu", "arm", "claims"}, 2)
    assert {entry["qos"] for entry in yaml.safe_load(DEMO_PODS.read_text())["pods"] if "qos" in entry} == {
        "LSE",
        "LSR",
        "LS",
        "BE",
    }
