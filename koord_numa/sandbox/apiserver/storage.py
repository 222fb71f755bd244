"""The storage of the API server: tables of records, a revision counter, and a bounded history of changes per table.

It replaces etcd and the watch cache. Rules of particular kinds are elsewhere.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koord_numa.sandbox.apiserver.documents import JsonObject, dig, dumps, loads, metadata_of, section
from koord_numa.sandbox.apiserver.errors import too_old
from koord_numa.sandbox.apiserver.kinds import FieldPath

_CORE_EVENTS: Final = "v1"
_NEW_EVENTS: Final = "events.k8s.io/v1"

# core/v1 name → events.k8s.io/v1 name (pkg/apis/events/v1/conversion.go).
_EVENT_NAMES: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENT_NAMES_BACK: Final[Mapping[str, str]] = {new: core for core, new in _EVENT_NAMES.items()}


def convert(document: JsonObject, api_version: str) -> JsonObject:
    """Return the document in another version of its kind.

    Only Events change their fields; other kinds change only the apiVersion.
    """
    if document.get("apiVersion") == api_version:
        return document
    names: Mapping[str, str] = {}
    if document.get("kind") == "Event":
        if api_version == _NEW_EVENTS:
            names = _EVENT_NAMES
        elif api_version == _CORE_EVENTS:
            names = _EVENT_NAMES_BACK
    converted = {names.get(name, name): value for name, value in document.items()}
    converted["apiVersion"] = api_version
    return converted


ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"


class ObjectKey(NamedTuple):
    """The key of an object in its table. The namespace is empty for cluster-scoped kinds."""

    namespace: str
    name: str


class Record:
    """An immutable version of an object. ``fields`` holds the values for field selectors."""

    __slots__ = (
        "_shared",
        "_views",
        "api_version",
        "deleting",
        "fields",
        "key",
        "labels",
        "owners",
        "raw",
        "revision",
        "uid",
    )

    def __init__(self, document: JsonObject, revision: int, fields: Mapping[str, FieldPath]) -> None:
        """Take ownership of the document. Its resourceVersion must be set, and it must not be changed afterwards."""
        metadata = metadata_of(document)
        self.key = ObjectKey(metadata.get("namespace") or "", metadata["name"])
        self.revision = revision
        self.uid: str = metadata.get("uid") or ""
        self.labels: Mapping[str, str] = metadata.get("labels") or {}
        self.owners = tuple(owner.get("uid", "") for owner in metadata.get("ownerReferences") or ())
        self.deleting = bool(metadata.get("deletionTimestamp"))
        self.fields = {name: _text(dig(document, *path)) for name, path in fields.items()}
        self.api_version: str = document["apiVersion"]
        self.raw = bytes(memoryview(dumps(document)))  # the buffer of orjson's bytes object is several times as large
        self._views: dict[str, bytes] = {}
        self._shared: tuple[str, JsonObject] | None = None

    def load(self) -> JsonObject:
        """Return a new copy of the stored object."""
        document: JsonObject = loads(self.raw)
        return document

    def load_as(self, api_version: str) -> JsonObject:
        """Return a new copy of the object in a version of its kind."""
        return convert(self.load(), api_version)

    def shared(self, api_version: str) -> JsonObject:
        """Return the object in a version of its kind, parsed once for all readers until ``forget_shared``.

        It must not be changed.
        """
        if self._shared is None or self._shared[0] != api_version:
            self._shared = (api_version, self.load_as(api_version))
        return self._shared[1]

    def forget_shared(self) -> None:
        """Discard the parsed object when the record is outdated. It takes many times the memory of its text."""
        self._shared = None

    def view(self, api_version: str) -> bytes:
        """Return the JSON text of the object in a version of its kind."""
        # Most clients request the stored version, whose bytes are sent unchanged.
        if api_version == self.api_version:
            return self.raw
        text = self._views.get(api_version)
        if text is None:
            text = self._views[api_version] = dumps(self.load_as(api_version))
        return text


class TableChange:
    """A change of a table: the event type, and the object before and after it (its last state if it was deleted)."""

    __slots__ = ("_lost", "kind", "previous", "record", "revision")

    def __init__(self, kind: str, record: Record, previous: Record | None) -> None:
        """Create a change. ``kind`` is ADDED, MODIFIED or DELETED."""
        self.kind = kind
        self.record = record
        self.previous = previous
        self.revision = record.revision
        self._lost: Record | None = None

    def subject(self, kind: str) -> Record:
        """Return the object that a watcher receives for an event of ``kind``.

        When an object stops matching a selector, the watcher receives its last matching state with the new
        resourceVersion, as from the watch cache of kube-apiserver.
        """
        if kind != DELETED or self.kind == DELETED or self.previous is None:
            return self.record
        if self._lost is None:
            document = self.previous.load()
            document["metadata"]["resourceVersion"] = str(self.revision)
            self._lost = Record(document, self.revision, {})
        return self._lost

    def line(self, kind: str, api_version: str) -> bytes:
        """Return the watch line of the change."""
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), self.subject(kind).view(api_version))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


FIRST_REVISION: Final = 100
"""Revision of an empty store.

