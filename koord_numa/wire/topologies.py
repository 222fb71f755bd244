"""Parse NodeResourceTopology objects (v1alpha1, v1alpha2) of Koordinator's agent, other exporters and the node agent."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from koord_numa.core.cpu_topology import MAX_NUMA, MAX_NUMA_ID, Cpu, CpuTopology
from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from koord_numa.core.objects.node import (
    CpusetDifference,
    KubeletAllocation,
    KubeletConfig,
    NodeResourceTopology,
    Pinning,
)
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NumaPolicy
from koord_numa.core.value_objects import ValueObject, replace, value_field
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError, is_near, plain, quoted
from koord_numa.wire.kubelet_state import kubelet_checkpoint
from koord_numa.wire.misspelled_keys import unread_attributes, unread_members, unread_topology_keys
from koord_numa.wire.nodes import Reservation, amplification, reservation
from koord_numa.wire.parsing import (
    GoJson,
    Head,
    Id,
    ParsedCache,
    Problems,
    Strict,
    head,
    load_json,
    read,
    read_as,
    read_json,
    version,
)
from koord_numa.wire.pod_annotations import cpu_list, numa_id
from koord_numa.wire.zones import (
    ATTRIBUTES,
    BOOLEANS,
    NUMA_POLICY_OF,
    TOPOLOGY_POLICIES,
    AttributeModel,
    CpuManagerPolicy,
    ReadZones,
    kubelet_config,
    read_zones,
)

Distances = Mapping[tuple[int, int], int]


class CpuModel(GoJson):
    """A logical CPU. ``uncore`` is an extension: the id of the last-level cache, by default the socket."""

    id: Id = 0
    core: Id = 0
    socket: Id = 0
    node: Id = 0
    uncore: Id | None = None


class CpuTopologyModel(GoJson):
    """``node.koordinator.sh/cpu-topology``."""

    detail: list[CpuModel] = value_field(default_factory=list)


def machine(text: str, numa_ids: frozenset[int], distances: Distances, path: FieldPath) -> CpuTopology:
    """
    Return the machine with these CPUs and NUMA nodes, including NUMA nodes without CPUs.

    Raises ``WireError`` if no CPU is listed, a CPU is listed twice, an id is out of range, or there are too many NUMA
    nodes.
    """
    # By digest: the text of a large machine has tens of kilobytes.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    key = digest, numa_ids, tuple(sorted(distances.items()))
    known = _MACHINES.get(key)
    if known is None:
        cpus = _cpus(text, path)
        count = len(numa_ids.union(cpu.numa for cpu in cpus))
        if count > MAX_NUMA:
            raise path.error(f"{count} NUMA nodes are too many, at most {MAX_NUMA} are supported")
        made = CpuTopology(cpus=cpus, numa_ids=tuple(numa_ids), distances=dict(distances))
        known = _MACHINES.put(key, made, len(text))
    return known


def _cpus(text: str, path: FieldPath) -> tuple[Cpu, ...]:
    found: dict[int, Cpu] = {}
    for model in read_json(CpuTopologyModel, text, path).detail:
        if model.id > MAX_CPU:
            raise path.error(f"CPU {model.id} is above {MAX_CPU}")
        if model.id in found:
            raise path.error(f"CPU {model.id} is listed twice")
        found[model.id] = Cpu(
            id=model.id,
            core=model.core,
            numa=numa_id(model.node, path),
            socket=model.socket,
            # Without a cache id, uncore alignment means socket alignment.
            uncore=model.socket if model.uncore is None else model.uncore,
        )
    if not found:
        raise path.error("no CPU is listed")
    return tuple(sorted(found.values()))


_MACHINES: Final[ParsedCache[Hashable, CpuTopology]] = ParsedCache(16 << 20)


class PciDeviceModel(GoJson):
    """A PCI device, as the node agent writes it."""

    node: int | None = None
    root: str = ""


def numa_by_root(annotations: Mapping[str, str], path: FieldPath) -> dict[str, int]:
    """
    Return the NUMA node of each PCIe root.

    Roots without a known NUMA node, or with devices on different NUMA nodes, are omitted. A malformed annotation gives
    an empty result: the devices then have no known NUMA node.
    """
    text = annotations.get(names.PCI_DEVICES)
    if text is None:
        return {}
    path = path.annotation(names.PCI_DEVICES)
    try:
        devices = read_as(_DEVICES, load_json(text, path), path) or []
    except WireError:
        return {}
    found: dict[str, set[int]] = {}
    for device in devices:
        # -1 means "no NUMA node" in sysfs.
        if device.root and device.node is not None and 0 <= device.node <= MAX_NUMA_ID:
            found.setdefault(device.root, set()).add(device.node)
    # A root has one NUMA node: contradicting devices prove nothing.
    return {root: numa for root, (numa, *others) in sorted(found.items()) if not others}


_DEVICES: Final = list[PciDeviceModel] | None


class PodCpuAllocation(GoJson):
    """An entry of ``node.koordinator.sh/pod-cpu-allocs``. The proposal uses ``cpu`` and writes the boolean as a string."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    cpu: str = ""
    managed_by_kubelet: bool | str = False


