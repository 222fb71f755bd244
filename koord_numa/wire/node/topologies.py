"""NodeResourceTopology objects, v1alpha1 and v1alpha2, of Koordinator's agent and of the kubelet's exporters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner, NumaPolicy
from koord_numa.wire import names
from koord_numa.wire.metadata import Head, head, version
from koord_numa.wire.node.cpu_topology import machine
from koord_numa.wire.node.cpuset_differences import cpuset_differences
from koord_numa.wire.node.kubelet_config import NUMA_POLICY_OF, TOPOLOGY_POLICIES, kubelet_config
from koord_numa.wire.node.node_annotations import amplification
from koord_numa.wire.node.pci_devices import numa_by_root
from koord_numa.wire.node.reserved import reserved_cpus
from koord_numa.wire.node.zones import AttributeModel, zones
from koord_numa.wire.parsing import Problems, Strict, read


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
    # The annotation is the agent's: where it is, the scheduler chooses CPUs.
    owner = CpuOwner.SCHEDULER if names.CPU_TOPOLOGY in top.annotations else CpuOwner.KUBELET
    owners = top.metadata.owner_references or ()
    blank = NodeResourceTopology(
        node=top.name,
        owner=owner,
        node_uid=next((reference.uid for reference in owners if reference.kind == "Node"), ""),
        resource_version=version(top),
    )
    # Nothing of a malformed object is used: a half-read topology would offer what is not there.
    topology = blank if problems.problem else problems.collect(lambda: _read(top, blank), blank)
    return replace(topology, problem=problems.problem) if problems.problem else topology


def _read(top: Head, blank: NodeResourceTopology) -> NodeResourceTopology:
    model = read(TopologyModel, top.body, top.path)
    attributes = model.attributes or []
    found_zones, costs = zones(model.zones or (), top.path)
    kubelet = kubelet_config(model.topology_policies or (), attributes, top.annotations, top.path)
    topology = replace(
        blank,
        zones=found_zones,
        kubelet=kubelet,
        distances=costs,
        numa_by_root=numa_by_root(top.annotations, top.path),
        differences=cpuset_differences(top.annotations, top.path),
        fingerprint=_first(attributes, names.ATTRIBUTE_FINGERPRINT)
        # Koordinator's agent publishes the fingerprint as an annotation.
        or top.annotations.get(names.FINGERPRINT_ANNOTATION, ""),
        fingerprint_method=_first(attributes, names.ATTRIBUTE_FINGERPRINT_METHOD),
    )
    text = top.annotations.get(names.CPU_TOPOLOGY)
    return topology if text is None else _scheduler_owned(topology, top, text, model.topology_policies or ())


def _scheduler_owned(
    topology: NodeResourceTopology, top: Head, text: str, policies: Sequence[str]
) -> NodeResourceTopology:
    reserved = reserved_cpus(top.annotations, topology.kubelet.reserved_cpus, top.path)
    numa_ids = frozenset(zone.numa for zone in topology.zones)
    return replace(
        topology,
        machine=machine(text, numa_ids, topology.distances, top.path.annotation(names.CPU_TOPOLOGY)),
        numa_policy=_numa_policy(policies, topology.kubelet, top),
        reserved=reserved.cpus,
        kubelet_reserved=reserved.by_kubelet_alone,
        kubelet_pods=reserved.kubelet_pods,
        amplification=amplification(top.annotations, top.path),
    )


def _numa_policy(policies: Sequence[str], kubelet: KubeletConfig, top: Head) -> NumaPolicy:
    """The first policy that demands something, as Koordinator looks for it, in any spelling; else the kubelet's attribute."""
    # All entries, where the kubelet's configuration takes the first: Koordinator looks for the first that demands something.
    for word in policies:
        policy, _ = TOPOLOGY_POLICIES.read(word, top.path.at("topologyPolicies"))
        if NUMA_POLICY_OF[policy] is not NumaPolicy.NONE:
            return NUMA_POLICY_OF[policy]
    return NumaPolicy.NONE if kubelet.topology_policy is None else NUMA_POLICY_OF[kubelet.topology_policy]


def _first(attributes: Sequence[AttributeModel], name: str) -> str:
    return next((attribute.value for attribute in attributes if attribute.name == name), "")
