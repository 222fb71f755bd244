"""Devices by id on the command line: simulate counts Device objects and bound pods of a file, node shows PCIe switches."""

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from koord_numa.cli import main

KOORD, SCHEDULING = "koordinator.sh/", "scheduling.koordinator.sh/"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "uid": "u1"},
    "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}},
}


def device(kind: str, minor: int, switch: str) -> dict[str, Any]:
    """A device on NUMA node 0."""
    resource = "gpu-core" if kind == "gpu" else kind
    amounts = {KOORD + resource: "100", **({KOORD + "gpu-memory-ratio": "100"} if kind == "gpu" else {})}
    topology = {"nodeID": 0, "pcieID": switch}
    return {
        "type": kind,
        "minor": minor,
        "id": f"{kind}-{minor}",
        "health": True,
        "resources": amounts,
        "topology": topology,
    }


DEVICES = {
    "apiVersion": SCHEDULING + "v1alpha1",
    "kind": "Device",
    "metadata": {"name": "n1"},
    "spec": {
        "devices": [
            *(device("gpu", minor, f"pci{minor // 2}") for minor in range(4)),
            device("rdma", 0, "pci0"),
            device("rdma", 1, "pci1"),
        ]
    },
}


def pod(name: str, gpus: int, node: str = "", **annotations: object) -> dict[str, Any]:
    """A pod with GPUs and a NIC."""
    amounts = {"cpu": "1", KOORD + "gpu": str(100 * gpus), KOORD + "rdma": "1"}
    texts = {SCHEDULING + key.replace("_", "-"): json.dumps(value) for key, value in annotations.items()}
    spec = {
        "schedulerName": "koord-numa",
        "containers": [{"name": "c", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
    }
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": texts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, **({"nodeName": node} if node else {})},
    }


RUNS = pod("runs", 1, "n1", device_allocated={"gpu": [{"minor": 0, "resources": {KOORD + "gpu-core": "100"}}]})
SAME = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}


def files(folder: Path, *pods: dict[str, Any]) -> tuple[str, ...]:
    """Options for a cluster with one pod, and a manifest."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all([NODE, DEVICES, RUNS]))
    (folder / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    return "--from", str(folder / "cluster.yaml")


def test_simulate(tmp_path: Path) -> None:
    """One pod gets the free switch, the next one waits with numbers."""
    pods = [pod(f"p{number}", 2, device_joint_allocate=SAME) for number in range(2)]
    options = files(tmp_path, *pods)
    said = CliRunner().invoke(main, ["simulate", "-f", str(tmp_path / "pods.yaml"), *options]).output
    assert "n1, gpu 2,3, rdma 1" in said
    assert "Insufficient gpu devices" in said
    assert "needs 2 gpu; 1 of 4 are free" in said


def test_node(tmp_path: Path) -> None:
    """Switches, devices and holders."""
    said = CliRunner().invoke(main, ["node", "n1", *files(tmp_path)]).output
    assert "pci0         gpu 0 (default/runs), gpu 1 free, rdma 0 free" in said
    assert "free groups of GPUs: 0 of 4, 1 of 2, 3 of 1" in said
