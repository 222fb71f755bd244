"""Koordinator's CPU accumulator: recorded cases in our types."""

from dataclasses import dataclass

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import CpuOccupancy, CpuRequest, NotEnoughCpus
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from tests.conformance.deviations import Deviation
from tests.conformance.vectors import Case, Oracle
from tests.machines import machine_from_topo

Answer = CpuSet | NotEnoughCpus


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of one take."""

    request: CpuRequest
    machine: CpuTopology
    available: CpuSet
    occupancy: CpuOccupancy
    preferred: CpuSet


def load(case: Case) -> Question:
    """The question of a case."""
    given = case["in"]
    held = [
        (CpuSet.parse(entry.get("cpus") or ""), exclusive_of(entry.get("excl")), entry.get("ref", 0))
        for entry in given.get("allocated") or ()
    ]
    occupancy = CpuOccupancy(
        pcpu_level=CpuSet.of(cpu for cpus, excl, _ in held if excl is CpuExclusivePolicy.PCPU_LEVEL for cpu in cpus),
        numa_level=CpuSet.of(
            cpu for cpus, excl, _ in held if excl is CpuExclusivePolicy.NUMA_NODE_LEVEL for cpu in cpus
        ),
        references={cpu: ref for cpus, _, ref in held for cpu in cpus},
        limit=given.get("max_ref", 0),
    )
    return Question(
        request=CpuRequest(
            count=given.get("n", 0),
            bind=CpuBindPolicy(given.get("bind") or ""),
            exclusive=exclusive_of(given.get("excl")),
            strategy=strategy_of(given.get("strategy")),
        ),
        machine=machine_from_topo(given["topo"]),
        available=CpuSet.parse(given.get("available") or ""),
        occupancy=occupancy,
        preferred=CpuSet.parse(given.get("preferred") or ""),
    )


def answer(question: Question) -> Answer:
    """Our choice."""
    return take_cpus(
        question.request, question.machine, question.available, question.occupancy, preferred=question.preferred
    )


def agrees(case: Case, found: Answer) -> str | None:
    """The same CPUs, or a refusal where one was recorded."""
    expected = "refused" if case["out"].get("error") else case["out"]["cpus"]
    ours = "refused" if isinstance(found, NotEnoughCpus) else str(found)
    return None if ours == expected else f"recorded {expected}, ours {ours}"


def takes_one_too_many(case: Case, found: Answer) -> bool:
    """Koordinator took more CPUs than were asked for, and we did not."""
    wanted = case["in"].get("n", 0)
    return isinstance(found, CpuSet) and len(CpuSet.parse(case["out"]["cpus"])) > wanted == len(found)


def exclusive_of(text: str | None) -> CpuExclusivePolicy:
    """Absent, empty and ``None`` say the same."""
    return CpuExclusivePolicy("" if text in (None, "None") else text)


def strategy_of(text: str | None) -> NumaAllocateStrategy:
    """Only MostAllocated is special: anything else goes to the emptiest first."""
    most = NumaAllocateStrategy.MOST_ALLOCATED
    return most if text == most else NumaAllocateStrategy.LEAST_ALLOCATED


ORACLE = Oracle("koord-cpu", load, answer, agrees, (Deviation("cpu-over-allocation", takes_one_too_many),))
