"""The HTTP side of the resource verbs: from request to answer. What the verbs mean is in the modules it calls."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    bad_request,
    invalid_revision,
    method_not_allowed,
    no_such_path,
    too_large,
    unsupported_media_type,
)
from koord_numa.sandbox.apiserver.faults import Faults
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, loads, metadata_of
from koord_numa.sandbox.apiserver.objects.kinds import CREATE_ONLY, Kind
from koord_numa.sandbox.apiserver.objects.manifests import parse_yaml
from koord_numa.sandbox.apiserver.rules.patches import json_patch, merge_patch, strategic_merge_patch
from koord_numa.sandbox.apiserver.rules.selectors import Selection, parse_fields, parse_labels
from koord_numa.sandbox.apiserver.serving import answers, protobuf, reviews
from koord_numa.sandbox.apiserver.serving.presentation import Presentation, present
from koord_numa.sandbox.apiserver.serving.protobuf import parse_protobuf
from koord_numa.sandbox.apiserver.serving.request_log import Asked
from koord_numa.sandbox.apiserver.serving.routes import Parameters
from koord_numa.sandbox.apiserver.store.backend import (
    Conflicts,
    DryRun,
    FieldValidation,
    Outcome,
    WriteOptions,
    Written,
)
from koord_numa.sandbox.apiserver.store.cluster import Cluster
from koord_numa.sandbox.apiserver.store.deletion import DeleteOptions
from koord_numa.sandbox.apiserver.store.registry import Target
from koord_numa.wire.parsing import is_nested_deeper

DEEPEST: Final = 250
"""Levels of nesting in an object: the encoder (orjson) stops at 254. The API server of Kubernetes takes 10,000."""

_APPLY: Final = "application/apply-patch+yaml"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_PATCHES: Final = ("application/json-patch+json", "application/merge-patch+json", _STRATEGIC, _APPLY)

# A deletion is answered with the object itself for these, as their ReturnDeletedObject says in pkg/registry/core.
_RETURNED: Final = (
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourcequotas",
    "serviceaccounts",
    "services",
)


class Call:
    """One request about a resource, with what it was parsed into."""

    def __init__(self, request: web.BaseRequest, asked: Asked, parameters: Parameters, kind: Kind) -> None:
        """``kind`` is the served kind of the path."""
        self.request = request
        self.asked = asked
        self.parameters = parameters
        self.target = Target(kind, asked.version, asked.namespace, asked.name, asked.subresource)

    async def document(self) -> JsonObject:
        """The object in the body, JSON or YAML. Raises 400 and 415."""
        raw = await self.request.read()
        try:
            found = _parsed(raw, self.request.content_type)
        except ValueError as problem:
            raise bad_request(f"the object provided is unrecognized: {problem}") from problem
        if not isinstance(found, dict):
            raise bad_request("the object provided is unrecognized: expected an object")
        return found

    def write_options(self) -> WriteOptions:
        """How a write is meant, from the query. Raises 400 and 422."""
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
            DryRun(dry_run),
            self.parameters.text("fieldManager"),
            FieldValidation(validation),
            conflicts,
            validation_asked=bool(self.parameters.text("fieldValidation")),
        )

    def selection(self) -> Selection:
        """Which objects a list, watch or collection is about. Raises 400."""
        labels, fields = self.parameters.text("labelSelector"), self.parameters.text("fieldSelector")
        if self.asked.name:  # a watch of one object
            fields = f"metadata.name={self.asked.name}"
        return Selection(
            self.asked.namespace,
            parse_labels(labels) if labels else (),
            parse_fields(fields, self.target.kind, labels) if fields else (),
        )


class ResourceApi:
    """Answers requests about resources, except watches."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        """``faults`` decide what reviews of permissions say."""
        self._cluster = cluster
        self._faults = faults
        self._verbs: Mapping[str, Callable[[Call], Awaitable[web.Response]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def call(self, request: web.BaseRequest, asked: Asked, parameters: Parameters) -> Call:
        """What a request is about. Raises 404 for unknown resources and subresources and 405 for verbs they lack."""
        kind = self._cluster.backend.registry.served(asked.group, asked.version, asked.resource)
        if asked.subresource and asked.subresource not in kind.subresources:
            raise no_such_path()
        if kind.verbs is CREATE_ONLY and asked.verb != "create":
            raise method_not_allowed(request.method)
        if asked.verb not in self._verbs and asked.verb != "watch":
            raise method_not_allowed(request.method)
        if asked.namespace and not kind.namespaced:
            raise no_such_path()
        return Call(request, asked, parameters, kind)

    def presentation(self, call: Call) -> Presentation:
        """How the client wants objects."""
        accept = call.request.headers.get("Accept", "")
        return present(self._cluster.backend, call.target, accept, call.parameters.text("includeObject"))

    async def answer(self, call: Call) -> web.Response:
        """Serve the request. Raises ``ApiError`` for what the real server refuses."""
        return await self._verbs[call.asked.verb](call)

    async def _get(self, call: Call) -> web.Response:
        record = self._cluster.backend.get(call.target)
        return answers.body(self.presentation(call).object(record))

    async def _list(self, call: Call) -> web.Response:
        limit, token = call.parameters.number("limit"), call.parameters.text("continue")
        self._check_revision(call, token)
        if token:
            page = self._cluster.reader.next_page(token, limit)
        else:
            page = self._cluster.reader.first_page(call.target.kind, call.selection(), limit)
        return answers.body(self.presentation(call).page(page))

    def _check_revision(self, call: Call, token: str) -> None:
        """Raises 400 for a revision that cannot be asked for and the 504 of one that is not reached in time."""
        text = call.parameters.text("resourceVersion")
        if token and text not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        if text and not text.isdigit():
            raise bad_request(invalid_revision(text))
        current = self._cluster.backend.storage.revision
        if int(text or 0) > current:
            raise too_large(int(text), current)

    async def _create(self, call: Call) -> web.Response:
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
            return answers.success(201)
        if target.kind.verbs is CREATE_ONLY:
            about = reviews.answer(target.kind, document, self._faults, self._cluster.authorizer, call.asked.user)
            return answers.document(about, 201)
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
        return answers.success(201)

    async def _update(self, call: Call) -> web.Response:
        return self._written(
            call, self._cluster.writer.update(call.target, await call.document(), call.write_options())
        )

    async def _patch(self, call: Call) -> web.Response:
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

    async def _delete(self, call: Call) -> web.Response:
        options = await _delete_options(call)
        target = call.target
        if target.subresource:
            raise method_not_allowed("DELETE")
        written = self._cluster.deleter.delete(target, options)
        if written.outcome is Outcome.REMOVED and target.kind.qualified not in _RETURNED:
            return answers.success(200, target.kind, target.name, written.record.uid)
        return answers.body(self.presentation(call).object(written.record))

    async def _delete_collection(self, call: Call) -> web.Response:
        if "deletecollection" not in call.target.kind.verbs:
            raise method_not_allowed("DELETE")
        options = await _delete_options(call)
        page = self._cluster.reader.first_page(call.target.kind, call.selection(), call.parameters.number("limit"))
        self._cluster.deleter.delete_all(call.target.kind, page.records, options)
        return answers.body(self.presentation(call).page(page))

    def _written(self, call: Call, written: Written) -> web.Response:
        status = 201 if written.outcome is Outcome.CREATED else 200
        return answers.body(self.presentation(call).object(written.record), status, written.warnings)


def _parsed(raw: bytes, content_type: str) -> Any:
    """The value of a body. Raises ``ValueError`` for what is malformed and 415 for what is in an unknown format."""
    if content_type in ("application/yaml", _APPLY):
        return _shallow(parse_yaml(raw))
    if content_type in ("application/json", "application/octet-stream", "text/plain"):
        return _shallow(loads(raw))
    found = parse_protobuf(raw) if content_type == protobuf.CONTENT_TYPE else None
    if found is None:
        raise unsupported_media_type(content_type, ("application/json", "application/yaml"))
    return found


def _shallow(value: Any) -> Any:
    """The value, if it can be written as well, inside of a list or an event. Raises 400."""
    if is_nested_deeper(value, DEEPEST):
        raise bad_request(f"the object provided is nested more than {DEEPEST} levels deep")
    return value


def _change(content_type: str, patch: Any) -> Callable[[JsonObject], JsonObject]:
    """What a patch does to a document."""
    if content_type == "application/json-patch+json":
        return partial(_swapped, json_patch, patch)
    if content_type == _STRATEGIC:
        return partial(_swapped, strategic_merge_patch, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch must be an object")
    return partial(_swapped, merge_patch, patch)


def _swapped(change: Callable[[JsonObject, Any], Any], patch: Any, document: JsonObject) -> Any:
    return _shallow(change(document, patch))


async def _delete_options(call: Call) -> DeleteOptions:
    """From the body, or from the query where there is none."""
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
