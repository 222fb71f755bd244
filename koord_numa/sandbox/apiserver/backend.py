"""The state behind the verbs: storage, served kinds, schemas of custom kinds, reading of objects, and consistent lists."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from koord_numa.sandbox.apiserver.crds import CustomVersion
from koord_numa.sandbox.apiserver.documents import JsonObject, dumps, loads
from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    bad_request,
    expired,
    forbidden,
    no_such_api,
    no_such_path,
    not_found,
)
from koord_numa.sandbox.apiserver.kinds import BUILTIN, Kind
from koord_numa.sandbox.apiserver.selectors import Selection
from koord_numa.sandbox.apiserver.storage import HISTORY, ObjectKey, Record, Table, TableStorage


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request: a kind in a version, and optionally a namespace, name and subresource."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def api_version(self) -> str:
        """The apiVersion of the request and response bodies."""
        return self.kind.api_version(self.version)


class Registry:
    """The served kinds by group and plural name."""

    def __init__(self) -> None:
        """Start with the built-in kinds."""
        self._kinds: dict[tuple[str, str], Kind] = {(kind.group, kind.plural): kind for kind in BUILTIN}
        self._on_change: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Kind]:
        """Iterate by group and plural name, so that discovery is deterministic."""
        return iter([self._kinds[key] for key in sorted(self._kinds)])

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a kind starts or stops being served."""
        self._on_change.append(callback)

    def add(self, kind: Kind) -> None:
        """Serve a kind, or replace the served kind."""
        self._kinds[kind.group, kind.plural] = kind
        self._tell()

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind."""
        if self._kinds.pop((group, plural), None) is not None:
            self._tell()

    def find(self, group: str, plural: str) -> Kind | None:
        """Return the served kind of a group and plural name, or ``None``."""
        return self._kinds.get((group, plural))

    def served(self, group: str, version: str, plural: str) -> Kind:
        """Return the kind of a request path. Raises 404 for an unknown path."""
        kind = self._kinds.get((group, plural))
        if kind is None or version not in kind.versions:
            known = any(other.group == group and version in other.versions for other in self._kinds.values())
            raise no_such_path() if known else no_such_api()
        return kind

    def named(self, qualified: str) -> Kind:
        """Return the kind with a qualified name such as ``pods`` or ``leases.coordination.k8s.io``.

        Raises 404 for an unknown kind.
        """
        plural, _, group = qualified.partition(".")
        kind = self._kinds.get((group, plural))
        if kind is None:
            raise no_such_path()
        return kind

    def of_object(self, api_version: str, kind_name: str) -> tuple[Kind, str]:
        """Return the kind and version of an object's ``apiVersion`` and ``kind``. Raises 404 for an unknown kind."""
        group, _, version = api_version.rpartition("/")
        for kind in self._kinds.values():
            if kind.kind == kind_name and kind.group == group and version in kind.versions:
                return kind, version
        raise no_such_path()

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the group names with their versions, the preferred version first."""
        found: dict[str, list[str]] = {}
        for kind in self:
            versions = found.setdefault(kind.group, [])
            versions.extend(version for version in kind.versions if version not in versions)
        return {group: tuple(sorted(versions, key=version_rank)) for group, versions in sorted(found.items())}

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of Kubernetes for versions: v2, v1, v1beta2, v1beta1, v1alpha1, and other names last."""
    rest = version.removeprefix("v")
    for stage, word in ((1, "beta"), (2, "alpha")):
        major, found, minor = rest.partition(word)
        if found and major.isdigit() and minor.isdigit():
            return stage, -int(major), -int(minor), version
    return (0, -int(rest), 0, version) if rest.isdigit() and rest != version else (3, 0, 0, version)


class FieldValidation(Enum):
    """The treatment of unknown fields.

    Custom resources are always pruned; the fields are ignored, reported or rejected.
    """

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class WriteMode(Enum):
    """Values of ``dryRun``: the write is stored or discarded."""

    NO = ""
    ALL = "All"


class Conflicts(Enum):
    """The treatment of conflicts with other field managers in server-side apply."""

    REFUSE = "refuse"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. ``validation_asked`` is true if the client sets ``fieldValidation``."""

    dry_run: WriteMode = WriteMode.NO
    manager: str = ""
    validation: FieldValidation = FieldValidation.WARN
    conflicts: Conflicts = Conflicts.REFUSE
    validation_asked: bool = False


class WriteOutcome(Enum):
    """The effect of a write."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Written:
    """The object after a write, the effect, and warnings for the client."""

    record: Record
    outcome: WriteOutcome
    warnings: tuple[str, ...] = ()


