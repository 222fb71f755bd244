"""
The checkpoint files of the kubelet: ``cpu_manager_state``, ``memory_manager_state``, ``kubelet_internal_checkpoint``.

The kubelet replaces files atomically (temporary file, rename). Checksums cover Go's dump of a struct and are not
verified, but the format is. Sources: ``cm/cpumanager/state``, ``cm/memorymanager/state``,
``cm/devicemanager/checkpoint`` of Kubernetes 1.36.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import HeldMemory, MemoryAmounts, NumaMemory

ROOT: Final = Path("/var/lib/kubelet")
"""Default of the kubelet's ``--root-dir``."""
CPU_FILE: Final = "cpu_manager_state"
MEMORY_FILE: Final = "memory_manager_state"
DEVICE_FOLDER: Final = "device-plugins"
DEVICE_FILE: Final = "kubelet_internal_checkpoint"

LARGEST: Final = 16 << 20
"""Maximum bytes of a file. A device checkpoint contains the plugin's response for every container."""

STATIC_CPUS: Final = "static"
STATIC_MEMORY: Final = "Static"

T = TypeVar("T")
Signature = tuple[tuple[int, int, int] | None, ...]
"""Inode, modification time and size of each file. ``None`` for a file that does not exist."""


class KubeletFilesError(Exception):
    """A checkpoint file cannot be read or has an unknown format. The text names the file."""


@dataclass(frozen=True, slots=True)
class CpuFile:
    """``cpu_manager_state``: the policy, the shared pool, and exclusive CPUs by pod UID and container."""

    policy: str
    shared: CpuSet = EMPTY
    entries: Mapping[str, Mapping[str, CpuSet]] = field(default_factory=dict)
    pods: Mapping[str, CpuSet] = field(default_factory=dict)  # of whole pods (gate PodLevelResourceManagers)


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """``memory_manager_state``. A block of size 0 belongs to an init container whose memory the app container reuses."""

    policy: str
    machine: Mapping[int, NumaMemory] = field(default_factory=dict)
    entries: Mapping[str, Mapping[str, tuple[HeldMemory, ...]]] = field(default_factory=dict)
    pods: Mapping[str, tuple[HeldMemory, ...]] = field(default_factory=dict)


Devices = Mapping[str, frozenset[str]]
"""Device ids by resource."""


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """All files at one time. ``None`` for a file that does not exist. ``devices`` is by pod UID and container."""

    signature: Signature = (None, None, None)
    cpu: CpuFile | None = None
    memory: MemoryFile | None = None
    devices: Mapping[str, Mapping[str, Devices]] | None = None

    @property
    def uids(self) -> set[str]:
        """Return the UIDs of all pods in the files. For static pods, the kubelet's UID differs from the API server's."""
        found: set[str] = set(self.devices or ())
        for manager in (self.cpu, self.memory):
            if manager is not None:
                found.update(manager.entries, manager.pods)
        return found


