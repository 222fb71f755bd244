"""OpenAPI documents: enough for ``kubectl apply`` to validate on the server and for ``kubectl explain`` of custom kinds.

Built-in kinds are described as open objects: their exact schemas are not repeated here.
"""

from typing import Any, Final

import xxhash

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dumps
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.serving.discovery import VERSION
from koord_numa.sandbox.apiserver.store.backend import Backend

_GVK: Final = "x-kubernetes-group-version-kind"
_INFO: Final = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
_PATCHES: Final = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")


def group_path(group: str, version: str) -> str:
    """How the index names a group version: ``api/v1``, ``apis/policy/v1``."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index(backend: Backend) -> JsonObject:
    """``/openapi/v3``: the documents there are, each with a hash of its content for caches."""
    paths = {}
    for group, versions in backend.registry.groups().items():
        for version in versions:
            digest = xxhash.xxh3_128_hexdigest(dumps(document(backend, group, version)))
            paths[group_path(group, version)] = {
                "serverRelativeURL": f"/openapi/v3/{group_path(group, version)}?hash={digest}"
            }
    return {"paths": paths}


def document(backend: Backend, group: str, version: str) -> JsonObject | None:
    """``/openapi/v3/apis/<group>/<version>``; nothing when there is no such version."""
    kinds = [kind for kind in backend.registry if kind.group == group and version in kind.versions]
    if not kinds:
        return None
    paths: JsonObject = {}
    schemas: JsonObject = {}
    for kind in kinds:
        collection = (
            f"/{group_path(group, version)}/" + ("namespaces/{namespace}/" if kind.namespaced else "") + kind.plural
        )
        name = _schema_name(kind, version)
        schemas[name] = _schema(backend, kind, version)
        if "patch" in kind.verbs:
            paths[f"{collection}/{{name}}"] = {
                "get": _operation("get", kind, version),
                "patch": _operation("patch", kind, version),
                "put": _operation("put", kind, version),
            }
        paths[collection] = {"get": _operation("list", kind, version), "post": _operation("post", kind, version)}
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def swagger() -> JsonObject:
    """``/openapi/v2``: an empty document; clients of this server's version use v3."""
    return {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": {}}


def _schema_name(kind: Kind, version: str) -> str:
    reverse = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{reverse}.{version}.{kind.kind}"


def _schema(backend: Backend, kind: Kind, version: str) -> JsonObject:
    identity = {"group": kind.group, "version": version, "kind": kind.kind}
    custom = backend.custom.get(kind.qualified)
    schema: JsonObject = (
        dict(custom[version].schema) if custom else {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    )
    standard: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": "The versioned schema of this representation of an object."},
        "kind": {"type": "string", "description": "The kind of this object."},
        "metadata": {"type": "object", "description": "Standard object metadata."},
    }
    schema["properties"] = {**(schema.get("properties") or {}), **standard}
    schema[_GVK] = [identity]
    return schema


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
