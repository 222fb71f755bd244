"""The command line of the operator, and its log lines."""

import logging
import sys

import orjson
import pytest
from click.testing import CliRunner

from koord_numa import __version__
from koord_numa.cli import main
from koord_numa.cli._logs import JsonFormatter, TextFormatter


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


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--config", "/does/not/exist"], "/does/not/exist: cannot be read", id="configuration"),
        pytest.param(["--kubeconfig", "/does/not/exist"], "no credentials for a cluster", id="kubeconfig"),
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


def test_an_unknown_command() -> None:
    assert CliRunner().invoke(main, ["does-not-exist"]).exit_code == 2
