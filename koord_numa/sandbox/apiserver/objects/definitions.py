"""Serves the kinds of stored CustomResourceDefinitions: follows that table and keeps registry and schemas in step."""

from typing import Final

from koord_numa.sandbox.apiserver.objects.crds import kind_of, versions_of
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.records import DELETED, Change
from koord_numa.sandbox.apiserver.store.storage import Table

DEFINITIONS: Final = "customresourcedefinitions.apiextensions.k8s.io"


class Definitions:
    """A kind is served from the moment its definition is stored until it is removed."""

    def __init__(self, backend: Backend) -> None:
        """Follows the definitions from now on."""
        self._backend = backend
        backend.storage.indexers.append(self._index)

    def _index(self, table: Table, change: Change) -> None:
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
