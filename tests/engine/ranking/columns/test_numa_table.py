"""Rows say the same as rows of a new table, whatever happened to their nodes; what has not changed is not written again."""

from collections.abc import Mapping
from random import Random

import numpy as np
import pytest

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.node_numbers import NodeNumbers
from koord_numa.engine.ranking.node_table import NumaTable
from tests.tables import each_row

NODES = 4


def _topology(name: str, numas: int, free: int, owner: CpuOwner) -> NodeResourceTopology:
    machine = regular_topology(1, numas, 4, 1)
    capacity = {"cpu": 4000, "memory": 1 << 33}
    zones = tuple(Zone(numa, capacity, capacity, {**capacity, "cpu": free}) for numa in machine.numa_ids)
    chosen = machine if owner is CpuOwner.SCHEDULER else None
    kubelet = KubeletConfig(topology_policy=KubeletPolicy.BEST_EFFORT, cpu_policy="static")
    return NodeResourceTopology(node=name, owner=owner, zones=zones, machine=chosen, kubelet=kubelet)


def _objects(dice: Random, name: str) -> tuple[Node, NodeResourceTopology | None]:
    numas, owner = dice.choice((1, 2, 3)), dice.choice((CpuOwner.KUBELET, CpuOwner.KUBELET, CpuOwner.SCHEDULER))
    node = Node(name, allocatable={"cpu": 4000 * numas, "memory": numas << 33, "pods": 110})
    return node, _topology(name, numas, dice.randrange(5) * 1000, owner) if dice.random() < 0.9 else None


def _holding(dice: Random, uid: str) -> Holding:
    cpus = dice.choice((0, 0, 1000, 2000))
    amounts = {"memory": 1 << 30, **({"cpu": cpus} if cpus else {})}
    return Holding(PodKey("a", uid, uid), {"cpu": 500, **amounts}, numa=((dice.randrange(2), amounts),))


def _check(numbers: NodeNumbers, records: list[NodeInfo]) -> None:
    new_numbers = NodeNumbers(NODES)
    fresh = NumaTable(new_numbers)
    for _ in range(2):  # the second time every row has the width of the widest
        for row, record in enumerate(records):
            fresh.forget(row)
            fresh.write(row, record)
    for name, place in new_numbers.places.items():
        kept, new = numbers.reach[numbers.places[name]], new_numbers.reach[place]
        # A table that had wider rows repeats the last sum.
        assert np.array_equal(kept[:, : new_numbers.counts], new)
        assert (kept[:, new_numbers.counts :] == new[:, -1:]).all()


@each_row("seed", range(8))
def test_rows_are_those_of_a_new_table(seed: int) -> None:
    dice, numbers = Random(seed), NodeNumbers(NODES)
    table = NumaTable(numbers)
    records = [NodeInfo(f"n{row}") for row in range(NODES)]
    for record in records:
        record.set_objects(*_objects(dice, record.name))
    for step in range(120):
        row = dice.randrange(NODES)
        record, uid = records[row], f"{row}-{dice.randrange(6)}"
        match dice.randrange(8):
            case 0:
                record.set_objects(*_objects(dice, record.name))
            case 1:
                table.forget(row)
                record = records[row] = NodeInfo(f"n{row}-{step}")
                record.set_objects(*_objects(dice, record.name))
            case 2 | 3:
                record.ledger.release(uid)
                record.unreported.discard(uid)
                record.touch()
            case _:
                record.ledger.hold(_holding(dice, uid))
                record.unpublished.add(uid)
                record.touch()
        for number, each in enumerate(records):
            table.write(number, each)
        _check(numbers, records)


def test_a_pod_without_exclusive_cpus_costs_no_kubelet_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    record, table, written = NodeInfo("n"), NumaTable(NodeNumbers(1)), []
    topology = _topology("n", 2, 3000, CpuOwner.KUBELET)
    record.set_objects(Node("n", allocatable={"cpu": 8000, "memory": 1 << 34, "pods": 110}), topology)
    table.write(0, record)
    put = NumaTable._put

    def counted(self: NumaTable, row: int, free: Mapping[str, list[int]]) -> None:
        written.append(free["cpu"])
        put(self, row, free)

    monkeypatch.setattr(NumaTable, "_put", counted)
    for number, amounts in enumerate(({"memory": 1 << 30}, {"memory": 1 << 30}, {"cpu": 1000})):
        record.ledger.hold(Holding(PodKey("a", "p", str(number)), amounts, numa=((0, amounts),)))
        record.unpublished.add(str(number))
        record.touch()
        table.write(0, record)
        assert len(written) == (number == 2)
    assert sorted(written[0]) == [2000, 3000]
    record.set_objects(record.node, replace(topology, resource_version="2"))
    table.write(0, record)
    assert len(written) == 1
