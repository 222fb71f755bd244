"""Manifests: the pods of a manifest, the pods of its workloads, and the objects that affect their placement."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from koord_numa.cli.cluster.objects import PARSERS, POD_GROUP_KIND, ClusterObjects, Document, documents
from koord_numa.cluster.resources import PRIORITY_CLASSES
from koord_numa.core.objects.gangs import Dialect, GangKey, GroupClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import MutableObject, replace, value_field
from koord_numa.wire import (
    ClaimTemplate,
    WireError,
    parse_pod,
    parse_resource_claim,
    quoted,
    unread_workload_keys,
    with_priority,
)

_MANY: Final = 1000
"""Maximum number of pods of one workload."""


class Manifest(MutableObject):
    """
    The objects of a manifest.

    ``makers`` are Pods and workloads. ``passed`` is the number of ignored objects, by kind. ``unread`` has a sentence
    for each key of a workload that is valid only on its pods.
    """

    makers: list[Document] = value_field(default_factory=list)
    unread: list[str] = value_field(default_factory=list)
    passed: Counter[str] = value_field(default_factory=Counter)


CONTROLLERS: Final[Mapping[str, str]] = {
    "Deployment": "ReplicaSet",
    "ReplicaSet": "ReplicaSet",
    "StatefulSet": "StatefulSet",
    "ReplicationController": "ReplicationController",
}
"""
Kinds of the controllers of a workload's pods, whose selector is used for default spreading.

