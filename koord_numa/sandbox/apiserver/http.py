"""The HTTP interface of the resource verbs: parsing of requests and rendering of responses."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from koord_numa.sandbox.apiserver import protobuf
from koord_numa.sandbox.apiserver.authorization import answer_review
from koord_numa.sandbox.apiserver.backend import (
    Backend,
    Conflicts,
    FieldValidation,
    Page,
    Target,
    WriteMode,
    WriteOptions,
    WriteOutcome,
    Written,
)
from koord_numa.sandbox.apiserver.columns import Column, columns_of
from koord_numa.sandbox.apiserver.deletion import DeleteOptions
from koord_numa.sandbox.apiserver.direct import Cluster
from koord_numa.sandbox.apiserver.documents import JsonObject, dumps, loads, metadata_of, parse_yaml
from koord_numa.sandbox.apiserver.errors import (
    NO_SUCH_API,
    ApiError,
    bad_request,
    invalid_revision,
    method_not_allowed,
    no_such_path,
    too_large,
    unsupported_media_type,
)
from koord_numa.sandbox.apiserver.faults import Asked, Faults
from koord_numa.sandbox.apiserver.kinds import CREATE_ONLY, Kind
from koord_numa.sandbox.apiserver.patches import json_patch, merge_patch, strategic_merge_patch
from koord_numa.sandbox.apiserver.protobuf import parse_protobuf
from koord_numa.sandbox.apiserver.selectors import Selection, parse_fields, parse_labels
from koord_numa.sandbox.apiserver.storage import Record, TableChange
from koord_numa.wire import is_nested_deeper

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_TRUE: Final = ("1", "true", "True", "t", "T", "TRUE")
_NAMESPACE_PARTS: Final = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Parameters:
    """The query parameters of a request."""

    values: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a parameter as text, or "" when it is absent."""
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        """Report whether a boolean parameter is true."""
        return self.values.get(name, "") in _TRUE

    def seconds(self, name: str) -> float | None:
        """Return a duration in Go syntax (``ms`` or ``s``) in seconds, or ``None`` when it is absent. Raises 400."""
        text = self.values.get(name, "")
        if not text:
            return None
        found = _DURATION.fullmatch(text)
        if found is None:
            raise bad_request(f'invalid timeout specified in the request URL - "{text}"')
        return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)

    def number(self, name: str) -> int:
        """Return a non-negative integer, or 0 when it is absent. Raises 400."""
        text = self.values.get(name, "")
        if not text:
            return 0
        try:
            number = int(text)
        except ValueError as problem:
            raise bad_request(f'{name}: Invalid value: "{text}": must be a whole number') from problem
        if number < 0:
            raise bad_request(f"{name}: Invalid value: {number}: must be greater than or equal to 0")
        return number


def parse(method: str, target: str) -> tuple[Asked, Parameters]:
    """Parse a request line. ``resource`` stays empty for non-resource paths such as ``/version``."""
    path, _, query = target.partition("?")
    parameters = Parameters(dict(parse_qsl(query, keep_blank_values=True))) if query else Parameters()
    parts = [unquote(part) if "%" in part else part for part in path.split("/") if part]
    asked = Asked(method.lower(), path=path, query=query)
    if len(parts) > 2 and parts[0] == "api":
        _resource(asked, "", parts[1], parts[2:])
    elif len(parts) > 3 and parts[0] == "apis":
        _resource(asked, parts[1], parts[2], parts[3:])
    if asked.resource:
        asked.verb = _verb(method, asked, parameters)
        asked.path = ""
    return asked, parameters


def _resource(asked: Asked, group: str, version: str, parts: list[str]) -> None:
    if parts[0] == "watch" and len(parts) > 1:  # deprecated form: /api/v1/watch/pods
        asked.verb = "watch"
        parts = parts[1:]
    if parts[0] == "namespaces" and len(parts) > 2 and not (len(parts) == 3 and parts[2] in _NAMESPACE_PARTS):
        asked.namespace = parts[1]
        parts = parts[2:]
    asked.group, asked.version, asked.resource = group, version, parts[0]
    asked.name = parts[1] if len(parts) > 1 else ""
    asked.subresource = "/".join(parts[2:])


def _verb(method: str, asked: Asked, parameters: Parameters) -> str:
    if method in ("GET", "HEAD"):
        if asked.verb == "watch" or parameters.flag("watch"):
            return "watch"
        return "get" if asked.name else "list"
    if method == "DELETE":
        return "delete" if asked.name else "deletecollection"
    return _VERBS.get(method, method.lower())


JSON: Final = "application/json"


def body(content: bytes, status: int = 200, warnings: Sequence[str] = ()) -> web.Response:
    """Return a response with a JSON text and warnings."""
    answer = web.Response(body=content, status=status, headers={"Content-Type": JSON})
    for warning in warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        answer.headers.add("Warning", f'299 - "{quoted}"')
    return answer


