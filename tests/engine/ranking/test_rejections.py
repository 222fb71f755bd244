"""Rejections of nodes use little memory for any number of nodes, classes and sentences."""

from random import Random

from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.engine.ranking.node_ranking import DETAILED, SPARE, RejectionTable
from koord_numa.settings import Settings

NODES = 5000


def no(text: str) -> Rejection:
    return Rejection(Reason.TAINT, text, resolvable=False)


def test_unused_rejection_texts_are_dropped_others_stay() -> None:
    dice, rows = Random(1), 100
    table = RejectionTable()
    table.resize(rows)
    said: dict[int, str] = {}
    for number in range(20_000):
        row = dice.randrange(rows)
        if dice.random() < 0.2:
            table.forget(row)
            said.pop(row, None)
            continue
        table.forget(row)
        said[row] = f"untolerated taint {{stamp: {number if dice.random() < 0.5 else 0}}}"
        table.add(row, no(said[row]))
        if number % 500 == 0:
            heard = {at: found.message for at in range(rows) if (found := table.get(at)) is not None}
            assert heard == said
            assert len(table._words) == len(table._code_of) <= 2 * rows + SPARE


def test_rejections_of_all_classes_on_5000_nodes_are_bounded() -> None:
    """Eight bytes a node and class, and one sentence a distinct refusal: 10 MiB with as many classes as are remembered."""
    table = RejectionTable()
    table.resize(NODES)
    for row in range(NODES):
        table.add(row, no("untolerated taint"))
    assert (len(table._words), len(table._detailed)) == (1, DETAILED)
    assert Settings().remembered_classes * (table._codes.nbytes + table._distances.nbytes) <= 16 << 20