class KubeletFolder:
    """The kubelet's root directory. Files are parsed only after a change."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._paths = (root / CPU_FILE, root / MEMORY_FILE, root / DEVICE_FOLDER / DEVICE_FILE)
        self._last = KubeletFiles()

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the directories with checkpoint files."""
        return (self.root, self.root / DEVICE_FOLDER)

    def signature(self) -> Signature:
        """Return the signature of the files without reading them. Raises ``KubeletFilesError``."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
            except FileNotFoundError:
                found.append(None)
            except OSError as error:
                raise KubeletFilesError(f"{path}: {error.strerror}") from None
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def read(self) -> KubeletFiles:
        """Return the current contents of the files. Raises ``KubeletFilesError``."""
        # A missing root is an error: the state is elsewhere.
        if not self.root.is_dir():
            raise KubeletFilesError(f"{self.root} does not exist: name the kubelet's directory with --root-dir")
        signature = self.signature()
        if signature != self._last.signature:
            cpu, memory, devices = self._paths
            self._last = KubeletFiles(signature, _cpu_file(cpu), _memory_file(memory), _device_file(devices))
        return self._last


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _PodCpus(msgspec.Struct, rename="camel"):
    cpu_set: str = ""


class _CpuJson(msgspec.Struct, rename="camel"):
    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] | None = None
    pod_entries: dict[str, _PodCpus] | None = None


class _Block(msgspec.Struct, rename="camel"):
    numa_affinity: list[int]
    type: str
    size: _Size


class _MemoryAmounts(msgspec.Struct):
    allocatable: _Size
    reserved: _Size


class _NumaJson(msgspec.Struct, rename="camel"):
    cells: list[int]
    memory_map: dict[str, _MemoryAmounts]


class _PodMemory(msgspec.Struct, rename="camel"):
    memory_blocks: list[_Block] | None = None


class _MemoryJson(msgspec.Struct, rename="camel"):
    policy_name: str
    machine_state: dict[int, _NumaJson] | None = None
    entries: dict[str, dict[str, list[_Block] | None]] | None = None
    pod_entries: dict[str, _PodMemory] | None = None


class _DeviceEntry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    # By NUMA node; a list before Kubernetes 1.20.
    device_ids: dict[str, list[str]] | list[str] | None = msgspec.field(default=None, name="DeviceIDs")


class _DeviceData(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_DeviceEntry] | None = None


class _DeviceJson(msgspec.Struct, rename="pascal"):
    data: _DeviceData


def _load(path: Path, kind: type[T]) -> T | None:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeletFilesError(f"{path}: {error.strerror or os.strerror(error.errno or 0)}") from None
    if len(data) > LARGEST:
        raise KubeletFilesError(f"{path} has more than {LARGEST} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KubeletFilesError(f"{path} has an unknown format: {error}") from None


def _cpu_file(path: Path) -> CpuFile | None:
    found = _load(path, _CpuJson)
    if found is None:
        return None
    try:
        return CpuFile(
            policy=found.policy_name,
            shared=CpuSet.parse(found.default_cpu_set),
            entries={
                uid: {name: CpuSet.parse(cpus) for name, cpus in containers.items()}
                for uid, containers in (found.entries or {}).items()
            },
            pods={uid: CpuSet.parse(pod.cpu_set) for uid, pod in (found.pod_entries or {}).items()},
        )
    except ValueError as error:
        raise KubeletFilesError(f"{path}: {error}") from None


def _memory_file(path: Path) -> MemoryFile | None:
    found = _load(path, _MemoryJson)
    if found is None:
        return None
    try:
        return MemoryFile(
            policy=found.policy_name,
            machine={
                _numa_id(numa): NumaMemory(
                    group=_mask(table.cells) or 1 << numa,
                    amounts={
                        name: MemoryAmounts(each.allocatable, each.reserved)
                        for name, each in sorted(table.memory_map.items())
                    },
                )
                for numa, table in sorted((found.machine_state or {}).items())
            },
            entries={
                uid: {name: _blocks(blocks) for name, blocks in containers.items()}
                for uid, containers in (found.entries or {}).items()
            },
            pods={uid: _blocks(pod.memory_blocks) for uid, pod in (found.pod_entries or {}).items()},
        )
    except ValueError as error:
        raise KubeletFilesError(f"{path}: {error}") from None


def _blocks(blocks: list[_Block] | None) -> tuple[HeldMemory, ...]:
    held = [HeldMemory(_mask(block.numa_affinity), block.type, block.size) for block in blocks or ()]
    return tuple(sorted(held, key=lambda block: (block.resource, block.numa_mask, block.size)))


def _mask(numa_ids: list[int]) -> int:
    mask = 0
    for numa in numa_ids:
        mask |= 1 << _numa_id(numa)
    return mask


def _numa_id(numa: int) -> int:
    if not 0 <= numa <= MAX_NUMA_ID:
        raise ValueError(f"NUMA node {numa} is not between 0 and {MAX_NUMA_ID}")
    return numa


def _device_file(path: Path) -> dict[str, dict[str, Devices]] | None:
    found = _load(path, _DeviceJson)
    if found is None:
        return None
    devices: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
    for entry in found.data.pod_device_entries or ():
        ids = entry.device_ids or ()
        listed = ids if isinstance(ids, (list, tuple)) else [device for here in ids.values() for device in here]
        held = devices.setdefault(entry.pod_uid, {}).setdefault(entry.container_name, {})
        held[entry.resource_name] = held.get(entry.resource_name, frozenset()) | frozenset(listed)
    return {uid: dict(containers) for uid, containers in devices.items()}
