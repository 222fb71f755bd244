"""The forms in which objects, lists and watch events are sent: plain, as a Table for ``kubectl get``, or metadata only."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dumps
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.columns import Column, columns_of
from koord_numa.sandbox.apiserver.store.reader import Page
from koord_numa.sandbox.apiserver.store.records import Change, Record
from koord_numa.sandbox.apiserver.store.registry import Target

_META: Final = "meta.k8s.io/v1"


class Form(Enum):
    """What the client asked for with its Accept header."""

    PLAIN = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


def accepted_form(accept: str) -> Form:
    """The first form in an Accept header that this server can produce."""
    # Most requests ask for no other form, and need no parsing.
    for choice in accept.split(",") if "as=" in accept else ():
        parameters = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        try:
            return Form(parameters.get("as", ""))
        except ValueError:
            continue
    return Form.PLAIN


@dataclass(frozen=True, slots=True)
class Presentation:
    """How one request wants its objects; ``include`` says what a table row carries: None, Metadata or Object."""

    target: Target
    form: Form = Form.PLAIN
    columns: tuple[Column, ...] = ()
    include: str = "Metadata"

    def object(self, record: Record) -> bytes:
        """One object."""
        if self.form is Form.PLAIN:
            return record.view(self.target.api_version)
        document = record.load_as(self.target.api_version)
        if self.form is Form.TABLE:
            revision = {"resourceVersion": str(record.revision)}
            return dumps(self._table([self._row(document)], revision))
        return dumps(_metadata_only(document))

    def page(self, page: Page) -> bytes:
        """A list or a part of one."""
        metadata: JsonObject = {"resourceVersion": str(page.revision)}
        if page.token:
            metadata["continue"] = page.token
            if page.remaining:
                metadata["remainingItemCount"] = page.remaining
        version = self.target.api_version
        # Joined of bytes that are ready: a list of thousands is not parsed to be sent.
        if self.form is Form.PLAIN:
            head = {"kind": self.target.kind.list_kind, "apiVersion": version, "metadata": metadata}
            return b'%b,"items":[%b]}' % (
                dumps(head)[:-1],
                b",".join([record.view(version) for record in page.records]),
            )
        documents = [record.load_as(version) for record in page.records]
        if self.form is Form.TABLE:
            return dumps(self._table([self._row(document) for document in documents], metadata))
        items = [_metadata_only(document) for document in documents]
        return dumps({"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": metadata, "items": items})

    def event(self, kind: str, change: Change) -> bytes:
        """The line of a watch answer for a change."""
        if self.form is Form.PLAIN:
            return change.line(kind, self.target.api_version)
        return self.added(kind, change.subject(kind))

    def added(self, kind: str, record: Record) -> bytes:
        """The line of a watch answer for an object."""
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), self.object(record))

    def bookmark(self, revision: int, annotations: JsonObject | None = None) -> bytes:
        """The line that tells a watcher how far it has come."""
        metadata: JsonObject = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        marker: JsonObject = {
            "kind": self.target.kind.kind,
            "apiVersion": self.target.api_version,
            "metadata": metadata,
        }
        # In the form of the events: kubectl decodes every line of a watch as what it asked for.
        if self.form is Form.TABLE:
            marker = self._table(
                [{"cells": ["" for _ in self.columns], "object": _metadata_only(marker)}],
                {"resourceVersion": str(revision)},
            )
        elif self.form is not Form.PLAIN:
            marker = _metadata_only(marker)
        return dumps({"type": "BOOKMARK", "object": marker}) + b"\n"

    def _table(self, rows: Sequence[JsonObject], metadata: JsonObject) -> JsonObject:
        definitions = [column.definition() for column in self.columns]
        return {
            "kind": "Table",
            "apiVersion": _META,
            "metadata": metadata,
            "columnDefinitions": definitions,
            "rows": rows,
        }

    def _row(self, document: JsonObject) -> JsonObject:
        row: JsonObject = {"cells": [column.cell(document) for column in self.columns]}
        if self.include != "None":
            row["object"] = document if self.include == "Object" else _metadata_only(document)
        return row


def present(backend: Backend, target: Target, accept: str, include: str) -> Presentation:
    """The presentation that a request's Accept header asks for."""
    form = accepted_form(accept)
    if form is not Form.TABLE:
        return Presentation(target, form)
    versions = backend.custom.get(target.kind.qualified)
    columns = columns_of(target.kind, versions[target.version].columns if versions else None)
    return Presentation(target, form, columns, include or "Metadata")


def _metadata_only(document: JsonObject) -> JsonObject:
    metadata: Any = document.get("metadata")
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": metadata}