class SystemQos(GoJson):
    """``node.koordinator.sh/system-qos-resource``. Exclusive by default."""

    cpuset: str = ""
    cpuset_exclusive: bool = True


class ReservedCpus(ValueObject):
    """The union of all reserved CPUs, those reserved only by the kubelet configuration, and the listed pods."""

    cpus: CpuSet
    by_kubelet_alone: CpuSet
    kubelet_pods: tuple[KubeletAllocation, ...]


def reserved_cpus(annotations: Mapping[str, str], kubelet: CpuSet | None, path: FieldPath) -> ReservedCpus:
    """
    Return the reserved CPUs from the four sources of koordinator's topology options.

    Sources: pods of the kubelet's CPU manager, the kubelet's reserved CPUs, the node's reservation (whatever its apply
    policy), exclusive CPUs of the SYSTEM QoS class.

    Equal texts are parsed once: they rarely change, except with the pods of a kubelet with static CPU manager policy.
    """
    key = (kubelet, *map(annotations.get, _SOURCES))
    # Malformed texts are parsed each time: the error names the object.
    return _RESERVED.get(key) or _RESERVED.put(
        key, _read_reserved(annotations, kubelet, path), sum(len(annotations.get(name, "")) for name in _SOURCES)
    )


def _read_reserved(annotations: Mapping[str, str], kubelet: CpuSet | None, path: FieldPath) -> ReservedCpus:
    pods = _kubelet_pods(annotations, path)
    # Independent of the apply policy: reserved CPUs are never allocated to pods.
    cpus = reservation(annotations, path).cpus | _system_cpus(annotations, path)
    for pod in pods:
        if pod.managed_by_kubelet:
            cpus |= pod.cpus
    by_kubelet = kubelet or EMPTY
    # CPUs reserved only by the kubelet may be released by configuration (``kubeletReservedCPUs``).
    return ReservedCpus(cpus | by_kubelet, by_kubelet - cpus, pods)


def _kubelet_pods(annotations: Mapping[str, str], path: FieldPath) -> tuple[KubeletAllocation, ...]:
    text = annotations.get(names.POD_CPU_ALLOCS)
    if text is None:
        return ()
    path = path.annotation(names.POD_CPU_ALLOCS)
    found = read_as(_ALLOCATIONS, load_json(text, path), path) or []
    pods = [
        KubeletAllocation(
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            # ``cpu`` is the proposal's name for the field.
            cpus=cpu_list(entry.cpuset or entry.cpu, path),
            managed_by_kubelet=_flag(entry.managed_by_kubelet, path.at("managedByKubelet")),
        )
        for entry in found
    ]
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _system_cpus(annotations: Mapping[str, str], path: FieldPath) -> CpuSet:
    text = annotations.get(names.SYSTEM_QOS_RESOURCE)
    if text is None:
        return EMPTY
    path = path.annotation(names.SYSTEM_QOS_RESOURCE)
    found = read_json(SystemQos, text, path)
    cpus = cpu_list(found.cpuset, path.at("cpuset"))
    # CPUs that system pods share with others are not reserved.
    return cpus if found.cpuset_exclusive else EMPTY


def _flag(value: bool | str, path: FieldPath) -> bool:
    # The proposal writes the boolean as a string.
    return value if isinstance(value, bool) else bool(value) and BOOLEANS.read(value, path)


_ALLOCATIONS: Final = list[PodCpuAllocation] | None

_SOURCES: Final = (names.POD_CPU_ALLOCS, names.RESERVATION, names.SYSTEM_QOS_RESOURCE)

_RESERVED: Final[ParsedCache[tuple[CpuSet | str | None, ...], ReservedCpus]] = ParsedCache(8 << 20)


class DifferenceModel(GoJson):
    """The difference of a pod."""

    decided: str = ""
    observed: str = ""
    why: str = ""


