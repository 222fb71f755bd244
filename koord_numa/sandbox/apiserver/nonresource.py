"""Non-resource paths: health, version, discovery and OpenAPI documents."""

from collections.abc import Iterable
from typing import Final

import xxhash
from aiohttp import web

from koord_numa.sandbox.apiserver import http
from koord_numa.sandbox.apiserver.backend import Backend, Registry
from koord_numa.sandbox.apiserver.documents import JsonObject, dumps
from koord_numa.sandbox.apiserver.errors import no_such_api, no_such_path
from koord_numa.sandbox.apiserver.kinds import Kind, schema_name, with_references

VERSION: Final[JsonObject] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

_READ_WRITE: Final = ["get", "patch", "update"]
_CREATE: Final = ["create"]
# subresource → (verbs, group, version, kind), with empty fields where they equal the resource
_SUBRESOURCES: Final = {
    "binding": (_CREATE, "", "v1", "Binding"),
    "eviction": (_CREATE, "policy", "v1", "Eviction"),
    "finalize": (["update"], "", "", ""),
    "log": (["get"], "", "", ""),
    "portforward": (["create", "get"], "", "v1", "PodPortForwardOptions"),
}


def core_versions(address: str) -> JsonObject:
    """Return the document of ``/api``."""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def group_list(registry: Registry) -> JsonObject:
    """Return the document of ``/apis``."""
    groups = [group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(name: str, versions: Iterable[str]) -> JsonObject:
    """Return an APIGroup without ``kind`` and ``apiVersion``, which a standalone document also needs."""
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> JsonObject | None:
    """Return the document of ``/api/v1`` or ``/apis/<group>/<version>``, or ``None`` for an unknown version."""
    kinds = [kind for kind in registry if kind.group == group_name and version in kind.versions]
    if not kinds:
        return None
    resources = [entry for kind in kinds for entry in _resources(kind, version)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version(version),
        "resources": resources,
    }


def _resources(kind: Kind, version: str) -> Iterable[JsonObject]:
    entry: JsonObject = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "storageVersionHash": "",
    }
    if kind.custom:
        entry |= {"group": kind.group, "version": version}
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name in kind.subresources:
        verbs, group_name, sub_version, sub_kind = _SUBRESOURCES.get(name, (_READ_WRITE, "", "", ""))
        sub: JsonObject = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        sub |= {"kind": sub_kind or kind.kind, "verbs": verbs}
        if group_name:
            sub |= {"group": group_name, "version": sub_version}
        yield sub


_GVK: Final = "x-kubernetes-group-version-kind"
_INFO: Final = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
_STANDARD: Final[JsonObject] = {
    "apiVersion": {"type": "string", "description": "The versioned schema of this representation of an object."},
    "kind": {"type": "string", "description": "The kind of this object."},
    "metadata": {"type": "object", "description": "Standard object metadata."},
}
_PATCHES: Final = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")


