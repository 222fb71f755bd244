"""
Labels and annotations under keys that are almost ours: misspelled, under another prefix, or on the wrong kind of object.

Such a key carries a demand that nothing reads. On a pod it is an error, on a node or a topology it is reported. Keys of other
projects are left alone unless their name can mean nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.objects.vocabulary import KubeletPolicy, PriorityClass, QosClass
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.core.spelling import is_near, plain
from koord_numa.wire import names
from koord_numa.wire.errors import QUOTED, FieldPath, WireError
from koord_numa.wire.parsing import GoJson, load_json

LABEL: Final = "label"
ANNOTATION: Final = "annotation"

_POD_KEYS: Final = {
    names.QOS_CLASS: LABEL,
    names.PRIORITY_CLASS: LABEL,
    names.RESOURCE_SPEC: ANNOTATION,
    names.NUMA_TOPOLOGY_SPEC: ANNOTATION,
    names.NUMA_SPREAD: ANNOTATION,
    names.REBIND: ANNOTATION,
}
_POD_NAMES: Final[Mapping[str, str]] = {
    **{plain(key.rpartition("/")[2]): key for key in _POD_KEYS},
    "qos": names.QOS_CLASS,
    **dict.fromkeys(
        (
            "requiredcpubindpolicy",
            "preferredcpubindpolicy",
            "preferredcpuexclusivepolicy",
            "cpubindpolicy",
            "cpuexclusivepolicy",
        ),
        names.RESOURCE_SPEC,
    ),
    **dict.fromkeys(
        (
            "numatopologypolicy",
            "numatopologyalignmentpolicy",
            "numapolicy",
            "numaallocatestrategy",
            "numaallocatepolicy",
            "singlenumanodeexclusive",
            "topologyspec",
            "topologypolicy",
        ),
        names.NUMA_TOPOLOGY_SPEC,
    ),
}
"""What the name of a key means on a pod: names of our keys, of the members of our annotations, and of labels of nodes."""

_ON_NODES: Final = (
    (LABEL, names.NODE_NUMA_POLICY),
    (LABEL, names.NODE_NUMA_POLICY_PROPOSED),
    (LABEL, names.NODE_BIND_POLICY),
    (LABEL, names.NODE_NUMA_STRATEGY),
    (LABEL, names.NODE_NUMA_STRATEGY_PROPOSED),
    (LABEL, names.DEDICATED),
    (ANNOTATION, names.AMPLIFICATION),
    (ANNOTATION, names.RESERVATION),
)
_NODE_NAMES: Final = {
    **dict.fromkeys(("numapolicy", "numatopology", "numa", "topologypolicy"), (LABEL, names.NODE_NUMA_POLICY)),
    **dict.fromkeys(("cpupolicy", "cpubind", "bindpolicy"), (LABEL, names.NODE_BIND_POLICY)),
    **dict.fromkeys(("numastrategy", "allocatestrategy"), (LABEL, names.NODE_NUMA_STRATEGY)),
    **dict.fromkeys(
        ("amplification", "amplificationratio", "cpuamplificationratio"), (ANNOTATION, names.AMPLIFICATION)
    ),
    "reservedcpus": (ANNOTATION, names.RESERVATION),
}
"""Shorter names that people use for keys of a Node, under one of our prefixes."""
_ON_TOPOLOGIES: Final = tuple(
    (ANNOTATION, key)
    for key in (
        names.CPU_TOPOLOGY,
        names.POD_CPU_ALLOCS,
        names.SYSTEM_QOS_RESOURCE,
        names.CPU_MANAGER_POLICY,
        names.FINGERPRINT_ANNOTATION,
        names.KUBELET_OPTIONS,
        names.CPUSET_DIFFERENCES,
        names.PINNING,
        names.PCI_DEVICES,
        names.AMPLIFICATION,
        names.RESERVATION,
    )
)
_KUBELET_POLICIES: Final = frozenset(plain(policy.value) for policy in KubeletPolicy)
_OTHERS: Final = frozenset(
    {names.CPU_SHARED_POOLS, names.BE_CPU_SHARED_POOLS, names.RESOURCE_STATUS, names.NUMA_NODES, names.EXPLORES}
)
"""Keys that are right as they are and near others."""

_DISTINCT: Final = (
    "numatopology",
    "numapolicy",
    "numaallocate",
    "singlenumanode",
    "cpubindpolicy",
    "cpuexclusivepolicy",
)
"""Parts of names that mean the same under the prefix of any project: ``volcano.sh/numa-topology-policy``."""

_WORDS: Final = {
    names.QOS_CLASS: frozenset(qos.value for qos in QosClass if qos.value),
    names.PRIORITY_CLASS: frozenset(priority.value for priority in PriorityClass if priority.value),
}
"""Values by which a label without our prefix is known to mean ours."""

_OUR_PREFIXES: Final = (
    "koordinator.sh",
    "scheduling.koordinator.sh",
    "node.koordinator.sh",
    "koord-numa",
    "koord-numa.io",
    "scheduling.koord-numa.io",
)


def unread_pod_keys(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A sentence for each key of a pod that demands something and is not read, with the key that it stands for."""
    for kind, found in ((LABEL, labels), (ANNOTATION, annotations)):
        for key, value in found.items():
            meant = _meant_on_pod(key, kind)
            if not meant or (meant in _WORDS and not _is_ours(key) and value not in _WORDS[meant]):
                continue
            # A second copy of what the right key says is no lost demand.
            if (labels if _POD_KEYS[meant] == LABEL else annotations).get(meant) != value:
                yield key, f"{kind} {key} is not read; use the {_POD_KEYS[meant]} {meant}"


