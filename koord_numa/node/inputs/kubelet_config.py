"""
The kubelet's resource managers as its configuration states them: from ``/configz`` or from the configuration file.

Both carry ``KubeletConfiguration`` v1beta1 (k8s.io/kubelet/config/v1beta1/types.go); ``/configz`` has defaults filled in, a file
may leave them out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.quantity import parse_quantity
from koord_numa.wire import names

POLICY_WORDS: Final[Mapping[str, str]] = {
    "best-effort": "BestEffort",
    "restricted": "Restricted",
    "single-numa-node": "SingleNUMANode",
}
"""What ``topologyPolicies`` calls the kubelet's topology manager policies; ``none`` is ``None``."""

MANAGER_FIELDS: Final = (
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "memoryManagerPolicy",
)
"""Fields that a kubelet also takes from flags and drop-ins, which its configuration file does not show."""

DEFAULT_MAX_NUMA_NODES: Final = "8"
_KIND: Final = "KubeletConfiguration"
_MAX_NUMA_NODES: Final = "max-allowable-numa-nodes"


class KubeletConfigError(Exception):
    """What was read is no kubelet configuration; the text names the field."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """
    Policies and options in the kubelet's own words; options are texts as the kubelet has them. ``reserved_cpus`` is ``None``
    where the configuration reserves an amount only, and the kubelet chooses the CPUs. ``reserved_memory`` is bytes by NUMA node
    and resource name.
    """

    topology_policy: str = "none"
    topology_scope: str = "container"
    topology_options: Mapping[str, str] = field(default_factory=dict)
    cpu_policy: str = "none"
    cpu_options: Mapping[str, str] = field(default_factory=dict)
    memory_policy: str = "None"
    reserved_cpus: CpuSet | None = None
    reserved_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    cgroup_root: str = ""  # below which the kubelet makes the cgroups of pods; empty: the root of the tree
    absent: frozenset[str] = frozenset()  # fields of MANAGER_FIELDS that the configuration leaves out
    is_complete: bool = (
        True  # else a flag or drop-in is seen to override the configuration: what it leaves out is not known
    )

    def states(self, name: str) -> bool:
        """Whether the value of a field of ``MANAGER_FIELDS`` is known to be the kubelet's."""
        return self.is_complete or name not in self.absent

    @property
    def owns_placement(self) -> bool:
        """Does the kubelet itself decide which CPUs or which NUMA node's memory a container gets?"""
        return self.cpu_policy != "none" or self.memory_policy != "None"

    @property
    def topology_word(self) -> str:
        """Policy and scope in the one word of ``topologyPolicies``."""
        # topologyPolicies is deprecated in v1alpha2 in favour of attributes, and readers of older objects still use it.
        word = POLICY_WORDS.get(self.topology_policy)
        return f"{word}{'PodLevel' if self.topology_scope == 'pod' else 'ContainerLevel'}" if word else "None"

    def attributes(self) -> Iterator[tuple[str, str]]:
        """The attributes of the NRT: those that exporters write, then those that only we do (docs/kubelet-model.md)."""
        if self.states("topologyManagerPolicy"):
            yield names.ATTRIBUTE_TOPOLOGY_POLICY, self.topology_policy
        if self.states("topologyManagerScope"):
            yield names.ATTRIBUTE_TOPOLOGY_SCOPE, self.topology_scope
        # The kubelet's default (cm/topologymanager/topology_manager.go) is written out, so that readers need no table.
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
        """Koordinator's ``kubelet.koordinator.sh/cpu-manager-policy``."""
        found: dict[str, Any] = {"policy": self.cpu_policy}
        if self.cpu_options:
            found["options"] = dict(sorted(self.cpu_options.items()))
        # Left out when empty, as koordlet's `omitempty` does.
        if self.reserved_cpus:
            found["reservedCPUs"] = str(self.reserved_cpus)
        return found


def kubelet_options(config: object) -> KubeletOptions:
    """The options in a ``KubeletConfiguration``, alone or as the answer of ``/configz``. Raises ``KubeletConfigError``."""
    if isinstance(config, Mapping) and "kubeletconfig" in config:
        config = config["kubeletconfig"]
    if not isinstance(config, Mapping):
        raise KubeletConfigError(f"a {type(config).__name__} is no KubeletConfiguration")
    # Every field has a default: another kind of file would be taken for a kubelet without any option.
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
        # The none policy reserves nothing in particular.
        reserved_cpus=EMPTY if cpus is None and policy == "none" else cpus,
        reserved_memory=_reserved_memory(config),
        cgroup_root=_text(config, "cgroupRoot", ""),
        absent=frozenset(name for name in MANAGER_FIELDS if not config.get(name)),
    )


def read_kubelet_config(path: Path) -> KubeletOptions:
    """The options in a configuration file, YAML or JSON. Raises ``KubeletConfigError``, also for a file that cannot be read."""
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
    """``full-pcpus-only`` as it stands in the name of an attribute: ``FullPcpusOnly``."""
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
    # YAML turns an unquoted true into a boolean; the kubelet would refuse it, and its meaning is plain.
    return {key: str(item).lower() if isinstance(item, bool) else str(item) for key, item in value.items()}


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