def json_answer(content: JsonObject, status: int = 200) -> web.Response:
    """Return a response with a JSON document."""
    return body(dumps(content), status)


def text(content: str) -> web.Response:
    """Return a response with plain text."""
    return web.Response(text=content)


def success(status: int = 200, kind: Kind | None = None, name: str = "", uid: str = "") -> web.Response:
    """Return a response with a Status of success and the details of its object."""
    content: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if kind is not None:
        content["details"] = {
            "name": name,
            **({"group": kind.group} if kind.group else {}),
            "kind": kind.plural,
            "uid": uid,
        }
    if status != 200:
        content["code"] = status
    return json_answer(content, status)


def refusal(error: ApiError) -> web.Response:
    """Return the response for an error: its Status, or plain text for a path outside every API."""
    if error.message == NO_SUCH_API:
        return web.Response(text=f"{NO_SUCH_API}\n", status=error.code)
    answer = json_answer(error.status(), error.code)
    retry_after = error.details.get("retryAfterSeconds")
    if retry_after:
        answer.headers["Retry-After"] = str(retry_after)
    return answer


_META: Final = "meta.k8s.io/v1"


class Form(Enum):
    """The representation that the Accept header requests."""

    PLAIN = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


def accepted_form(accept: str) -> Form:
    """Return the first representation in an Accept header that this server supports."""
    # Fast path: most requests select no representation.
    for choice in accept.split(",") if "as=" in accept else ():
        parameters = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        try:
            return Form(parameters.get("as", ""))
        except ValueError:
            continue
    return Form.PLAIN


@dataclass(frozen=True, slots=True)
class Presentation:
    """The representation of objects in a response.

    ``include`` is the object in a table row: None, Metadata or Object.
    """

    target: Target
    form: Form = Form.PLAIN
    columns: tuple[Column, ...] = ()
    include: str = "Metadata"

    def object(self, record: Record) -> bytes:
        """Return an object as JSON."""
        if self.form is Form.PLAIN:
            return record.view(self.target.api_version)
        document = record.load_as(self.target.api_version)
        if self.form is Form.TABLE:
            revision = {"resourceVersion": str(record.revision)}
            return dumps(self._table([self._row(document)], revision))
        return dumps(_metadata_only(document))

    def page(self, page: Page) -> bytes:
        """Return a list, or a page of a list, as JSON."""
        metadata: JsonObject = {"resourceVersion": str(page.revision)}
        if page.token:
            metadata["continue"] = page.token
            if page.remaining:
                metadata["remainingItemCount"] = page.remaining
        version = self.target.api_version
        # Joins serialized objects: a list of thousands of objects is not parsed for the response.
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

    def event(self, kind: str, change: TableChange) -> bytes:
        """Return the watch line for a change."""
        if self.form is Form.PLAIN:
            return change.line(kind, self.target.api_version)
        return self.added(kind, change.subject(kind))

    def added(self, kind: str, record: Record) -> bytes:
        """Return the watch line for an object."""
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), self.object(record))

    def bookmark(self, revision: int, annotations: JsonObject | None = None) -> bytes:
        """Return the watch line of a bookmark at a revision."""
        metadata: JsonObject = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        marker: JsonObject = {
            "kind": self.target.kind.kind,
            "apiVersion": self.target.api_version,
            "metadata": metadata,
        }
        # Same representation as the events: kubectl decodes every line of a watch as the requested type.
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
    """Return the presentation that the Accept header of a request selects."""
    form = accepted_form(accept)
    if form is not Form.TABLE:
        return Presentation(target, form)
    versions = backend.custom.get(target.kind.qualified)
    columns = columns_of(target.kind, versions[target.version].columns if versions else None)
    return Presentation(target, form, columns, include or "Metadata")


def _metadata_only(document: JsonObject) -> JsonObject:
    metadata: Any = document.get("metadata")
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": metadata}


DEEPEST: Final = 250
"""Maximum nesting levels of an object: the encoder (orjson) supports 254. The Kubernetes API server accepts 10,000."""

_APPLY: Final = "application/apply-patch+yaml"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_PATCHES: Final = ("application/json-patch+json", "application/merge-patch+json", _STRATEGIC, _APPLY)

# Kinds whose deletion returns the deleted object (ReturnDeletedObject in pkg/registry/core).
_RETURNED: Final = (
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourcequotas",
    "serviceaccounts",
    "services",
)


