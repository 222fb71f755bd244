"""The kubelet's options, from ``/configz`` or its configuration file, and its checkpoint files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import HeldMemory, MemoryAmounts, NumaMemory
from koord_numa.core.resources import CPU, MILLI, amount, parse_quantity
from koord_numa.wire import names

# The options of the kubelet's resource managers, from ``/configz`` or from the configuration file.
#
# Both contain ``KubeletConfiguration`` v1beta1 (k8s.io/kubelet/config/v1beta1/types.go). ``/configz`` includes defaults,
# a file may omit them.

POLICY_WORDS: Final[Mapping[str, str]] = {
    "best-effort": "BestEffort",
    "restricted": "Restricted",
    "single-numa-node": "SingleNUMANode",
}
"""Names of the kubelet's topology manager policies in ``topologyPolicies``. ``none`` is ``None``."""

MANAGER_FIELDS: Final = (
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "memoryManagerPolicy",
)
"""Fields that a kubelet also accepts from flags and drop-ins, which its configuration file does not show."""

DEFAULT_MAX_NUMA_NODES: Final = "8"
_KIND: Final = "KubeletConfiguration"
_MAX_NUMA_NODES: Final = "max-allowable-numa-nodes"


class KubeletConfigError(Exception):
    """The data is not a kubelet configuration. The text names the field."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """
    Policies and options with the kubelet's names. Option values are strings.

    ``reserved_cpus`` is ``None`` if the configuration only reserves an amount, ``reserved_count`` in whole CPUs, and the
    kubelet chooses the CPUs. ``reserved_memory`` is in bytes by NUMA node and resource name.
    """

    topology_policy: str = "none"
    topology_scope: str = "container"
    topology_options: Mapping[str, str] = field(default_factory=dict)
    cpu_policy: str = "none"
    cpu_options: Mapping[str, str] = field(default_factory=dict)
    memory_policy: str = "None"
    reserved_cpus: CpuSet | None = None
    reserved_count: int = 0
    reserved_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    cgroup_root: str = ""  # parent of the kubelet's cgroups; empty: the root of the tree
    absent: frozenset[str] = frozenset()  # fields of MANAGER_FIELDS that the configuration omits
    is_complete: bool = True  # false if a flag or drop-in overrides the configuration: omitted fields are then unknown

    def states(self, name: str) -> bool:
        """Return whether the value of a field of ``MANAGER_FIELDS`` is certain."""
        return self.is_complete or name not in self.absent

    @property
    def owns_placement(self) -> bool:
        """Return whether the kubelet decides which CPUs or which NUMA nodes' memory a container gets."""
        return self.cpu_policy != "none" or self.memory_policy != "None"

    @property
    def topology_word(self) -> str:
        """Return policy and scope as a value of ``topologyPolicies``."""
        # topologyPolicies is deprecated in v1alpha2 in favor of attributes, but still read by older clients.
        word = POLICY_WORDS.get(self.topology_policy)
        return f"{word}{'PodLevel' if self.topology_scope == 'pod' else 'ContainerLevel'}" if word else "None"

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Yield the attributes of the NRT: those of other exporters, then those of this agent (docs/kubelet-model.md)."""
        if self.states("topologyManagerPolicy"):
            yield names.ATTRIBUTE_TOPOLOGY_POLICY, self.topology_policy
        if self.states("topologyManagerScope"):
            yield names.ATTRIBUTE_TOPOLOGY_SCOPE, self.topology_scope
        # The kubelet's default (cm/topologymanager/topology_manager.go) is written, so that readers need not know it.
        most = self.topology_options.get(_MAX_NUMA_NODES, DEFAULT_MAX_NUMA_NODES)
        yield names.ATTRIBUTE_MAX_NUMA_NODES, most
        for option, value in sorted(self.topology_options.items()):
            if option != _MAX_NUMA_NODES:
                yield names.ATTRIBUTE_TOPOLOGY_OPTION + camel(option), value
        yield names.ATTRIBUTE_CPU_POLICY, self.cpu_policy
        for option, value in sorted(self.cpu_options.items()):
            yield names.ATTRIBUTE_CPU_OPTION + camel(option), value
        if self.states("memoryManagerPolicy"):
            yield names.ATTRIBUTE_MEMORY_POLICY, self.memory_policy
        if self.reserved_cpus is not None:
            yield names.ATTRIBUTE_RESERVED_CPUS, str(self.reserved_cpus)

    def cpu_manager(self) -> dict[str, Any]:
        """Return the value of Koordinator's ``kubelet.koordinator.sh/cpu-manager-policy``."""
        found: dict[str, Any] = {"policy": self.cpu_policy}
        if self.cpu_options:
            found["options"] = dict(sorted(self.cpu_options.items()))
        # Omitted if empty, as with koordlet's `omitempty`.
        if self.reserved_cpus:
            found["reservedCPUs"] = str(self.reserved_cpus)
        return found


