"""
The server without HTTP: state and verbs for simulated machines and tests.

Calls are synchronous, validated and watched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koord_numa.sandbox.apiserver.authorization import Authorizer
from koord_numa.sandbox.apiserver.backend import Backend, Reader, Target
from koord_numa.sandbox.apiserver.deletion import Definitions, DeleteOptions, Deleter
from koord_numa.sandbox.apiserver.documents import JsonObject, clone, metadata_of, read_manifests
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.patches import merge_patch
from koord_numa.sandbox.apiserver.pods import BudgetController, PodVerbs
from koord_numa.sandbox.apiserver.selectors import Selection, parse_fields, parse_labels
from koord_numa.sandbox.apiserver.storage import HISTORY, Table, TableChange
from koord_numa.sandbox.apiserver.writer import Writer

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_PRIORITIES: Final = (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000))


class Cluster:
    """All verbs on a shared state."""

    def __init__(self, history: int = HISTORY) -> None:
        """Create the initial objects. ``history`` is the number of changes per kind that a watch can lag behind."""
        self.backend = Backend(history)
        Definitions(self.backend)
        self.deleter = Deleter(self.backend)
        self.writer = Writer(self.backend, self.deleter)
        self.pods = PodVerbs(self.backend, self.deleter)
        self.reader = Reader(self.backend)
        self.authorizer = Authorizer(self.backend)
        BudgetController(self.backend)
        for name in _NAMESPACES:
            self._seed("namespaces", {"metadata": {"name": name}})
        self._seed("serviceaccounts", {"metadata": {"name": "default"}}, "default")
        for name, value in _PRIORITIES:
            self._seed("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})

    def compact(self) -> int:
        """Discard the history and return the first revision that watches can start from."""
        self.reader.forget_snapshots()
        return self.backend.storage.compact()

    def _seed(self, qualified: str, document: JsonObject, namespace: str = "") -> None:
        kind = self.backend.registry.named(qualified)
        self.writer.create(Target(kind, kind.versions[0], namespace), document)


WatchCallback = Callable[[str, JsonObject], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """An in-process watch. ``cancel`` ends it."""

    table: Table
    listener: Callable[[TableChange], None]

    def cancel(self) -> None:
        """Stop the callbacks. A second call has no effect."""
        if self.listener in self.table.listeners:
            self.table.listeners.remove(self.listener)


class DirectStore:
    """Access to objects by resource name: ``pods``, ``nodes``, ``noderesourcetopologies.topology.node.k8s.io``.

    All methods return copies and raise ``ApiError`` where the HTTP API rejects a request. Objects are read in the
    preferred version of their kind and written in the version that they name.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Create a stateless view of ``cluster``."""
        self._cluster = cluster

    def create(self, document: Mapping[str, Any]) -> JsonObject:
        """Create an object in its namespace (``default`` if the object has none)."""
        target = self._target_of(document, create=True)
        return self._cluster.writer.create(target, clone(document)).record.load_as(target.api_version)

    def update(self, document: Mapping[str, Any], subresource: str = "") -> JsonObject:
        """Replace an object. Without a resourceVersion the last write wins if the kind allows unconditional updates."""
        target = self._target_of(document, subresource)
        return self._cluster.writer.update(target, clone(document)).record.load_as(target.api_version)

    def patch(
        self, resource: str, name: str, patch: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> JsonObject:
        """Apply a JSON merge patch."""
        target = self._target(resource, name, namespace, subresource)
        written = self._cluster.writer.patch(target, lambda document: merge_patch(document, patch))
        return written.record.load_as(target.api_version)

    def apply(self, document: Mapping[str, Any]) -> JsonObject:
        """Create an object, or apply it as a merge patch to the existing object."""
        target = self._target_of(document)
        try:
            self._cluster.backend.get(target)
        except ApiError as problem:
            if problem.code != 404:
                raise
            return self.create(document)
        written = self._cluster.writer.patch(target, lambda current: merge_patch(current, clone(document)))
        return written.record.load_as(target.api_version)

    def apply_file(self, path: Path | str) -> list[JsonObject]:
        """Apply every object of a YAML or JSON file. Raises ``ValueError`` for malformed manifests."""
        return [self.apply(document) for document in read_manifests(Path(path))]

    def get(self, resource: str, name: str, namespace: str = "") -> JsonObject:
        """Return an object. Raises ``ApiError`` with code 404 when it does not exist."""
        target = self._target(resource, name, namespace)
        return self._cluster.backend.get(target).load_as(target.api_version)

    def find(self, resource: str, name: str, namespace: str = "") -> JsonObject | None:
        """Return an object, or ``None`` when it does not exist."""
        target = self._target(resource, name, namespace)
        record = self._cluster.backend.find(target)
        return record.load_as(target.api_version) if record else None

    def list(self, resource: str, namespace: str = "", labels: str = "", fields: str = "") -> list[JsonObject]:
        """Return the selected objects sorted by namespace and name. Without a namespace, all namespaces are listed."""
        kind = self._cluster.backend.registry.named(resource)
        selection = Selection(namespace, parse_labels(labels), parse_fields(fields, kind, labels))
        version = kind.api_version(kind.versions[0])
        return [record.load_as(version) for record in self._cluster.reader.select(kind, selection)]

    def count(self, resource: str) -> int:
        """Return the number of stored objects."""
        return len(self._cluster.backend.table(self._cluster.backend.registry.named(resource)))

    def delete(self, resource: str, name: str, namespace: str = "", options: DeleteOptions | None = None) -> None:
        """Delete an object, by default with the grace period of its kind.

        ``DeleteOptions(grace=0)`` deletes it immediately.
        """
        self._cluster.deleter.delete(self._target(resource, name, namespace), options or DeleteOptions())

    def bind(self, namespace: str, name: str, binding: Mapping[str, Any]) -> None:
        """Bind a pod as ``POST pods/{name}/binding`` does."""
        self._cluster.pods.bind(self._target("pods", name, namespace), clone(binding))

    def evict(self, namespace: str, name: str) -> None:
        """Evict a pod as ``POST pods/{name}/eviction`` does."""
        self._cluster.pods.evict(self._target("pods", name, namespace), {})

    def subscribe(self, resource: str, callback: WatchCallback, fields: str = "") -> Subscription:
        """Call back with ADDED, MODIFIED or DELETED and the object. Existing objects are reported immediately as ADDED.

        Subscribers share the object and must not change it. A callback may write to the store. Changes that it makes
        are reported after it has returned.
        """
        kind = self._cluster.backend.registry.named(resource)
        selection = Selection(fields=parse_fields(fields, kind))
        version = kind.api_version(kind.versions[0])

        def listener(change: TableChange) -> None:
            event = selection.event_of(change)
            if event is not None:
                callback(event, change.subject(event).shared(version))

        table = self._cluster.backend.table(kind)
        # Initial objects are copied: the listener shares parsed documents only afterwards.
        for record in self._cluster.reader.select(kind, selection):
            callback("ADDED", record.load_as(version))
        table.listeners.append(listener)
        return Subscription(table, listener)

    def _target(self, resource: str, name: str, namespace: str = "", subresource: str = "") -> Target:
        kind = self._cluster.backend.registry.named(resource)
        place = (namespace or "default") if kind.namespaced else ""
        return Target(kind, kind.versions[0], place, name, subresource)

    def _target_of(self, document: Mapping[str, Any], subresource: str = "", *, create: bool = False) -> Target:
        kind, version = self._cluster.backend.registry.of_object(
            document.get("apiVersion", ""), document.get("kind", "")
        )
        metadata = metadata_of(document)
        namespace = (metadata.get("namespace") or "default") if kind.namespaced else ""
        return Target(kind, version, namespace, "" if create else metadata.get("name", ""), subresource)
