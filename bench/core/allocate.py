"""
Allocation on one node: the recorded cases beside a third of the Go mean, and common pods on machines of 2, 8 and 16 NUMA nodes.

What a scheduler does is measured: the accounts of a ledger that just changed, an election, an allocation. Hint lists and their
merge, which the conformance suite makes besides, are made only where an election needs them.
"""

import time
from collections.abc import Callable, Iterator
from statistics import fmean, median, quantiles
from typing import Final

from bench.figure import Figure, NotMeasurableError
from bench.vectors import recorded
from koord_numa.core.allocation.allocate import AllocateOptions, allocate_demand, cpu_occupancy, demand_of, place
from koord_numa.core.allocation.demand import AllocationDemand
from koord_numa.core.allocation.numa_offers import offers
from koord_numa.core.allocation.numa_selection import select_numa_nodes
from koord_numa.core.numa.policies import NumaExclusivity
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import accounts, numa_occupancy
from tests.conformance.koordinator.rm_cases import Question, load
from tests.conformance.vectors import cases, folder
from tests.core.allocation.nodes import GI, held, node, pod

NAMES: Final = ("koord-rm",)
ROUNDS: Final = 20
SHARE_OF_GO: Final = 3
"""A decision may take a third of what it takes in Go."""

MACHINES: Final = ("2x1x26x2", "2x4x12x2", "1x16x8x2")
PODS: Final[dict[str, PodRequest]] = {
    "shared, single": pod(4000, GI, limit=5000, numa=NumaPolicy.SINGLE_NUMA_NODE),
    "own CPUs, default": pod(4000, GI, qos=QosClass.LSR),
    "own CPUs and GPU, restricted": pod(4000, GI, qos=QosClass.LSR, numa=NumaPolicy.RESTRICTED, gpus=1),
}
PER_NUMA_US: Final = 50.0
"""Our own target for one scalar evaluation after a change, per NUMA node of the machine; at least that of eight."""


def figures() -> Iterator[Figure]:
    """Recorded cases first, then our own."""
    yield from _own_machines()
    yield from _recorded_cases()


def _recorded_cases() -> Iterator[Figure]:
    file = folder() / "bench" / "koord-rm.jsonl"
    if not file.is_file():
        raise NotMeasurableError(f"no {file.name} among the recorded answers")
    questions = [load(case) for case in cases(file)]
    # The median of Go's is not divided: the mean is what a scheduler pays, the others are for comparison.
    spent = [_micros(lambda question=question: _decide(question)) for question in questions]  # type: ignore[misc]  # bound per case
    go = recorded("koord-rm")
    yield Figure("koord-rm mean", fmean(spent), "us", go["ns_per_decision"] / 1000 / SHARE_OF_GO, note="a third of Go")
    yield Figure("koord-rm median", median(spent), "us", go["median_ns"] / 1000, note="Go median")
    yield Figure("koord-rm p99", quantiles(spent, n=100)[98], "us", go["p99_ns"] / 1000, note="Go p99")


def _decide(question: Question) -> object:
    # Derived accounts are remembered between decisions; a ledger that just changed has none.
    question.ledger.derived.clear()
    numa_free = accounts(question.inventory, question.ledger, question.numa_free)
    room = offers(question.rules, numa_free, cpu_occupancy(question.ledger, question.numa_free.references))
    if question.what == "allocate":
        return place(question.rules, room, Placement("n", mask=question.mask))
    exclusivity = NumaExclusivity(question.exclusive, numa_occupancy(question.ledger, question.inventory.machine))
    elected = select_numa_nodes(question.rules, room, exclusivity)
    return place(question.rules, room, Placement("n", mask=elected.hint.mask)) if elected.admitted else elected


def _own_machines() -> Iterator[Figure]:
    for shorthand in MACHINES:
        where = node(shorthand, gpus=2)
        ledger = _third_full(where)
        for name, request in PODS.items():
            # Once a request class in the engine, so outside of the time.
            demand = demand_of(request, AllocateOptions())
            if not isinstance(demand, AllocationDemand):
                raise TypeError(f"{name} is refused everywhere: {demand}")
            spent = _micros(lambda demand=demand, where=where, ledger=ledger: _after_a_change(demand, where, ledger))  # type: ignore[misc]  # bound per case
            # Work grows with NUMA nodes; below eight, the fixed part of an evaluation dominates.
            target = PER_NUMA_US * max(8, len(where.zones))
            yield Figure(f"allocate {shorthand} {name}", spent, "us", target, note="one node after a change")


def _third_full(where: Inventory) -> Ledger:
    """Every third core is some pod's own."""
    if where.machine is None:
        raise ValueError("a machine is needed")
    return Ledger.of(
        held(
            f"p{at}",
            # The core's two threads have neighbouring numbers in these machines.
            f"{core.bits.bit_length() - 2}-{core.bits.bit_length() - 1}",
            {core.numa: {"cpu": 2000, "memory": GI}},
        )
        for at, core in enumerate(where.machine.cores)
        if at % 3 == 0
    )


def _after_a_change(demand: AllocationDemand, where: Inventory, ledger: Ledger) -> object:
    ledger.derived.clear()
    return allocate_demand(demand, where, ledger)


# The first call fills the caches of the machine, which stay for as long as the node does.
def _micros(decide: Callable[[], object]) -> float:
    decide()
    start = time.process_time_ns()
    for _ in range(ROUNDS):
        decide()
    return (time.process_time_ns() - start) / ROUNDS / 1000
