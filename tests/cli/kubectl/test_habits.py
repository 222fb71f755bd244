"""The command line as a kubectl plugin: output formats, contexts, namespaces, selectors, and errors in one line."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.cli.commands.snapshot import trimmed
from koord_numa.cli.kubectl_completion import complete
from koord_numa.cli.render.output import render_jsonpath
from koord_numa.sandbox.apiserver.faults import Fault
from koord_numa.view import API_VERSION
from tests.cli.small import ask, pod, small_cluster
from tests.tables import each_row

RUNNING = pod("runs", 4, node="own", cpus="0-1,8-9", numa="SingleNUMANode")
WIDE = pod("wide", 10, numa="SingleNUMANode", kind="own")


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    ("command", "kind", "keys"),
    [
        pytest.param(("nodes",), "NodeEntryList", {"items"}, id="nodes"),
        pytest.param(("node", "own"), "NodeView", {"name", "machine", "pods", "numa"}, id="node"),
        pytest.param(("explain", "wide"), "PodView", {"pod", "state", "why", "shape"}, id="explain"),
        pytest.param(("simulate", "-f", "-"), "SimulationList", {"items"}, id="simulate"),
    ],
)
async def test_documents_have_a_version(
    form: str, command: tuple[str, ...], kind: str, keys: set[str], tmp_path: Path
) -> None:
    async with small_cluster(tmp_path, RUNNING, WIDE) as cluster:
        answer = await ask(cluster, *command, "-o", form, text=yaml.safe_dump(pod("new", 2)))
    found = json.loads(answer.output) if form == "json" else yaml.safe_load(answer.output)
    assert (found["apiVersion"], found["kind"]) == (API_VERSION, kind)
    assert keys <= found.keys()


async def test_what_would_make_it_fit_is_in_the_document(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING, WIDE) as cluster:
        template = 'jsonpath={range .shape.wouldFit[*]}{.kind}{" "}{.node}{"\\n"}{end}'
        answer = await ask(cluster, "explain", "wide", "-o", template)
    assert answer.output == "size own\npolicy own\n"


@each_row(
    ("template", "expected"),
    [
        pytest.param("{.a.b}", "1", id="path"),
        pytest.param(".a.b", "1", id="without-braces"),
        pytest.param("{.list[*].n}", "x y", id="several"),
        pytest.param('{range .list[*]}{.n}{"\\t"}{end}', "x\ty\t", id="range"),
        pytest.param("n={.missing};", "n=;", id="missing"),
        pytest.param("{.a}", '{"b":1}', id="object"),
    ],
)
def test_jsonpath(template: str, expected: str) -> None:
    assert render_jsonpath(template, {"a": {"b": 1}, "list": [{"n": "x"}, {"n": "y"}]}) == expected


@pytest.mark.parametrize("template", ["{range .a}{.b}", "{end}", "{what}", "{.items[*].node", "{range .a}{.b}{end"])
async def test_malformed_jsonpath_is_an_error(template: str, tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "nodes", "-o", f"jsonpath={template}")
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: jsonpath: ")


async def test_selectors_headings_and_names(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        plain = await ask(cluster, "nodes", "-l", "kind in (own)", "--no-headers")
        names = await ask(cluster, "nodes", "-o", "name")
        wide = await ask(cluster, "nodes", "-o", "wide")
        wrong = await ask(cluster, "nodes", "-l", "kind in (")
    assert [line.split()[0] for line in plain.output.splitlines()] == ["own"]
    assert names.output == "node/own\nnode/theirs\n"
    assert wide.output.splitlines()[0].endswith("TOPOLOGY-VERSION")
    assert wrong.exit_code == 2
    assert len(wrong.output.splitlines()) == 1
    assert "nodes --help)" in wrong.output


@each_row(
    "arguments",
    [
        ("nop",),
        ("nodes", "-o", "table"),
        ("nodes", "--no-such-option"),
        ("node",),
        ("simulate",),
        ("top", "--interval", "0"),
    ],
)
def test_a_misused_command_is_told_in_one_line(arguments: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 2
    assert len(answer.output.splitlines()) == 1, answer.output
    assert "--help)" in answer.output


def test_without_a_command_help_is_shown() -> None:
    assert "Commands:" in CliRunner().invoke(main, []).output


@pytest.mark.parametrize("name", ["wide", "pod/wide", "default/wide"])
async def test_names_of_pods(name: str, tmp_path: Path) -> None:
    async with small_cluster(tmp_path, WIDE) as cluster:
        answer = await ask(cluster, "explain", name)
    assert answer.output.startswith("default/wide  10 CPU")


async def test_the_namespace_of_the_context(tmp_path: Path) -> None:
    elsewhere = {**WIDE, "metadata": {**WIDE["metadata"], "namespace": "team"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    async with small_cluster(tmp_path, namespace, elsewhere) as cluster:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = "team"
        config["contexts"].append(
            {"name": "other", "context": {**config["contexts"][0]["context"], "namespace": "none"}}
        )
        cluster.kubeconfig.write_text(yaml.safe_dump(config))
        found = await ask(cluster, "explain", "wide")
        simulated = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(without_namespace(pod("new", 2))))
        other = await ask(cluster, "explain", "wide", "--context", "other")
        unknown = await ask(cluster, "explain", "wide", "--context", "no-such")
    assert found.output.startswith("team/wide")
    assert simulated.output.startswith("team/new")
    assert other.output == "Error: there is no pod none/wide\n"
    assert "has no context no-such, only" in unknown.output


def without_namespace(obj: dict[str, object]) -> dict[str, object]:
    metadata = obj["metadata"]
    assert isinstance(metadata, dict)
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "namespace"}}


@pytest.mark.parametrize(
    "command",
    [
        ("nodes",), ("node", "own"), ("explain", "p"), ("explain",), ("top", "--once"), ("rebind", "own"), ("rebind", "own", "--dry-run"),
        ("snapshot", "-o", "unused.yaml"), ("page", "-o", "unused.html"), ("simulate", "-f", "-"), ("nodes", "-o", "json"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_an_api_server_that_is_away_or_forbids(command: tuple[str, ...], tmp_path: Path) -> None:
    manifest = yaml.safe_dump(pod("new", 2))
    async with small_cluster(tmp_path) as cluster:
        cluster.server.faults.add(Fault(verb="list", resource="nodes", status=403))
        forbidden = await ask(cluster, *command, text=manifest)
    options = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    away = await asyncio.to_thread(CliRunner().invoke, main, [*command, *options], input=manifest)
    for answer in (forbidden, away):
        assert answer.exit_code == 1
        assert len(answer.output.splitlines()) == 1, answer.output
        assert answer.output.startswith("Error: ")
    assert "nodes" in forbidden.output
    assert "--context" in away.output


@pytest.mark.parametrize("text", ["", "[]", "kind: Config", "a: [", "clusters: 3"])
def test_a_file_that_is_no_kubeconfig(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    answer = CliRunner().invoke(main, ["nodes", "--kubeconfig", str(path)])
    assert answer.exit_code == 1
    assert "no credentials for a cluster" in answer.output
    assert "NoneType" not in answer.output


async def test_two_manifests_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump(pod("a", 2)))
    (folder / "b.yml").write_text(yaml.safe_dump(pod("b", 2)))
    other = tmp_path / "c.yaml"
    other.write_text(yaml.safe_dump(pod("c", 2)))
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "simulate", "-f", str(folder), "-f", str(other), "-o", "name")
    assert answer.output == "pod/a\npod/b\npod/c\n"


async def test_two_configurations_side_by_side(tmp_path: Path) -> None:
    paths = []
    for name in ("MostAllocated", "LeastAllocated"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"profiles: [{{scoringStrategy: {{type: {name}}}}}]")
        paths.append(str(path))
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", "--compare", *paths, text=yaml.safe_dump(pod("a", 2)))
    assert answer.output.splitlines()[0].split() == ["POD", "MostAllocated.yaml", "LeastAllocated.yaml"]
    assert "MostAllocated.yaml: 1 of 1 placed on 1 node" in answer.output


async def test_a_snapshot_answers_as_the_cluster_does(tmp_path: Path) -> None:
    file, names = tmp_path / "cluster.yaml", tmp_path / "hashed.yaml"
    async with small_cluster(tmp_path, RUNNING, WIDE) as cluster:
        for command in (("snapshot", "-o", str(file)), ("snapshot", "--hash-names", "-o", str(names))):
            assert (await ask(cluster, *command)).exit_code == 0
        live = await ask(cluster, "explain", "wide")
        nodes = await ask(cluster, "nodes", "--no-headers")
    assert CliRunner().invoke(main, ["explain", "wide", "--from", str(file)]).output == live.output
    assert "image: none" not in file.read_text()
    text = names.read_text()
    assert "wide" not in text
    assert "theirs" not in text
    hidden = CliRunner().invoke(main, ["nodes", "--no-headers", "--from", str(names)]).output
    columns = [line.split()[1:] for line in nodes.output.splitlines()]
    assert sorted(line.split()[1:] for line in hidden.splitlines()) == sorted(columns)


def test_of_images_only_what_is_equal_is_left() -> None:
    pod = {"spec": {"containers": [{"name": "main", "image": "corp/secret", "command": ["x"]}], "template": {}}}
    node = {"status": {"images": [{"names": ["corp/secret:latest"], "sizeBytes": 5}]}}
    container, listed = trimmed(pod)["spec"]["containers"][0], trimmed(node)["status"]["images"][0]
    assert container == {"name": "main", "image": listed["names"][0]}
    assert listed["sizeBytes"] == 5
    assert "secret" not in container["image"]


async def test_a_page_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    async with small_cluster(tmp_path, RUNNING, WIDE) as cluster:
        answer = await ask(cluster, "page", "-o", str(path))
    assert answer.exit_code == 0
    text = path.read_text()
    assert 'id="doc:/api/v1/nodes/own"' in text
    assert "src=" not in text
    assert "https://" not in text


async def test_a_drawing(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        drawn = await ask(cluster, "node", "own", "-o", "svg")
        unknown = await ask(cluster, "node", "theirs", "-o", "svg")
    assert drawn.output.startswith("<svg ")
    assert "CPU 8: default/runs" in drawn.output
    assert unknown.output == "Error: the CPUs of node theirs are not known by id, so they cannot be drawn\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    answer = CliRunner().invoke(main, ["completion", shell])
    assert answer.exit_code == 0
    assert "_KOORD_NUMA_COMPLETE" in answer.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            ["expl"],
            ["explain\tShow why pods wait and what would make them fit, or what a pod holds.", ":4"],
            id="command",
        ),
        pytest.param(["nodes", "--sel"], ["--selector\tLabel selector.", ":4"], id="option"),
        pytest.param(["explain", "--from", ""], [":0"], id="file"),
    ],
)
def test_completion_by_kubectl(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-koord_numa", *words])
    complete()
    assert capsys.readouterr().out.splitlines() == expected
