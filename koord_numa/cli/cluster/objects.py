"""
All objects that affect scheduling decisions, read once from the lists of a cluster or from files.

The kinds are those that the operator watches, and PriorityClasses, which the API server normally resolves on admission.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import orjson
import yaml

from koord_numa.cli.cluster.trace import SUFFIX, read_trace_nodes
from koord_numa.cluster import resources
from koord_numa.cluster.blocking import BlockingApi
from koord_numa.cluster.resources import Resource
from koord_numa.core.claims import DeviceTaintRule, ResourceSlice
from koord_numa.core.objects.claims import DeviceClass, ResourceClaim
from koord_numa.core.objects.constraints import DisruptionBudget, Namespace, Workload, WorkloadKind
from koord_numa.core.objects.devices import DeviceInventory
from koord_numa.core.objects.gangs import PodGroup
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord_numa.core.resources import MEMORY, PODS
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.ports import Forbidden
from koord_numa.wire import (
    ClaimTemplate,
    PriorityClassObject,
    WireError,
    is_nested_deeper,
    parse_budget,
    parse_claim,
    parse_claim_template,
    parse_device_class,
    parse_devices,
    parse_namespace,
    parse_node,
    parse_pod,
    parse_pod_group,
    parse_priority_class,
    parse_resource_claim,
    parse_resource_slice,
    parse_storage_class,
    parse_taint_rule,
    parse_topology,
    parse_volume,
    parse_workload,
)
from koord_numa.wire.names import DEVICE_KIND, TOPOLOGY_KIND

Document = Mapping[str, Any]

DEEPEST: Final = 250
"""
Maximum nesting of objects and lists: more than in any object of a cluster (orjson, which encodes requests, stops at
254).
"""

MOST_REPEATED: Final = 1_000_000
"""Maximum number of values that all aliases of one text may stand for."""

_NESTING: Final = "maximum nesting depth"
"""Text of libyaml's error for deeper nesting."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C implementation if available, because the objects of a cluster are many megabytes."""


def documents(text: str, name: str) -> Iterator[Document]:
    """Yield the objects of a YAML or JSON text, including the items of lists. Raises ``click.ClickException``."""
    try:
        found = _json(text, name) or _yaml(text, name)
    except yaml.YAMLError as error:
        # Newer versions of libyaml stop at 1,000 levels, possibly before the first event.
        if _NESTING in str(getattr(error, "problem", "")):
            raise _too_deep(name) from None
        raise click.ClickException(f"{name} is not YAML: {error}") from None
    for document in found:
        yield from _flat(document, name)


def _flat(document: Any, name: str) -> Iterator[Document]:
    if not isinstance(document, dict):
        raise click.ClickException(f"{name} has a document that is not a Kubernetes object")
    # A List of kubectl has the kind `List`, lists of the API have kinds like `PodList`.
    if str(document.get("kind") or "").endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item, name)
    else:
        yield document


