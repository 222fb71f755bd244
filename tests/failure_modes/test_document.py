"""The table of failure modes is complete and true as far as it can be checked: every test that it names exists."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "failure-modes.md"
AT_LEAST: Final = 190
"""Minimum number of failure modes: a row has one or more, each with its test."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. Failures without a visible sign are in tables without that column."""

    cells: tuple[str, ...]
    tests: tuple[str, ...]


def rows() -> list[Row]:
    cells = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    return [Row(tuple(row), tuple(row[-1].replace("`", "").split(", "))) for row in cells if "`tests/" in row[-1]]


def named_in(path: Path) -> set[str]:
    """Names of test functions, those inside of classes with their class."""
    found = set()
    for part in ast.parse(path.read_text()).body:
        inner = part.body if isinstance(part, ast.ClassDef) else [part]
        prefix = f"{part.name}::" if isinstance(part, ast.ClassDef) else ""
        functions = (one for one in inner if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
        found |= {prefix + one.name for one in functions if one.name.startswith("test_")}
    return found


def test_every_metric_that_people_are_to_look_at_exists() -> None:
    named = set(re.findall(r"koord_numa_\w+", DOCUMENT.read_text()))
    served = "".join(page.read_text() for page in (ROOT / "koord_numa" / "app").glob("*metrics.py"))
    assert named
    assert [metric for metric in sorted(named) if f'"{metric}"' not in served] == []


def test_the_tables_have_every_failure() -> None:
    assert sum(len(row.tests) for row in rows()) >= AT_LEAST
    assert {len(row.cells) for row in rows()} == {3, 4}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.tests[0].partition("::")[2])
def test_every_mode_is_injected_by_a_test(row: Row) -> None:
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in named_in(ROOT / path)
    assert all(row.cells)
