"""
A snapshot whose names are replaced by hashes, the same name by the same hash, so that every reference still leads somewhere and the
scheduler decides as before.

Names of namespaces, pods, nodes, volumes and claims are replaced wherever the API has them: in references, in affinity to hosts, in
labels that repeat a name, in annotations that hold JSON, and in the fingerprints of topologies. Names that mean something stay: those of
containers, resources, classes, drivers, labels.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from koord_numa.wire import names
from koord_numa.wire.node.fingerprint import fingerprint

Document = Mapping[str, Any]

KEPT_KINDS: Final = frozenset({"StorageClass", "PriorityClass", "DeviceClass", "CSIDriver"})
"""Other objects refer to these by names that say what they are."""

ALWAYS: Final = frozenset(
    {
        "namespace", "namespaces", "nodeName", "nominatedNodeName", "volumeName", "claimName", "resourceClaimName", "persistentVolumeName",
        "pool", "generateName", "kubernetes.io/hostname", "kubernetes.io/metadata.name", "statefulset.kubernetes.io/pod-name",
        names.SELECTED_NODE,
    }
)  # fmt: skip
"""Fields, labels and annotations whose texts are names of objects wherever they stand."""

NAMED: Final = frozenset({"metadata", "ownerReferences", "claimRef", "reservedFor", "pool", "volumes", "volumeMounts"})
"""Fields in which ``name`` is that of an object, or of a volume, which repeats that of a claim as a rule."""

HOSTS: Final = frozenset({"kubernetes.io/hostname", "kubernetes.io/metadata.name", "metadata.name"})
"""Keys of requirements whose ``values`` are names of objects."""

JSON_ANNOTATIONS: Final = frozenset({names.POD_CPU_ALLOCS, names.CPUSET_DIFFERENCES})


def hash_names(objects: Sequence[Document]) -> list[Document]:
    """All objects of one snapshot. A fingerprint that speaks of the pods of its node speaks of their hashes afterwards."""
    # By the old fingerprint: a topology's fingerprint is found only if the snapshot has exactly the pods that it was made of.
    made = {
        fingerprint(pods): fingerprint((short_hash(namespace), short_hash(name)) for namespace, name in pods)
        for pods in _pods_by_node(objects).values()
    }
    return [_with_fingerprint(hashed(each), made) for each in objects]


def hashed(obj: Document) -> Document:
    """One object."""
    found: Document = _hashed(obj, "", "")
    if obj.get("kind") in KEPT_KINDS:
        return {**found, "metadata": {**found["metadata"], "name": obj["metadata"]["name"]}}
    return found


def short_hash(name: str) -> str:
    """Eight hexadecimal digits behind a letter, a valid name of any object."""
    # 32 bits: names of one cluster do not collide in practice
    return "h" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _hashed(value: Any, key: str, inside: str) -> Any:
    if isinstance(value, Mapping):
        # Of a requirement on hosts, the values are names; of any other one, they mean something.
        hosts = value.get("key") in HOSTS
        return {
            name: _hashed(item, "namespaces" if hosts and name == "values" else name, key)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_hashed(item, key, inside) for item in value]
    if not isinstance(value, str) or not value:
        return value
    if key in JSON_ANNOTATIONS:
        return _hashed_json(value)
    return short_hash(value) if key in ALWAYS or (key == "name" and inside in NAMED) else value


def _hashed_json(text: str) -> str:
    """Entries with ``namespace`` and ``name``, or keys ``namespace/name``; a text that is no JSON is left out."""
    # A text that cannot be read could contain names anywhere.
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(found, dict):
        found = {"/".join(map(short_hash, key.split("/"))): item for key, item in found.items()}
    elif isinstance(found, list):
        found = [
            {
                key: short_hash(item) if key in ("namespace", "name") and isinstance(item, str) else item
                for key, item in entry.items()
            }
            for entry in found
            if isinstance(entry, dict)
        ]
    return orjson.dumps(found).decode()


def _pods_by_node(objects: Sequence[Document]) -> dict[str, list[tuple[str, str]]]:
    """Namespaces and names of the pods that are bound and have not finished."""
    found: dict[str, list[tuple[str, str]]] = {
        each["metadata"]["name"]: [] for each in objects if each.get("kind") == "Node"
    }
    for each in objects:
        node = (each.get("spec") or {}).get("nodeName")
        # Bound and not finished: the pods over which exporters compute fingerprints.
        finished = (each.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if each.get("kind") == "Pod" and node and not finished:
            found.setdefault(node, []).append((each["metadata"].get("namespace") or "", each["metadata"]["name"]))
    return found


def _with_fingerprint(obj: Document, made: Mapping[str, str]) -> Document:
    if obj.get("kind") != names.TOPOLOGY_KIND:
        return obj
    annotations = obj["metadata"].get("annotations") or {}
    told = str(annotations.get(names.FINGERPRINT_ANNOTATION))
    if told in made:
        annotations = {**annotations, names.FINGERPRINT_ANNOTATION: made[told]}
    attributes = [
        {**one, "value": made.get(one.get("value"), one.get("value"))}
        if one.get("name") == names.ATTRIBUTE_FINGERPRINT
        else one
        for one in obj.get("attributes") or ()
    ]
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}, "attributes": attributes}
