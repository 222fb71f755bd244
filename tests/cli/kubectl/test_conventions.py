"""Conventions of kubectl: options before and after the command, output formats, several names, help, and completion."""

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import EXAMPLES, main
from koord_numa.cli.kubectl_completion import complete
from koord_numa.cli.parameters import Documented, DurationParameter
from tests.cli.small import ask, pod, small_cluster
from tests.tables import each_row

WIDE = pod("wide", 10, numa="SingleNUMANode", kind="own")
COMMANDS = main.list_commands(click.Context(main))


def command_named(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_valid_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("cluster.yaml", "pod.yaml", "now.yaml", "planned.yaml", "machines.yaml"):
        Path(file).touch()
    command = command_named(name)
    assert isinstance(command, Documented)
    text = CliRunner().invoke(main, [name, "--help"]).output.partition("Examples:")[2]
    assert text.count("# ") == len(command.examples) > 0
    for _, arguments in command.examples:
        words = shlex.split(arguments.partition(">")[0])
        assert words[0] == name
        command.make_context(name, words[1:], parent=click.Context(main)).close()


def test_help_of_the_program_has_examples() -> None:
    assert CliRunner().invoke(main, ["--help"]).output.count("# ") == len(EXAMPLES)


@pytest.mark.parametrize(
    ("program", "name"), [("/usr/bin/kubectl-koord_numa", "kubectl koord-numa"), ("/usr/bin/koord-numa", "koord-numa")]
)
def test_usage_and_errors_name_the_program(
    program: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    for arguments in (["nodes", "--help"], ["nodes", "--nope"]):
        with pytest.raises(SystemExit):
            main.main(arguments)
    told = capsys.readouterr()
    assert f"Usage: {name} nodes" in told.out
    assert f"  {name} nodes\n" in told.out
    assert f"(see: {name} nodes --help)" in told.err


async def test_options_before_and_after_the_command(tmp_path: Path) -> None:
    elsewhere = {**WIDE, "metadata": {**WIDE["metadata"], "namespace": "team"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    async with small_cluster(tmp_path, namespace, elsewhere) as cluster:
        after = await ask(cluster, "explain", "wide", "-n", "team")
        before = await ask(cluster, "-n", "team", "explain", "wide")
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"].append({"name": "nobody", "user": {}})
        config["contexts"].append(
            {"name": "else", "context": {**config["contexts"][0]["context"], "namespace": "team"}}
        )
        cluster.kubeconfig.write_text(yaml.safe_dump(config))
        server = config["clusters"][0]["cluster"]["server"]
        ways = [
            ("--context", "else", "explain", "wide"),
            ("explain", "wide", "--context", "else", "--cluster", config["clusters"][0]["name"]),
            ("explain", "wide", "-n", "team", "--user", "nobody", "--token", "t", "--request-timeout", "30s"),
            ("--server", server, "explain", "-n", "team", "wide"),
            ("explain", "wide", "-n", "team", "--as", "jane", "--as-group", "dev", "--as-group", "ops"),
        ]
        answers = [await ask(cluster, *way) for way in ways]
    assert after.output.startswith("team/wide")
    assert [answer.output for answer in (before, *answers)] == [after.output] * 6


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--context", "nope", "has no context nope, only "),
        ("--cluster", "nope", "has no cluster nope, only "),
        ("--user", "nope", "has no user nope, only "),
        ("--as-group", "dev", "without a user"),
        ("--server", "ftp://x", "'ftp://x' is not a server address"),
        ("--request-timeout", "soon", "'soon' is not a duration"),
    ],
)
async def test_values_that_do_not_exist_are_named(option: str, value: str, complaint: str, tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        for words in (("nodes", option, value), (option, value, "nodes")):
            answer = await ask(cluster, *words)
            assert answer.exit_code != 0
            assert complaint in answer.output
            assert len(answer.output.splitlines()) == 1


@each_row(
    ("text", "seconds"), [("30", 30.0), ("1.5s", 1.5), ("250ms", 0.25), ("2m30s", 150.0), ("1h", 3600.0), ("0", 0.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert DurationParameter().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        pytest.param(
            ("nodes", "-o", "custom-columns=NAME:.name,CPUS:.numa[*].cpus,NONE:.nope"),
            ["NAME    CPUS     NONE", "own     8.0,8.0  <none>", "theirs  8.0,8.0  <none>"],
            id="custom-columns",
        ),
        pytest.param(("nodes", "-o", "custom-columns=N:name", "--no-headers"), ["own", "theirs"], id="no-headers"),
        pytest.param(("nodes", "--sort-by", ".cpusOf", "-o", "name"), ["node/theirs", "node/own"], id="sorted-names"),
        pytest.param(
            ("nodes", "--sort-by={.labels.kind}", "-o", "custom-columns=N:.name", "--no-headers"),
            ["theirs", "own"],
            id="sorted-by-a-label-that-one-lacks",
        ),
        pytest.param(("nodes", "theirs", "own", "-o", "name"), ["node/own", "node/theirs"], id="two-names"),
        pytest.param(("nodes", "-l", "a=b"), ["No resources found"], id="nothing-selected"),
        pytest.param(("explain",), ["No resources found in default namespace."], id="nothing-waits"),
        pytest.param(("explain", "-A"), ["No resources found"], id="nothing-waits-anywhere"),
        pytest.param(("nodes", "none"), ["Error: there is no node none"], id="unknown-name"),
        pytest.param(
            ("nodes", "-o", "custom-columns=NAME"),
            ["Error: custom-columns: 'NAME' is not a list of NAME:.path"],
            id="malformed-columns",
        ),
    ],
)
async def test_output(words: tuple[str, ...], lines: list[str], tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        assert (await ask(cluster, *words)).output.splitlines() == lines


async def test_labels_are_shown(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, WIDE) as cluster:
        nodes = await ask(cluster, "nodes", "own", "--show-labels")
        pods = await ask(cluster, "explain", "--show-labels")
    assert nodes.output.splitlines()[0].endswith("  LABELS")
    assert "kind=own" in nodes.output.splitlines()[1].split()[-1]
    assert pods.output.splitlines()[1].endswith("koordinator.sh/qosClass=LSR")


async def test_several_pods_and_nodes(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, WIDE, pod("other", 2)) as cluster:
        both = await ask(cluster, "explain", "wide", "pod/other")
        document = await ask(cluster, "explain", "wide", "other", "-o", "jsonpath={.items[*].pod}")
        nodes = await ask(cluster, "node", "own", "node/theirs", "-o", "jsonpath={.items[*].name}")
    assert [line for line in both.output.splitlines() if line.startswith("default/")] == [
        "default/wide  10 CPU 1Gi  SingleNUMANode",
        "default/other  2 CPU 1Gi  -",
    ]
    assert document.output == "default/wide default/other"
    assert nodes.output == "own theirs"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["explain", ""], ["other", "wide"]),
        (["explain", "w"], ["wide"]),
        (["explain", "-n", "team", ""], []),
        (["-n", "team", "explain", ""], []),
        (["node", ""], ["own", "theirs"]),
        (["nodes", "th"], ["theirs"]),
        (["rebind", "o"], ["own"]),
        (["explain", "-n", "de"], ["default"]),
        (["nodes", "--context", ""], ["koord-numa-sandbox"]),
        (["nodes", "-o", "js"], ["json", "jsonpath="]),
    ],
    ids=" ".join,
)
async def test_completion_of_values(
    words: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    async with small_cluster(tmp_path, WIDE, pod("other", 2)) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        monkeypatch.setattr("sys.argv", ["kubectl_complete-koord_numa", *words])
        await asyncio.to_thread(complete)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines[:-1]] == found


def test_completion_without_a_cluster_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.setattr("sys.argv", ["kubectl_complete-koord_numa", "explain", ""])
    complete()
    assert capsys.readouterr() == (":4\n", "")


def test_powershell_completes() -> None:
    environment = {"_KOORD_NUMA_COMPLETE": "powershell_complete", "COMP_WORDS": "nodes\n-o", "COMP_WORD": "ya"}
    answer = CliRunner().invoke(main, ["completion", "powershell"])
    assert "Register-ArgumentCompleter -Native -CommandName koord-numa" in answer.output
    code = "import sys; from koord_numa.cli import main; main(prog_name='koord-numa')"
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "yaml\n"


# Without a scheduler in a pod, ``nodes`` computes from the objects; test_running_scheduler has the usual case.
HEAVY = ("kubernetes_asyncio", "aiohttp", "pydantic", "numpy", "rich", "kopf", "asyncio", "koord_numa.core.kubelet")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        pytest.param(["explain", ""], (), id="completion"),
        pytest.param(["version"], (), id="version"),
        pytest.param(["--help"], (), id="help"),
        pytest.param(["nodes"], ("koord_numa.core.kubelet",), id="nodes"),
        pytest.param(["nodes", "-l", "kind=own"], ("koord_numa.core.kubelet",), id="nodes by label"),
    ],
)
async def test_commands_import_only_what_they_need(words: list[str], allowed: tuple[str, ...], tmp_path: Path) -> None:
    """Start-up time is import time. The models of kubernetes-asyncio take a second, aiohttp 0.2 s."""
    run = (
        "import sys\n"
        "from koord_numa.cli import main; from koord_numa.cli.kubectl_completion import complete\n"
        "try:\n    complete() if sys.argv[-1] == '' else main()\n"
        f"finally:\n    print('loaded', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    async with small_cluster(tmp_path, WIDE) as cluster:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", run, *words],
            env={"KUBECONFIG": str(cluster.kubeconfig), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
    loaded = done.stdout.splitlines()[-1].split()[1:]
    assert set(loaded) <= set(allowed), done.stdout
