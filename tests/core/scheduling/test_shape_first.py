"""The shape of CPUs that a pod prefers decides the NUMA nodes and the node, after alignment and before load (004, "CPUBindPolicy")."""

from collections.abc import Iterable
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import CpuBind, NumaSpec, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaPolicy,
    ScoringType,
)
from koord_numa.core.scheduling.filters import ScoredPlacement, decide, evaluate
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.score.node_scores import Strategy
from koord_numa.core.state.inventory import NodeSnapshot, candidate, inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from tests.core.scheduling.test_alignment_first import holding, lsr, machine_of, numa_nodes
from tests.engine.world import make_node, make_topology
from tests.tables import each_row

FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS


def wants(cpus: int, bind: CpuBindPolicy, policy: NumaPolicy = NumaPolicy.NONE) -> PodRequest:
    return replace(lsr(cpus, policy), bind=CpuBind(preferred=bind))


def machine(name: str, used: Iterable[int], *, numa: int = 2, cores: int = 4) -> NodeSnapshot:
    """NUMA nodes of so many cores with two CPUs each, siblings side by side; ``used`` CPUs are held."""
    topology = make_topology(name, sockets=1, numa=numa, cores=cores)
    assert topology.machine is not None
    node = make_node(name, cpu=len(topology.machine.cpus), memory=64)
    cpus = CpuSet.of(used)
    return candidate(node, inventory(node, topology), Ledger.of([holding(cpus, topology.machine)] if cpus else []))


def in_shape(bind: CpuBindPolicy, cpus: CpuSet, there: CpuTopology) -> int:
    """Count the CPUs that are whole cores, or alone on their core."""
    mine = [(core.bits & cpus.bits).bit_count() for core in there.cores if core.bits & cpus.bits]
    return sum(2 for count in mine if count == 2) if bind is FULL else len(mine)


