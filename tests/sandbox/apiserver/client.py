"""A raw HTTP client for the tests: one request, its status, headers and JSON body. It knows nothing of Kubernetes clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.cluster.objects import PATIENCE

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


async def eventually(holds: Callable[[], object]) -> None:
    """Let the loop run until something is true; fails when it never is."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  (looks at states without a signal)
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Answer:
    """Response of the server; ``body`` is the parsed JSON, or the text if it is no JSON."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> tuple[int, str]:
        """HTTP code and reason of a refusal."""
        return self.status, self.body.get("reason", "")


class Watch:
    """An open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, within: float = PATIENCE) -> dict[str, Any]:
        """The next event; fails when none comes in time or the watch has ended."""
        async with asyncio.timeout(within):
            line = await self.response.content.readline()
        assert line, "the watch has ended"
        event: dict[str, Any] = json.loads(line)
        return event

    async def seen(self, count: int) -> list[tuple[str, str]]:
        """Type and object name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    async def rest(self, within: float = PATIENCE) -> list[dict[str, Any]]:
        """All events until the server ends the watch."""
        async with asyncio.timeout(within):
            raw = await self.response.content.read()
        return [json.loads(line) for line in raw.splitlines()]


class Api:
    """Requests to one server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Any request; ``type`` is the content type of the body, ``accept`` the Accept header."""
        headers = {
            "Content-Type": options.pop("type", "application/json"),
            "Accept": options.pop("accept", "application/json"),
        }
        data = body if isinstance(body, bytes | str | None) else json.dumps(body)
        async with self.session.request(method, path, data=data, headers=headers, params=options or None) as response:
            text = await response.text()
            try:
                parsed = json.loads(text)
            except ValueError:
                parsed = text
            return Answer(response.status, parsed, response.headers)

    async def get(self, path: str, **options: Any) -> Answer:
        """GET; keyword arguments are the query."""
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Answer:
        """POST of JSON."""
        return await self.ask("POST", path, body, **options)

    async def put(self, path: str, body: Any, **options: Any) -> Answer:
        """PUT of JSON."""
        return await self.ask("PUT", path, body, **options)

    async def patch(self, path: str, body: Any, type: str = MERGE, **options: Any) -> Answer:  # noqa: A002  (the header's word)
        """PATCH in one of the formats."""
        return await self.ask("PATCH", path, body, type=type, **options)

    async def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        """DELETE."""
        return await self.ask("DELETE", path, body, **options)

    async def create(self, path: str, body: Any) -> dict[str, Any]:
        """POST that must succeed; returns the object."""
        answer = await self.post(path, body)
        assert answer.status == 201, answer.body
        created: dict[str, Any] = answer.body
        return created

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator[Watch]:
        """An open watch."""
        params = {"watch": "1", **{name: str(value) for name, value in query.items()}}
        async with self.session.get(path, params=params) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    """A small valid pod."""
    container = {"name": "main", "image": "registry.example/app:1"}
    metadata: dict[str, Any] = {"name": name}
    labels = spec.pop("labels", None)
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def binding(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    """A Binding with metadata of choice."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


def configmap(name: str = "c", **data: str) -> dict[str, Any]:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def node(name: str = "n1", **status: Any) -> dict[str, Any]:
    """A Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def lease(name: str = "leader", **spec: Any) -> dict[str, Any]:
    """A Lease."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


def crd(scope: str = "Namespaced", **extra: Any) -> dict[str, Any]:
    """A definition of ``racks.example.com`` in two versions, v1 stored, with defaults and rules."""
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "mode": {"type": "string", "enum": ["Fast", "Slow"], "default": "Fast"},
            "port": {"x-kubernetes-int-or-string": True},
            "slots": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "free": {"type": "boolean"}},
                },
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    status = {"type": "object", "properties": {"phase": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    ]
    versions: list[dict[str, Any]] = [
        {
            "name": name,
            "served": True,
            "storage": name == "v1",
            "schema": schema,
            "subresources": {"status": {}},
            "additionalPrinterColumns": columns,
        }
        for name in ("v1", "v1alpha1")
    ]
    names = {"plural": "racks", "kind": "Rack", "shortNames": ["rk"]}
    document: dict[str, Any] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "racks.example.com"},
        "spec": {"group": "example.com", "scope": scope, "names": names, "versions": versions, **extra},
    }
    return document


RACKS = "/apis/example.com/v1/namespaces/default/racks"


def rack(name: str = "r1", **spec: Any) -> dict[str, Any]:
    """A custom resource of ``crd()``."""
    return {"apiVersion": "example.com/v1", "kind": "Rack", "metadata": {"name": name}, "spec": {"size": 1, **spec}}
