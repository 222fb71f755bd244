"""Our model of the kubelet's managers against the kubelet itself: the CPUs that it assigns, and hints merged under its policies."""

from pathlib import Path

from tests.conformance.kubelet import cpu as kubelet_cpu
from tests.conformance.kubelet import tm as kubelet_tm
from tests.conformance.vectors import Conforms, each_file


@each_file("kubelet-cpu")
def test_kubelet_cpu(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_cpu.ORACLE, file)


@each_file("kubelet-tm")
def test_kubelet_tm(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_tm.ORACLE, file)