def most_in_shape(bind: CpuBindPolicy, seen: NodeSnapshot, count: int, numas: int) -> int | None:
    """By brute force, the most CPUs in shape on any set of so many NUMA nodes that has enough free CPUs; ``None`` where none has."""
    there = machine_of(seen)
    free, best = there.bits & ~seen.ledger.bits, None
    for ids in combinations(there.numa_ids, numas):
        bits = sum(there.numa_bits[numa] for numa in ids) & free
        if bits.bit_count() < count:
            continue
        whole = [core for core in there.cores if core.bits & bits == core.bits]
        shaped = (
            2 * min(len(whole), count // 2)
            if bind is FULL
            else min(count, sum(bool(core.bits & bits) for core in there.cores))
        )
        best = max(best or 0, shaped)
    return best


EMPTY_AND_SPLIT = [0, 2, 4, 6]
"""One CPU of each core of NUMA node 0."""


@each_row("policy", [NumaPolicy.NONE, *(p for p in NumaPolicy if p is not NumaPolicy.NONE)])
@each_row("scoring", ScoringType)
@each_row("bind", [FULL, SPREAD])
def test_whole_cores_decide_the_numa_node(policy: NumaPolicy, scoring: ScoringType, bind: CpuBindPolicy) -> None:
    used = EMPTY_AND_SPLIT if bind is FULL else [0, 1, 2, 3]
    rules = Profile()
    rules = replace(rules, allocate=replace(rules.allocate, scoring=Strategy(scoring)))
    found = decide(scheduling_request(wants(4, bind, policy), rules), [machine("n", used)], rules)
    assert isinstance(found, Placement)
    assert machine_of(machine("n", used)).numa_of(found.cpus) == 0b10
    assert in_shape(bind, found.cpus, machine_of(machine("n", used))) == 4


@each_row("scoring", ScoringType)
@each_row("bind", [FULL, SPREAD])
def test_whole_cores_decide_the_node(scoring: ScoringType, bind: CpuBindPolicy) -> None:
    used = EMPTY_AND_SPLIT if bind is FULL else [0, 1, 2, 3]
    worse, better = [*used, *(8 + cpu for cpu in used)], [*range(4 if bind is FULL else 0)]
    nodes = [machine("a", worse), machine("b", better), machine("c", worse)]
    rules = Profile(scoring=scoring)
    found = decide(scheduling_request(wants(4, bind), rules), nodes, rules)
    assert isinstance(found, Placement)
    assert found.node == "b"


def test_amounts_over_several_numa_nodes_are_whole_cores() -> None:
    """6 and 6 free CPUs, 4 of them in whole cores on NUMA node 0: 4 + 6 are whole cores, 5 + 5 are not."""
    seen, rules = machine("n", [0, 2, 8, 9]), Profile()
    found = decide(scheduling_request(wants(10, FULL), rules), [seen], rules)
    assert isinstance(found, Placement)
    assert in_shape(FULL, found.cpus, machine_of(seen)) == 10


def test_a_numa_node_more_is_worse_than_split_cores() -> None:
    split, wide = (
        machine("a", EMPTY_AND_SPLIT + [8 + cpu for cpu in range(6)]),
        machine("b", [0, 1, 2, 3, 4, 5, *range(8, 14)]),
    )
    rules = Profile()
    found = decide(scheduling_request(wants(4, FULL), rules), [split, wide], rules)
    assert isinstance(found, Placement)
    assert found.node == "a"


@given(seed=st.integers(0, 2**32), scoring=st.sampled_from(ScoringType))
def test_no_better_shape_exists(seed: int, scoring: ScoringType) -> None:
    """By brute force over NUMA nodes and nodes: as many CPUs in shape as any equally narrow set of the node has; of nodes one with all."""
    dice = Random(seed)
    bind, count = dice.choice((FULL, SPREAD)), dice.choice((1, 2, 3, 4, 6, 7, 8, 12))
    policy = dice.choice((NumaPolicy.NONE, NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE))
    nodes = []
    for at in range(3):
        used = dice.choice((0.0, 0.2, 0.5))
        nodes.append(machine(f"n{at}", [cpu for cpu in range(24) if dice.random() < used], numa=3))
    rules = Profile(scoring=scoring)
    rules = replace(rules, allocate=replace(rules.allocate, scoring=Strategy(dice.choice(list(ScoringType)))))
    ask = scheduling_request(wants(count, bind, policy), rules)
    found: dict[str, tuple[int, int]] = {}  # by node, NUMA nodes and CPUs in shape
    for seen in nodes:
        answer = evaluate(ask, seen, rules)
        if isinstance(answer, ScoredPlacement):
            wide = numa_nodes(seen, answer.placement)
            found[seen.node.name] = wide, in_shape(bind, answer.placement.cpus, machine_of(seen))
            assert found[seen.node.name][1] == most_in_shape(bind, seen, count, wide)
    verdict = decide(ask, nodes, rules)
    if isinstance(verdict, Placement):
        wide, shaped = found[verdict.node]
        target = count // 2 * 2 if bind is FULL else count
        rivals = [other for other in found.values() if other[0] == wide]
        assert shaped == target or all(other < target for _, other in rivals)


@pytest.mark.parametrize("exclusive", [CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL])
def test_exclusive_policies_decide_before_the_shape(exclusive: CpuExclusivePolicy) -> None:
    """NUMA node 0 has whole cores and pods of the same policy, NUMA node 1 has split cores and none."""
    seen, rules = machine("n", [8, 10, 12, 14]), Profile()
    there = machine_of(seen)
    peer = replace(holding(CpuSet.of([0, 2, 4, 6]), there), exclusive=exclusive)
    seen = candidate(seen.node, seen.offer, Ledger.of([*seen.ledger, replace(peer, pod=replace(peer.pod, uid="peer"))]))
    request = replace(
        lsr(2, NumaPolicy.BEST_EFFORT),
        numa=NumaSpec(NumaPolicy.BEST_EFFORT, strategy=NumaAllocateStrategy.MOST_ALLOCATED),
    )
    request = replace(request, bind=CpuBind(preferred=SPREAD, exclusive=exclusive))
    found = decide(scheduling_request(request, rules), [seen], rules)
    assert isinstance(found, Placement)
    assert there.numa_of(found.cpus) == 0b10
