"""Filter and scores by zones against the recorded answers of the scheduler-plugins."""

from pathlib import Path

from tests.conformance import nrt
from tests.conformance.vectors import Conforms, each_file


@each_file("nrt")
def test_nrt(file: Path, conforms: Conforms) -> None:
    conforms(nrt.ORACLE, file)
