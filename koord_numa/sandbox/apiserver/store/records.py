"""What the storage keeps: an immutable Record of one version of one object as JSON bytes, and the Change that led to it.

Every reader parses the bytes for itself, so no reader can alter what is stored, and an object is serialised once for all who
receive it in a list or a watch.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, dumps, loads, metadata_of
from koord_numa.sandbox.apiserver.objects.kinds import FieldPath
from koord_numa.sandbox.apiserver.store.versions import convert

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
