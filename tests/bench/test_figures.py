"""The bench command: what it selects, prints, writes and returns. Nothing is timed here."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.figure import Figure, NotMeasurableError
from tests.tables import each_row


def _fast() -> Iterator[Figure]:
    yield Figure("fast-thing mean", 1.5, "us", 2.0, note="as before")
    yield Figure("fast-thing rate", 10, "/s", 20, better="higher")


def _slow() -> Iterator[Figure]:
    yield Figure("other speed", 3.0, "ms", 2.0)


def _absent() -> Iterator[Figure]:
    yield from ()
    raise NotMeasurableError("no inputs")


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups, one of which names its figures otherwise and one of which cannot be measured."""
    chosen = [
        command.Group("fast-thing", ("fast-thing",), _fast),
        command.Group("slow-thing", ("slow-thing", "other"), _slow),
        command.Group("absent", ("absent",), _absent),
    ]
    monkeypatch.setattr(command, "groups", lambda: iter(chosen))


@pytest.mark.parametrize(
    ("only", "names"),
    [
        pytest.param("fast_thing", ["fast-thing mean", "fast-thing rate"], id="a-module"),
        pytest.param("fast-thing mean", ["fast-thing mean"], id="one-figure"),
        pytest.param("thing", ["fast-thing mean", "fast-thing rate", "other speed"], id="a-part"),
        pytest.param("other", ["other speed"], id="a-figure-not-named-after-its-module"),
    ],
)
def test_only_what_is_asked_for(only: str, names: list[str], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command.main(["--only", only, "--json", str(file)])
    assert [figure["name"] for figure in json.loads(file.read_text())] == names


@each_row(
    ("only", "status"),
    [
        pytest.param("fast-thing mean", 0, id="reached"),
        pytest.param("fast-thing", 1, id="missed"),
        pytest.param("nonsense", 2, id="nothing-by-that-name"),
        pytest.param("absent", 0, id="not-measurable"),
    ],
)
def test_status(only: str, status: int) -> None:
    assert command.main(["--only", only]) == status


def test_one_line_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([])
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()] == [
        ["fast-thing", "mean", "1.50", "us", "<=", "2.00", "ok", "as", "before"],
        ["fast-thing", "rate", "10.00", "/s", ">=", "20.00", "MISS"],
        ["other", "speed", "3.00", "ms", "<=", "2.00", "MISS"],
    ]
    assert printed.err == "absent: not measured: no inputs\n"


def test_json_keeps_every_field(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command.main(["--only", "other", "--json", str(file)])
    assert json.loads(file.read_text()) == [
        {"name": "other speed", "value": 3.0, "unit": "ms", "target": 2.0, "better": "lower", "note": "", "ok": False}
    ]


def test_a_module_that_cannot_match_is_not_run() -> None:
    assert [group.selected("fast-thing mean") for group in command.groups()] == [True, False, False]
