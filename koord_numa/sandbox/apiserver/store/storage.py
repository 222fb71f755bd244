"""The memory of the API server: tables of records, one revision counter, and a bounded history of changes per table.

It plays the part of etcd and of the watch cache and knows no rule of any kind of object.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koord_numa.sandbox.apiserver.errors import too_old
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, section
from koord_numa.sandbox.apiserver.objects.kinds import FieldPath
from koord_numa.sandbox.apiserver.store.records import ADDED, DELETED, MODIFIED, Change, ObjectKey, Record

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
