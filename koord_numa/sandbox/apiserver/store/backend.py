"""The state behind the verbs: storage, served kinds and schemas of custom kinds, and reading of single objects."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from koord_numa.sandbox.apiserver.errors import ApiError, forbidden, not_found
from koord_numa.sandbox.apiserver.objects.crds import CustomVersion
from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.store.records import ObjectKey, Record
from koord_numa.sandbox.apiserver.store.registry import Registry, Target
from koord_numa.sandbox.apiserver.store.storage import HISTORY, Storage, Table


class FieldValidation(Enum):
    """What happens to unknown fields of custom resources: they are always pruned, and told or refused."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class DryRun(Enum):
    """Whether a write stays."""

    NO = ""
    ALL = "All"


class Conflicts(Enum):
    """What server-side apply does where another manager disagrees."""

    REFUSE = "refuse"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a write is meant. ``validation_asked``: the client names its validation of fields."""

    dry_run: DryRun = DryRun.NO
    manager: str = ""
    validation: FieldValidation = FieldValidation.WARN
    conflicts: Conflicts = Conflicts.REFUSE
    validation_asked: bool = False


class Outcome(Enum):
    """What became of an object."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Written:
    """The object after a write, what became of it, and warnings for the author."""

    record: Record
    outcome: Outcome
    warnings: tuple[str, ...] = ()


class Backend:
    """Objects by target. The verbs that change them are in ``writer``, ``deletion`` and ``pod_verbs``."""

    def __init__(self, history: int = HISTORY) -> None:
        """``history`` is how many changes per kind a watch can start behind."""
        self.storage = Storage(history)
        self.registry = Registry()
        self.custom: dict[str, dict[str, CustomVersion]] = {}  # qualified kind name → version → schema

    def table(self, kind: Kind) -> Table:
        """Where the objects of a kind are."""
        # Not by the kind's own name: both event APIs show the objects of one table.
        return self.storage.table(kind.stored_in)

    def find(self, target: Target) -> Record | None:
        """The object a target names, if it exists."""
        return self.table(target.kind).get(ObjectKey(target.namespace, target.name))

    def get(self, target: Target) -> Record:
        """The object a target names. Raises 404."""
        record = self.find(target)
        if record is None:
            raise not_found(target.kind, target.name)
        return record

    def lookup(self, qualified: str, name: str, namespace: str = "") -> Record | None:
        """An object by its kind's name, such as ``namespaces``, if it exists."""
        return self.storage.table(qualified).get(ObjectKey(namespace, name))

    def put(self, kind: Kind, document: JsonObject) -> Record:
        """Store a document in its final form."""
        return self.storage.put(self.table(kind), document, kind.fields)

    def unstored(self, kind: Kind, document: JsonObject) -> Record:
        """The record a document would become: the answer of a dry run."""
        return Record(document, self.storage.revision, kind.fields)

    def check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        """Raises the 404 of an absent namespace and the 403 of one that is being deleted."""
        if not kind.namespaced:
            return
        record = self.lookup("namespaces", namespace)
        if record is None:
            raise ApiError(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        if record.deleting:
            error = forbidden(
                kind, name, f"unable to create new content in namespace {namespace} because it is being terminated"
            )
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            error.details["causes"] = [{**cause, "field": "metadata.namespace"}]
            raise error

    def kinds_in_use(self) -> Iterator[Kind]:
        """Kinds that are stored under their own name, in the order of discovery."""
        return (kind for kind in self.registry if not kind.table)
