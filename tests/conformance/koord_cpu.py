"""Koordinator's CPU accumulator: recorded cases in our types."""

from dataclasses import dataclass

from koord_numa.core.cpus.ask import CpuAsk, NotEnoughCpus, Occupancy
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.machine import Machine
from koord_numa.core.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from tests.conformance.deviations import Deviation
from tests.conformance.vectors import Case, Oracle
from tests.machines import machine_from_topo

Answer = CpuSet | NotEnoughCpus


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of one take."""

    ask: CpuAsk
    machine: Machine
    available: CpuSet
    occupancy: Occupancy
    preferred: CpuSet


def load(case: Case) -> Question:
    """The question of a case."""
    given = case["in"]
    held = [
        (CpuSet.parse(entry["cpus"]), _exclusive(entry.get("excl", "")), entry["ref"])
        for entry in given.get("allocated") or ()
    ]
    occupancy = Occupancy(
        pcpu_level=CpuSet.of(cpu for cpus, excl, _ in held if excl is CpuExclusivePolicy.PCPU_LEVEL for cpu in cpus),
        numa_level=CpuSet.of(
            cpu for cpus, excl, _ in held if excl is CpuExclusivePolicy.NUMA_NODE_LEVEL for cpu in cpus
        ),
        references={cpu: ref for cpus, _, ref in held for cpu in cpus},
        limit=given["max_ref"],
    )
    return Question(
        ask=CpuAsk(
            count=given["n"],
            bind=CpuBindPolicy(given.get("bind", "")),
            exclusive=_exclusive(given.get("excl", "")),
            strategy=NumaAllocateStrategy(given["strategy"]),
        ),
        machine=machine_from_topo(given["topo"]),
        available=CpuSet.parse(given["available"]),
        occupancy=occupancy,
        preferred=CpuSet.parse(given.get("preferred", "")),
    )


def answer(question: Question) -> Answer:
    """Our choice."""
    return take_cpus(
        question.ask, question.machine, question.available, question.occupancy, preferred=question.preferred
    )


def agrees(case: Case, found: Answer) -> str | None:
    """The same CPUs, or a refusal where one was recorded."""
    expected = "refused" if case["out"].get("error") else case["out"]["cpus"]
    ours = "refused" if isinstance(found, NotEnoughCpus) else str(found)
    return None if ours == expected else f"recorded {expected}, ours {ours}"


def takes_one_too_many(case: Case, found: Answer) -> bool:
    """Koordinator took more CPUs than were asked for, and we did not."""
    wanted = case["in"]["n"]
    return isinstance(found, CpuSet) and len(CpuSet.parse(case["out"]["cpus"])) > wanted == len(found)


def _exclusive(text: str) -> CpuExclusivePolicy:
    return CpuExclusivePolicy("" if text == "None" else text)


ORACLE = Oracle("koord-cpu", load, answer, agrees, (Deviation("cpu-over-allocation", takes_one_too_many),))