kube-apiserver writes its own objects first, and its watch cache has no earlier revisions.
"""

HISTORY: Final = 65_536

HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of JSON text in a table's history.

With large objects the history holds fewer changes than ``HISTORY``.
"""

Listener = Callable[[TableChange], None]


class Table:
    """The objects of a kind in key order, and the history of their changes."""

    def __init__(self, name: str, history: int) -> None:
        """Create an empty table. ``history`` is the maximum number of changes, within ``HISTORY_BYTES``."""
        self.name = name
        self.listeners: list[Listener] = []
        self.forgotten = FIRST_REVISION  # changes up to this revision are discarded
        self._history = history
        self._records: dict[ObjectKey, Record] = {}
        self._keys: list[ObjectKey] = []
        self._changes: list[TableChange] = []
        self._bytes = 0  # size of the JSON texts in the history

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """Iterate by namespace and name, like the keys of etcd. Changes during the iteration are safe."""
        records = self._records
        return iter([records[key] for key in self._keys])

    def get(self, key: ObjectKey) -> Record | None:
        """Return the current record of an object, or ``None``."""
        return self._records.get(key)

    def in_namespace(self, namespace: str) -> list[Record]:
        """Return the objects of a namespace by name."""
        start = bisect_left(self._keys, (namespace, ""))
        end = bisect_left(self._keys, (namespace + "\0", ""))
        return [self._records[key] for key in self._keys[start:end]]

    def since(self, revision: int) -> list[TableChange]:
        """Return the changes after a revision. Raises 410 when the history no longer has them."""
        if revision < self.forgotten:
            raise too_old(revision, self.forgotten)
        return self._changes[bisect_right(self._changes, revision, key=lambda change: change.revision) :]

    def forget(self, revision: int) -> None:
        """Discard the history up to and including a revision."""
        self.forgotten = max(self.forgotten, revision)
        self._drop(bisect_right(self._changes, revision, key=lambda change: change.revision))

    def record(self, change: TableChange) -> None:
        """Apply a change and append it to the history."""
        key = change.record.key
        if change.kind == DELETED:
            del self._records[key]
            del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self._records:
                insort(self._keys, key)
            self._records[key] = change.record
        if change.previous is not None:
            change.previous.forget_shared()
        self._changes.append(change)
        self._bytes += len(change.record.raw)
        # trimmed a quarter at a time, because trimming a list costs its length
        if len(self._changes) > self._history * 5 // 4 or self._bytes > HISTORY_BYTES * 5 // 4:
            self._trim()

    def _trim(self) -> None:
        surplus, left = 0, self._bytes
        while len(self._changes) - surplus > self._history or left > HISTORY_BYTES:
            left -= len(self._changes[surplus].record.raw)
            surplus += 1
        self.forgotten = self._changes[surplus - 1].revision
        self._drop(surplus)

    def _drop(self, count: int) -> None:
        self._bytes -= sum(len(change.record.raw) for change in self._changes[:count])
        del self._changes[:count]


class TableStorage:
    """All tables with a shared revision counter.

    Listeners receive changes in order, even if a listener makes further changes.
    """

    def __init__(self, history: int = HISTORY) -> None:
        """Create an empty storage. ``history`` is the number of changes per table that a watch can lag behind."""
        self.revision = FIRST_REVISION
        self.indexers: list[Callable[[Table, TableChange], None]] = []  # called immediately, before any listener
        self._history = history
        self._tables: dict[str, Table] = {}
        self._untold: deque[tuple[Table, TableChange]] = deque()
        self._telling = False

    def table(self, name: str) -> Table:
        """Return the table of a kind. It is empty until an object is stored."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = Table(name, self._history)
        return table

    def tables(self) -> list[Table]:
        """Return all created tables by name."""
        return [self._tables[name] for name in sorted(self._tables)]

    def put(self, table: Table, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        """Store a document under a new resourceVersion. The storage takes ownership of the document."""
        record = self._next(document, fields)
        previous = table.get(record.key)
        self._commit(table, TableChange(ADDED if previous is None else MODIFIED, record, previous))
        return record

    def drop(self, table: Table, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        """Remove an object. Watchers receive ``document`` as its last state with a new resourceVersion."""
        record = self._next(document, fields)
        self._commit(table, TableChange(DELETED, record, table.get(record.key)))
        return record

    def compact(self) -> int:
        """Discard the history: watches and continued lists of earlier revisions get 410.

        Returns the current revision.
        """
        for table in self._tables.values():
            table.forget(self.revision)
        return self.revision

    def _next(self, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        self.revision += 1
        section(document, "metadata")["resourceVersion"] = str(self.revision)
        return Record(document, self.revision, fields)

    def _commit(self, table: Table, change: TableChange) -> None:
        table.record(change)
        for indexer in self.indexers:
            indexer(table, change)
        self._untold.append((table, change))
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                told, news = self._untold.popleft()
                for listener in tuple(told.listeners):
                    listener(news)
                if told.get(news.record.key) is not news.record:
                    news.record.forget_shared()
        finally:
            self._telling = False
