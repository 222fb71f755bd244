"""NodeResourceTopology objects, v1alpha1 and v1alpha2, of Koordinator's agent and of the kubelet's exporters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NumaPolicy
from koord_numa.core.spelling import is_near, plain
from koord_numa.core.value_objects import replace
from koord_numa.wire import names
from koord_numa.wire.errors import quoted
from koord_numa.wire.metadata import Head, head, version
from koord_numa.wire.misspelled_keys import unread_attributes, unread_members, unread_topology_keys
from koord_numa.wire.node.cpu_topology import machine
from koord_numa.wire.node.cpuset_differences import cpuset_differences, pinning
from koord_numa.wire.node.kubelet_config import (
    ATTRIBUTES,
    NUMA_POLICY_OF,
    TOPOLOGY_POLICIES,
    CpuManagerPolicy,
    kubelet_config,
)
from koord_numa.wire.node.kubelet_state import kubelet_checkpoint
from koord_numa.wire.node.node_annotations import Reservation, amplification
from koord_numa.wire.node.pci_devices import numa_by_root
from koord_numa.wire.node.reserved import SystemQos, reserved_cpus
from koord_numa.wire.node.zones import AttributeModel, ReadZones, read_zones
from koord_numa.wire.parsing import GoJson, Problems, Strict, read


class TopologyModel(Strict):
    """The top-level fields of both versions."""

    topology_policies: list[str] | None = None
    zones: list[Any] | None = None  # each is read by itself, see ``zones``
    attributes: list[AttributeModel] | None = None


def parse_topology(obj: Mapping[str, Any]) -> NodeResourceTopology:
    """
    The topology in an API object; ``NodeResourceTopology.problem`` names what is malformed, and nothing of such an object is used.

    Raises ``WireError`` only when the object has no name.
    """
    problems = Problems()
    top = head(obj, names.TOPOLOGY_KIND, problems)
    fields: _Fields = {}
    # Nothing of a malformed object is used: a half-read topology would offer what is not there.
    if not problems.problem:
        fields = problems.collect(lambda: _read(top), fields)
    return NodeResourceTopology(
        node=top.name,
        # The annotation is the agent's: where it is, the scheduler chooses CPUs.
        owner=CpuOwner.SCHEDULER if names.CPU_TOPOLOGY in top.annotations else CpuOwner.KUBELET,
        node_uid=next((owner.uid for owner in top.metadata.owner_references or () if owner.kind == "Node"), ""),
        resource_version=version(top),
        problem=problems.problem,
        **fields,
    )


_Fields = dict[str, Any]
"""What is read of a topology besides its identity, by the name of the field: made into an object once, as copies of it are dear."""


def _read(top: Head) -> _Fields:
    model = read(TopologyModel, top.body, top.path)
    attributes = model.attributes or []
    # The first of a name counts.
    told = {each.name: each.value for each in reversed(attributes)}
    listed = read_zones(model.zones or (), top.path)
    found_zones, costs = listed.zones, listed.distances
    policies = model.topology_policies or ()
    checkpoint = kubelet_checkpoint(top.annotations, top.path)
    kubelet = kubelet_config(policies, attributes, top.annotations, top.path)
    # The agent has seen that the CPU manager is static, and not with which options: the same as a configuration that is not published.
    if checkpoint is not None and checkpoint.cpu_policy == "static" and checkpoint.cpu_options is None:
        kubelet = replace(kubelet, cpu_policy=None, cpu_options={})
    usable = any(zone.capacity for zone in found_zones)
    gap = "" if usable else _gap(listed, told, top)
    # A kubelet that may refuse pods by NUMA nodes that are not known: only pods that it does not align can go there.
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
    return fields | {
        "machine": machine(text, numa_ids, costs, top.path.annotation(names.CPU_TOPOLOGY)),
        "numa_policy": _numa_policy(policies, kubelet, top),
        "reserved": reserved.cpus,
        "kubelet_reserved": reserved.by_kubelet_alone,
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
    """Whether the published settings let the kubelet refuse a pod for its NUMA nodes, which then must be known."""
    strict = kubelet.topology_policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)
    return strict or kubelet.memory_policy == "Static"


def _gap(listed: ReadZones, told: Mapping[str, str], top: Head) -> str:
    """The part of a topology that is missing, as the rest of a sentence with the publisher, such as an NRI plugin that publishes pools."""
    if listed.zones:
        what = "no resources of its NUMA nodes"
    elif listed.other_types:
        what = f"zones of type {', '.join(map(quoted, listed.other_types[:3]))} and none of type {names.ZONE_TYPE_NUMA} (NUMA nodes)"
    else:
        what = "no zones"
    publisher = _publisher(told, top)
    return f"{f', published by {publisher},' if publisher else ''} lists {what}"


def _publisher(told: Mapping[str, str], top: Head) -> str:
    """The publisher by its label, the policy of an NRI plugin, or the field managers of the object; empty where nothing names it."""
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
    """The first policy that demands something, as Koordinator looks for it, in any spelling; else the kubelet's attribute."""
    # All entries, where the kubelet's configuration takes the first: Koordinator looks for the first that demands something.
    for word in policies:
        policy, _ = TOPOLOGY_POLICIES.read(word, top.path.at("topologyPolicies"))
        if NUMA_POLICY_OF[policy] is not NumaPolicy.NONE:
            return NUMA_POLICY_OF[policy]
    return NumaPolicy.NONE if kubelet.topology_policy is None else NUMA_POLICY_OF[kubelet.topology_policy]
