"""
``koord-numa snapshot``: write all objects that affect decisions to one file, which other commands read with ``--from``.
"""

import hashlib
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
        names.SELECTED_NODE,
    }
)  # fmt: skip
"""Fields, labels and annotations whose values are always names of objects."""

NAMED: Final = frozenset({"metadata", "ownerReferences", "claimRef", "reservedFor", "pool", "volumes", "volumeMounts"})
"""Fields in which ``name`` is the name of an object, or of a volume, which usually repeats that of a claim."""

HOSTS: Final = frozenset({"kubernetes.io/hostname", "kubernetes.io/metadata.name", "metadata.name"})
"""Keys of requirements whose ``values`` are names of objects."""

JSON_ANNOTATIONS: Final = frozenset({names.POD_CPU_ALLOCS, names.CPUSET_DIFFERENCES})


def hash_names(objects: Sequence[Document]) -> list[Document]:
    """
    Return all objects of a snapshot with hashed names.

    Fingerprints of the pods of a node are recomputed from the hashes.
    """
    from koord_numa.wire.node.fingerprint import fingerprint

    # Keyed by the old fingerprint: it matches only if the snapshot has exactly the pods from which it was computed.
    made = {
        fingerprint(pods): fingerprint((short_hash(namespace), short_hash(name)) for namespace, name in pods)
        for pods in _pods_by_node(objects).values()
    }
    return [_with_fingerprint(hashed(each), made) for each in objects]


def hashed(obj: Document) -> Document:
    """Return one object with hashed names."""
    found: Document = _hashed(obj, "", "")
    if obj.get("kind") in KEPT_KINDS:
        return {**found, "metadata": {**found["metadata"], "name": obj["metadata"]["name"]}}
    return found


def short_hash(name: str) -> str:
    """Return a letter and eight hexadecimal digits, a valid name of any object."""
    # 32 bits: collisions within one cluster are improbable
    return "h" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _hashed(value: Any, key: str, inside: str) -> Any:
    if isinstance(value, Mapping):
        # The values of a requirement on hosts are names. Other values are kept.
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
    """Hash entries with ``namespace`` and ``name``, and keys ``namespace/name``. Text that is not JSON is dropped."""
    # Text that cannot be parsed may contain names anywhere.
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
    short_help="Write the objects that decide to a file.",
    examples=(
        ("A cluster in one file, which other commands read by --from", "snapshot -o cluster.yaml"),
        ("The same for a bug report, without names", "snapshot -o cluster.yaml --hash-names"),
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
    Write nodes, topologies, pods, namespaces, volumes, claims, storage classes, budgets, priority classes, services and what makes pods to
    one file.

    Commands, environments and templates are left out, and of images only hashes of their names are written. explain, node, nodes,
    simulate, top and page read it by --from.
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
    from koord_numa.wire.images import normalized

    if isinstance(value, Mapping):
        return {name: trimmed(item, name, key) for name, item in value.items() if name not in DROPPED}
    if isinstance(value, list):
        return [trimmed(item, key, inside) for item in value]
    is_image = key == "image" or (inside, key) in (("image", "reference"), ("images", "names"))
    return short_hash(normalized(value)) if is_image and isinstance(value, str) and value else value