class ResourceCall:
    """A request for a resource with its parsed target and parameters."""

    def __init__(self, request: web.BaseRequest, asked: Asked, parameters: Parameters, kind: Kind) -> None:
        """Create the call. ``kind`` is the served kind of the path."""
        self.request = request
        self.asked = asked
        self.parameters = parameters
        self.target = Target(kind, asked.version, asked.namespace, asked.name, asked.subresource)

    async def document(self) -> JsonObject:
        """Return the object in the body. Raises ``ApiError`` with code 400 or 415."""
        raw = await self.request.read()
        try:
            found = _parsed(raw, self.request.content_type)
        except ValueError as problem:
            raise bad_request(f"the object provided is unrecognized: {problem}") from problem
        if not isinstance(found, dict):
            raise bad_request("the object provided is unrecognized: expected an object")
        return found

    def write_options(self) -> WriteOptions:
        """Return the write options from the query. Raises ``ApiError`` with code 422."""
        dry_run, validation = self.parameters.text("dryRun"), self.parameters.text("fieldValidation") or "Warn"
        if dry_run not in ("", "All"):
            raise ApiError(422, "Invalid", f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
        if validation not in ("Ignore", "Warn", "Strict"):
            raise ApiError(
                422,
                "Invalid",
                f'fieldValidation: Unsupported value: "{validation}": supported values: "", "Ignore", "Strict", "Warn"',
            )
        conflicts = Conflicts.FORCE if self.parameters.flag("force") else Conflicts.REFUSE
        return WriteOptions(
            WriteMode(dry_run),
            self.parameters.text("fieldManager"),
            FieldValidation(validation),
            conflicts,
            validation_asked=bool(self.parameters.text("fieldValidation")),
        )

    def selection(self) -> Selection:
        """Return the selection of a list, watch or deletecollection. Raises ``ApiError`` with code 400."""
        labels, fields = self.parameters.text("labelSelector"), self.parameters.text("fieldSelector")
        if self.asked.name:  # watch of a single object
            fields = f"metadata.name={self.asked.name}"
        return Selection(
            self.asked.namespace,
            parse_labels(labels) if labels else (),
            parse_fields(fields, self.target.kind, labels) if fields else (),
        )


class ResourceApi:
    """Handler of all resource requests except watches."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        """Create the API. ``faults`` determine the results of access reviews."""
        self._cluster = cluster
        self._faults = faults
        self._verbs: Mapping[str, Callable[[ResourceCall], Awaitable[web.Response]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def call(self, request: web.BaseRequest, asked: Asked, parameters: Parameters) -> ResourceCall:
        """Return the parsed call. Raises 404 for unknown resources and subresources and 405 for unsupported verbs."""
        kind = self._cluster.backend.registry.served(asked.group, asked.version, asked.resource)
        if asked.subresource and asked.subresource not in kind.subresources:
            raise no_such_path()
        if kind.verbs is CREATE_ONLY and asked.verb != "create":
            raise method_not_allowed(request.method)
        if asked.verb not in self._verbs and asked.verb != "watch":
            raise method_not_allowed(request.method)
        if asked.namespace and not kind.namespaced:
            raise no_such_path()
        return ResourceCall(request, asked, parameters, kind)

    def presentation(self, call: ResourceCall) -> Presentation:
        """Return the presentation that the client requests."""
        accept = call.request.headers.get("Accept", "")
        return present(self._cluster.backend, call.target, accept, call.parameters.text("includeObject"))

    async def answer(self, call: ResourceCall) -> web.Response:
        """Serve the request. Raises ``ApiError`` where kube-apiserver rejects it."""
        return await self._verbs[call.asked.verb](call)

    async def _get(self, call: ResourceCall) -> web.Response:
        record = self._cluster.backend.get(call.target)
        return body(self.presentation(call).object(record))

    async def _list(self, call: ResourceCall) -> web.Response:
        limit, token = call.parameters.number("limit"), call.parameters.text("continue")
        self._check_revision(call, token)
        if token:
            page = self._cluster.reader.next_page(token, limit)
        else:
            page = self._cluster.reader.first_page(call.target.kind, call.selection(), limit)
        return body(self.presentation(call).page(page))

    def _check_revision(self, call: ResourceCall, token: str) -> None:
        """Raise 400 for an invalid resourceVersion and 504 for a revision that the server has not reached."""
        text = call.parameters.text("resourceVersion")
        if token and text not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        if text and not text.isdigit():
            raise bad_request(invalid_revision(text))
        current = self._cluster.backend.storage.revision
        if int(text or 0) > current:
            raise too_large(int(text), current)

    async def _create(self, call: ResourceCall) -> web.Response:
        options, target, document = call.write_options(), call.target, await call.document()
        if target.subresource:
            return self._create_subresource(target, document, options)
        if target.name:
            raise method_not_allowed("POST")
        if target.kind.kind == "Binding":
            pods = self._cluster.backend.registry.named("pods")
            self._cluster.pods.bind(
                Target(pods, "v1", target.namespace, metadata_of(document).get("name") or ""), document, options.dry_run
            )
            return success(201)
        if target.kind.verbs is CREATE_ONLY:
            about = answer_review(target.kind, document, self._faults, self._cluster.authorizer, call.asked.user)
            return json_answer(about, 201)
        if target.kind.namespaced and not target.namespace:
            raise method_not_allowed("POST")
        return self._written(call, self._cluster.writer.create(target, document, options))

    def _create_subresource(self, target: Target, document: JsonObject, options: WriteOptions) -> web.Response:
        if target.subresource == "binding":
            self._cluster.pods.bind(target, document, options.dry_run)
        elif target.subresource == "eviction":
            self._cluster.pods.evict(target, document)
        else:
            raise method_not_allowed("POST")
        return success(201)

    async def _update(self, call: ResourceCall) -> web.Response:
        return self._written(
            call, self._cluster.writer.update(call.target, await call.document(), call.write_options())
        )

    async def _patch(self, call: ResourceCall) -> web.Response:
        options, target = call.write_options(), call.target
        content_type = call.request.content_type
        if content_type == _APPLY:
            return self._written(call, self._cluster.writer.apply(target, await call.document(), options))
        accepted = [name for name in _PATCHES if name != _STRATEGIC] if target.kind.custom else _PATCHES
        if content_type not in accepted:
            raise unsupported_media_type(content_type, accepted)
        try:
            patch = _shallow(loads(await call.request.read()))
        except ValueError as problem:
            raise bad_request(f"error decoding patch: {problem}") from problem
        return self._written(call, self._cluster.writer.patch(target, _change(content_type, patch), options))

    async def _delete(self, call: ResourceCall) -> web.Response:
        options = await _delete_options(call)
        target = call.target
        if target.subresource:
            raise method_not_allowed("DELETE")
        written = self._cluster.deleter.delete(target, options)
        if written.outcome is WriteOutcome.REMOVED and target.kind.qualified not in _RETURNED:
            return success(200, target.kind, target.name, written.record.uid)
        return body(self.presentation(call).object(written.record))

    async def _delete_collection(self, call: ResourceCall) -> web.Response:
        if "deletecollection" not in call.target.kind.verbs:
            raise method_not_allowed("DELETE")
        options = await _delete_options(call)
        page = self._cluster.reader.first_page(call.target.kind, call.selection(), call.parameters.number("limit"))
        self._cluster.deleter.delete_all(call.target.kind, page.records, options)
        return body(self.presentation(call).page(page))

    def _written(self, call: ResourceCall, written: Written) -> web.Response:
        status = 201 if written.outcome is WriteOutcome.CREATED else 200
        return body(self.presentation(call).object(written.record), status, written.warnings)


def _parsed(raw: bytes, content_type: str) -> Any:
    """Return the value of a body. Raises ``ValueError`` for malformed content and 415 for an unknown format."""
    if content_type in ("application/yaml", _APPLY):
        return _shallow(parse_yaml(raw))
    if content_type in ("application/json", "application/octet-stream", "text/plain"):
        return _shallow(loads(raw))
    found = parse_protobuf(raw) if content_type == protobuf.CONTENT_TYPE else None
    if found is None:
        raise unsupported_media_type(content_type, ("application/json", "application/yaml"))
    return found


def _shallow(value: Any) -> Any:
    """Return the value if it can be serialized within a list or event.

    Raises 400 for values that are nested too deeply.
    """
    if is_nested_deeper(value, DEEPEST):
        raise bad_request(f"the object provided is nested more than {DEEPEST} levels deep")
    return value


def _change(content_type: str, patch: Any) -> Callable[[JsonObject], JsonObject]:
    """Return the function that applies a patch to a document."""
    if content_type == "application/json-patch+json":
        return partial(_swapped, json_patch, patch)
    if content_type == _STRATEGIC:
        return partial(_swapped, strategic_merge_patch, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch must be an object")
    return partial(_swapped, merge_patch, patch)


def _swapped(change: Callable[[JsonObject, Any], Any], patch: Any, document: JsonObject) -> Any:
    return _shallow(change(document, patch))


async def _delete_options(call: ResourceCall) -> DeleteOptions:
    """Return the delete options from the body. Query parameters apply where the body has none."""
    raw = await call.request.read()
    given: JsonObject = {}
    if raw.strip():
        given = await call.document()
    parameters = call.parameters
    if parameters.text("gracePeriodSeconds"):
        given.setdefault("gracePeriodSeconds", parameters.number("gracePeriodSeconds"))
    if parameters.text("propagationPolicy"):
        given.setdefault("propagationPolicy", parameters.text("propagationPolicy"))
    if parameters.text("dryRun"):
        given.setdefault("dryRun", [parameters.text("dryRun")])
    return DeleteOptions.parse(given)
