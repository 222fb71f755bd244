"""
The options of the kubelet's resource managers, from ``/configz`` or from the configuration file.

Both contain ``KubeletConfiguration`` v1beta1 (k8s.io/kubelet/config/v1beta1/types.go). ``/configz`` includes defaults,
a file may omit them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.resources import CPU, MILLI, amount, parse_quantity
from koord_numa.wire import names

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
        raise KubeletConfigError(f"a {type(config).__name__} is no KubeletConfiguration")
    # Every field has a default: without this check, any other kind of file would be valid.
    if (kind := config.get("kind", _KIND)) != _KIND:
        raise KubeletConfigError(f"a {kind} is no {_KIND}")
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
        raise KubeletConfigError(f"{name} is no text")
    return value


def _texts(config: Mapping[str, Any], name: str) -> dict[str, str]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise KubeletConfigError(f"{name} is no map")
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
