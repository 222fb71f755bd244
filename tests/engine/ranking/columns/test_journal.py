"""The journal tells what changed since a position, for as long as it keeps that, and what it told stays as it was."""

from koord_numa.engine.ranking.node_numbers import Journal

ROWS = 100


def test_changes_are_kept_in_order_up_to_a_limit() -> None:
    journal, written = Journal(), []
    told = []
    for number in range(20_000):
        row = number * 7 % ROWS
        position = journal.position
        assert position == number
        journal.add(row, ROWS)
        written.append(row)
        recent = journal.changes_since(max(0, number + 1 - ROWS))
        assert recent is not None  # as many as there are rows are always kept
        assert recent.tolist() == written[-ROWS:]
        told.append((recent, number + 1))
    assert journal.changes_since(0) is None
    for recent, end in told[::500]:
        assert recent.tolist() == written[max(0, end - ROWS) : end]
