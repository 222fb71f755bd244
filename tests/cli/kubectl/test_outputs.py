"""Every command's documents, names and watches: what programs read, and what ``-w`` prints again."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koord_numa import __version__
from koord_numa.cli import main
from koord_numa.cli.commands import top
from koord_numa.sandbox.apiserver.faults import Fault
from koord_numa.view import API_VERSION
from tests.cli.small import ask, pod, small_cluster
from tests.cli.test_eight_cases import holding

RUNNING = pod("runs", 4, node="own", cpus="0-1,8-9", numa="SingleNUMANode")
WIDE = pod("wide", 10, numa="SingleNUMANode", kind="own")
FRAGMENTS = (holding("a", "0,4,8,12", 4, spans=True), holding("b", "1,5,9,13", 4, spans=True))

COMMANDS = [
    pytest.param(("nodes",), "NodeEntryList", "{.items[*].name}", "own theirs", ["node/own", "node/theirs"], id="nodes"),
    pytest.param(("node", "own"), "NodeView", "{.name}", "own", ["node/own"], id="node"),
    pytest.param(("top",), "ClusterView", "{.summary.nodes}", "2", ["node/own", "node/theirs"], id="top"),
    pytest.param(("explain", "wide"), "PodView", "{.state}", "waiting", ["pod/wide"], id="explain"),
    pytest.param(("explain",), "PodViewList", "{.items[*].pod}", "default/wide", ["pod/wide"], id="explain-all"),
    pytest.param(("simulate", "-f", "-"), "SimulationList", "{.summary.placed}", "1", ["pod/new"], id="simulate"),
    pytest.param(("rebind", "own", "--dry-run"), "RebindPlan", "{.node}", "own", ["node/own"], id="rebind"),
    pytest.param(("version",), "Version", "{.versions.koord-numa}", __version__, None, id="version"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "kind", "path", "value", "names"), COMMANDS)
async def test_documents_have_a_kind_and_a_version(
    command: tuple[str, ...], kind: str, path: str, value: str, names: list[str] | None, tmp_path: Path
) -> None:
    text = yaml.safe_dump(pod("new", 2))

    async def printed(form: str) -> str:
        options = [*command, "-o", form]
        if command == ("version",):
            answer = await asyncio.to_thread(CliRunner().invoke, main, options)
        else:
            answer = await ask(cluster, *options, text=text)
        assert answer.exit_code == 0, answer.output
        return answer.output

    async with small_cluster(tmp_path, RUNNING, WIDE) as cluster:
        found = [json.loads(await printed("json")), yaml.safe_load(await printed("yaml"))]
        assert await printed(f"jsonpath={path}") == value
        listed = (await printed("name")).splitlines()
    assert [(one["apiVersion"], one["kind"]) for one in found] == [(API_VERSION, kind)] * 2
    assert names is None or listed == names


async def test_a_comparison_is_a_document(tmp_path: Path) -> None:
    paths = [tmp_path / "one.yaml", tmp_path / "other.yaml"]
    for path in paths:
        path.write_text("{}")
    async with small_cluster(tmp_path) as cluster:
        options = ("--compare", *map(str, paths), "-o", "json")
        answer = await ask(cluster, "simulate", "-f", "-", *options, text=yaml.safe_dump(pod("new", 2)))
    found = json.loads(answer.output)
    assert found["kind"] == "SimulationComparison"
    assert [one["configuration"] for one in found["configurations"]] == ["one.yaml", "other.yaml"]
    assert [one["summary"]["placed"] for one in found["configurations"]] == [1, 1]


async def test_the_plan_of_a_rebind_and_the_object_that_asks_for_it(tmp_path: Path) -> None:
    resource = "rebindresources.scheduling.koordinator.sh"
    async with small_cluster(tmp_path, *FRAGMENTS) as cluster:
        plan = json.loads((await ask(cluster, "rebind", "node/own", "--dry-run", "-o", "json")).output)
        assert cluster.server.store.list(resource) == []
        name = (await ask(cluster, "rebind", "own", "-o", "name")).output.strip()
        [created] = cluster.server.store.list(resource)
    assert {move["pod"] for move in plan["moves"]} == {"default/a", "default/b"}
    assert (plan["before"]["numaCrossings"], plan["after"]["numaCrossings"]) == (2, 0)
    assert name == f"{resource}/{created['metadata']['name']}"


async def test_a_cluster_without_rebinds_says_what_to_install(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        cluster.server.store.delete(
            "customresourcedefinitions.apiextensions.k8s.io", "rebindresources.scheduling.koordinator.sh"
        )
        answer = await ask(cluster, "rebind", "own", "-o", "name")
    assert answer.exit_code == 1
    assert "crds/rebindresources.yaml" in answer.output
    assert len(answer.output.splitlines()) == 1


async def test_pods_that_wait_by_namespace_and_label(tmp_path: Path) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    labels = {"koordinator.sh/qosClass": "LSR", "app": "db"}
    other: dict[str, Any] = {**WIDE, "metadata": {**WIDE["metadata"], "namespace": "team", "labels": labels}}
    async with small_cluster(tmp_path, namespace, WIDE, other) as cluster:
        here = await ask(cluster, "explain", "--no-headers")
        there = await ask(cluster, "explain", "-n", "team", "-o", "name")
        everywhere = await ask(cluster, "explain", "-A")
        selected = await ask(cluster, "explain", "-A", "-l", "app=db", "-o", "jsonpath={.items[*].pod}")
        both = await ask(cluster, "explain", "wide", "-A")
    assert [line.split()[0] for line in here.output.splitlines()] == ["default/wide"]
    assert "container c with 8 CPUs instead of 10 fits on own" in here.output
    assert there.output == "pod/wide\n"
    assert [line.split()[0] for line in everywhere.output.splitlines()] == ["POD", "default/wide", "team/wide"]
    assert selected.output == "team/wide"
    assert both.exit_code == 2


class Ended(Exception):
    """The watch has looked often enough."""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(("nodes", "--no-headers"), [["own", "theirs"], ["own"]], id="nodes"),
        pytest.param(("explain", "--no-headers"), [["default/wide"], [""]], id="explain-all"),
    ],
)
async def test_a_watch_prints_what_changes(
    command: tuple[str, ...], expected: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Callable[[], object]] = []

    def next_look(_: float) -> None:
        if not looks:
            raise Ended
        looks.pop(0)()

    monkeypatch.setattr("time.sleep", next_look)
    async with small_cluster(tmp_path, WIDE) as cluster:
        patch = {"spec": {"nodeName": "own", "containers": WIDE["spec"]["containers"]}}
        looks.extend([lambda: None, lambda: bind(patch), lambda: None])

        def bind(_: object) -> None:
            cluster.server.store.delete("pods", "wide", "default")
            cluster.server.store.create(pod("wide", 4, node="own", cpus="0-1,8-9"))

        answer = await ask(cluster, *command, "-w")
    assert isinstance(answer.exception, Ended)
    lines = [(line.split() or [""])[0] for line in answer.output.splitlines()]
    assert lines == [name for part in expected for name in part]


@pytest.mark.parametrize("command", [("nodes",), ("node", "own"), ("explain",)])
async def test_a_watch_needs_a_table(command: tuple[str, ...], tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, *command, "-w", "-o", "json")
    assert answer.exit_code == 2
    assert "--watch needs a cluster, and a table" in answer.output


async def test_top_selects_and_is_wide(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        answer = await ask(cluster, "top", "--once", "-l", "kind=own", "-o", "wide", "--no-headers")
        unknown = await ask(cluster, "top", "-o", "svg")
    assert [line.split()[0] for line in answer.output.splitlines()] == ["own"]
    assert unknown.exit_code == 1
    assert top.command.name == "command"


async def test_one_line_when_rebinds_are_forbidden(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        cluster.server.faults.add(Fault(verb="create", resource="rebindresources", status=403))
        answer = await ask(cluster, "rebind", "own", "-o", "name")
    assert answer.exit_code == 1
    assert "missing rule: create rebindresources" in answer.output
    assert len(answer.output.splitlines()) == 1
