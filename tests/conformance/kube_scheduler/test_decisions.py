"""Feasible nodes and the order of preferences, compared with the recorded answers of kube-scheduler."""

from pathlib import Path
from typing import Any

from tests.conformance.kube_scheduler import decisions as kube_scheduler
from tests.conformance.kube_scheduler.cluster import load
from tests.conformance.vectors import Conforms, each_file


@each_file("kube-scheduler")
def test_kube_scheduler(file: Path, conforms: Conforms) -> None:
    conforms(kube_scheduler.ORACLE, file)


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "a"}},
        "spec": {"schedulerName": "koord-numa", "containers": [container], **spec},
    }


REPELS = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def _case(affinity: dict[str, Any]) -> dict[str, Any]:
    """A pod beside another one for which the only node is being freed; kube-scheduler accepts the pod when the other repels it."""
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    node = {
        "metadata": {"name": "n0", "labels": {"kubernetes.io/hostname": "n0"}},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }
    nominated = {**_pod("nominated", affinity=affinity, priority=5), "status": {"nominatedNodeName": "n0"}}
    return {
        "in": {"nodes": [node], "pod": _pod("pod"), "nominated": [nominated]},
        "out": {"nodes": {"n0": ["Success"]}},
    }


def test_a_nominated_pod_repels_pods_without_terms() -> None:
    case = _case(REPELS)
    ours = kube_scheduler.answer(load(case))
    assert "anti-affinity" in str(ours.refusals["n0"])
    (row,) = [row for row in kube_scheduler.DEVIATIONS if row.row == "nominated-anti-affinity"]
    assert row.explains(case, ours)
    assert kube_scheduler.answer(load(_case({}))).refusals == {"n0": None}
