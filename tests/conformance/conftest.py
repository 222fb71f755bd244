"""Shows, at the end of a run, how many recorded answers of each file were met."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.vectors import Conforms, Oracle, compare

PROPERTY = "conformance"


@pytest.fixture
def conforms(record_property: Any) -> Conforms:
    """Compares one file; the tally reaches the summary even when the test ran in another process."""

    def check(oracle: Oracle[Any, Any], file: Path) -> None:
        if not file.is_file():
            pytest.fail(f"{file} holds no recorded answers at all", pytrace=False)
        tally = compare(oracle, file)
        record_property(PROPERTY, str(tally))
        if tally.differences or not tally.total:
            pytest.fail(tally.report(), pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a file: agreed / total."""
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    lines = [text for report in reports for name, text in report.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("recorded answers")
        for line in sorted(lines):
            terminalreporter.write_line(line)