def kubelet_options(config: object) -> KubeletOptions:
    """Parse a ``KubeletConfiguration``, alone or in the response of ``/configz``. Raises ``KubeletConfigError``."""
    if isinstance(config, Mapping) and "kubeletconfig" in config:
        config = config["kubeletconfig"]
    if not isinstance(config, Mapping):
        raise KubeletConfigError(f"a {type(config).__name__} is not a KubeletConfiguration")
    # Every field has a default: without this check, any other kind of file would be valid.
    if (kind := config.get("kind", _KIND)) != _KIND:
        raise KubeletConfigError(f"a {kind} is not a {_KIND}")
    reserved = _text(config, "reservedSystemCPUs", "")
    try:
        # None and the empty set differ: without the option a static kubelet chooses the reserved CPUs itself.
        cpus = CpuSet.parse(reserved) if reserved else None
    except ValueError as error:
        raise KubeletConfigError(f"reservedSystemCPUs: {error}") from None
    policy = _text(config, "cpuManagerPolicy", "none")
    return KubeletOptions(
        # Defaults as SetDefaults_KubeletConfiguration (pkg/kubelet/apis/config/v1beta1/defaults.go).
        topology_policy=_text(config, "topologyManagerPolicy", "none"),
        topology_scope=_text(config, "topologyManagerScope", "container"),
        topology_options=_texts(config, "topologyManagerPolicyOptions"),
        cpu_policy=policy,
        cpu_options=_texts(config, "cpuManagerPolicyOptions"),
        memory_policy=_text(config, "memoryManagerPolicy", "None"),
        # The none policy reserves no specific CPUs.
        reserved_cpus=EMPTY if cpus is None and policy == "none" else cpus,
        reserved_count=_reserved_count(config),
        reserved_memory=_reserved_memory(config),
        cgroup_root=_text(config, "cgroupRoot", ""),
        absent=frozenset(name for name in MANAGER_FIELDS if not config.get(name)),
    )


def read_kubelet_config(path: Path) -> KubeletOptions:
    """Read a configuration file, YAML or JSON. Raises ``KubeletConfigError``, also for an unreadable file."""
    import yaml  # noqa: PLC0415  (only where a file is given)

    try:
        return kubelet_options(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KubeletConfigError(f"{path} cannot be read: {error}") from None
    except RecursionError:
        raise KubeletConfigError(f"{path} is nested too deeply") from None
    except KubeletConfigError as error:
        raise KubeletConfigError(f"{path}: {error}") from None


def camel(option: str) -> str:
    """Return an option as part of the name of an attribute: ``FullPcpusOnly`` for ``full-pcpus-only``."""
    return "".join(word.capitalize() for word in option.split("-"))


def _text(config: Mapping[str, Any], name: str, default: str) -> str:
    value = config.get(name)
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise KubeletConfigError(f"{name} is not text")
    return value


def _texts(config: Mapping[str, Any], name: str) -> dict[str, str]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise KubeletConfigError(f"{name} is not a map")
    # YAML parses an unquoted true as a boolean. The kubelet rejects it, but the meaning is clear.
    return {key: str(item).lower() if isinstance(item, bool) else str(item) for key, item in value.items()}


def _reserved_count(config: Mapping[str, Any]) -> int:
    """Return how many CPUs kubeReserved and systemReserved name, rounded up as NewStaticPolicy (policy_static.go)."""
    total = 0
    for name in ("kubeReserved", "systemReserved"):
        try:
            total += amount(CPU, _texts(config, name).get(CPU, "0"))
        except ValueError as error:
            raise KubeletConfigError(f"{name}: {error}") from None
    return -(-total // MILLI)


def _reserved_memory(config: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    entries = config.get("reservedMemory") or []
    try:
        for entry in entries:
            limits = found.setdefault(int(entry["numaNode"]), {})
            for resource, quantity in entry["limits"].items():
                limits[str(resource)] = int(parse_quantity(quantity))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise KubeletConfigError(f"reservedMemory is not a list of NUMA nodes with limits: {error}") from None
    return found


# The checkpoint files of the kubelet: ``cpu_manager_state``, ``memory_manager_state``, ``kubelet_internal_checkpoint``.
#
# The kubelet replaces files atomically (temporary file, rename). Checksums cover Go's dump of a struct and are not
# verified, but the format is. Sources: ``cm/cpumanager/state``, ``cm/memorymanager/state``,
# ``cm/devicemanager/checkpoint`` of Kubernetes 1.36.

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
