"""Which nodes take a pod, and in which order preferences put them, against the recorded answers of kube-scheduler."""

from pathlib import Path

from tests.conformance.kube_scheduler import decisions as kube_scheduler
from tests.conformance.vectors import Conforms, each_file


@each_file("kube-scheduler")
def test_kube_scheduler(file: Path, conforms: Conforms) -> None:
    conforms(kube_scheduler.ORACLE, file)
