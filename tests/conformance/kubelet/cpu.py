"""The kubelet's static CPU manager: recorded cases in our types."""

from dataclasses import dataclass

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.kubelet_assignment import take_distributed, take_packed
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from tests.conformance.vectors import Case, Oracle
from tests.machines import machine_from_topo

Answer = CpuSet | NotEnoughCpus


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of one assignment; no ``group``: packed."""

    machine: CpuTopology
    available: CpuSet
    count: int
    options: StaticOptions
    group: int | None


def load(case: Case) -> Question:
    """The question of a case."""
    given = case["in"]
    return Question(
        machine=machine_from_topo(given["topo"]),
        available=CpuSet.parse(given.get("available") or ""),
        count=given.get("n", 0),
        options=StaticOptions(
            distribute_across_cores=given.get("sort") == "spread",
            prefer_align_uncore=given.get("align_uncore", False),
        ),
        group=given.get("group", 1) if given.get("fn") == "distributed" else None,
    )


def answer(question: Question) -> Answer:
    """Our assignment."""
    if question.group is None:
        return take_packed(question.machine, question.available, question.count, question.options)
    return take_distributed(question.machine, question.available, question.count, question.group, question.options)


def agrees(case: Case, found: Answer) -> str | None:
    """The same CPUs, or a refusal where one was recorded; where the kubelet never ends, any answer that obeys the laws."""
    recorded = case.get("out_without_slice_aliasing", case["out"])
    ours = "refused" if isinstance(found, NotEnoughCpus) else str(found)
    if "panic" in recorded:
        available = CpuSet.parse(case["in"].get("available") or "")
        lawful = isinstance(found, CpuSet) and len(found) == case["in"].get("n", 0) and found <= available
        return None if lawful else f"recorded no end, ours {ours}"
    expected = "refused" if recorded.get("error") else recorded["cpus"]
    return None if ours == expected else f"recorded {expected}, ours {ours}"


ORACLE = Oracle("kubelet-cpu", load, answer, agrees)
