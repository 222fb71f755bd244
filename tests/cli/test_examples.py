"""Every example manifest is understood, accepted by an API server, and placed on an empty demo fleet as its comment promises."""

from pathlib import Path
from typing import Final

import yaml

from koord_numa.cli.demo.sandbox_cluster import sandbox_cluster
from koord_numa.sandbox import DEMO_RACK
from koord_numa.sandbox.machines import load_descriptions
from tests.cli.small import ask

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "pods"

PLACED: Final = {
    "best-effort.yaml": ["xeon-0, NUMA 0, CPUs 1-6,49-54"],
    "deployment.yaml": [  # its replicas are spread by default
        "xeon-0, NUMA 0, CPUs 1-2,49-50",
        "xeon-1, NUMA 0, CPUs 1-2,49-50",
        "xeon-2, NUMA 0, CPUs 1-2,49-50",
        "xeon-kubelet-0, NUMA 0",
    ],
    "gpu-aligned.yaml": ["dgx, NUMA 1, CPUs 16-27,144-155, gpu 0,1"],
    "kubelet-pinned.yaml": ["xeon-kubelet-0, NUMA 0"],
    "lse-full-cores.yaml": ["xeon-0, NUMA 0, CPUs 1-4,49-52"],
    "lsr-spread.yaml": ["dgx, NUMA 0, CPUs 0-5"],
    "numa-spread.yaml": [  # two of each kind and their NUMA nodes: a prefill pod has its own
        "dgx, NUMA 1, CPUs 16-19,144-147, gpu 0",
        "dgx, NUMA 1, CPUs 20-23,148-151, gpu 1",
        "dgx, NUMA 3, CPUs 48-51,176-179, gpu 2",
        "dgx, NUMA 3, CPUs 52-55,180-183, gpu 3",
        "dgx, NUMA 5, CPUs 80-83,208-211, gpu 4",
        "dgx, NUMA 7, CPUs 112-115,240-243, gpu 6",
    ],
    "quiet-cpus.yaml": ["dgx, NUMA 0, CPUs 0-1"],
    "restricted.yaml": ["xeon-0, NUMA 0,1, CPUs 1-15,24-38,49-63,72-86"],
    "shared.yaml": ["dgx, NUMA 0"],
}
"""The expected node of each pod of the examples on the empty fleet of the demo."""


def test_every_example_is_expected_somewhere() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*")) == sorted(PLACED)


def told(output: str) -> list[str]:
    """The lines that tell of pods."""
    return [line.strip() for line in output.splitlines() if line.startswith("  ")]


async def test_examples_are_placed(tmp_path: Path) -> None:
    """One fleet for all: ``simulate`` only reads, and the API server is given the objects afterwards."""
    async with sandbox_cluster(load_descriptions(DEMO_RACK), tmp_path / "kubeconfig") as cluster:
        answers = {name: await ask(cluster, "simulate", "-f", str(EXAMPLES / name)) for name in PLACED}
        for name in PLACED:
            cluster.server.store.apply_file(EXAMPLES / name)
            [kind] = {found["kind"] for found in yaml.safe_load_all((EXAMPLES / name).read_text())}
            assert kind in ("Pod", "Deployment")
    assert {name: answer.output for name, answer in answers.items() if answer.exit_code} == {}
    assert {name: told(answer.output) for name, answer in answers.items()} == PLACED
