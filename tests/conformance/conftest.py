"""The fixture that compares a file of recorded answers with ours."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.vectors import Conforms, Oracle, compare


@pytest.fixture
def conforms(record_property: Any) -> Conforms:
    """Compares one file; the tally reaches the summary even when the test ran in another process."""

    def check(oracle: Oracle[Any, Any], file: Path) -> None:
        if not file.is_file():
            pytest.fail(f"{file} holds no recorded answers at all", pytrace=False)
        tally = compare(oracle, file)
        record_property("conformance", str(tally))
        if tally.differences or not tally.total:
            pytest.fail(tally.report(), pytrace=False)

    return check
