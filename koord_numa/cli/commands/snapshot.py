"""
``koord-numa snapshot``: write all objects that affect decisions to one file, which other commands read with ``--from``.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import orjson

from koord_numa.cli.cluster.access import Access, with_cluster
from koord_numa.cli.parameters import Documented
from koord_numa.wire import names

Document = Mapping[str, Any]

KEPT_KINDS: Final = frozenset({"StorageClass", "PriorityClass", "DeviceClass", "CSIDriver"})
"""Kinds whose names stay, because other objects refer to them by descriptive names."""

ALWAYS: Final = frozenset(
    {
        "namespace", "namespaces", "nodeName", "nominatedNodeName", "volumeName", "claimName", "resourceClaimName", "persistentVolumeName",
        "pool", "generateName", "kubernetes.io/hostname", "kubernetes.io/metadata.name", "statefulset.kubernetes.io/pod-name",
        names.SELECTED_NODE, "serviceAccountName", "serviceAccount", "secretName", "hostname", "subdomain",
    }
)  # fmt: skip
"""Fields, labels and annotations whose values are always names of objects."""

NAMED: Final = frozenset(
    [
        "metadata",
        "ownerReferences",
        "claimRef",
        "reservedFor",
        "pool",
        "volumes",
        "volumeMounts",
        "configMap",
        "secret",
        "imagePullSecrets",
    ]
)
"""Fields in which ``name`` is the name of an object, or of a volume, which usually repeats that of a claim."""

HOSTS: Final = frozenset({"kubernetes.io/hostname", "kubernetes.io/metadata.name", "metadata.name"})
"""Keys of requirements whose ``values`` are names of objects."""

JSON_ANNOTATIONS: Final = frozenset({names.POD_CPU_ALLOCS, names.CPUSET_DIFFERENCES, names.HELD_DEVICES})


def hash_names(objects: Sequence[Document]) -> list[Document]:
    """
    Return all objects of a snapshot with hashed names.

    Fingerprints of the pods of a node are recomputed from the hashes.
    """
    from koord_numa.core.fingerprint import fingerprint

    # Keyed by the old fingerprint: it matches only if the snapshot has exactly the pods from which it was computed.
    made = {
        fingerprint(pods): fingerprint((short_hash(namespace), short_hash(name)) for namespace, name in pods)
        for pods in _pods_by_node(objects).values()
    }
    known: set[str] = set()
    found = [_with_fingerprint(hashed(each, known), made) for each in objects]
    sweep = Sweep(known - PUBLIC)
    return [sweep.object_without_names(each) for each in found]


def hashed(obj: Document, known: set[str] | None = None) -> Document:
    """Return one object with hashes in fields that hold names. The names are added to ``known``."""
    known = set() if known is None else known
    if obj.get("kind") in KEPT_KINDS:
        found: Document = _hashed(obj, "", "", set())  # its name is public
        return {**found, "metadata": {**found["metadata"], "name": obj["metadata"]["name"]}}
    return _hashed(obj, "", "", known)  # type: ignore[no-any-return]  # a mapping becomes a mapping


def short_hash(name: str) -> str:
    """Return a letter and eight hexadecimal digits, a valid name of any object."""
    # 32 bits: collisions within one cluster are improbable
    return "h" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _hashed(value: Any, key: str, inside: str, known: set[str]) -> Any:
    if isinstance(value, Mapping):
        # The values of a requirement on hosts are names. Other values are kept.
        hosts = value.get("key") in HOSTS
        return {
            name: _hashed(item, "namespaces" if hosts and name == "values" else name, key, known)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_hashed(item, key, inside, known) for item in value]
    if not isinstance(value, str) or not value:
        return value
    if key in JSON_ANNOTATIONS:
        return _hashed_json(value, known)
    return _noted(value, known) if key in ALWAYS or (key == "name" and inside in NAMED) else value


def _noted(name: str, known: set[str]) -> str:
    known.add(name)
    return short_hash(name)


def _hashed_json(text: str, known: set[str]) -> str:
    """Hash entries with ``namespace`` and ``name``, and keys ``namespace/name``. Text that is not JSON is dropped."""
    # Text that cannot be parsed may contain names anywhere.
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(found, dict):
        found = {"/".join(_noted(part, known) for part in key.split("/")): item for key, item in found.items()}
    elif isinstance(found, list):
        found = [
            {
                key: _noted(item, known) if key in ("namespace", "name") and isinstance(item, str) else item
                for key, item in entry.items()
            }
            for entry in found
            if isinstance(entry, dict)
        ]
    return orjson.dumps(found).decode()


PUBLIC: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
"""Namespaces of every cluster. Their names are words that occur elsewhere."""

FIXED: Final = frozenset(
    [
        "kind",
        "apiVersion",
        "uid",
        "phase",
        "operator",
        "effect",
        "type",
        "schedulerName",
        "storageClassName",
        "resource",
        "priorityClassName",
        "deviceClassName",
        "extendedResourceName",
        "resourceName",
        "provisioner",
        "driver",
        "expression",
        "conditions",
        "requests",
        "limits",
        "allocatable",
        "capacity",
        "allocatedResources",
        "resourceVersion",
        "creationTimestamp",
        "zones",
        "attributes",
    ]
)
"""Fields with words of an API, such as NUMA nodes of a topology (``node-0``). Names in them are not replaced."""

KEYED: Final = frozenset({"labels", "annotations", "matchLabels", "nodeSelector"})
"""Fields whose keys are chosen by users."""

DOMAINS: Final = ("kubernetes.io", "k8s.io", "koordinator.sh", "koord-numa", "koord-numa.io")
"""Domains of keys that are chosen by projects."""

_PIECE: Final = re.compile(r"[A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*")
_PARTS: Final = re.compile(r"[A-Za-z0-9]+|[.-]+")


class Sweep:
    """
    Replaces names in all other texts of a snapshot: labels, annotations, messages, and names that contain names.

    A name is found between characters that no name starts or ends with: ``web`` in ``app=web-1``, not in ``website``.
    """

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._longest = max((len(_PARTS.findall(name)) for name in known), default=0)

    def object_without_names(self, obj: Document) -> Document:
        """Return an object without names. Classes keep their own names."""
        found: dict[str, Any] = self._value(obj)
        if obj.get("kind") in KEPT_KINDS:
            found["metadata"] = {**found["metadata"], "name": obj["metadata"]["name"]}
        return found

    def _value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {
                self.key(name) if key in KEYED else name: item if name in FIXED else self._value(item, name)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._value(item, key) for item in value]
        if not isinstance(value, str):
            return value
        return self.key(value) if key in ("key", "topologyKey") else self.text(value)

    def key(self, key: str) -> str:
        """Return the key of a label or annotation with hashes in place of names."""
        prefix = key.partition("/")[0]
        return key if any(prefix == it or prefix.endswith(f".{it}") for it in DOMAINS) else self.text(key)

    def text(self, text: str) -> str:
        """Return a text with hashes in place of names, the longest names first."""
        return _PIECE.sub(lambda piece: self._piece(piece[0]), text)

    def _piece(self, piece: str) -> str:
        if piece in self._known:
            return short_hash(piece)
        parts, made, at = _PARTS.findall(piece), [], 0
        while at < len(parts):
            ends = range(min(len(parts), at + self._longest), at, -1)
            end = next((end for end in ends if "".join(parts[at:end]) in self._known), 0)
            made.append(short_hash("".join(parts[at:end])) if end else parts[at])
            at = end or at + 1
        return "".join(made)


def _pods_by_node(objects: Sequence[Document]) -> dict[str, list[tuple[str, str]]]:
    """Return namespaces and names of the bound, unfinished pods, by node."""
    found: dict[str, list[tuple[str, str]]] = {
        each["metadata"]["name"]: [] for each in objects if each.get("kind") == "Node"
    }
    for each in objects:
        node = (each.get("spec") or {}).get("nodeName")
        # Exporters compute fingerprints over the bound, unfinished pods.
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


DROPPED: Final = frozenset(
    [
        "managedFields",
        "kubectl.kubernetes.io/last-applied-configuration",
        "env",
        "envFrom",
        "command",
        "args",
        "imageID",
        "selfLink",
        "template",
        "volumeClaimTemplates",
        "clusterIP",
        "clusterIPs",
        "externalIPs",
        "addresses",
        "podIP",
        "podIPs",
        "hostIP",
        "hostIPs",
    ]
)
"""Fields that affect no decision and may be confidential."""


@click.command(
    cls=Documented,
    short_help="Write all objects that decisions depend on to a file.",
    examples=(
        ("A cluster in one file", "snapshot -o cluster.yaml"),
        ("For a bug report, without names", "snapshot -o cluster.yaml --hash-names"),
    ),
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write."
)
@click.option(
    "--hash-names", "hide", is_flag=True, help="Replace names of namespaces, pods, nodes and volumes by hashes."
)
@with_cluster
def command(output: Path, hide: bool, access: Access) -> None:
    """
    Write all objects that decisions depend on to one file, which other commands read with --from.

    The file has no commands, environments or templates, and hashes of image names.
    """
    import yaml

    from koord_numa.cli.cluster.objects import list_raw, no_right_to_list

    objects, unread = access.ask(list_raw)
    if unread:
        click.echo(f"Not written: {no_right_to_list(unread)}", err=True)
    kept = [trimmed(each) for each in objects]
    if hide:
        kept = hash_names(kept)
    try:
        with output.open("w", encoding="utf-8") as file:
            yaml.dump_all(kept, file, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {len(kept)} objects")


def trimmed(value: Any, key: str = "", inside: str = "") -> Any:
    """
    Return the object without irrelevant fields and with hashed image names.

    Only the equality of image names affects decisions.
    """
    from koord_numa.wire import normalized

    if isinstance(value, Mapping):
        return {name: trimmed(item, name, key) for name, item in value.items() if name not in DROPPED}
    if isinstance(value, list):
        return [trimmed(item, key, inside) for item in value]
    is_image = key == "image" or (inside, key) in (("image", "reference"), ("images", "names"))
    return short_hash(normalized(value)) if is_image and isinstance(value, str) and value else value
