"""Our choice of CPUs against Koordinator's."""

from pathlib import Path

from tests.conformance.koordinator import cpu as koord_cpu
from tests.conformance.vectors import Conforms, each_file


@each_file("koord-cpu")
def test_koord_cpu(file: Path, conforms: Conforms) -> None:
    conforms(koord_cpu.ORACLE, file)
