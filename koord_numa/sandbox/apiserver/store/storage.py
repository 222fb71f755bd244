"""The memory of the API server: tables of records, one revision counter, and a bounded history of changes per table.

It plays the part of etcd and of the watch cache and knows no rule of any kind of object.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koord_numa.sandbox.apiserver.errors import too_old
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, dumps, loads, metadata_of, section
from koord_numa.sandbox.apiserver.objects.kinds import FieldPath

_CORE_EVENTS: Final = "v1"
_NEW_EVENTS: Final = "events.k8s.io/v1"

# core/v1 name → events.k8s.io/v1 name, as k8s.io/kubernetes pkg/apis/events/v1/conversion.go pairs them.
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
    """The document in another version of its kind; only Events change their shape, everything else only its apiVersion."""
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
    """Where an object is in its table; the namespace is empty for cluster-scoped kinds."""

    namespace: str
    name: str


class Record:
    """One version of one object. Immutable; ``fields`` holds the values that field selectors may ask for."""

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
        """Takes the document over: its resourceVersion must be set and it must not be changed any more."""
        metadata = metadata_of(document)
        self.key = ObjectKey(metadata.get("namespace") or "", metadata["name"])
        self.revision = revision
        self.uid: str = metadata.get("uid") or ""
        self.labels: Mapping[str, str] = metadata.get("labels") or {}
        self.owners = tuple(owner.get("uid", "") for owner in metadata.get("ownerReferences") or ())
        self.deleting = bool(metadata.get("deletionTimestamp"))
        self.fields = {name: _text(dig(document, *path)) for name, path in fields.items()}
        self.api_version: str = document["apiVersion"]
        self.raw = bytes(memoryview(dumps(document)))  # orjson's own object keeps a buffer several times as large
        self._views: dict[str, bytes] = {}
        self._shared: tuple[str, JsonObject] | None = None

    def load(self) -> JsonObject:
        """A fresh copy of the object as it is stored."""
        document: JsonObject = loads(self.raw)
        return document

    def load_as(self, api_version: str) -> JsonObject:
        """A fresh copy of the object in one of its versions."""
        return convert(self.load(), api_version)

    def shared(self, api_version: str) -> JsonObject:
        """The object in one of its versions, parsed once for all who only read it, until ``forget_shared``."""
        if self._shared is None or self._shared[0] != api_version:
            self._shared = (api_version, self.load_as(api_version))
        return self._shared[1]

    def forget_shared(self) -> None:
        """The object is not what is stored any more: in the history it need not take many times the room of its text."""
        self._shared = None

    def view(self, api_version: str) -> bytes:
        """The JSON text of the object in one of its versions."""
        # The stored version is what most clients ask for: its bytes are sent as they are.
        if api_version == self.api_version:
            return self.raw
        text = self._views.get(api_version)
        if text is None:
            text = self._views[api_version] = dumps(self.load_as(api_version))
        return text


class Change:
    """One step of a table's history: what happened, what the object was before and is after (its last state, if deleted)."""

    __slots__ = ("_lost", "kind", "previous", "record", "revision")

    def __init__(self, kind: str, record: Record, previous: Record | None) -> None:
        """``kind`` is ADDED, MODIFIED or DELETED."""
        self.kind = kind
        self.record = record
        self.previous = previous
        self.revision = record.revision
        self._lost: Record | None = None

    def subject(self, kind: str) -> Record:
        """The object that a watcher is shown for an event of ``kind``.

        Who selects by label or field and loses the object sees its last matching state under the new
        resourceVersion, as the watch cache of kube-apiserver does.
        """
        if kind != DELETED or self.kind == DELETED or self.previous is None:
            return self.record
        if self._lost is None:
            document = self.previous.load()
            document["metadata"]["resourceVersion"] = str(self.revision)
            self._lost = Record(document, self.revision, {})
        return self._lost

    def line(self, kind: str, api_version: str) -> bytes:
        """The line of a watch answer."""
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), self.subject(kind).view(api_version))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


