"""The command line of the operator, and its log lines."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import orjson
import pytest
import yaml
from click import Context
from click.testing import CliRunner

from koord_numa import __version__
from koord_numa.cli import main
from koord_numa.cli.logs import JsonFormatter, TextFormatter
from tests.tables import each_row

DEPLOY: Final = Path(__file__).parents[2] / "deploy"


def record(**extra: str) -> logging.LogRecord:
    made = logging.LogRecord("koord_numa.x", logging.WARNING, __file__, 1, "cannot bind %s", ("a",), None)
    vars(made).update(extra)
    return made


def test_json_lines_carry_pod_node_and_reason() -> None:
    line = orjson.loads(JsonFormatter().format(record(pod="default/a", node="n", reason="Conflict")))
    line.pop("time")
    assert line == {
        "level": "warning",
        "logger": "koord_numa.x",
        "message": "cannot bind a",
        "pod": "default/a",
        "node": "n",
        "reason": "Conflict",
    }


def test_json_lines_carry_errors() -> None:
    made = record()
    try:
        int("one")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: invalid literal" in orjson.loads(JsonFormatter().format(made))["error"]


def test_text_lines_carry_them_at_the_end() -> None:
    line = TextFormatter().format(record(pod="default/a", reason=""))
    assert line.endswith("WARNING koord_numa.x cannot bind a pod=default/a")


def test_versions_are_told() -> None:
    result = CliRunner().invoke(main, ["version"])
    assert (result.exit_code, result.output.splitlines()[0]) == (0, f"koord-numa {__version__}")


def test_every_command_is_listed() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert {"run", "version"} <= {line.split()[0] for line in result.output.splitlines() if line.startswith("  ")}


@each_row(
    ("arguments", "complaint"),
    [
        pytest.param(["--config", "/does/not/exist"], "/does/not/exist: cannot be read", id="configuration"),
        pytest.param(["--kubeconfig", "/does/not/exist"], "there is no file /does/not/exist", id="kubeconfig"),
        pytest.param(["--kubeconfig", __file__], "is not a kubeconfig", id="not-a-kubeconfig"),
        pytest.param(["--log-format", "xml"], "'xml' is not one of", id="flag"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], complaint: str) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    result = CliRunner().invoke(main, ["run", *arguments])
    root.handlers[:] = handlers
    root.setLevel(level)
    assert result.exit_code != 0
    assert complaint in result.output
    assert "Traceback" not in result.output


def deployed() -> dict[str, list[str]]:
    """Return the arguments with which the deployments start the operator."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    [default] = re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)
    [deployment] = yaml.safe_load_all((DEPLOY / "kustomize" / "base" / "deployment.yaml").read_text())
    values = yaml.safe_load((DEPLOY / "chart" / "koord-numa" / "values.yaml").read_text())
    return {
        "image": orjson.loads(default),
        "kustomize": deployment["spec"]["template"]["spec"]["containers"][0]["args"],
        "chart": ["run", "--log-format", values["logFormat"], "--log-level", values["logLevel"]],
    }


@pytest.mark.parametrize("way", ["image", "kustomize", "chart"])
def test_deployments_start_it_with_options_that_exist(way: str) -> None:
    name, *options = deployed()[way]
    command = main.get_command(Context(main), name)
    assert command is not None
    assert command.make_context(name, options).params["log_format"] == "json"


def test_every_command_says_in_one_line_what_it_does() -> None:
    lines = CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2].splitlines()
    assert [line for line in lines if "..." in line or len(line) > 80] == []


def test_an_unknown_command() -> None:
    assert CliRunner().invoke(main, ["does-not-exist"]).exit_code == 2


@pytest.mark.e2e
def test_the_node_agent_imports_no_models() -> None:
    """Each of these would add 5 to 30 MB on every node."""
    heavy = ("pydantic", "numpy", "kubernetes_asyncio", "kopf", "koord_numa.engine")
    code = f"import sys; import koord_numa.node.agent; print(*[name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split() == []


@pytest.mark.e2e
def test_version_imports_neither_the_client_nor_the_sandbox() -> None:
    code = (
        "import sys; import koord_numa.cli.commands.version\n"
        "print(*[name for name in ('kubernetes_asyncio', 'aiohttp', 'numpy', 'koord_numa.sandbox') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split() == []


@pytest.mark.e2e
def test_kopf_imports_no_client_library() -> None:
    """kubernetes-asyncio, which tests install, takes a third of the time to the first bind. It stays importable."""
    code = (
        "import sys; from koord_numa.handlers import prepare_kopf; prepare_kopf(); import kopf\n"
        "kopf.get_default_registry(); print([name for name in sys.modules if 'kubernetes' in name])\n"
        "import importlib.util; print(importlib.util.find_spec('kubernetes_asyncio') is not None)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == ["[]", "True"]


def test_a_command_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubectl plugin contains the packages of the commands for clients only."""

    @click.command()
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr(type(main), "get_command", lambda *_: broken)
    answer = CliRunner().invoke(main, ["node-agent"])
    assert answer.exit_code == 1
    assert answer.output == (
        "Error: this command needs the package grpc, which is not installed (pip install koord-numa)\n"
    )
