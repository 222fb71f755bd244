"""
Parse the kubelet configuration in a NodeResourceTopology: topology policy, scope, and options of the resource managers.

Sources, each overriding the previous field by field: the first entry of ``topologyPolicies``, Koordinator's annotation
about the CPU manager, the node agent's annotation, attributes in their order.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field, TypeAdapter

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.options import CPU_OPTIONS, TOPOLOGY_OPTIONS
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, NumaPolicy
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.node.zones import AttributeModel
from koord_numa.wire.parsing import DEFERRED, EnumReader, GoJson, ParsedCache, load_json, read_as, read_json
from koord_numa.wire.pod.pod_annotations import cpu_list

MOST_NUMA_NODES: Final = 1024
"""Larger values of the attribute are reduced to this limit, as in scheduler-plugins."""

POLICIES: Final = EnumReader({policy.value: policy for policy in KubeletPolicy})
SCOPES: Final = EnumReader({scope.value: scope for scope in KubeletScope})
CPU_POLICIES: Final = EnumReader({"none": "none", "static": "static"})
MEMORY_POLICIES: Final = EnumReader({"None": "None", "Static": "Static"})
BOOLEANS: Final = EnumReader({"true": True, "false": False}, also={"1": True, "t": True, "0": False, "f": False})

_FALSE: Final = ("false", "False", "FALSE", "f", "0")
_OPTIONS: Final = TypeAdapter(dict[str, str] | None, config=DEFERRED)
_KUBELET_OF: Final = {
    "None": KubeletPolicy.NONE,
    "BestEffort": KubeletPolicy.BEST_EFFORT,
    "Restricted": KubeletPolicy.RESTRICTED,
    "SingleNUMANode": KubeletPolicy.SINGLE_NUMA_NODE,
}
_Scoped = tuple[KubeletPolicy, KubeletScope | None]
_SCOPED: Final[Mapping[str, _Scoped]] = {
    word + suffix: (policy, scope)
    for word, policy in _KUBELET_OF.items()
    if policy is not KubeletPolicy.NONE
    for suffix, scope in (("ContainerLevel", KubeletScope.CONTAINER), ("PodLevel", KubeletScope.POD))
}
TOPOLOGY_POLICIES: Final[EnumReader[_Scoped]] = EnumReader(
    {**{word: (policy, None) for word, policy in _KUBELET_OF.items()}, **_SCOPED}
)
NUMA_POLICY_OF: Final = {
    KubeletPolicy.NONE: NumaPolicy.NONE,
    KubeletPolicy.BEST_EFFORT: NumaPolicy.BEST_EFFORT,
    KubeletPolicy.RESTRICTED: NumaPolicy.RESTRICTED,
    KubeletPolicy.SINGLE_NUMA_NODE: NumaPolicy.SINGLE_NUMA_NODE,
}


class CpuManagerPolicy(GoJson):
    """``kubelet.koordinator.sh/cpu-manager-policy``."""

    policy: str = ""
    options: dict[str, str | bool] = Field({})
    reserved_cpus: str = Field("", alias="reservedCPUs")


@dataclass(slots=True)
class _Known:
    """The configuration read so far."""

    policy: KubeletPolicy | None = None
    scope: KubeletScope = KubeletScope.CONTAINER
    topology_options: dict[str, bool] = field(default_factory=dict)
    max_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    cpu_policy: str | None = None
    cpu_options: dict[str, bool] = field(default_factory=dict)
    memory_policy: str | None = None
    reserved: CpuSet | None = None


def kubelet_config(
    policies: Sequence[str], attributes: Iterable[AttributeModel], annotations: Mapping[str, str], path: FieldPath
) -> KubeletConfig:
    """
    Return the published kubelet configuration. Raises ``WireError`` for an unknown value.

    A guessed value would cause rejections by the kubelet. Kubelets have similar configurations that rarely change, so
    equal texts are parsed once.
    """
    told = tuple((each.name, each.value) for each in attributes if each.name not in _NOT_OF_KUBELET)
    key = tuple(policies), told, annotations.get(names.CPU_MANAGER_POLICY), annotations.get(names.KUBELET_OPTIONS)
    config = _CONFIGS.get(key)
    # Malformed texts are parsed each time: the error names the object.
    return config or _CONFIGS.put(key, _read(policies, told, annotations, path), _characters(*key))


def _characters(
    policies: Iterable[str], told: Iterable[tuple[str, str]], by_agent: str | None, by_node_agent: str | None
) -> int:
    texts = (*policies, *(text for pair in told for text in pair), by_agent or "", by_node_agent or "")
    return sum(map(len, texts))


def _read(
    policies: Sequence[str], told: Iterable[tuple[str, str]], annotations: Mapping[str, str], path: FieldPath
) -> KubeletConfig:
    known = _Known()
    # Only the first entry: the field is deprecated, and exporters write one entry.
    if policies:
        known.policy, scope = TOPOLOGY_POLICIES.read(policies[0], path.at("topologyPolicies"))
        known.scope = scope or known.scope
    # From the least to the most specific source: later sources override earlier ones.
    _apply_annotation(known, annotations, path)
    _apply_agent_options(known, annotations, path)
    for name, value in told:
        _apply_attribute(known, name, value, path.at("attributes").at(name))
    return KubeletConfig(
        topology_policy=known.policy,
        topology_scope=known.scope,
        topology_options=dict(sorted(known.topology_options.items())),
        max_numa_nodes=known.max_numa_nodes,
        cpu_policy=known.cpu_policy,
        cpu_options=dict(sorted(known.cpu_options.items())),
        memory_policy=known.memory_policy,
        reserved_cpus=known.reserved,
    )


def _apply_annotation(known: _Known, annotations: Mapping[str, str], path: FieldPath) -> None:
    text = annotations.get(names.CPU_MANAGER_POLICY)
    if text is None:
        return
    path = path.annotation(names.CPU_MANAGER_POLICY)
    found = read_json(CpuManagerPolicy, text, path)
    if found.policy:
        known.cpu_policy = CPU_POLICIES.read(found.policy, path.at("policy"))
        known.reserved = cpu_list(found.reserved_cpus, path.at("reservedCPUs"))
    # Reserved CPUs may be published without a policy.
    elif found.reserved_cpus:
        known.reserved = cpu_list(found.reserved_cpus, path.at("reservedCPUs"))
    for name, value in found.options.items():
        known.cpu_options[name] = (
            value if isinstance(value, bool) else _read_option(name, value, CPU_OPTIONS, path.at(name))
        )


def _apply_agent_options(known: _Known, annotations: Mapping[str, str], path: FieldPath) -> None:
    """
    Apply the attributes in the node agent's annotation.

    The node agent uses it where another manager owns the list of attributes and would undo additions to it.
    """
    text = annotations.get(names.KUBELET_OPTIONS)
    if text is None:
        return
    path = path.annotation(names.KUBELET_OPTIONS)
    for name, value in (read_as(_OPTIONS, load_json(text, path), path) or {}).items():
        _apply_attribute(known, name, value, path.at(name))


def _apply_attribute(known: _Known, name: str, value: str, path: FieldPath) -> None:
    if apply := _ATTRIBUTES.get(name):
        apply(known, value, path)
    elif name.startswith(names.ATTRIBUTE_TOPOLOGY_OPTION):
        option = _kebab(name.removeprefix(names.ATTRIBUTE_TOPOLOGY_OPTION))
        # This attribute has a number as value, though its name has the form of an option.
        if option == "max-allowable-numa-nodes":
            known.max_numa_nodes = _count(value, path)
        else:
            known.topology_options[option] = _read_option(option, value, TOPOLOGY_OPTIONS, path)
    elif name.startswith(names.ATTRIBUTE_CPU_OPTION):
        option = _kebab(name.removeprefix(names.ATTRIBUTE_CPU_OPTION))
        known.cpu_options[option] = _read_option(option, value, CPU_OPTIONS, path)


def _read_option(option: str, value: str, known: frozenset[str], path: FieldPath) -> bool:
    """
    Return whether the option is on.

    An option that this version does not know may have any value (``numa-allocation-strategy=most-allocated``): every
    value except false turns it on, and ``core/kubelet/options.py`` defines the consequences. Raises ``WireError`` for a
    known option that is neither true nor false.
    """
    return BOOLEANS.read(value, path) if option in known or value in _FALSE else True


def _set_policy(known: _Known, value: str, path: FieldPath) -> None:
    known.policy = POLICIES.read(value, path)


def _set_scope(known: _Known, value: str, path: FieldPath) -> None:
    known.scope = SCOPES.read(value, path)


def _set_max_numa_nodes(known: _Known, value: str, path: FieldPath) -> None:
    known.max_numa_nodes = _count(value, path)


def _set_cpu_policy(known: _Known, value: str, path: FieldPath) -> None:
    known.cpu_policy = CPU_POLICIES.read(value, path)


def _set_cpu_options(known: _Known, value: str, path: FieldPath) -> None:
    # Truncated, since the attribute may have any length.
    for item in filter(None, value[:4096].split(",")):
        option, _, word = (part.strip() for part in item.partition("="))
        known.cpu_options[option] = _read_option(option, word, CPU_OPTIONS, path.at(option))


def _set_memory_policy(known: _Known, value: str, path: FieldPath) -> None:
    known.memory_policy = MEMORY_POLICIES.read(value, path)


def _set_reserved(known: _Known, value: str, path: FieldPath) -> None:
    known.reserved = cpu_list(value, path)


def _count(value: str, path: FieldPath) -> int:
    # 9 digits stay below 2**31. ``isdigit`` alone would accept digits of other scripts.
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value) > 1):
        raise path.error(f"{quoted(value)} is not a count of NUMA nodes above 1")
    return min(int(value), MOST_NUMA_NODES)


def _kebab(camel: str) -> str:
    """
    Return the kubelet's name of an option: ``prefer-closest-numa-nodes`` for ``PreferClosestNumaNodes``.

    ``NUMA`` and ``CPU`` count as words.
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", camel[:200]).lower()


