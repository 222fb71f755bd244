"""
Find misspelled labels and annotations: wrong spelling, wrong prefix, or wrong kind of object.

Such a key carries a demand that no parser reads. It is an error on a pod and is reported on a node or a topology. Keys
of other projects are ignored unless their name is unambiguous.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.objects.vocabulary import KubeletPolicy, PriorityClass, QosClass
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.wire import names
from koord_numa.wire.errors import QUOTED, FieldPath, WireError, is_near, plain
from koord_numa.wire.parsing import GoJson, load_json

LABEL: Final = "label"
ANNOTATION: Final = "annotation"

_POD_KEYS: Final = {
    names.QOS_CLASS: LABEL,
    names.PRIORITY_CLASS: LABEL,
    names.RESOURCE_SPEC: ANNOTATION,
    names.NUMA_TOPOLOGY_SPEC: ANNOTATION,
    names.NUMA_SPREAD: ANNOTATION,
    names.CPU_ISOLATION: ANNOTATION,
    names.REBIND: ANNOTATION,
    names.DEVICE_ALLOCATE_HINT: ANNOTATION,
    names.DEVICE_JOINT_ALLOCATE: ANNOTATION,
    names.GPU_PARTITION_SPEC: ANNOTATION,
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
"""Key that a name means on a pod: names of the project's keys, of members of its annotations, and of labels of nodes."""

_ON_NODES: Final = (
    (LABEL, names.NODE_NUMA_POLICY),
    (LABEL, names.NODE_NUMA_POLICY_PROPOSED),
    (LABEL, names.NODE_BIND_POLICY),
    (LABEL, names.NODE_NUMA_STRATEGY),
    (LABEL, names.NODE_NUMA_STRATEGY_PROPOSED),
    (LABEL, names.DEDICATED),
    (LABEL, names.NODE_CPU_ISOLATION),
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
"""Common short names for keys of a Node, under a prefix of the project."""
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
    {
        names.CPU_SHARED_POOLS,
        names.BE_CPU_SHARED_POOLS,
        names.RESOURCE_STATUS,
        names.NUMA_NODES,
        names.EXPLORES,
        names.DEVICE_ALLOCATED,
    }
)
"""Valid keys that are similar to other keys."""

_DISTINCT: Final = (
    "numatopology",
    "numapolicy",
    "numaallocate",
    "singlenumanode",
    "cpubindpolicy",
    "cpuexclusivepolicy",
)
"""Parts of names that have the same meaning under the prefix of any project: ``volcano.sh/numa-topology-policy``."""

_WORDS: Final = {
    names.QOS_CLASS: frozenset(qos.value for qos in QosClass if qos.value),
    names.PRIORITY_CLASS: frozenset(priority.value for priority in PriorityClass if priority.value),
}
"""Values that identify a label under a foreign prefix as the project's."""

_OUR_PREFIXES: Final = (
    "koordinator.sh",
    "scheduling.koordinator.sh",
    "node.koordinator.sh",
    "koord-numa",
    "koord-numa.io",
    "scheduling.koord-numa.io",
)


def unread_pod_keys(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the unread keys of a pod that carry a demand, with a sentence that names the right key."""
    for kind, found in ((LABEL, labels), (ANNOTATION, annotations)):
        for key, value in found.items():
            meant = _meant_on_pod(key, kind)
            if not meant or (meant in _WORDS and not _is_ours(key) and value not in _WORDS[meant]):
                continue
            # A copy of the value under the right key is no lost demand.
            if (labels if _POD_KEYS[meant] == LABEL else annotations).get(meant) != value:
                yield key, f"{kind} {key} is not read; use the {_POD_KEYS[meant]} {meant}"


def unread_workload_keys(workload: Mapping[str, object], template: Mapping[str, object]) -> Iterator[str]:
    """
    Yield a sentence for each pod key in the metadata of a workload that is missing in its pod template.

    Pods get only the metadata of the template.
    """
    for key, kind in _POD_KEYS.items():
        part = f"{kind}s"
        there, given = workload.get(part), template.get(part)
        if isinstance(there, dict) and key in there and not (isinstance(given, dict) and key in given):
            yield f"{kind} {key} is not read; it belongs to spec.template.metadata.{part}"


def unread_node_keys(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sentences about unread keys of a Node, as ``unread_pod_keys``."""
    return (*_near(LABEL, labels, _ON_NODES), *_near(ANNOTATION, annotations, _ON_NODES))


def unread_topology_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sentences about unread keys of a NodeResourceTopology, as ``unread_pod_keys``."""
    return tuple(_near(ANNOTATION, annotations, _ON_TOPOLOGIES))


def unread_attributes(attributes: Iterable[tuple[str, str]], known: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each attribute of a topology whose name is similar to a known name."""
    for name, value in attributes:
        if name in known or name.startswith((names.ATTRIBUTE_TOPOLOGY_OPTION, names.ATTRIBUTE_CPU_OPTION)):
            continue
        # NRI plugins also write TopologyPolicy, with the names of their own policies.
        is_policy = plain(name) == "topologypolicy" and plain(value) in _KUBELET_POLICIES
        if name != names.ATTRIBUTE_NRI_POLICY or is_policy:
            meant = names.ATTRIBUTE_TOPOLOGY_POLICY if is_policy else _near_attribute(name, tuple(known))
            if meant:
                yield f"attribute {name[:QUOTED]} is not read; use {meant}"


def unread_members(annotations: Mapping[str, str], models: Mapping[str, type[GoJson]]) -> Iterator[str]:
    """Yield a sentence for each misspelled member of these annotations."""
    for key, model in models.items():
        text = annotations.get(key)
        if text is not None:
            yield from _near_members(key, text, model)


def unread_ratios(resources: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each misspelled resource of the amplification ratios."""
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
    """Return the key that the given key stands for. Empty for keys that are read and for keys of other projects."""
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
    """
    Return the annotation for an unknown name under a prefix of the project, by its topic: NUMA nodes or CPU policies.

    Empty for other topics.
    """
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
    """Return the known key that this key misspells, or that has the same name under another prefix of the project."""
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