def cpuset_differences(annotations: Mapping[str, str], path: FieldPath) -> dict[str, CpusetDifference]:
    """Return the differences by ``namespace/name``. Empty for a malformed annotation, since no decision depends on it."""
    text = annotations.get(names.CPUSET_DIFFERENCES)
    if text is None:
        return {}
    path = path.annotation(names.CPUSET_DIFFERENCES)
    try:
        found = read_as(_DIFFERENCES, load_json(text, path), path) or {}
        return {
            pod: CpusetDifference(cpu_list(one.decided, path), cpu_list(one.observed, path), one.why)
            for pod, one in sorted(found.items())
        }
    except WireError:
        return {}


class PinningModel(GoJson):
    """The method by which containers get their CPUs (annotation ``koord-numa/pinning``)."""

    through: str = ""
    containers: int = 0
    seconds: float = 0.0


def pinning(annotations: Mapping[str, str], path: FieldPath) -> Pinning | None:
    """Return how the node agent pins containers, for display only. ``None`` for an absent or malformed annotation."""
    text = annotations.get(names.PINNING)
    if text is None:
        return None
    try:
        found = read_json(PinningModel, text, path.annotation(names.PINNING))
    except WireError:
        return None
    # Any author of the annotation may write any text and any number.
    if found.through not in _WAYS or found.containers < 0 or not 0 <= found.seconds < _LONGEST:
        return None
    return Pinning(found.through, found.containers, found.seconds)


_WAYS: Final = ("NRI", "CRI", "cgroups")
_LONGEST: Final = 1e9  # seconds, some thirty years
_DIFFERENCES: Final = dict[str, DifferenceModel] | None


class NodeTopologyModel(Strict):
    """The top-level fields of both versions."""

    topology_policies: list[str] | None = None
    zones: list[Any] | None = None  # parsed one by one, see ``zones``
    attributes: list[AttributeModel] | None = None


def parse_topology(obj: Mapping[str, Any]) -> NodeResourceTopology:
    """
    Parse a NodeResourceTopology. ``NodeResourceTopology.problem`` names malformed parts, and such an object is not used.

    Raises ``WireError`` only if the object has no name.
    """
    problems = Problems()
    top = head(obj, names.TOPOLOGY_KIND, problems)
    fields: _Fields = {}
    # A malformed object is not used at all: half a topology would offer resources that do not exist.
    if not problems.problem:
        fields = problems.collect(lambda: _read(top), fields)
    return NodeResourceTopology(
        node=top.name,
        # The annotation comes from Koordinator's agent. If it is present, the scheduler chooses the CPUs.
        owner=CpuOwner.SCHEDULER if names.CPU_TOPOLOGY in top.annotations else CpuOwner.KUBELET,
        node_uid=next((owner.uid for owner in top.metadata.owner_references or () if owner.kind == "Node"), ""),
        resource_version=version(top),
        problem=problems.problem,
        **fields,
    )


_Fields = dict[str, Any]
"""Fields of a topology besides its identity, by name. The object is created once, since copies are expensive."""


def _read(top: Head) -> _Fields:
    model = read(NodeTopologyModel, top.body, top.path)
    attributes = model.attributes or []
    # The first attribute of a name counts.
    told = {each.name: each.value for each in reversed(attributes)}
    listed = read_zones(model.zones or (), top.path)
    found_zones, costs = listed.zones, listed.distances
    policies = model.topology_policies or ()
    checkpoint = kubelet_checkpoint(top.annotations, top.path)
    kubelet = kubelet_config(policies, attributes, top.annotations, top.path)
    # The agent reports the static policy without its options: equivalent to a configuration that is not published.
    if checkpoint is not None and checkpoint.cpu_policy == "static" and checkpoint.cpu_options is None:
        kubelet = replace(kubelet, cpu_policy=None, cpu_options={})
    usable = any(zone.capacity for zone in found_zones)
    gap = "" if usable else _gap(listed, told, top)
    # The kubelet may reject pods by NUMA nodes that are unknown. Only pods that it does not align can run there.
    if gap and names.CPU_TOPOLOGY not in top.annotations and _refuses(kubelet):
        raise top.path.error(f"it{gap}, but the kubelet aligns pods to NUMA nodes")
    fields: _Fields = {
        "zones": found_zones,
        "kubelet": kubelet,
        "distances": costs,
        "unread": tuple(_unread(top, attributes, listed.other_types)),
        "gap": f"its NodeResourceTopology{gap}" if gap else "",
        "describes_nodes": usable or names.CPU_TOPOLOGY in top.annotations,
        "numa_by_root": numa_by_root(top.annotations, top.path),
        "differences": cpuset_differences(top.annotations, top.path),
        "pinning": pinning(top.annotations, top.path),
        "checkpoint": checkpoint,
        "fingerprint": told.get(names.ATTRIBUTE_FINGERPRINT)
        # Koordinator's agent publishes the fingerprint as an annotation.
        or top.annotations.get(names.FINGERPRINT_ANNOTATION, ""),
        "fingerprint_method": told.get(names.ATTRIBUTE_FINGERPRINT_METHOD, ""),
    }
    text = top.annotations.get(names.CPU_TOPOLOGY)
    if text is None:
        return fields
    reserved = reserved_cpus(top.annotations, kubelet.reserved_cpus, top.path)
    numa_ids = frozenset(zone.numa for zone in found_zones)
    isolated = told.get(names.ATTRIBUTE_ISOLATED_CPUS, "")
    return fields | {
        "machine": machine(text, numa_ids, costs, top.path.annotation(names.CPU_TOPOLOGY)),
        "numa_policy": _numa_policy(policies, kubelet, top),
        "reserved": reserved.cpus,
        "kubelet_reserved": reserved.by_kubelet_alone,
        "isolated": cpu_list(isolated, top.path.at("attributes").at(names.ATTRIBUTE_ISOLATED_CPUS)),
        "kubelet_pods": reserved.kubelet_pods,
        "amplification": amplification(top.annotations, top.path),
    }


