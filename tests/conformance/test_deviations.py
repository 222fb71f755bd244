"""The table of deviations: every row shows its test, and every excuse has its row."""

import re
from importlib import import_module
from pathlib import Path

from tests.conformance.deviations import DOCUMENT, documented
from tests.conformance.vectors import REPOSITORY, Oracle
from tests.tables import each_row

TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
HERE = Path(__file__).parent
ADAPTERS = sorted(
    ".".join(path.relative_to(HERE).with_suffix("").parts)
    for path in HERE.rglob("*.py")
    if re.search(r"^ORACLE\b", path.read_text(), re.MULTILINE)
)


def rows() -> list[str]:
    """The lines of the table that are rows."""
    return [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]


@each_row("row", rows(), ids=lambda row: row.split("`")[1])
def test_every_row_names_a_test_that_exists(row: str) -> None:
    named = TEST.findall(row.rsplit("|", 2)[1])
    assert named, "the last column names no test"
    for file, test in named:
        source = (REPOSITORY / file).read_text()
        assert any(f"{word} {test}" in source for word in ("def", "class")) if test else "def test_" in source


def test_every_row_has_its_own_name() -> None:
    assert len(rows()) == len(documented())


@each_row("adapter", ADAPTERS)
def test_every_excuse_has_a_row(adapter: str) -> None:
    oracle = import_module(f"tests.conformance.{adapter}").ORACLE
    assert isinstance(oracle, Oracle)
    assert {deviation.row for deviation in oracle.deviations} <= documented()