FIRST_REVISION: Final = 100
"""Revision of an empty store. A kube-apiserver has written its own objects by then, and its watch cache knows nothing of earlier ones."""

HISTORY: Final = 65_536

HISTORY_BYTES: Final = 64 * 1024 * 1024
"""How much text of former versions a table keeps at most: the history is as long as it may be only where objects are small."""

Listener = Callable[[Change], None]


class Table:
    """All objects of one kind in the order of their keys, and what recently happened to them."""

    def __init__(self, name: str, history: int) -> None:
        """``history`` is how many changes are kept, if they are not larger than ``HISTORY_BYTES`` together."""
        self.name = name
        self.listeners: list[Listener] = []
        self.forgotten = FIRST_REVISION  # changes up to this revision are lost
        self._history = history
        self._records: dict[ObjectKey, Record] = {}
        self._keys: list[ObjectKey] = []
        self._changes: list[Change] = []
        self._bytes = 0  # of the texts in the history

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """By namespace and name, as etcd orders its keys; safe against changes while iterating."""
        records = self._records
        return iter([records[key] for key in self._keys])

    def get(self, key: ObjectKey) -> Record | None:
        """The current record of an object."""
        return self._records.get(key)

    def in_namespace(self, namespace: str) -> list[Record]:
        """The objects of one namespace, by name."""
        start = bisect_left(self._keys, (namespace, ""))
        end = bisect_left(self._keys, (namespace + "\0", ""))
        return [self._records[key] for key in self._keys[start:end]]

    def since(self, revision: int) -> list[Change]:
        """What happened after a revision. Raises the 410 of a history that is no longer kept."""
        if revision < self.forgotten:
            raise too_old(revision, self.forgotten)
        return self._changes[bisect_right(self._changes, revision, key=lambda change: change.revision) :]

    def forget(self, revision: int) -> None:
        """Drop the history up to and including a revision."""
        self.forgotten = max(self.forgotten, revision)
        self._drop(bisect_right(self._changes, revision, key=lambda change: change.revision))

    def record(self, change: Change) -> None:
        """Make a change true and remember it."""
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
        # a quarter at a time: trimming a list costs its length
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


class Storage:
    """All tables under one revision counter. Changes are told to listeners in order, even when a listener makes new ones."""

    def __init__(self, history: int = HISTORY) -> None:
        """``history`` is how many changes per table a watch can start behind."""
        self.revision = FIRST_REVISION
        self.indexers: list[Callable[[Table, Change], None]] = []  # told at once, before any listener
        self._history = history
        self._tables: dict[str, Table] = {}
        self._untold: deque[tuple[Table, Change]] = deque()
        self._telling = False

    def table(self, name: str) -> Table:
        """The table of a kind, empty when nothing was ever stored in it."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = Table(name, self._history)
        return table

    def tables(self) -> list[Table]:
        """All tables that were ever used, by name."""
        return [self._tables[name] for name in sorted(self._tables)]

    def put(self, table: Table, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        """Store a document, which the storage takes over, under a new resourceVersion."""
        record = self._next(document, fields)
        previous = table.get(record.key)
        self._commit(table, Change(ADDED if previous is None else MODIFIED, record, previous))
        return record

    def drop(self, table: Table, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        """Remove an object; ``document`` is its last state, which watchers are shown under a new resourceVersion."""
        record = self._next(document, fields)
        self._commit(table, Change(DELETED, record, table.get(record.key)))
        return record

    def compact(self) -> int:
        """Forget all history: watches and continued lists of earlier revisions get 410. Returns the current revision."""
        for table in self._tables.values():
            table.forget(self.revision)
        return self.revision

    def _next(self, document: JsonObject, fields: Mapping[str, FieldPath]) -> Record:
        self.revision += 1
        section(document, "metadata")["resourceVersion"] = str(self.revision)
        return Record(document, self.revision, fields)

    def _commit(self, table: Table, change: Change) -> None:
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
