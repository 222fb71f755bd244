"""Parse the parts of a NodeResourceTopology: the zones of NUMA nodes, and the configuration of the kubelet."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import orjson

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.cpus.kubelet_options import CPU_OPTIONS, TOPOLOGY_OPTIONS
from koord_numa.core.cpuset import MAX_CPU, CpuSet
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, KubeletConfig, Zone
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, NumaPolicy
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, is_hugepages
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.names import ZONE_TYPE_NUMA
from koord_numa.wire.parsing import (
    EnumReader,
    GoJson,
    Id,
    ParsedCache,
    Quantity,
    Strict,
    below_zero,
    current_name,
    load_json,
    read,
    read_as,
    read_json,
    supply,
)
from koord_numa.wire.pod_annotations import cpu_list, numa_id

MOST_DEVICES: Final = 16_384
"""Maximum devices of a resource on a NUMA node. Devices are kept one by one. Bytes and CPUs have limits of their own."""

REMEMBERED_TEXT: Final = 16 << 20
"""Characters of JSON in the cache of zones. A zone has about two thousand."""

MOST_RESOURCES: Final = 512
"""Maximum resources of a NUMA node."""

# NFD and the exporters write node-0. Koordinator's scheduler also accepts x-node-0.
_ZONE_NAME: Final = re.compile(r"(?:.{0,200}[-_])?node-(\d{1,9})", re.ASCII)
_LONGEST_NAME: Final = 215  # the longest name that the expression matches


class ResourceModel(Strict):
    """A resource of a zone. v1alpha1 may omit the available amount."""

    name: str
    capacity: Quantity | None = None
    allocatable: Quantity | None = None
    available: Quantity | None = None


class CostModel(Strict):
    """The cost of access to another zone."""

    name: str
    value: Id


class AttributeModel(Strict):
    """An attribute of a zone or of the whole object."""

    name: str
    value: str


class ZoneTypeModel(Strict):
    """The type of a zone, which decides whether the rest is parsed."""

    type: str


class ZoneModel(Strict):
    """A zone. Zones of type ``Node`` are NUMA nodes."""

    name: str
    type: str
    costs: list[CostModel] | None = None
    resources: list[ResourceModel] | None = None


Distances = dict[tuple[int, int], int]
"""Cost of access from the first NUMA node to the second."""


class ReadZone(ValueObject):
    """A NUMA node with the costs of access to others by NUMA id. ``zone`` is ``None`` for a zone of another type."""

    zone: Zone | None = None
    costs: tuple[tuple[int, int], ...] = ()
    type: str = ZONE_TYPE_NUMA


class ReadZones(ValueObject):
    """The NUMA nodes of a topology in ascending order, the costs between them, and the types of other zones in order."""

    zones: tuple[Zone, ...]
    distances: Distances
    other_types: tuple[str, ...]


def read_zones(listed: Iterable[object], path: FieldPath) -> ReadZones:
    """
    Parse the zones of a topology. Zones of types other than ``Node`` (sockets, pools of NRI plugins) are not parsed.

    ``path`` is the path of the object. Zones are cached by their JSON: most updates change one zone, and nodes are
    alike.
    """
    found: dict[int, Zone] = {}
    costs: Distances = {}
    others: dict[str, None] = {}
    for number, raw in enumerate(listed):
        read_zone = _read_zone(raw, number, path)
        zone = read_zone.zone
        if zone is None:
            others[read_zone.type] = None
            continue
        if zone.numa in found:
            raise path.at("zones").error(f"NUMA node {zone.numa} is listed twice")
        found[zone.numa] = zone
        if len(found) > MAX_NUMA:
            raise path.at("zones").error(
                f"more than {MAX_NUMA} NUMA nodes are listed, at most {MAX_NUMA} are supported"
            )
        # Costs to unlisted zones are kept. Only pairs of listed zones are used.
        costs.update(((zone.numa, end), value) for end, value in read_zone.costs)
    cpus = sum(zone.capacity.get(CPU, 0) for zone in found.values()) // MILLI
    # More CPUs than the largest id allows: a machine of that size cannot be built.
    if cpus > MAX_CPU + 1:
        raise path.at("zones").error(f"{cpus} CPUs are too many, at most {MAX_CPU + 1} are supported")
    return ReadZones(tuple(found[numa] for numa in sorted(found)), dict(sorted(costs.items())), tuple(others))


_ZONES: Final[ParsedCache[bytes, ReadZone]] = ParsedCache(REMEMBERED_TEXT)


def _read_zone(raw: object, number: int, path: FieldPath) -> ReadZone:
    try:
        # The whole JSON is the key: equal zones of different nodes share one value.
        key = orjson.dumps(raw)
    except orjson.JSONEncodeError:  # integers beyond 64 bits: the model reports them
        return _parse(raw, number, path)
    known = _ZONES.get(key)
    if known is None:
        known = _ZONES.put(key, _parse(raw, number, path), 2 * len(key))
    return known


def _parse(raw: object, number: int, path: FieldPath) -> ReadZone:
    place = path.at(f"zones[{number}]")
    kind = read(ZoneTypeModel, raw, place).type
    if kind != ZONE_TYPE_NUMA:
        return ReadZone(type=kind)
    model, path = read(ZoneModel, raw, place), path.at("zones")
    numa = _numa_of(model.name)
    if numa is None:
        raise path.error(f"{quoted(model.name)} is not a name of a NUMA node such as node-0")
    ends = ((_numa_of(cost.name), cost.value) for cost in model.costs or ())
    costs = tuple((end, value) for end, value in ends if end is not None)  # other zones do not matter
    return ReadZone(_parse_zone(numa_id(numa, path), model, path.at(model.name)), costs)


def _numa_of(name: str) -> int | None:
    return _numa_of_short(name) if len(name) <= _LONGEST_NAME else None


@lru_cache(maxsize=1024)
def _numa_of_short(name: str) -> int | None:
    match = _ZONE_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def _parse_zone(numa: int, model: ZoneModel, path: FieldPath) -> Zone:
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    available: dict[str, int] = {}
    overdrawn: dict[str, int] = {}
    resources = model.resources or ()
    if len(resources) > MOST_RESOURCES:
        raise path.error(f"{len(resources)} resources are too many, at most {MOST_RESOURCES} are supported")
    for resource in resources:
        name = current_name(resource.name)
        if name == EPHEMERAL_STORAGE:
            continue  # not aligned by the kubelet; the Node object has the amount
        if name in capacity:
            raise path.at(name).error("is listed twice")
        # The first amount present replaces missing ones, since v1alpha1 exporters omit some.
        known = [value for value in (resource.capacity, resource.allocatable, resource.available) if value is not None]
        if not known:
            raise path.at(name).error("has neither capacity nor allocatable")
        capacity[name] = supply(name, known[0], path)
        allocatable[name] = _or(resource.allocatable, capacity[name], name, path)
        available[name] = _or(resource.available, allocatable[name], name, path)
        if (below := below_zero(name, resource.available, path)) > 0:
            overdrawn[name] = below
        # Devices are kept one by one, so their number needs a limit. Bytes do not.
        is_device = name not in (CPU, MEMORY) and not is_hugepages(name)
        if is_device and max(capacity[name], allocatable[name], available[name]) > MOST_DEVICES:
            raise path.at(name).error(f"{capacity[name]} devices are too many, at most {MOST_DEVICES} are supported")
    return Zone(numa=numa, capacity=capacity, allocatable=allocatable, available=available, overdrawn=overdrawn)


def _or(value: Quantity | None, otherwise: int, name: str, path: FieldPath) -> int:
    return otherwise if value is None else supply(name, value, path)


# Parse the kubelet configuration in a NodeResourceTopology: topology policy, scope, and options of the resource managers.
#
# Sources, each overriding the previous field by field: the first entry of ``topologyPolicies``, Koordinator's annotation
# about the CPU manager, the node agent's annotation, attributes in their order.

MOST_NUMA_NODES: Final = 1024
"""Larger values of the attribute are reduced to this limit, as in scheduler-plugins."""

POLICIES: Final = EnumReader({policy.value: policy for policy in KubeletPolicy})
SCOPES: Final = EnumReader({scope.value: scope for scope in KubeletScope})
CPU_POLICIES: Final = EnumReader({"none": "none", "static": "static"})
MEMORY_POLICIES: Final = EnumReader({"None": "None", "Static": "Static"})
BOOLEANS: Final = EnumReader({"true": True, "false": False}, also={"1": True, "t": True, "0": False, "f": False})

_FALSE: Final = ("false", "False", "FALSE", "f", "0")
_OPTIONS: Final = dict[str, str] | None
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
    options: dict[str, str | bool] = value_field(default_factory=dict)
    reserved_cpus: str = value_field(default="", name="reservedCPUs")


class _Known(MutableObject):
    """The configuration read so far."""

    policy: KubeletPolicy | None = None
    scope: KubeletScope = KubeletScope.CONTAINER
    topology_options: dict[str, bool] = value_field(default_factory=dict)
    max_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    cpu_policy: str | None = None
    cpu_options: dict[str, bool] = value_field(default_factory=dict)
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
    Apply the kubelet options that the node agent publishes in an annotation.

    The node agent writes the annotation where another field manager owns the list of attributes and would remove additions.
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
    value except false turns it on, and ``core/cpus/kubelet_options.py`` defines the consequences. Raises ``WireError`` for a
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
"""Attributes of the pods of a node. They are not part of the kubelet's configuration."""

_Texts = tuple[tuple[str, ...], tuple[tuple[str, str], ...], str | None, str | None]

_CONFIGS: Final[ParsedCache[_Texts, KubeletConfig]] = ParsedCache(4 << 20)