A Deployment's ReplicaSet has the Deployment's name here.
"""

SUFFIXES: Final = (".yaml", ".yml", ".json")


def read_manifests(sources: Iterable[Path]) -> list[Document]:
    """
    Return the objects of files, of files in folders (sorted by name), and of stdin for ``-``.

    Raises ``click.ClickException``.
    """
    found: list[Document] = []
    for source in sources:
        if source == Path("-"):
            found.extend(documents(_text(sys.stdin.read, "the manifest"), "the manifest"))
            continue
        files = sorted(each for each in source.iterdir() if each.suffix in SUFFIXES) if source.is_dir() else [source]
        if not files:
            raise click.ClickException(f"{source} has no {', '.join(SUFFIXES)} files")
        for file in files:
            found.extend(documents(_text(partial(file.read_text, encoding="utf-8"), str(file)), str(file)))
    return found


def _text(read: Callable[[], str], name: str) -> str:
    try:
        return read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{name} is not text: {error}") from None
    except OSError as error:
        raise click.ClickException(f"{name} cannot be read: {error.strerror}") from None


def take(found: Iterable[Document], objects: ClusterObjects, namespace: str = "default") -> Manifest:
    """
    Classify the objects of a manifest and add the relevant objects to ``objects``. Raises ``click.ClickException``.

    PodGroups without a namespace get the given namespace, as their pods.
    """
    manifest = Manifest()
    for document in found:
        if document.get("kind") == POD_GROUP_KIND:
            document = {**document, "metadata": {"namespace": namespace, **_part(document, "metadata")}}
        kind = str(document.get("kind") or "object without kind")
        template = _template(document)
        if kind == "Pod" or template is not None:
            manifest.makers.append(document)
            if template is not None:
                manifest.unread.extend(_unread(kind, _part(document, "metadata"), _part(template, "metadata")))
            # A workload is also an object: its selector is used for default spreading.
            if kind not in CONTROLLERS:
                continue
            # The ReplicaSet of a Deployment has the same selector and is used for default spreading.
            document = {**document, "kind": CONTROLLERS[kind]}
        try:
            known = objects.add(document)
        except WireError as error:
            raise click.ClickException(str(error)) from None
        if not known:
            manifest.passed[kind] += 1
    _make_group_claims(objects)
    if not manifest.makers:
        others = ", ".join(f"{count} {kind}" for kind, count in sorted(manifest.passed.items()))
        raise click.ClickException(f"the manifest makes no pods{': it has ' if others else ''}{others}")
    return manifest


def _unread(kind: str, workload: Mapping[str, Any], template: Mapping[str, Any]) -> Iterator[str]:
    for sentence in unread_workload_keys(workload, template):
        yield f"{kind} {workload.get('name')}: {sentence}"


def pods(manifest: Manifest, objects: ClusterObjects, namespace: str = "default") -> Iterator[Pod]:
    """
    Yield the pods as the API server would return them, in the order of the manifest.

    Pods without a namespace get the given namespace. Raises ``click.ClickException``.
    """
    number = 0
    for maker in manifest.makers:
        for obj in _instances(maker, namespace):
            number += 1
            metadata = {"namespace": namespace, **_part(obj, "metadata"), "uid": f"simulated-{number}"}
            try:
                admitted = with_priority(
                    {**obj, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}, objects.priority_classes
                )
                admitted = _with_resource_claims(admitted, objects)
                # The uid affects no decision, but must be unique.
                pod = parse_pod(admitted)
            except WireError as error:
                unread = objects.unread.get(PRIORITY_CLASSES)
                raise click.ClickException(f"{error} ({unread})" if unread else str(error)) from None
            if pod.node:
                raise click.ClickException(f"{pod.key} names its node already (spec.nodeName)")
            yield pod


def _make_group_claims(objects: ClusterObjects) -> None:
    """As the ResourceClaim controller, create the missing claims of PodGroups from templates (KEP-5729)."""
    for place, group in enumerate(objects.pod_groups):
        names, uid = dict(group.claim_names), group.uid or f"simulated-group-{place}"
        metadata = {"name": group.key.name, "namespace": group.key.namespace, "uid": uid}
        for entry in group.spec.claims:
            template = _claim_template(objects, entry.template, group.key.namespace)
            if template is not None and entry.name not in names:
                claim = template.claim_of(metadata, entry.name, POD_GROUP_KIND)
                objects.resource_claims.append(parse_resource_claim(claim))
                names[entry.name] = claim["metadata"]["name"]
        if len(names) > len(group.claim_names):
            objects.pod_groups[place] = replace(group, uid=uid, claim_names=tuple(names.items()))


def _claim_template(objects: ClusterObjects, name: str, namespace: str) -> ClaimTemplate | None:
    found = (it for it in objects.claim_templates if it.name == name and it.namespace in ("", namespace))
    return next(found, None) if name else None


def _is_for_group(pod: Document, entry: Mapping[str, Any], objects: ClusterObjects) -> bool:
    """Return whether an entry of a pod stands for the claim of its PodGroup, see ``PodClaimResolver.group_of``."""
    name = _part(_part(pod, "spec"), "schedulingGroup").get("podGroupName")
    named = GroupClaim(str(entry.get("name")), "", str(entry.get("resourceClaimTemplateName")))
    key = GangKey(Dialect.KUBERNETES, pod["metadata"]["namespace"], str(name))
    return any(group.key == key and named in group.spec.claims for group in objects.pod_groups)


def _with_resource_claims(pod: Document, objects: ClusterObjects) -> Document:
    """
    Return the pod with claims from its templates.

    As the ResourceClaim controller, it creates the claims and adds them to ``objects``.
    """
    metadata, spec = pod["metadata"], pod.get("spec")
    entries = (spec.get("resourceClaims") if isinstance(spec, dict) else None) or ()
    made = []
    for entry in entries if isinstance(entries, list) else ():
        wanted = entry.get("resourceClaimTemplateName") if isinstance(entry, dict) else None
        template = _claim_template(objects, wanted, metadata["namespace"]) if isinstance(wanted, str) else None
        if template is not None and not _is_for_group(pod, entry, objects):
            claim = template.claim_of(metadata, str(entry.get("name")))
            objects.resource_claims.append(parse_resource_claim(claim))
            made.append({"name": entry.get("name"), "resourceClaimName": claim["metadata"]["name"]})
    return {**pod, "status": {**_part(pod, "status"), "resourceClaimStatuses": made}} if made else pod


def _part(document: Document, key: str) -> Mapping[str, Any]:
    """
    Return a nested object, or an empty mapping if it is absent. Raises ``click.ClickException`` for any other type.
    """
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise click.ClickException(f"{document.get('kind') or 'a template'}: {key}: {quoted(value)} is not an object")
    return value


def _template(document: Document) -> Mapping[str, Any] | None:
    """Return the pod template of a workload. For a CronJob it is that of its next Job. None for other kinds."""
    kind = str(document.get("kind"))
    if kind in PARSERS and kind not in CONTROLLERS:
        return None
    spec = document.get("spec")
    if isinstance(spec, dict) and document.get("kind") == "CronJob" and isinstance(spec.get("jobTemplate"), dict):
        spec = spec["jobTemplate"].get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else None


def _instances(document: Document, namespace: str) -> Iterator[Document]:
    """Yield a Pod itself, or the pods of a workload, one per replica."""
    template = _template(document)
    if template is None:
        yield document
        return
    kind, owner, spec = str(document.get("kind")), _part(document, "metadata"), document["spec"]
    if kind == "DaemonSet":
        raise click.ClickException("a DaemonSet makes a pod for every node, which is not simulated")
    if kind == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    # Jobs have parallelism, other workloads have replicas. The default of both is 1.
    replicas = spec.get("replicas", spec.get("parallelism", 1))
    if type(replicas) is not int or not 0 <= replicas <= _MANY:
        raise click.ClickException(f"replicas must be a number up to {_MANY}, found {replicas!r}")
    first = 0 if kind == "StatefulSet" else 1
    # Numbered as by the controllers: StatefulSets start at 0.
    for number in range(first, first + replicas):
        made: dict[str, Any] = {
            "name": f"{owner.get('name')}-{number}",
            "namespace": owner.get("namespace") or namespace,
        }
        if kind in CONTROLLERS:
            made["ownerReferences"] = [_reference(CONTROLLERS[kind], owner)]
        yield {
            **template,
            "metadata": {**_part(template, "metadata"), **made},
            "spec": _with_claims(template.get("spec"), spec, made["name"]),
        }


def _reference(kind: str, owner: Mapping[str, Any]) -> Document:
    version = "v1" if kind == "ReplicationController" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "name": owner.get("name"), "uid": "simulated", "controller": True}


def _with_claims(pod_spec: Any, workload: Mapping[str, Any], pod: str) -> Any:
    """Return the pod spec with volumes for the pod's own claims of a StatefulSet."""
    templates = workload.get("volumeClaimTemplates")
    if not isinstance(templates, list) or not templates or not isinstance(pod_spec, dict):
        return pod_spec
    names = [_part(each, "metadata").get("name") for each in templates if isinstance(each, dict)]
    own = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{pod}"}} for name in names]
    # A claim of the same name replaces the template's volume (stateful_set_utils.go updateStorage).
    volumes = pod_spec.get("volumes") or []
    if not isinstance(volumes, list):
        return pod_spec  # the pod parser reports the error
    # Malformed volumes are kept, so that the pod parser reports them.
    others = [volume for volume in volumes if not isinstance(volume, dict) or volume.get("name") not in names]
    return {**pod_spec, "volumes": [*others, *own]}
