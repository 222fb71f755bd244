"""Paths that name no resource: health, version, discovery and OpenAPI."""

from typing import Final

from aiohttp import web

from koord_numa.sandbox.apiserver.errors import no_such_api, no_such_path
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dumps
from koord_numa.sandbox.apiserver.serving import answers, discovery, openapi
from koord_numa.sandbox.apiserver.store.backend import Backend

_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_EMPTY_PROTOBUF: Final = b"\x0a\x032.0"  # a document of nothing but its version: openapi.v2.Document{swagger: "2.0"}
_AGGREGATED: Final = "APIGroupDiscoveryList"


def answer(request: web.BaseRequest, path: str, backend: Backend) -> web.Response:
    """Serve such a path. Raises 404."""
    if path in _HEALTH or path.startswith(tuple(f"{health}/" for health in _HEALTH)):
        return answers.text("ok")
    if path == "/version":
        return answers.document(discovery.VERSION)
    parts = [part for part in path.split("/") if part]
    if parts[:1] in (["api"], ["apis"]):
        return _discover(request, parts, backend)
    if parts[:1] == ["openapi"]:
        return _openapi(request, parts[1:], backend)
    if not parts:
        return answers.document(
            {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        )
    raise no_such_api()


def _discover(request: web.BaseRequest, parts: list[str], backend: Backend) -> web.Response:
    registry = backend.registry
    if len(parts) == 1:
        version = _aggregated_version(request)
        if version:
            groups = [""] if parts[0] == "api" else [name for name in registry.groups() if name]
            answer = answers.document(discovery.aggregated(registry, groups, version))
            answer.headers["Content-Type"] = f"application/json;g=apidiscovery.k8s.io;v={version};as={_AGGREGATED}"
            return answer
        if parts[0] == "api":
            return answers.document(discovery.core_versions(request.host))
        return answers.document(discovery.group_list(registry))
    found: JsonObject | None = None
    if parts[0] == "api" and len(parts) == 2:
        found = discovery.resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        versions = registry.groups().get(parts[1])
        found = {"kind": "APIGroup", "apiVersion": "v1", **discovery.group(parts[1], versions)} if versions else None
    elif parts[0] == "apis" and len(parts) == 3:
        found = discovery.resource_list(registry, parts[1], parts[2])
    if found is None:
        raise no_such_api() if parts[0] == "apis" else no_such_path()
    return answers.document(found)


def _aggregated_version(request: web.BaseRequest) -> str:
    """The version of the aggregated discovery document that the client prefers, if it takes one."""
    for choice in request.headers.get("Accept", "").split(","):
        if f"as={_AGGREGATED}" in choice:
            return "v2beta1" if "v=v2beta1" in choice else "v2"
    return ""


def _openapi(request: web.BaseRequest, parts: list[str], backend: Backend) -> web.Response:
    if parts == ["v2"]:
        accept = request.headers.get("Accept", "")
        if "protobuf" in accept and "json" not in accept:
            return web.Response(body=_EMPTY_PROTOBUF, headers={"Content-Type": _PROTOBUF})
        return answers.document(openapi.swagger())
    if parts == ["v3"]:
        return answers.document(openapi.index(backend))
    found: JsonObject | None = None
    if parts[:2] == ["v3", "api"] and len(parts) == 3:
        found = openapi.document(backend, "", parts[2])
    elif parts[:2] == ["v3", "apis"] and len(parts) == 4:
        found = openapi.document(backend, parts[2], parts[3])
    if found is None:
        raise no_such_path()
    answer = answers.body(dumps(found))
    answer.headers["Cache-Control"] = "public, immutable" if request.query_string else "no-cache"
    return answer
