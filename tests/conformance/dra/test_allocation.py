"""Claims of a pod on one node against the recorded answers of kube-scheduler's structured allocator."""

from pathlib import Path

from tests.conformance.dra import allocation as dra
from tests.conformance.vectors import Conforms, each_file


@each_file("dra-table")
def test_dra_table(file: Path, conforms: Conforms) -> None:
    conforms(dra.ORACLE, file)


@each_file("dra-random")
def test_dra_random(file: Path, conforms: Conforms) -> None:
    conforms(dra.ORACLE, file)
