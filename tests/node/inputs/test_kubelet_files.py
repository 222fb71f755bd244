"""The kubelet's checkpoint files: read as recorded, and a file that cannot be understood is an error that names it."""

from pathlib import Path
from typing import Final

import orjson
import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import HeldMemory, MemoryAmounts, NumaMemory
from koord_numa.node import kubelet_files
from koord_numa.node.kubelet_files import KubeletFilesError, KubeletFolder
from tests.conformance.vectors import folder

RECORDED: Final = folder() / "kubelet-state"
GIB: Final = 2**30
CPU: Final = {
    "policyName": "static",
    "defaultCpuSet": "0,4-7",
    "entries": {"u": {"app": "1-3", "init": "1"}},
    "checksum": 1,
}


def write(root: Path, name: str, content: object) -> None:
    """One file; a text is written as it is."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else orjson.dumps(content))


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded checkpoint files")
@pytest.mark.parametrize("gate", ["gate-off", "pod-level-managers"])
def test_recorded_files(gate: str, tmp_path: Path) -> None:
    for name in ("cpu_manager_state", "memory_manager_state"):
        write(tmp_path, name, (RECORDED / gate / name).read_text())
    write(
        tmp_path,
        "device-plugins/kubelet_internal_checkpoint",
        (RECORDED / gate / "kubelet_internal_checkpoint").read_text(),
    )
    found = KubeletFolder(tmp_path).read()
    first, second, third = (f"5f0c1a34-000{number}-4000-8000-00000000000{number}" for number in (1, 2, 3))
    assert found.cpu is not None
    assert found.memory is not None
    assert (found.cpu.policy, found.cpu.shared) == ("static", CpuSet.parse("0,10-23,48,58-71"))
    assert found.cpu.entries[first] == {"engine": CpuSet.parse("1-4,49-52"), "warm-up": CpuSet.parse("1-4,49-52")}
    assert found.memory.entries[first]["engine"] == (
        HeldMemory(1, "hugepages-1Gi", 4 * GIB),
        HeldMemory(3, "memory", 160 * GIB),
    )
    assert found.memory.machine[2] == NumaMemory(4, {"memory": MemoryAmounts(127 * GIB, 0)})
    assert found.memory.machine[1].group == 3
    assert found.devices == {
        first: {"engine": {"nvidia.com/gpu": frozenset({"GPU-00", "GPU-04"})}},
        second: {"app": {"example.com/nic": frozenset({"nic-7"})}},
    }
    pods = gate == "pod-level-managers"
    assert found.cpu.pods == ({third: CpuSet.parse("25-28,73-76")} if pods else {})
    assert found.memory.pods == ({third: (HeldMemory(4, "memory", 8 * GIB),)} if pods else {})
    assert found.uids == {first, second, *([third] if pods else [])}


def test_a_kubelet_without_files(tmp_path: Path) -> None:
    found = KubeletFolder(tmp_path).read()
    assert (found.cpu, found.memory, found.devices, found.uids) == (None, None, None, set())


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(KubeletFilesError, match="--root-dir"):
        KubeletFolder(tmp_path / "elsewhere").read()


def test_a_file_is_read_again_after_a_change(tmp_path: Path) -> None:
    write(tmp_path, "cpu_manager_state", CPU)
    kubelet = KubeletFolder(tmp_path)
    first = kubelet.read()
    assert kubelet.read() is first
    write(tmp_path, "new", {**CPU, "entries": {}})
    (tmp_path / "new").replace(tmp_path / "cpu_manager_state")
    assert kubelet.signature() != first.signature
    assert kubelet.read().cpu == kubelet_files.CpuFile("static", CpuSet.parse("0,4-7"))


def test_device_ids_of_kubelets_before_1_20(tmp_path: Path) -> None:
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "a/b", "DeviceIDs": ["x", "y"], "AllocResp": "eA=="}
    write(tmp_path, "device-plugins/kubelet_internal_checkpoint", {"Data": {"PodDeviceEntries": [entry]}})
    assert KubeletFolder(tmp_path).read().devices == {"u": {"c": {"a/b": frozenset({"x", "y"})}}}


MEMORY: Final = {"policyName": "Static", "machineState": {}, "entries": {}, "checksum": 1}
BLOCK: Final = {"numaAffinity": [0], "type": "memory", "size": 1}
MALFORMED: Final[dict[str, tuple[str, object]]] = {
    "half a file": ("cpu_manager_state", '{"policyName":"sta'),
    "no policy": ("cpu_manager_state", {"defaultCpuSet": "0"}),
    "entries by container id": ("cpu_manager_state", {**CPU, "entries": {"0123abcd": "1-3"}}),
    "a CPU list": ("cpu_manager_state", {**CPU, "defaultCpuSet": "3-1"}),
    "no text": ("cpu_manager_state", {**CPU, "defaultCpuSet": 3}),
    "deep nesting": ("cpu_manager_state", '{"policyName":"static","more":' + "[" * 30_000),
    "a negative size": ("memory_manager_state", {**MEMORY, "entries": {"u": {"c": [{**BLOCK, "size": -1}]}}}),
    "a NUMA node": ("memory_manager_state", {**MEMORY, "entries": {"u": {"c": [{**BLOCK, "numaAffinity": [5000]}]}}}),
    "a table": ("memory_manager_state", {**MEMORY, "machineState": {"x": {"cells": [0], "memoryMap": {}}}}),
    "devices": ("device-plugins/kubelet_internal_checkpoint", {"Data": {"PodDeviceEntries": [{}]}}),
    "no data": ("device-plugins/kubelet_internal_checkpoint", {}),
}


@pytest.mark.parametrize(("name", "content"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_named(name: str, content: object, tmp_path: Path) -> None:
    write(tmp_path, name, content)
    with pytest.raises(KubeletFilesError, match=name):
        KubeletFolder(tmp_path).read()


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_files, "LARGEST", 100)
    write(tmp_path, "cpu_manager_state", {**CPU, "more": "x" * 100})
    with pytest.raises(KubeletFilesError, match="more than 100 bytes"):
        KubeletFolder(tmp_path).read()


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").mkdir()
    with pytest.raises(KubeletFilesError, match="cpu_manager_state"):
        KubeletFolder(tmp_path).read()
