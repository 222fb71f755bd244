"""Merge and policies against the recorded answers of the kubelet's topology manager."""

from pathlib import Path

from tests.conformance.kubelet import tm as kubelet_tm
from tests.conformance.vectors import Conforms, each_file


@each_file("kubelet-tm")
def test_kubelet_tm(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_tm.ORACLE, file)