_MEMBERS: Final[Mapping[str, type[GoJson]]] = {
    names.CPU_MANAGER_POLICY: CpuManagerPolicy,
    names.RESERVATION: Reservation,
    names.SYSTEM_QOS_RESOURCE: SystemQos,
}


def _unread(top: Head, attributes: Sequence[AttributeModel], other_types: Sequence[str]) -> Iterator[str]:
    yield from unread_topology_keys(top.annotations)
    yield from unread_members(top.annotations, _MEMBERS)
    yield from unread_attributes(((each.name, each.value) for each in attributes), ATTRIBUTES)
    for kind in other_types:
        if is_near(plain(kind), plain(names.ZONE_TYPE_NUMA)):
            yield f"zones of type {quoted(kind)} are not read; NUMA nodes have the type {names.ZONE_TYPE_NUMA}"


def _refuses(kubelet: KubeletConfig) -> bool:
    """Return whether the published settings let the kubelet reject a pod for its NUMA nodes, which then must be known."""
    strict = kubelet.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)
    return strict or kubelet.memory_policy == "Static"


def _gap(listed: ReadZones, told: Mapping[str, str], top: Head) -> str:
    """
    Return the missing part of a topology as the rest of a sentence, with the publisher.

    A publisher without NUMA nodes is, for example, an NRI plugin that publishes pools.
    """
    if listed.zones:
        what = "no resources of its NUMA nodes"
    elif listed.other_types:
        what = f"zones of type {', '.join(map(quoted, listed.other_types[:3]))} and none of type {names.ZONE_TYPE_NUMA} (NUMA nodes)"
    else:
        what = "no zones"
    publisher = _publisher(told, top)
    return f"{f', published by {publisher},' if publisher else ''} lists {what}"


def _publisher(told: Mapping[str, str], top: Head) -> str:
    """Return the publisher by its label, the policy of an NRI plugin, or the field managers. Empty if unknown."""
    if label := top.labels.get(names.MANAGED_BY):
        return label
    if policy := told.get(names.ATTRIBUTE_NRI_POLICY):
        return f"the NRI plugin with the policy {quoted(policy)}"
    entries = top.body["metadata"].get("managedFields")
    managers = (
        [entry.get("manager") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    return ", ".join(list(dict.fromkeys(name for name in managers if isinstance(name, str) and name))[:3])


def _numa_policy(policies: Sequence[str], kubelet: KubeletConfig, top: Head) -> NumaPolicy:
    """Return the first policy other than none, as Koordinator does, in any spelling. By default the kubelet's attribute."""
    # All entries are considered, as in Koordinator. The kubelet configuration uses only the first entry.
    for word in policies:
        policy, _ = TOPOLOGY_POLICIES.read(word, top.path.at("topologyPolicies"))
        if NUMA_POLICY_OF[policy] is not NumaPolicy.NONE:
            return NUMA_POLICY_OF[policy]
    return NumaPolicy.NONE if kubelet.topology_policy is None else NUMA_POLICY_OF[kubelet.topology_policy]