def unread_workload_keys(workload: Mapping[str, object], template: Mapping[str, object]) -> Iterator[str]:
    """A sentence for each key of pods in the metadata of a workload that is absent from those of its template, which pods get."""
    for key, kind in _POD_KEYS.items():
        part = f"{kind}s"
        there, given = workload.get(part), template.get(part)
        if isinstance(there, dict) and key in there and not (isinstance(given, dict) and key in given):
            yield f"{kind} {key} is not read; it belongs to spec.template.metadata.{part}"


def unread_node_keys(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """As ``unread_pod_keys``, of a Node."""
    return (*_near(LABEL, labels, _ON_NODES), *_near(ANNOTATION, annotations, _ON_NODES))


def unread_topology_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """As ``unread_pod_keys``, of a NodeResourceTopology."""
    return tuple(_near(ANNOTATION, annotations, _ON_TOPOLOGIES))


def unread_attributes(attributes: Iterable[tuple[str, str]], known: Sequence[str]) -> Iterator[str]:
    """A sentence for each attribute of a topology whose name is almost a known one."""
    for name, value in attributes:
        if name in known or name.startswith((names.ATTRIBUTE_TOPOLOGY_OPTION, names.ATTRIBUTE_CPU_OPTION)):
            continue
        # NRI plugins write TopologyPolicy too, with the names of their own policies.
        is_policy = plain(name) == "topologypolicy" and plain(value) in _KUBELET_POLICIES
        if name != names.ATTRIBUTE_NRI_POLICY or is_policy:
            meant = names.ATTRIBUTE_TOPOLOGY_POLICY if is_policy else _near_attribute(name, tuple(known))
            if meant:
                yield f"attribute {name[:QUOTED]} is not read; use {meant}"


def unread_members(annotations: Mapping[str, str], models: Mapping[str, type[GoJson]]) -> Iterator[str]:
    """A sentence for each member of these annotations that misspells a known one."""
    for key, model in models.items():
        text = annotations.get(key)
        if text is not None:
            yield from _near_members(key, text, model)


def unread_ratios(resources: Iterable[str]) -> Iterator[str]:
    """A sentence for each resource of the amplification ratios that misspells one that is amplified."""
    for name in resources:
        meant = next((known for known in (CPU, MEMORY) if name != known and is_near(plain(name), known, 1)), "")
        if meant:
            yield f"annotation {names.AMPLIFICATION}.{name[:QUOTED]} is not read; use {meant}"


@lru_cache(maxsize=1024)
def _near_members(key: str, text: str, model: type[GoJson]) -> tuple[str, ...]:
    try:
        unknown = model.unknown_names(load_json(text, FieldPath("")))
    except WireError:
        return ()  # the reader of the annotation reports it
    found = []
    for name in unknown:
        meant = next((known for known in model.accepted_names() if is_near(plain(name), plain(known))), "")
        if meant:
            found.append(f"annotation {key}.{name[:QUOTED]} is not read; use {meant}")
    return tuple(found)


@lru_cache(maxsize=4096)
def _meant_on_pod(key: str, kind: str) -> str:
    """The key that is read instead of this one; empty for keys that are read and for keys of others."""
    if key in _OTHERS or _POD_KEYS.get(key) == kind:
        return ""
    if key in _POD_KEYS:
        return key
    if near := next((known for known in _POD_KEYS if is_near(key.lower(), known.lower())), ""):
        return near
    name = plain(key.rpartition("/")[2])
    known = next((known for known in _POD_NAMES if name == known or (len(known) > 5 and is_near(name, known))), "")
    if not known:
        return _topic_on_pod(name) if _is_ours(key) else ""
    meant = _POD_NAMES[known]
    return meant if _is_ours(key) or meant in _WORDS or any(part in known for part in _DISTINCT) else ""


def _topic_on_pod(name: str) -> str:
    """The annotation about the subject of an unknown name under one of our prefixes: NUMA nodes, or policies of CPUs."""
    if "numa" in name:
        return names.NUMA_TOPOLOGY_SPEC
    return names.RESOURCE_SPEC if "cpu" in name and "policy" in name else ""


@lru_cache(maxsize=4096)
def _is_ours(key: str) -> bool:
    prefix = key.rpartition("/")[0].lower()
    return prefix.endswith("koordinator.sh") or any(is_near(prefix, known) for known in _OUR_PREFIXES)


def _near(kind: str, found: Iterable[str], known: Sequence[tuple[str, str]]) -> Iterator[str]:
    for key in found:
        if (kind, key) not in known and key not in _OTHERS and (meant := _near_key(key, tuple(known))):
            yield f"{kind} {key} is not read; use the {meant[0]} {meant[1]}"


@lru_cache(maxsize=4096)
def _near_key(key: str, known: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The known key that this one misspells, or whose name it has under another prefix of ours."""
    name = plain(key.rpartition("/")[2])
    for kind, other in known:
        same_name = _is_ours(key) and is_near(name, plain(other.rpartition("/")[2]))
        if same_name or is_near(key.lower(), other.lower()):
            return kind, other
    meant = _NODE_NAMES.get(name) if _is_ours(key) else None
    return meant if meant in known else None


@lru_cache(maxsize=1024)
def _near_attribute(name: str, known: tuple[str, ...]) -> str:
    return next((other for other in known if is_near(plain(name), plain(other))), "")
