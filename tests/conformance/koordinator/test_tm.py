"""Merge and policies against the recorded answers of Koordinator's topology manager."""

from pathlib import Path

from tests.conformance.koordinator import tm as koord_tm
from tests.conformance.vectors import Conforms, each_file


@each_file("koord-tm")
def test_koord_tm(file: Path, conforms: Conforms) -> None:
    conforms(koord_tm.ORACLE, file)
