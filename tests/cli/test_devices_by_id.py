"""Devices by id on the command line: simulate counts Device objects and bound pods of a file, node shows PCIe switches."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.cli.commands.snapshot import hash_names, short_hash, trimmed

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


def test_a_snapshot_without_names_decides_alike(tmp_path: Path) -> None:
    """Names are in ids of devices and in the report of the kubelet too."""
    secret = {"n1": "secret-node", "runs": "secret-pod", "default": "secret-team"}
    devices = json.loads(json.dumps(DEVICES))
    devices["metadata"] |= {
        "labels": {"app.kubernetes.io/managed-by": "koord-numa"},
        "annotations": {"koord-numa/held-devices": json.dumps({"default/runs": {"gpu": [{"minor": 1}]}})},
    }
    for each in devices["spec"]["devices"]:
        each["id"] = f"{each['type']}-n1-{each['minor']}"
    runs = {**RUNS, "metadata": {**RUNS["metadata"], "uid": "u9"}}  # uids are no names
    text = _renamed(yaml.safe_dump_all([NODE, devices, runs]), secret)
    found = yaml.safe_dump_all(hash_names([trimmed(each) for each in yaml.safe_load_all(text)]))
    assert "secret" not in found
    hashes = {name: short_hash(name) for name in secret.values()}
    (tmp_path / "open.yaml").write_text(text)
    (tmp_path / "hidden.yaml").write_text(found)
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(pod("waits", 2, device_joint_allocate=SAME)))
    for command in ("simulate", "-f", str(tmp_path / "pods.yaml")), ("node", "secret-node"):
        said = []
        for name, changed in (("open", {}), ("hidden", hashes)):
            arguments = [changed.get(word, word) for word in command]
            output = CliRunner().invoke(main, [*arguments, "--from", str(tmp_path / f"{name}.yaml")]).output
            said.append(" ".join(output.split()))
        assert "gpu" in said[0]
        assert said[1] == _renamed(said[0], hashes)


def _renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(names)})\b", lambda match: names[match[0]], text)


def test_node(tmp_path: Path) -> None:
    """Switches, devices and holders."""
    said = CliRunner().invoke(main, ["node", "n1", *files(tmp_path)]).output
    assert "pci0         gpu 0 (default/runs), gpu 1 free, rdma 0 free" in said
    assert "free groups of GPUs: 0 of 4, 1 of 2, 3 of 1" in said