class Backend:
    """Objects by target. The verbs that change them are in ``writer.py``, ``deletion.py`` and ``pods.py``."""

    def __init__(self, history: int = HISTORY) -> None:
        """Create an empty state. ``history`` is the number of changes per kind that a watch can lag behind."""
        self.storage = TableStorage(history)
        self.registry = Registry()
        self.custom: dict[str, dict[str, CustomVersion]] = {}  # qualified kind name → version → schema

    def table(self, kind: Kind) -> Table:
        """Return the table of a kind."""
        # The table name may differ from the kind: both event APIs share a table.
        return self.storage.table(kind.stored_in)

    def find(self, target: Target) -> Record | None:
        """Return the object of a target, or ``None``."""
        return self.table(target.kind).get(ObjectKey(target.namespace, target.name))

    def get(self, target: Target) -> Record:
        """Return the object of a target. Raises 404."""
        record = self.find(target)
        if record is None:
            raise not_found(target.kind, target.name)
        return record

    def lookup(self, qualified: str, name: str) -> Record | None:
        """Return an object without a namespace by its qualified kind name, such as ``namespaces``, or ``None``."""
        return self.storage.table(qualified).get(ObjectKey("", name))

    def put(self, kind: Kind, document: JsonObject) -> Record:
        """Store a document in its final form."""
        return self.storage.put(self.table(kind), document, kind.fields)

    def unstored(self, kind: Kind, document: JsonObject) -> Record:
        """Return the record of a document that is not stored, for the response of a dry run."""
        return Record(document, self.storage.revision, kind.fields)

    def check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        """Raise 404 for an absent namespace and 403 for a terminating namespace."""
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
        """Iterate over the kinds with their own table, in discovery order."""
        return (kind for kind in self.registry if not kind.table)


_SNAPSHOTS: Final = 64
_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list: its objects, the revision of the list, and the continue token.

    ``remaining`` is 0 where it is not counted.
    """

    records: Sequence[Record]
    revision: int
    token: str = ""
    remaining: int = 0


class Reader:
    """Lists of a kind. Records are immutable, so a snapshot for later pages is only a list of references."""

    def __init__(self, backend: Backend) -> None:
        """Create a reader. It keeps the snapshots of the latest unfinished lists."""
        self._backend = backend
        self._snapshots: OrderedDict[int, list[Record]] = OrderedDict()
        self._issued = 0

    def select(self, kind: Kind, selection: Selection) -> list[Record]:
        """Return all selected objects by namespace and name."""
        table = self._backend.table(kind)
        records = table.in_namespace(selection.namespace) if selection.namespace else list(table)
        if not (selection.labels or selection.fields):
            return records
        return [record for record in records if selection.matches(record)]

    def first_page(self, kind: Kind, selection: Selection, limit: int) -> Page:
        """Return the first page of a list, or the whole list when ``limit`` is 0."""
        records = self.select(kind, selection)
        revision = self._backend.storage.revision
        if not limit or len(records) <= limit:
            return Page(records, revision)
        self._issued += 1
        self._snapshots[self._issued] = records
        if len(self._snapshots) > _SNAPSHOTS:
            self._snapshots.popitem(last=False)
        # kube-apiserver does not count the remaining items of a list with a selector.
        remaining = 0 if selection.labels or selection.fields else len(records) - limit
        return Page(
            records[:limit], revision, _token(self._issued, limit, revision, counted=bool(remaining)), remaining
        )

    def next_page(self, token: str, limit: int) -> Page:
        """Return the page of a continue token.

        Raises 400 for a malformed token and 410 when the snapshot is no longer kept.
        """
        try:
            number, start, revision, counted = (int(part) for part in loads(urlsafe_b64decode(token)))
        except (ValueError, TypeError) as problem:
            raise bad_request("continue key is not valid: it was not issued by this server") from problem
        records = self._snapshots.get(number)
        if records is None:
            raise expired(_EXPIRED)
        end = start + limit if limit else len(records)
        if end >= len(records):
            return Page(records[start:], revision)
        remaining = len(records) - end if counted else 0
        return Page(records[start:end], revision, _token(number, end, revision, counted=bool(counted)), remaining)

    def forget_snapshots(self) -> None:
        """Discard all snapshots after a compaction. Unfinished lists cannot be continued."""
        self._snapshots.clear()


def _token(number: int, start: int, revision: int, *, counted: bool) -> str:
    return urlsafe_b64encode(dumps([number, start, revision, int(counted)])).decode()
