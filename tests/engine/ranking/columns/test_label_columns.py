"""Labels in columns: as the scalar rules say, and no more of them than are looked at, whatever keys and values users invent."""

from random import Random

import numpy as np

from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement, matches_term
from koord_numa.core.objects.node import Node
from koord_numa.engine.ranking.label_columns import MOST_COLUMNS, SPARE, LabelColumns
from koord_numa.engine.ranking.pod_counts import DomainSums, PodCounts, PodSelection

ROWS = 8


def columns_of(nodes: dict[int, Node]) -> LabelColumns:
    return LabelColumns(ROWS, lambda: iter(nodes.items()))


def test_invented_keys_use_no_memory_and_answers_stay_right() -> None:
    dice, nodes = Random(1), {row: Node(f"n{row}", labels={"zone": "ab"[row % 2]}) for row in range(ROWS)}
    columns, versions = columns_of(nodes), set()
    for number in range(3 * MOST_COLUMNS):
        row = dice.randrange(ROWS)
        nodes[row] = Node(f"n{row}", labels={"zone": dice.choice("abc"), f"key-{number}": "x"})
        columns.write(row, nodes[row])
        for term in (
            NodeTerm(labels=(Requirement("zone", Operator.IN, ("a", "c")),)),
            NodeTerm(labels=(Requirement(f"key-{number}", Operator.EXISTS),)),
        ):
            found = columns.matching((term,)).tolist()
            assert found == [matches_term(term, node.name, node.labels) for _, node in sorted(nodes.items())]
        assert columns.version not in versions
        versions.add(columns.version)
    assert len(columns._columns) <= MOST_COLUMNS


def test_values_that_no_row_has_any_more_are_forgotten() -> None:
    nodes = {row: Node(f"n{row}", labels={"host": f"n{row}"}) for row in range(ROWS)}
    columns = columns_of(nodes)
    column = columns.column("host")
    for number in range(5 * SPARE):
        row = number % ROWS
        columns.write(row, Node(f"m{number}", labels={"host": f"m{number}"}))
    assert len(column.values) <= 2 * ROWS + SPARE + 1
    last = 5 * SPARE - 1
    assert columns.equal((("host", f"m{last}"),)).tolist() == [row == last % ROWS for row in range(ROWS)]
    assert [column.values[number] for number in column.ids.tolist()] == [
        f"m{last - (last - row) % ROWS}" for row in range(ROWS)
    ]


def test_a_column_that_is_made_again_is_no_old_one() -> None:
    """Sums by domain are remembered by the version of their column."""
    nodes = {row: Node(f"n{row}", labels={"zone": "a"}) for row in range(ROWS)}
    columns = columns_of(nodes)
    counts = PodCounts({f"n{row}": row for row in range(ROWS)}.get, ROWS)
    sums, everything = DomainSums(counts, columns), PodSelection(())
    counts.count(everything).rows[:] = np.arange(ROWS)
    assert sums.of(everything, "zone").tolist() == [28] * ROWS
    for number in range(MOST_COLUMNS):
        columns.column(f"key-{number}")
    nodes[0] = Node("n0", labels={"zone": "b"})
    columns.write(0, nodes[0])
    assert sums.of(everything, "zone").tolist() == [0] + [28] * (ROWS - 1)
