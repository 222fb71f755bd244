"""Usage of a node's least used device equals the scalar score of a pod without devices, after all changes of the row."""

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodKey
from koord_numa.core.score.node_scores import score_sparing
from koord_numa.core.state.ledger import Holding
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.node_numbers import SPARES
from koord_numa.engine.ranking.node_table import FIRST_ROWS, NodeTable

AMOUNTS = {"cpu": 8000, "memory": 1 << 34, "pods": 110}
GPU, NIC = "example.com/gpu", "example.com/nic"


def shown(table: NodeTable, record: NodeInfo, **amounts: int) -> int:
    """The percent in the table once the node offers these devices."""
    offered = {**AMOUNTS, **{f"example.com/{name}": count for name, count in amounts.items()}}
    record.set_objects(Node(record.name, allocatable=offered), None)
    return read(table, record)


def read(table: NodeTable, record: NodeInfo) -> int:
    table.changed(record)
    table.refresh()
    return 100 + int(table.amounts._numbers.rows[table.row_of[record.name], SPARES])


def test_the_least_used_device_of_a_row() -> None:
    table, record = NodeTable(), NodeInfo("n")
    assert shown(table, record) == 100
    assert shown(table, record, gpu=4) == 0
    record.ledger.hold(Holding(PodKey("a", "p", "u"), {"cpu": 8000, GPU: 3}))
    record.touch()
    assert read(table, record) == 75
    # As the score says, whose points a pod loses that fills the CPUs.
    assert 100 - score_sparing({}, record.allocatable, record.ledger.amounts) == 100 - 75
    assert shown(table, record, gpu=4, nic=2) == 0
    assert shown(table, record, gpu=2) == 100  # more is held than there is
    record.ledger.release("u")
    assert shown(table, record, gpu=0) == 100
    assert NIC not in record.allocatable


def test_rows_that_are_new_or_used_again_have_no_devices() -> None:
    table, record = NodeTable(), NodeInfo("n")
    assert shown(table, record, gpu=4) == 0
    record.set_objects(None, None)
    table.changed(record)
    others = [NodeInfo(f"other-{number}") for number in range(FIRST_ROWS + 1)]
    assert {shown(table, other) for other in others} == {100}
    assert len(table.amounts._numbers.rows) > FIRST_ROWS