_ATTRIBUTES: Final[Mapping[str, Callable[[_Known, str, FieldPath], None]]] = {
    names.ATTRIBUTE_TOPOLOGY_POLICY: _set_policy,
    names.ATTRIBUTE_TOPOLOGY_SCOPE: _set_scope,
    names.ATTRIBUTE_MAX_NUMA_NODES: _set_max_numa_nodes,
    names.ATTRIBUTE_CPU_POLICY: _set_cpu_policy,
    names.ATTRIBUTE_CPU_OPTIONS: _set_cpu_options,
    names.ATTRIBUTE_MEMORY_POLICY: _set_memory_policy,
    names.ATTRIBUTE_RESERVED_CPUS: _set_reserved,
}

ATTRIBUTES: Final = (
    *_ATTRIBUTES,
    names.ATTRIBUTE_FINGERPRINT,
    names.ATTRIBUTE_FINGERPRINT_METHOD,
    names.ATTRIBUTE_ISOLATED_CPUS,
)
"""Known attributes of a topology, except options."""

_NOT_OF_KUBELET: Final = frozenset({names.ATTRIBUTE_FINGERPRINT, names.ATTRIBUTE_FINGERPRINT_METHOD})
"""Attributes that change with the pods of a node."""

_Texts = tuple[tuple[str, ...], tuple[tuple[str, str], ...], str | None, str | None]

_CONFIGS: Final[ParsedCache[_Texts, KubeletConfig]] = ParsedCache(4 << 20)
