"""Nodes: every accepted spelling, and what is said about the others."""

from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.node import Node, NodeReservation, Taint
from koord_numa.core.objects.vocabulary import NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.wire import WireError, parse_node
from tests.tables import each_row
from tests.wire.objects import NODE, Object, annotated, changed, labelled

GIB = 2**30
PREFIX = "node.koordinator.sh"


def test_a_whole_node() -> None:
    assert parse_node(NODE) == Node(
        name="worker-2",
        uid="n1",
        labels=NODE["metadata"]["labels"],
        taints=(Taint("numa", TaintEffect.NO_SCHEDULE, "only"),),
        allocatable={"cpu": 15500, "memory": 32 * GIB, "pods": 110},
        numa_policy=NumaPolicy.RESTRICTED,
        bind_policy=NodeBindPolicy.FULL_PCPUS_ONLY,
        strategy=NumaAllocateStrategy.MOST_ALLOCATED,
        amplification={"cpu": 1.5},
        reservation=NodeReservation(cpus=CpuSet.parse("0-1"), amounts={"cpu": 2000, "memory": GIB}),
    )


def test_a_bare_node() -> None:
    assert parse_node({"metadata": {"name": "n"}}) == Node(name="n", allocatable={"pods": 0})


SPELLINGS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "the proposal's policy label": (
        {"numa-topology-alignment-policy": "BestEffort"},
        {"numa_policy": NumaPolicy.BEST_EFFORT},
    ),
    "today's policy label wins": (
        {"numa-topology-alignment-policy": "BestEffort", "numa-topology-policy": "SingleNUMANode"},
        {"numa_policy": NumaPolicy.SINGLE_NUMA_NODE},
    ),
    "policy None": ({"numa-topology-policy": "None"}, {"numa_policy": NumaPolicy.NONE}),
    "policy empty": ({"numa-topology-policy": ""}, {"numa_policy": NumaPolicy.NONE}),
    "policy in another case": (
        {"numa-topology-policy": "singleNumaNode"},
        {"numa_policy": NumaPolicy.SINGLE_NUMA_NODE},
    ),
    "bind None": ({"cpu-bind-policy": "None"}, {"bind_policy": NodeBindPolicy.NONE}),
    "bind spread": ({"cpu-bind-policy": "SpreadByPCPUs"}, {"bind_policy": NodeBindPolicy.SPREAD_BY_PCPUS}),
    "bind by its first name": ({"cpu-bind-policy": "PCPUOnly"}, {"bind_policy": NodeBindPolicy.FULL_PCPUS_ONLY}),
    "strategy by the proposal's label": (
        {"numa-allocate-policy": "DistributeEvenly"},
        {"strategy": NumaAllocateStrategy.DISTRIBUTE_EVENLY},
    ),
    "strategy by today's label": (
        {"numa-allocate-policy": "DistributeEvenly", "numa-allocate-strategy": "LeastAllocated"},
        {"strategy": NumaAllocateStrategy.LEAST_ALLOCATED},
    ),
    "no strategy": ({}, {"strategy": None}),
}


@each_row(("labels", "expected"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_labels(labels: dict[str, str], expected: dict[str, Any]) -> None:
    node = parse_node(
        {"metadata": {"name": "n", "labels": {f"{PREFIX}/{name}": word for name, word in labels.items()}}}
    )
    assert node.problem == ""
    assert {name: getattr(node, name) for name in expected} == expected


PROBLEMS: dict[str, tuple[Object, str]] = {
    "policy": (
        labelled(NODE, f"{PREFIX}/numa-topology-policy", "Strict"),
        (
            f'Node worker-2: label {PREFIX}/numa-topology-policy: "Strict" is none of BestEffort, None, Restricted, '
            "SingleNUMANode"
        ),
    ),
    "bind": (
        labelled(NODE, f"{PREFIX}/cpu-bind-policy", "Half"),
        f'Node worker-2: label {PREFIX}/cpu-bind-policy: "Half" is none of FullPCPUsOnly, None, SpreadByPCPUs',
    ),
    "strategy": (
        labelled(NODE, f"{PREFIX}/numa-allocate-strategy", "Most"),
        (
            f'Node worker-2: label {PREFIX}/numa-allocate-strategy: "Most" is none of DistributeEvenly, LeastAllocated, '
            "MostAllocated"
        ),
    ),
    "ratio": (
        annotated(NODE, f"{PREFIX}/resource-amplification-ratio", '{"cpu":1e9}'),
        f"Node worker-2: annotation {PREFIX}/resource-amplification-ratio.cpu: 1000000000.0 is not a ratio from 0 to 100",
    ),
    "ratio as text": (
        annotated(NODE, f"{PREFIX}/resource-amplification-ratio", '{"cpu":"2"}'),
        f'Node worker-2: annotation {PREFIX}/resource-amplification-ratio.cpu: "2" is not a number',
    ),
    "reserved CPUs": (
        annotated(NODE, f"{PREFIX}/reservation", '{"reservedCPUs":"3-1"}'),
        f"Node worker-2: annotation {PREFIX}/reservation.reservedCPUs: range '3-1' is reversed",
    ),
    "apply policy": (
        annotated(NODE, f"{PREFIX}/reservation", '{"applyPolicy":"Sometimes"}'),
        f'Node worker-2: annotation {PREFIX}/reservation.applyPolicy: "Sometimes" is none of Default, ReservedCPUsOnly',
    ),
    "taint": (
        changed(NODE, "spec taints 0 effect", "Never"),
        ('Node worker-2: spec.taints.effect: "Never" is none of NoExecute, NoSchedule, PreferNoSchedule'),
    ),
    "allocatable": (
        changed(NODE, "status allocatable cpu", "x"),
        'Node worker-2: status.allocatable.cpu: "x" is not a quantity',
    ),
}


@each_row(("obj", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problems(obj: Object, problem: str) -> None:
    assert parse_node(obj).problem.startswith(problem)


def test_the_first_problem_is_told() -> None:
    twice = labelled(labelled(NODE, f"{PREFIX}/cpu-bind-policy", "a"), f"{PREFIX}/numa-topology-policy", "b")
    assert '"b"' in parse_node(twice).problem


def test_without_a_name_there_is_no_node() -> None:
    with pytest.raises(WireError, match=r"^Node: metadata\.name: null is not a name$"):
        parse_node({"metadata": {}})


RESERVATIONS: dict[str, tuple[str, NodeReservation]] = {
    "amounts": ('{"resources":{"cpu":"1500m"}}', NodeReservation(amounts={"cpu": 1500})),
    "only CPU ids": (
        '{"reservedCPUs":"0,2","applyPolicy":"ReservedCPUsOnly"}',
        NodeReservation(CpuSet.parse("0,2"), {"cpu": 2000}, reserved_cpus_only=True),
    ),
    "nothing": ("{}", NodeReservation()),
    "null": ("null", NodeReservation()),
}


@each_row(("text", "expected"), RESERVATIONS.values(), ids=RESERVATIONS.keys())
def test_reservations(text: str, expected: NodeReservation) -> None:
    assert parse_node(annotated(NODE, f"{PREFIX}/reservation", text)).reservation == expected


def test_less_than_nothing_is_nothing() -> None:
    assert parse_node(changed(NODE, "status allocatable", {"cpu": "-1", "memory": "1.9"})).allocatable == {
        "cpu": 0,
        "memory": 1,
        "pods": 0,  # a node that lists no pods takes none
    }


def test_cordoned() -> None:
    assert parse_node(changed(NODE, "spec unschedulable", True)).unschedulable
