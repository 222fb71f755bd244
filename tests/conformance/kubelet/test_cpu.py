"""Our model of the CPUs that the kubelet assigns against the kubelet itself."""

from pathlib import Path

from tests.conformance.kubelet import cpu as kubelet_cpu
from tests.conformance.vectors import Conforms, each_file


@each_file("kubelet-cpu")
def test_kubelet_cpu(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_cpu.ORACLE, file)