def group_path(group: str, version: str) -> str:
    """Return the path of a group version in the index: ``api/v1``, ``apis/policy/v1``."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index(backend: Backend) -> JsonObject:
    """Return the document of ``/openapi/v3``: the paths of all documents, with content hashes for caches."""
    paths = {}
    for group, versions in backend.registry.groups().items():
        for version in versions:
            digest = xxhash.xxh3_128_hexdigest(dumps(document(backend, group, version)))
            paths[group_path(group, version)] = {
                "serverRelativeURL": f"/openapi/v3/{group_path(group, version)}?hash={digest}"
            }
    return {"paths": paths}


def document(backend: Backend, group: str, version: str) -> JsonObject | None:
    """Return the document of ``/openapi/v3/apis/<group>/<version>``, or ``None`` for an unknown version."""
    kinds = [kind for kind in backend.registry if kind.group == group and version in kind.versions]
    if not kinds:
        return None
    paths: JsonObject = {}
    schemas: JsonObject = {}
    for kind in kinds:
        collection = (
            f"/{group_path(group, version)}/" + ("namespaces/{namespace}/" if kind.namespaced else "") + kind.plural
        )
        schemas |= _schemas(backend, kind, version)
        if "patch" in kind.verbs:
            paths[f"{collection}/{{name}}"] = {
                "get": _operation("get", kind, version),
                "patch": _operation("patch", kind, version),
                "put": _operation("put", kind, version),
            }
        paths[collection] = {"get": _operation("list", kind, version), "post": _operation("post", kind, version)}
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def swagger() -> JsonObject:
    """Return the document of ``/openapi/v2``. It is empty because clients of this server's version use v3."""
    return {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": {}}


def _schema_name(kind: Kind, version: str) -> str:
    reverse = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{reverse}.{version}.{kind.kind}"


def _schemas(backend: Backend, kind: Kind, version: str) -> dict[str, JsonObject]:
    """Return the schema of a kind by its name, with the schemas of all types that it contains."""
    custom = backend.custom.get(kind.qualified)
    known = "" if custom else schema_name(kind.group, version, kind.kind)
    found: dict[str, JsonObject] = with_references([known]) if known else {}
    if known:
        own = dict(found.pop(known))
    elif custom:
        own = dict(custom[version].schema)
    else:
        own = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    own["properties"] = {**(own.get("properties") or {}), **({} if known else _STANDARD)}
    own[_GVK] = [{"group": kind.group, "version": version, "kind": kind.kind}]
    return {**found, _schema_name(kind, version): own}


def _operation(action: str, kind: Kind, version: str) -> JsonObject:
    reference = {"$ref": f"#/components/schemas/{_schema_name(kind, version)}"}
    operation: JsonObject = {
        "operationId": f"{action}{kind.group}{version}{kind.kind}",
        "x-kubernetes-action": action,
        _GVK: {"group": kind.group, "version": version, "kind": kind.kind},
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
    if action in ("patch", "put", "post"):
        names = ("dryRun", "fieldManager", "fieldValidation", *(("force",) if action == "patch" else ()))
        operation["parameters"] = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
        types = _PATCHES if action == "patch" else ("application/json",)
        operation["requestBody"] = {"content": {name: {"schema": {"type": "object"}} for name in types}}
    return operation


_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_EMPTY_PROTOBUF: Final = b"\x0a\x032.0"  # a document with only its version: openapi.v2.Document{swagger: "2.0"}


def answer(request: web.BaseRequest, path: str, backend: Backend) -> web.Response:
    """Serve a non-resource path. Raises ``ApiError`` with code 404 for an unknown path."""
    if path in _HEALTH or path.startswith(tuple(f"{health}/" for health in _HEALTH)):
        return http.text("ok")
    if path == "/version":
        return http.json_answer(VERSION)
    parts = [part for part in path.split("/") if part]
    if parts[:1] in (["api"], ["apis"]):
        return _discover(request, parts, backend)
    if parts[:1] == ["openapi"]:
        return _openapi(request, parts[1:], backend)
    if not parts:
        return http.json_answer(
            {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        )
    raise no_such_api()


def _discover(request: web.BaseRequest, parts: list[str], backend: Backend) -> web.Response:
    registry = backend.registry
    if len(parts) == 1:
        # Clients that prefer one aggregated document accept these lists, too.
        if parts[0] == "api":
            return http.json_answer(core_versions(request.host))
        return http.json_answer(group_list(registry))
    found: JsonObject | None = None
    if parts[0] == "api" and len(parts) == 2:
        found = resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        versions = registry.groups().get(parts[1])
        found = {"kind": "APIGroup", "apiVersion": "v1", **group(parts[1], versions)} if versions else None
    elif parts[0] == "apis" and len(parts) == 3:
        found = resource_list(registry, parts[1], parts[2])
    if found is None:
        raise no_such_api() if parts[0] == "apis" else no_such_path()
    return http.json_answer(found)


def _openapi(request: web.BaseRequest, parts: list[str], backend: Backend) -> web.Response:
    if parts == ["v2"]:
        accept = request.headers.get("Accept", "")
        if "protobuf" in accept and "json" not in accept:
            return web.Response(body=_EMPTY_PROTOBUF, headers={"Content-Type": _PROTOBUF})
        return http.json_answer(swagger())
    if parts == ["v3"]:
        return http.json_answer(index(backend))
    found: JsonObject | None = None
    if parts[:2] == ["v3", "api"] and len(parts) == 3:
        found = document(backend, "", parts[2])
    elif parts[:2] == ["v3", "apis"] and len(parts) == 4:
        found = document(backend, parts[2], parts[3])
    if found is None:
        raise no_such_path()
    answer = http.body(dumps(found))
    answer.headers["Cache-Control"] = "public, immutable" if request.query_string else "no-cache"
    return answer
