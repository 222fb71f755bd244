"""Who depends on whom: an index of owner references over all tables. It finds and releases; ``deletion`` deletes."""

from typing import Final

from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, metadata_of
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.records import DELETED, Change, ObjectKey, Record
from koord_numa.sandbox.apiserver.store.storage import Table

FOREGROUND: Final = "foregroundDeletion"

_Place = tuple[str, ObjectKey]  # table name and key


class Dependents:
    """Objects by the uid of their owners."""

    def __init__(self, backend: Backend) -> None:
        """Follows every change of ``backend`` from now on."""
        self._backend = backend
        self._places: dict[str, set[_Place]] = {}
        backend.storage.indexers.append(self._index)

    def of(self, owner: Record) -> list[tuple[Kind, Record]]:
        """The objects that name ``owner`` as one of their owners, in a fixed order."""
        found = []
        for table_name, key in sorted(self._places.get(owner.uid, ())):
            record = self._backend.storage.table(table_name).get(key)
            if record is not None:
                found.append((self._backend.registry.named(table_name), record))
        return found

    def orphaned_by(self, owner: Record) -> list[tuple[Kind, Record]]:
        """The objects that have no owner left now that ``owner`` is gone."""
        return [(kind, record) for kind, record in self.of(owner) if not any(self._owners(record))]

    def waiting_owners(self, gone: Record) -> list[tuple[Kind, Record]]:
        """Owners in foreground deletion that waited for ``gone`` only."""
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
        """Make the dependents of ``owner`` independent of it."""
        for kind, record in self.of(owner):
            document = record.load()
            metadata = document["metadata"]
            metadata["ownerReferences"] = [one for one in metadata["ownerReferences"] if one.get("uid") != owner.uid]
            self._backend.put(kind, document)

    def _owners(self, record: Record) -> list[tuple[Kind, Record] | None]:
        """The owners an object names, ``None`` for each that does not exist."""
        if not record.owners:
            return []
        return [
            self._owner(one, record.key.namespace) for one in metadata_of(record.load()).get("ownerReferences") or ()
        ]

    def _owner(self, reference: JsonObject, namespace: str) -> tuple[Kind, Record] | None:
        try:
            kind, _ = self._backend.registry.of_object(reference["apiVersion"], reference["kind"])
        except ApiError:  # a kind that is not served cannot have an owner
            return None
        owner = self._backend.table(kind).get(ObjectKey(namespace if kind.namespaced else "", reference["name"]))
        return (kind, owner) if owner is not None and owner.uid == reference["uid"] else None

    def _index(self, table: Table, change: Change) -> None:
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
