"""Device selectors against recorded answers."""

from pathlib import Path

from tests.conformance.dra import cel as dra_cel
from tests.conformance.vectors import Conforms, each_file


@each_file("dra-cel")
def test_dra_cel(file: Path, conforms: Conforms) -> None:
    conforms(dra_cel.ORACLE, file)
