"""A rule of a tool that is set aside, and a test that is skipped, has its reason beside it."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.tables import each_row

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("koord_numa", "tests", "bench", "docs", "deploy", "examples")
SUPPRESSION: Final = re.compile(r"#\s*(noqa\b|type: ignore\b)")
REASONED: Final = re.compile(r"#\s*(?:noqa: [A-Z0-9, ]+?|type: ignore\[[a-z, -]+\])\s*(?:#|\(|-)\s*\w+")
SKIPS: Final = frozenset({"skip", "skipif", "importorskip", "xfail"})


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")) and "__pycache__" not in path.parts:
                yield path


def unexplained(path: Path) -> Iterator[str]:
    """Comments that set a rule aside and name no rule or no reason."""
    # Taking all files apart takes seconds: most have no such words, or each of them has a reason, whether it is in a comment or not.
    lines = path.read_text(encoding="utf-8").splitlines()
    if all(REASONED.match(line, found.start()) for line in lines for found in SUPPRESSION.finditer(line)):
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and SUPPRESSION.match(token.string) and not REASONED.match(token.string):
                yield f"{path.relative_to(ROOT)}:{token.start[0]} {token.string}"


def silent_skips(path: Path) -> Iterator[str]:
    """Calls that skip a test without a word."""
    text = path.read_text(encoding="utf-8")
    if not any(word in text for word in SKIPS):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in SKIPS:
            continue
        if not ast.unparse(node.func).startswith("pytest."):
            continue
        reason = next((word.value for word in node.keywords if word.arg in ("reason", "msg")), None)
        if reason is None and node.func.attr == "skip" and node.args:
            reason = node.args[0]
        if reason is None or (isinstance(reason, ast.Constant) and not reason.value):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}"


CLOCKS: Final = frozenset({"monotonic", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time_ns"})


def timed_assertions(text: str) -> Iterator[str]:
    """Assertions that something was fast: a difference of clocks on the smaller side of a comparison."""
    if not any(clock in text for clock in CLOCKS):
        return
    tree = ast.parse(text)
    timed: set[str] = set()  # names of values that come from a clock

    def of_a_clock(node: ast.AST) -> bool:
        return any(
            (isinstance(it, ast.Name) and it.id in timed)
            or (isinstance(it, ast.Call) and ast.unparse(it.func).rpartition(".")[2] in CLOCKS)
            for it in ast.walk(node)
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and of_a_clock(node.value):
            timed.update(it.id for target in node.targets for it in ast.walk(target) if isinstance(it, ast.Name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and any(of_a_clock(side) for side in smaller_sides(node.test)):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def smaller_sides(test: ast.AST) -> Iterator[ast.AST]:
    """The sides of comparisons that must be the smaller ones."""
    for compared in ast.walk(test):
        if isinstance(compared, ast.Compare):
            sides = [compared.left, *compared.comparators]
            for left, operator, right in zip(sides, compared.ops, sides[1:], strict=False):
                if isinstance(operator, ast.Lt | ast.LtE):
                    yield left
                elif isinstance(operator, ast.Gt | ast.GtE):
                    yield right


def test_no_assertion_is_about_speed() -> None:
    """Such a test fails on a busy machine. Work is counted instead: steps, calls, requests."""
    tests = [path for path in sources() if "tests" in path.parts]
    found = [f"{path.name} {line}" for path in tests for line in timed_assertions(path.read_text(encoding="utf-8"))]
    assert found == []


@each_row(
    ("text", "found"),
    [
        ("begun = time.monotonic()\nassert time.monotonic() - begun < 0.01", 1),
        ("begun = perf_counter()\nspent = perf_counter() - begun\nassert 0.5 >= spent", 1),
        ("begun = monotonic()\nassert monotonic() - begun >= 0.2", 0),
        ("begun = monotonic()\nassert waited <= monotonic() - begun", 0),
    ],
)
def test_what_counts_as_an_assertion_about_speed(text: str, found: int) -> None:
    assert len([*timed_assertions(text)]) == found


def test_every_suppression_has_its_reason() -> None:
    assert [line for path in sources() for line in unexplained(path)] == []


def test_every_skip_has_its_reason() -> None:
    assert [line for path in sources() if "tests" in path.parts for line in silent_skips(path)] == []


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("# noqa: S101", 1),
        ("# noqa", 1),
        ("# type: ignore[arg-type]", 1),
        ("# type: ignore  # theirs", 1),
        ("# noqa: S101  (data of a test)", 0),
        ("# type: ignore[arg-type]  # theirs", 0),
        ("# noqa: BLE001 - contained", 0),
    ],
)
def test_what_counts_as_a_reason(comment: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_suppressions.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(f"x = 1  {comment}\n")
    assert len([*unexplained(path)]) == found
