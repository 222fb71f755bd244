"""Deletion: preconditions, grace periods, finalizers, namespaces and dependents.

States of an object: live → deleting → removed. A deleting object has a ``deletionTimestamp`` and waits for the final
delete of a kubelet, for finalizers, for the content of a namespace, or for dependents in foreground deletion.
Dependents are deleted immediately after their last owner.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from koord_numa.sandbox.apiserver.backend import Backend, Target, WriteMode, WriteOutcome, Written
from koord_numa.sandbox.apiserver.crds import kind_of, versions_of
from koord_numa.sandbox.apiserver.documents import JsonObject, dig, metadata_of, timestamp
from koord_numa.sandbox.apiserver.errors import ApiError, bad_request, conflict, forbidden
from koord_numa.sandbox.apiserver.kinds import Kind
from koord_numa.sandbox.apiserver.storage import DELETED, ObjectKey, Record, Table, TableChange

FOREGROUND: Final = "foregroundDeletion"

_Place = tuple[str, ObjectKey]  # table name and key


class Dependents:
    """Index of objects by the uids of their owners."""

    def __init__(self, backend: Backend) -> None:
        """Subscribe to all changes of ``backend``."""
        self._backend = backend
        self._places: dict[str, set[_Place]] = {}
        backend.storage.indexers.append(self._index)

    def of(self, owner: Record) -> list[tuple[Kind, Record]]:
        """Return the objects that have ``owner`` as an owner, in a deterministic order."""
        found = []
        for table_name, key in sorted(self._places.get(owner.uid, ())):
            record = self._backend.storage.table(table_name).get(key)
            if record is not None:
                found.append((self._backend.registry.named(table_name), record))
        return found

    def orphaned_by(self, owner: Record) -> list[tuple[Kind, Record]]:
        """Return the dependents of the removed ``owner`` that have no other owner left."""
        return [(kind, record) for kind, record in self.of(owner) if not any(self._owners(record))]

    def waiting_owners(self, gone: Record) -> list[tuple[Kind, Record]]:
        """Return the owners in foreground deletion whose last dependent was ``gone``."""
        waiting = []
        for kind, owner in filter(None, self._owners(gone)):
            if (
                owner.deleting
                and not self.of(owner)
                and FOREGROUND in (metadata_of(owner.load()).get("finalizers") or ())
            ):
                waiting.append((kind, owner))
        return waiting

    def release(self, owner: Record) -> None:
        """Remove the owner references to ``owner`` from its dependents."""
        for kind, record in self.of(owner):
            document = record.load()
            metadata = document["metadata"]
            metadata["ownerReferences"] = [one for one in metadata["ownerReferences"] if one.get("uid") != owner.uid]
            self._backend.put(kind, document)

    def _owners(self, record: Record) -> list[tuple[Kind, Record] | None]:
        """Return the owners of an object, with ``None`` for an owner that does not exist."""
        if not record.owners:
            return []
        return [
            self._owner(one, record.key.namespace) for one in metadata_of(record.load()).get("ownerReferences") or ()
        ]

    def _owner(self, reference: JsonObject, namespace: str) -> tuple[Kind, Record] | None:
        try:
            kind, _ = self._backend.registry.of_object(reference["apiVersion"], reference["kind"])
        except ApiError:  # a kind that is not served has no objects
            return None
        owner = self._backend.table(kind).get(ObjectKey(namespace if kind.namespaced else "", reference["name"]))
        return (kind, owner) if owner is not None and owner.uid == reference["uid"] else None

    def _index(self, table: Table, change: TableChange) -> None:
        place = (table.name, change.record.key)
        if change.previous is not None:
            for uid in change.previous.owners:
                places = self._places.get(uid, set())
                places.discard(place)
                if not places:
                    self._places.pop(uid, None)
        if change.kind != DELETED:
            for uid in change.record.owners:
                self._places.setdefault(uid, set()).add(place)


DEFINITIONS: Final = "customresourcedefinitions.apiextensions.k8s.io"


class Definitions:
    """Serves the kind of a CustomResourceDefinition while the definition is stored."""

    def __init__(self, backend: Backend) -> None:
        """Subscribe to changes of definitions."""
        self._backend = backend
        backend.storage.indexers.append(self._index)

    def _index(self, table: Table, change: TableChange) -> None:
        if table.name != DEFINITIONS:
            return
        crd = change.record.load()
        kind = kind_of(crd)
        if change.kind == DELETED:
            self._backend.registry.remove(kind.group, kind.plural)
            self._backend.custom.pop(kind.qualified, None)
        else:
            self._backend.custom[kind.qualified] = versions_of(crd)
            self._backend.registry.add(kind)


_KEPT_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_FINISHED: Final = ("Succeeded", "Failed")


class Propagation(Enum):
    """The treatment of dependents."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a deletion. ``grace`` is in seconds; ``None`` uses the default of the kind."""

    grace: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    dry_run: WriteMode = WriteMode.NO

    @staticmethod
    def parse(body: Any) -> "DeleteOptions":
        """Return the options of a DeleteOptions object. Raises 400."""
        if not isinstance(body, dict):
            raise bad_request("DeleteOptions must be an object")
        grace = body.get("gracePeriodSeconds")
        if not isinstance(grace, int | None):
            raise bad_request("gracePeriodSeconds: expected an integer")
        try:
            propagation = Propagation(body.get("propagationPolicy") or "Background")
        except ValueError as problem:
            raise bad_request(f"propagationPolicy: {problem}") from problem
        if body.get("orphanDependents"):
            propagation = Propagation.ORPHAN
        dry_run = WriteMode.ALL if "All" in (body.get("dryRun") or ()) else WriteMode.NO
        preconditions = body.get("preconditions") or {}
        return DeleteOptions(
            grace, preconditions.get("uid") or "", preconditions.get("resourceVersion") or "", propagation, dry_run
        )


