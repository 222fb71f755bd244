"""Claims for CPUs as dra-driver-cpu expects them."""

from pathlib import Path

from tests.conformance.dra import cpus as dra_cpu
from tests.conformance.vectors import cases, each_file


@each_file("dra-cpu-examples")
def test_dra_cpu_examples(file: Path) -> None:
    found = list(cases(file))
    assert found
    for case in found:
        assert dra_cpu.agrees(case, dra_cpu.answer(dra_cpu.load(case))) is None, case["shape"]
