"""The example for kind cannot be run here, but its objects are right, fit together, and do what its README says."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from koord_numa.core.objects.verdicts import Placement, Reason, Unschedulable
from koord_numa.node.sysfs import read_host
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.settings import Settings
from koord_numa.wire.pods import parse_pod
from tests.chaos.truth import Objects, rebuilt
from tests.cluster.objects import node
from tests.operator.operating import operating

ROOT: Final = Path(__file__).parents[2]
KIND: Final = ROOT / "examples" / "kind"
WORKERS: Final = ("koord-numa-worker", "koord-numa-worker2", "koord-numa-worker3")


def cluster() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KIND / "cluster.yaml").read_text())
    return found


def test_the_cluster_is_one_that_kind_understands() -> None:
    found = cluster()
    assert (found["kind"], found["apiVersion"], found["name"]) == ("Cluster", "kind.x-k8s.io/v1alpha4", "koord-numa")
    assert [each["role"] for each in found["nodes"]] == ["control-plane", "worker", "worker", "worker"]
    assert {key for each in found["nodes"] for key in each} <= {"role", "labels"}


@pytest.fixture
def server() -> ApiServer:
    """Start a server with the objects of the cluster after step 3, before any placement."""
    made = ApiServer(crds=definitions())
    for name, each in zip(WORKERS, cluster()["nodes"][1:], strict=True):
        made.store.create(node(name, labels=each.get("labels")))
    for file in ("topologies.yaml", "pods.yaml"):
        made.apply_file(KIND / file)
    return made


@pytest.mark.parametrize(("pod", "nodes"), [("pinned", WORKERS[:2]), ("whole-cores", WORKERS[:2])])
def test_pods_are_placed_with_cpus(server: ApiServer, pod: str, nodes: tuple[str, ...]) -> None:
    verdict = decide(server, pod)
    assert isinstance(verdict, Placement)
    assert verdict.node in nodes
    assert len(verdict.cpus) == 2


def test_what_is_too_wide_is_refused_everywhere_and_told_why(server: ApiServer) -> None:
    verdict = decide(server, "too-wide")
    assert isinstance(verdict, Unschedulable)
    assert sorted(verdict.rejections) == sorted(WORKERS)
    assert verdict.rejections[WORKERS[2]].reason is Reason.NO_TOPOLOGY


def decide(server: ApiServer, name: str) -> Placement | Unschedulable:
    engine, pod = rebuilt(Objects.of(server.store), Settings()), parse_pod(server.store.get("pods", name, "default"))
    request_class = engine.classes.of(pod)
    assert request_class is not None
    assert not pod.problem
    return engine.handle.selector.decide(request_class)


def test_files_that_the_steps_name_exist() -> None:
    named = set(re.findall(r"(?:examples|deploy|crds)/[\w./-]*", (KIND / "README.md").read_text()))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH")
async def test_the_check_of_real_clusters_passes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point of the workflow, on the same objects: an operator beside the API server in memory."""
    async with ApiServer(crds=definitions()) as server:
        for name, each in zip(WORKERS, cluster()["nodes"][1:], strict=True):
            server.store.create(node(name, labels=each.get("labels")))
        server.apply_file(KIND / "topologies.yaml")
        environment = os.environ | {"KUBECONFIG": str(server.write_kubeconfig(tmp_path / "kubeconfig"))}
        async with operating(server, tmp_path, monkeypatch):
            for arguments in ((), ("--load", "5")):
                script = str(ROOT / "deploy" / "tools" / "cluster_check.py")
                process = await asyncio.create_subprocess_exec(
                    sys.executable, script, *arguments, env=environment, stdout=PIPE, stderr=STDOUT
                )
                printed, _ = await process.communicate()
                assert (process.returncode, printed.decode()) == (0, "as expected\n")


def check_module() -> Any:
    spec = importlib.util.spec_from_file_location("cluster_check", ROOT / "deploy" / "tools" / "cluster_check.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_overlay_of_sysfs_has_two_numa_nodes(tmp_path: Path) -> None:
    check_module().main(["--sysfs", str(tmp_path / "numa")])
    host = read_host(tmp_path / "numa" / "sys")
    assert [numa.id for numa in host.numa] == [0, 1]
    assert not host.warnings


@pytest.mark.parametrize(("runs_on", "printed"), [("2-3", ""), ("0-3", "applied runs on CPUs 0-3, decided are 2-3")])
def test_the_check_of_applied_cpus(runs_on: str, printed: str) -> None:
    """Without a container runtime, answers of kubectl stand for it."""
    check, asked = check_module(), []
    decided = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "2-3"}'}
    pod = {"metadata": {"name": "applied", "annotations": decided}, "spec": {}, "status": {"phase": "Running"}}

    def kubectl(*arguments: str, text: str = "") -> str:
        asked.append((arguments[0], text))
        return f"{runs_on}\n" if arguments[0] == "exec" else json.dumps({"items": [pod]})

    check.kubectl, check.PATIENCE = kubectl, 0.01
    assert check.check_applied("default", "worker") == ([printed] if printed else [])
    assert json.loads(asked[0][1])["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "worker"}