_AT_ONCE: Final = DeleteOptions()


class Deleter:
    """The verbs delete and deletecollection, and the garbage collection that follows."""

    def __init__(self, backend: Backend) -> None:
        """Subscribe to the owner references of all tables."""
        self._backend = backend
        self._dependents = Dependents(backend)
        self.later: Callable[[Callable[[], None]], object] = lambda action: action()
        """Runs the removal of a namespace's content. The default runs it immediately."""

    def delete(self, target: Target, options: DeleteOptions = _AT_ONCE) -> Written:
        """Delete an object, or mark it for deletion.

        Raises 404, 403 for namespaces that must not be deleted, and 409 for failed preconditions.
        """
        record = self._backend.get(target)
        self._check(target, record, options)
        return self._delete(target.kind, record, options)

    def delete_all(self, kind: Kind, records: Iterable[Record], options: DeleteOptions) -> list[Record]:
        """Delete all records of a selection and return them in their previous state."""
        chosen = list(records)
        for record in chosen:
            current = self._backend.table(kind).get(record.key)
            if current is not None:
                self._delete(kind, current, options)
        return chosen

    def remove(self, kind: Kind, document: JsonObject) -> Record:
        """Remove an object from the storage, then process its dependents, owners and namespace."""
        record = self._backend.storage.drop(self._backend.table(kind), document, kind.fields)
        for dependent_kind, dependent in self._dependents.orphaned_by(record):
            self._delete(dependent_kind, dependent, _AT_ONCE)
        for owner_kind, owner in self._dependents.waiting_owners(record):
            self._without_finalizer(owner_kind, owner, FOREGROUND)
        namespace = self._backend.lookup("namespaces", record.key.namespace)
        if namespace is not None and namespace.deleting:
            self._finish_namespace(namespace)
        return record

    def is_finished(self, kind: Kind, document: JsonObject) -> bool:
        """Report whether a deleting object can be removed."""
        metadata = metadata_of(document)
        if (
            not metadata.get("deletionTimestamp")
            or metadata.get("finalizers")
            or metadata.get("deletionGracePeriodSeconds")
        ):
            return False
        return kind.qualified != "namespaces" or not (
            dig(document, "spec", "finalizers") or self._content(metadata["name"])
        )

    def _check(self, target: Target, record: Record, options: DeleteOptions) -> None:
        kind, name = target.kind, target.name
        if options.uid and options.uid != record.uid:
            why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {record.uid}"
            raise conflict(kind, name, why)
        if options.resource_version and options.resource_version != str(record.revision):
            why = f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
            raise conflict(kind, name, f"{why}ResourceVersion in object meta: {record.revision}")
        if kind.qualified == "namespaces" and name in _KEPT_NAMESPACES:
            raise forbidden(kind, name, "this namespace may not be deleted")

    def _delete(self, kind: Kind, record: Record, options: DeleteOptions) -> Written:
        if options.dry_run is WriteMode.ALL:
            return Written(record, WriteOutcome.UNCHANGED)
        if options.propagation is Propagation.ORPHAN:
            self._dependents.release(record)
        in_foreground = (
            options.propagation is Propagation.FOREGROUND and not record.deleting and bool(self._dependents.of(record))
        )
        document = _marked(kind, record, options)
        if in_foreground:
            metadata = document["metadata"]
            metadata["finalizers"] = [*(metadata.get("finalizers") or ()), FOREGROUND]
        if kind.qualified == "namespaces":
            return self._delete_namespace(kind, document)
        if self.is_finished(kind, document):
            if kind.qualified == DEFINITIONS:
                self._delete_custom_resources(document)
            return Written(self.remove(kind, document), WriteOutcome.REMOVED)
        if record.load() == document:
            return Written(record, WriteOutcome.UNCHANGED)
        written = Written(self._backend.put(kind, document), WriteOutcome.UPDATED)
        if in_foreground:
            for dependent_kind, dependent in self._dependents.of(record):
                self._delete(dependent_kind, dependent, _AT_ONCE)
        return written

    def _delete_custom_resources(self, crd: JsonObject) -> None:
        kind = self._backend.registry.find(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        if kind is None:
            return
        for record in self._backend.table(kind):
            document = record.load()
            document["metadata"].pop("finalizers", None)
            self.remove(kind, document)

    def _delete_namespace(self, kind: Kind, namespace: JsonObject) -> Written:
        namespace["status"] = {**(namespace.get("status") or {}), "phase": "Terminating"}
        record = self._backend.put(kind, namespace)
        name = record.key.name
        self.later(lambda: self._empty_namespace(name))
        gone = self._backend.lookup("namespaces", name) is None
        return Written(record, WriteOutcome.REMOVED if gone else WriteOutcome.UPDATED)

    def _empty_namespace(self, name: str) -> None:
        namespace = self._backend.lookup("namespaces", name)
        if namespace is None or not namespace.deleting:  # created anew in the meantime
            return
        for kind in self._backend.kinds_in_use():
            if kind.namespaced:
                self.delete_all(kind, self._backend.table(kind).in_namespace(name), _AT_ONCE)
        namespace = self._backend.lookup("namespaces", name)
        if namespace is not None:
            self._finish_namespace(namespace)

    def _finish_namespace(self, namespace: Record) -> bool:
        """Remove a terminating namespace if it is empty. Returns whether it was removed."""
        kind = self._backend.registry.named("namespaces")
        if self._content(namespace.key.name):
            return False
        document = namespace.load()
        document["spec"]["finalizers"] = []
        if self.is_finished(kind, document):
            self.remove(kind, document)
            return True
        return False

    def _content(self, namespace: str) -> bool:
        return any(table.in_namespace(namespace) for table in self._backend.storage.tables())

    def _without_finalizer(self, kind: Kind, record: Record, finalizer: str) -> None:
        document = record.load()
        metadata = document["metadata"]
        metadata["finalizers"] = [one for one in metadata.get("finalizers") or () if one != finalizer]
        if self.is_finished(kind, document):
            self.remove(kind, document)
        else:
            self._backend.put(kind, document)


def _marked(kind: Kind, record: Record, options: DeleteOptions) -> JsonObject:
    """Return the object marked for deletion. A second deletion can only shorten the grace period."""
    document = record.load()
    metadata: JsonObject = document["metadata"]
    grace = _grace(kind, document, options)
    if record.deleting:
        metadata["deletionGracePeriodSeconds"] = min(grace, metadata.get("deletionGracePeriodSeconds") or 0)
        return document
    metadata["deletionGracePeriodSeconds"] = grace
    metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
    if "generation" in metadata:
        metadata["generation"] += 1
    return document


def _grace(kind: Kind, document: JsonObject, options: DeleteOptions) -> int:
    """Return the grace period in seconds.

    It is 0 except for pods on a node that have not terminated (pkg/registry/core/pod/strategy.go).
    """
    if kind.qualified != "pods":
        return 0
    if not dig(document, "spec", "nodeName") or dig(document, "status", "phase") in _FINISHED:
        return 0
    if options.grace is not None:
        return max(options.grace, 0)
    return int(dig(document, "spec", "terminationGracePeriodSeconds") or 0)
