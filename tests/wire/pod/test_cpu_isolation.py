"""The annotation ``cpu-isolation``: its words, the policy that they imply, and clear texts for other words."""

import pytest

from koord_numa.core.objects.request import CpuBind
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy
from koord_numa.wire import names, parse_pod
from tests.tables import each_row
from tests.wire.objects import POD, annotated

FULL, PCPU, NUMA = CpuBindPolicy.FULL_PCPUS, CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL


@each_row(
    ("words", "bind"),
    [
        ("interrupts", CpuBind(FULL)),
        ("siblings", CpuBind(FULL, exclusive=PCPU)),
        ("isolcpus", CpuBind(FULL, isolated=True)),
        ("Interrupts, siblings,isolcpus", CpuBind(FULL, exclusive=PCPU, isolated=True)),
    ],
)
def test_words(words: str, bind: CpuBind) -> None:
    found = parse_pod(annotated(POD, names.CPU_ISOLATION, words))
    assert (found.problem, found.request.bind) == ("", bind)


def test_another_exclusive_policy_stays() -> None:
    text = '{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUExclusivePolicy":"NUMANodeLevel"}'
    found = parse_pod(annotated(annotated(POD, names.RESOURCE_SPEC, text), names.CPU_ISOLATION, "siblings"))
    assert found.request.bind == CpuBind(FULL, exclusive=NUMA)


@pytest.mark.parametrize(("words", "quoted"), [("", '""'), ("irqs", '"irqs"'), ("interrupts,smt", '"smt"')])
def test_other_words(words: str, quoted: str) -> None:
    problem = parse_pod(annotated(POD, names.CPU_ISOLATION, words)).problem
    assert problem.endswith(f"{names.CPU_ISOLATION}: {quoted} is none of interrupts, isolcpus, siblings")
