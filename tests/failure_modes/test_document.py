"""The table of failure modes is complete and true as far as it can be checked: every test that it names exists."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.tables import each_row

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "failure-modes.md"
DEFINITION: Final = re.compile(r"^(|    )(class|def|async def) (\w+)", re.MULTILINE)

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
    """Return the names of test functions of a file, those inside of classes with their class."""
    found, group = set(), ""
    for indent, kind, name in DEFINITION.findall(path.read_text()):
        if kind == "class" and not indent:
            group = f"{name}::"
        elif name.startswith("test_"):
            found.add(f"{group}{name}" if indent else name)
    return found


def test_every_metric_that_people_are_to_look_at_exists() -> None:
    named = set(re.findall(r"koord_numa_\w+", DOCUMENT.read_text()))
    served = "".join(page.read_text() for page in (ROOT / "koord_numa" / "app").glob("*metrics.py"))
    assert named
    assert [metric for metric in sorted(named) if f'"{metric}"' not in served] == []


def test_the_tables_have_every_failure() -> None:
    assert sum(len(row.tests) for row in rows()) >= AT_LEAST
    assert {len(row.cells) for row in rows()} == {3, 4}


@each_row("row", rows(), ids=lambda row: row.tests[0].partition("::")[2])
def test_every_mode_is_injected_by_a_test(row: Row) -> None:
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in named_in(ROOT / path)
    assert all(row.cells)
