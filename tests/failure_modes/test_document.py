"""The table of failure modes is complete and true as far as it can be checked: every test that it names exists."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "failure-modes.md"
AT_LEAST: Final = 35


@dataclass(frozen=True, slots=True)
class Mode:
    """One row."""

    number: str
    wrong: str
    happens: str
    seen: str
    test: str


def modes() -> list[Mode]:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    return [Mode(*row) for row in rows if row[0].isdigit()]


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


def test_there_are_enough_and_they_are_numbered() -> None:
    assert [mode.number for mode in modes()] == [str(number) for number in range(1, len(modes()) + 1)]
    assert len(modes()) >= AT_LEAST


@pytest.mark.parametrize("mode", modes(), ids=lambda mode: mode.number)
def test_every_mode_is_injected_by_a_test(mode: Mode) -> None:
    path, _, name = mode.test.strip("`").partition("::")
    assert name in named_in(ROOT / path)
    assert all((mode.wrong, mode.happens, mode.seen))