def _json(text: str, name: str) -> list[Any]:
    """
    Return the document of a JSON text, or an empty list if the text is not JSON.

    Raises ``click.ClickException`` for deep nesting.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return []
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []  # YAML in flow style, several documents, or malformed: the YAML reader reports the position
    if is_nested_deeper(value, DEEPEST):
        raise _too_deep(name)
    return [value] if value else []


def _yaml(text: str, name: str) -> list[Any]:
    _check(text, name)
    return [document for document in yaml.load_all(text, _LOADER) if document]


def _check(text: str, name: str) -> None:
    """Check nesting and aliases before any value is built. Raises ``click.ClickException``."""
    sizes: dict[str, int] = {}  # number of values by anchor, including values of nested aliases
    under_way: list[tuple[str | None, int]] = []  # the open collections, and the number of values before each
    values = repeated = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            under_way.append((event.anchor, values))
            if len(under_way) > DEEPEST:
                raise _too_deep(name)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = under_way.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in under_way):
                raise click.ClickException(f"{name} has a value that contains itself: *{event.anchor}")
            size = sizes.get(event.anchor or "", 1)
            repeated += size
            values += size
            if repeated > MOST_REPEATED:
                raise click.ClickException(f"{name} has aliases that stand for more than {MOST_REPEATED} values")
        values += 1


def _too_deep(name: str) -> click.ClickException:
    return click.ClickException(f"{name} is nested more than {DEEPEST} levels deep")


class ClusterObjects(MutableObject):
    """Parsed objects by kind. ``unread`` are resources that could not be listed, with the reason."""

    nodes: list[Node] = value_field(default_factory=list)
    topologies: list[NodeResourceTopology] = value_field(default_factory=list)
    devices: list[DeviceInventory] = value_field(default_factory=list)
    pods: list[Pod] = value_field(default_factory=list)
    namespaces: list[Namespace] = value_field(default_factory=list)
    claims: list[PersistentVolumeClaim] = value_field(default_factory=list)
    volumes: list[PersistentVolume] = value_field(default_factory=list)
    classes: list[StorageClass] = value_field(default_factory=list)
    resource_claims: list[ResourceClaim] = value_field(default_factory=list)
    claim_templates: list[ClaimTemplate] = value_field(default_factory=list)
    resource_slices: list[ResourceSlice] = value_field(default_factory=list)
    device_classes: list[DeviceClass] = value_field(default_factory=list)
    taint_rules: list[DeviceTaintRule] = value_field(default_factory=list)
    budgets: list[DisruptionBudget] = value_field(default_factory=list)
    priority_classes: list[PriorityClassObject] = value_field(default_factory=list)
    workloads: list[Workload] = value_field(default_factory=list)
    pod_groups: list[PodGroup] = value_field(default_factory=list)
    unread: dict[Resource, str] = value_field(default_factory=dict)

    def add(self, document: Document) -> bool:
        """
        Add an object and return whether its kind affects decisions. Raises ``WireError`` for an object without a name.
        """
        kind = document.get("kind")
        if not isinstance(kind, str) or kind not in PARSERS:
            return False
        name, parse = PARSERS[kind]
        found = parse(document)
        if found is not None:
            getattr(self, name).append(found)
        return True


_DIALECTS: Final = {versions[0].group: dialect for dialect, versions in resources.POD_GROUPS.items()}
"""Dialects of PodGroups by API group."""

POD_GROUP_KIND: Final = "PodGroup"


def _pod_group(document: Document) -> PodGroup | None:
    dialect = _DIALECTS.get(str(document.get("apiVersion")).partition("/")[0])
    return None if dialect is None else parse_pod_group(dialect, document)


PARSERS: Final[Mapping[Any, tuple[str, Callable[[Document], Any]]]] = {
    "Node": ("nodes", parse_node),
    TOPOLOGY_KIND: ("topologies", parse_topology),
    "Pod": ("pods", parse_pod),
    DEVICE_KIND: ("devices", parse_devices),
    "Namespace": ("namespaces", parse_namespace),
    "PersistentVolumeClaim": ("claims", parse_claim),
    "PersistentVolume": ("volumes", parse_volume),
    "StorageClass": ("classes", parse_storage_class),
    "ResourceClaim": ("resource_claims", parse_resource_claim),
    "ResourceClaimTemplate": ("claim_templates", parse_claim_template),
    "ResourceSlice": ("resource_slices", lambda raw: parse_resource_slice(raw).parts),
    "DeviceClass": ("device_classes", parse_device_class),
    "DeviceTaintRule": ("taint_rules", parse_taint_rule),
    "PodDisruptionBudget": ("budgets", parse_budget),
    "PriorityClass": ("priority_classes", parse_priority_class),
    POD_GROUP_KIND: ("pod_groups", _pod_group),
    **{kind.value: ("workloads", partial(parse_workload, kind)) for kind in WorkloadKind},
}
"""Field of ``ClusterObjects`` and parser, by kind."""

# These kinds are required. A missing right to list other kinds affects only the decisions that use them.
_USUAL_RIGHTS: Final = (resources.NODES, resources.PODS, resources.NAMESPACES)
_OPTIONAL: Final = frozenset(
    {
        resources.RESOURCE_CLAIMS,
        resources.RESOURCE_CLAIM_TEMPLATES,
        resources.RESOURCE_SLICES,
        resources.DEVICE_CLASSES,
        resources.DEVICES,
    }
)
"""Kinds that clusters before Kubernetes 1.34, or without Koordinator, do not serve. Their lists are then empty."""

_LISTED: Final[Mapping[str, Resource]] = {
    "Node": resources.NODES,
    "Pod": resources.PODS,
    DEVICE_KIND: resources.DEVICES,
    "Namespace": resources.NAMESPACES,
    "PersistentVolumeClaim": resources.CLAIMS,
    "PersistentVolume": resources.VOLUMES,
    "StorageClass": resources.STORAGE_CLASSES,
    "ResourceClaim": resources.RESOURCE_CLAIMS,
    "ResourceClaimTemplate": resources.RESOURCE_CLAIM_TEMPLATES,
    "ResourceSlice": resources.RESOURCE_SLICES,
    "DeviceClass": resources.DEVICE_CLASSES,
    "PodDisruptionBudget": resources.BUDGETS,
    "PriorityClass": resources.PRIORITY_CLASSES,
    **{kind.value: resource for kind, resource in resources.WORKLOADS.items()},
}


_VERSIONS: Final[Mapping[str, tuple[Resource, ...]]] = {
    TOPOLOGY_KIND: resources.TOPOLOGIES,
    "DeviceTaintRule": resources.TAINT_RULES,
}
"""Kinds with several served versions, newest first."""


COUNTED: Final = frozenset({"Node", "Pod", TOPOLOGY_KIND, DEVICE_KIND, "ResourceSlice"})
"""Kinds that the accounts of nodes depend on."""


def list_objects(api: BlockingApi, kinds: Container[str] = PARSERS) -> ClusterObjects:
    """
    List the objects of these kinds. Raises ``ClusterError``.

    Volumes, budgets, PriorityClasses and workloads that RBAC forbids to list are omitted and reported in ``unread``.
    """
    objects = ClusterObjects()
    for kind, found in _lists(api, objects.unread, kinds):
        name, parse = PARSERS[kind]
        into = getattr(objects, name)
        for item in found:
            try:
                parsed = parse(item)
            except WireError as error:  # an object without a name
                click.echo(f"Not counted: {kind}: {error}", err=True)
                continue
            if parsed is not None:
                into.append(parsed)
    return objects


def _lists(
    api: BlockingApi, unread: dict[Resource, str], kinds: Container[str] = PARSERS
) -> Iterator[tuple[str, list[Document]]]:
    """Yield each of these kinds with its objects. Kinds that RBAC forbids to list are added to ``unread``."""
    for kind, resource in ((kind, resource) for kind, resource in _LISTED.items() if kind in kinds):
        try:
            yield kind, _complete(api, kind, resource, optional=resource in _OPTIONAL)
        except Forbidden as error:
            if resource in _USUAL_RIGHTS:
                raise
            unread[resource] = str(error)
    versioned = (*_VERSIONS.items(), *((POD_GROUP_KIND, versions) for versions in resources.POD_GROUPS.values()))
    for kind, versions in ((kind, versions) for kind, versions in versioned if kind in kinds):
        try:
            # Only the newest served version contains the objects.
            yield kind, next((found for it in versions if (found := _complete(api, kind, it, optional=True))), [])
        except Forbidden as error:
            if versions is resources.TOPOLOGIES:
                raise
            unread[versions[0]] = str(error)


def _complete(api: BlockingApi, kind: str, resource: Resource, *, optional: bool) -> list[Document]:
    """Return all objects with ``kind`` and ``apiVersion``, which lists of the API omit and files need."""
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    return [{"apiVersion": version, "kind": kind, **obj} for obj in api.items(resource, optional=optional)]


def no_right_to_list(unread: Iterable[Resource]) -> str:
    """Return a line about kinds that RBAC forbids to list, and the role that grants the right."""
    listed = ", ".join(map(str, unread))
    return f"{listed}: no permission to list them; the ClusterRole koord-numa-reader grants it"


def list_raw(api: BlockingApi) -> tuple[list[Document], list[Resource]]:
    """
    List the objects unparsed, with ``kind`` and ``apiVersion``. Raises ``ClusterError``.

    Also returns the kinds that RBAC forbids to list.
    """
    unread: dict[Resource, str] = {}
    found = [obj for _, objects in _lists(api, unread) for obj in objects]
    return found, list(unread)


MAX_PODS: Final = 110
"""Default of the kubelet for ``maxPods``."""


ENOUGH: Final = 1 << 50
"""Bytes of memory of a node whose topology publishes none, because its kubelet does not align memory."""


def read_files(files: Sequence[Path]) -> ClusterObjects:
    """
    Read files with objects as printed by ``kubectl get -o yaml``, or with the machines of a trace.

    Without any Node, each topology gets one. Raises ``click.ClickException``.
    """
    objects = ClusterObjects()
    for path in files:
        if path.suffix == SUFFIX:
            machines = read_trace_nodes(path)
            objects.nodes.extend(node for node, _ in machines)
            objects.topologies.extend(topology for _, topology in machines)
            continue
        try:
            known = [objects.add(document) for document in documents(path.read_text(encoding="utf-8"), str(path))]
        except (OSError, UnicodeDecodeError, WireError) as error:
            raise click.ClickException(f"{path}: {error}") from None
        if not any(known):
            raise click.ClickException(f"{path} has none of {', '.join(PARSERS)}{_hint(path)}")
    if not objects.nodes:
        objects.nodes.extend(map(_node_of, objects.topologies))
    return objects


def _node_of(topology: NodeResourceTopology) -> Node:
    """Return an empty node with the amounts of its NUMA nodes, for a file as ``node-agent --print`` writes it."""
    amounts = sum((Counter(zone.allocatable) for zone in topology.zones), Counter[str]())
    return Node(name=topology.node, uid=topology.node_uid, allocatable={MEMORY: ENOUGH, **amounts, PODS: MAX_PODS})


def _hint(path: Path) -> str:
    """Return advice for a file of another command, or an empty string."""
    if any("machines" in document for document in documents(path.read_text(encoding="utf-8"), str(path))):
        return f"; it describes machines, which `koord-numa sandbox --machines {path}` serves as a cluster"
    return ""
