"""The excuses for differing splits speak where upstream's split gives the recorded answer, and nowhere else."""

from typing import Any

import pytest

from tests.conformance.koordinator import rm as koord_rm
from tests.conformance.koordinator.rm_cases import answer, load
from tests.conformance.split_rules import split_in_another_order, split_in_whole_cpus
from tests.tables import each_row

REFUSED = {"code": "Unschedulable", "reasons": ["Insufficient NUMA memory"]}
REFUSED_CPU = {"code": "Unschedulable", "reasons": ["Insufficient NUMA cpu"]}


def case(request: dict[str, Any], free: list[dict[str, int]], mask: int, alloc: dict[str, Any]) -> dict[str, Any]:
    """One allocation on a machine of four CPUs a NUMA node, without SMT."""
    topo = {"s": 1, "n": len(free), "c": 4, "t": 1, "layout": "seq", "coreid": "global"}
    given = {
        "fn": "allocate",
        "topo": topo,
        "max_ref": 1,
        "numa": [{"node": numa, "res": res} for numa, res in enumerate(free)],
        "strategy": "LeastAllocated",
        "request": request,
        "mask": mask,
    }
    return {"id": "by-hand", "in": given, "out": {"alloc": alloc}}


def success(cpus: str, *shares: tuple[int, dict[str, int]]) -> dict[str, Any]:
    """An allocation as it is recorded."""
    return {"code": "Success", "cpus": cpus, "numa": [{"node": numa, "res": res} for numa, res in shares]}


MEMORY = {"res": {"memory": 12}}
BY_POSITION = [{"memory": 1}, {"memory": 2}, {"memory": 8}, {"memory": 4}]  # of 2 and 3, upstream serves 2 first
OWN_CPUS = {"res": {"cpu": 3000}, "n": 3, "cpu_bind": True, "bind": "FullPCPUs"}
BROKEN = [{"cpu": 500}, {"cpu": 4000}]


@each_row(
    ("recorded", "row"),
    [
        pytest.param(case(MEMORY, BY_POSITION, 0b1100, REFUSED), "split-order", id="refused-by-the-order"),
        pytest.param(
            case(MEMORY, BY_POSITION, 0b1100, success("", (2, {"memory": 6}), (3, {"memory": 6}))),
            None,
            id="not-theirs",
        ),
        pytest.param(case(OWN_CPUS, BROKEN, 0b11, REFUSED_CPU), "whole-cpu-shares", id="refused-by-half-a-cpu"),
        pytest.param(case(OWN_CPUS, BROKEN, 0b10, REFUSED_CPU), None, id="refused-for-no-reason"),
    ],
)
def test_what_is_excused(recorded: dict[str, Any], row: str | None) -> None:
    found = answer(load(recorded))
    excused = [
        name
        for name, explains in (("split-order", split_in_another_order), ("whole-cpu-shares", split_in_whole_cpus))
        if explains(recorded, found)
    ]
    assert koord_rm.agrees(recorded, found) is not None
    assert excused == ([row] if row else [])
