"""Each value of an array once, without what ``np.unique`` imports for it."""

import subprocess
import sys

import numpy as np
import pytest

from koord_numa.engine.ranking.node_numbers import distinct
from tests.tables import each_row


@each_row("values", [[], [3], [5, 5], [2, 1, 2, -1, 2], [*range(9), *range(5)]], ids=str)
def test_each_value_is_there_once(values: list[int]) -> None:
    """In ascending order."""
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))


@pytest.mark.e2e
def test_no_decision_waits_for_an_import() -> None:
    """``numpy.ma`` is imported by nothing that a ranking does: it takes tens of milliseconds."""
    program = (
        "import sys, numpy as np\n"
        "from koord_numa.engine.ranking.node_numbers import MANY, Journal\n"
        "journal = Journal()\n"
        "for row in range(2 * MANY): journal.add(row % 7, MANY)\n"
        "assert journal.changes_since(0).tolist() == list(range(7))\n"
        "assert 'numpy.ma' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
