"""Our hints, elections and allocations against Koordinator's."""

from pathlib import Path

from tests.conformance.koordinator import rm as koord_rm
from tests.conformance.vectors import Conforms, each_file


@each_file("koord-rm")
def test_koord_rm(file: Path, conforms: Conforms) -> None:
    conforms(koord_rm.ORACLE, file)
