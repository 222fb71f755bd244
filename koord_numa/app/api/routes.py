"""The routes of the page and of ``/api/v1``."""

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from aiohttp import web

from koord_numa.app.api.live import LiveFeed
from koord_numa.app.api.node_entries import NodeEntries
from koord_numa.app.api.waiting import WaitingShapes
from koord_numa.app.debug import find_pod
from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.engine.device_moves import DeviceMove
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view.documents import API_VERSION, Document, document
from koord_numa.view.documents.claims import node_claims
from koord_numa.view.documents.cluster import cluster_document
from koord_numa.view.documents.decisions import decisions_document
from koord_numa.view.documents.node import drawing_of, node_document, unused_cpus, with_claimed_cpus
from koord_numa.view.documents.waiting import shape_entry, waiting_document
from koord_numa.view.page import served_page
from koord_numa.view.svg import svg
from koord_numa.view.text import asked, policies

COMPRESSED: Final = 16_384
"""Bytes from which an answer is compressed."""

PATHS: Final = (
    "/api/v1/cluster",
    "/api/v1/nodes/{name}",
    "/api/v1/nodes/{name}/drawing.svg",
    "/api/v1/waiting",
    "/api/v1/pods/{namespace}/{name}",
    "/api/v1/decisions",
    "/api/v1/events",
)

PodDump = Callable[[str, str], Mapping[str, Any] | None]


class ViewApi:
    """
    Answers from what one scheduler knows. ``pod_dump`` is a pod's debug dump. ``rebinds`` are the known RebindResources, ``moves`` is the
    report of moves that gather devices.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pod_dump: PodDump,
        rebinds: Callable[[], list[RebindRequest]],
        moves: Callable[[], tuple[DeviceMove, ...]] = tuple,
    ) -> None:
        self._scheduler = scheduler
        self._rebinds = rebinds
        self._moves = moves
        self._pod_dump = pod_dump
        self._entries = NodeEntries(scheduler)
        self._waiting = WaitingShapes(scheduler)
        self.live = LiveFeed(self._entries)

    def routes(self) -> list[web.RouteDef]:
        """Everything that is served, all of it read-only."""
        return [
            web.get("/", self._page),
            web.get("/api/v1", self._index),
            web.get("/api/v1/cluster", self._cluster),
            web.get("/api/v1/nodes/{name}", self._node),
            web.get("/api/v1/nodes/{name}/drawing.svg", self._drawing),
            web.get("/api/v1/waiting", self._waiting_pods),
            web.get("/api/v1/pods/{namespace}/{name}", self._pod),
            web.get("/api/v1/decisions", self._decisions),
            web.get("/api/v1/events", self.live.serve),
        ]

    async def _page(self, _: web.Request) -> web.Response:
        # Only this page's own scripts and styles: names of pods and nodes are text of any author.
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        return web.Response(text=served_page(nonce), content_type="text/html", headers=headers)

    async def _index(self, request: web.Request) -> web.Response:
        return answer(request, document("Index", paths=list(PATHS)))

    # Brought up to date by the request itself, as no page may be open.
    async def _cluster(self, request: web.Request) -> web.Response:
        await self._entries.refresh()
        waiting = len(self._scheduler.waiting())
        return answer(request, cluster_document(self._entries.entries.values(), waiting, now(), self._moves()))

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        info = self._scheduler.cache.nodes.get(name)
        found = None if info is None else node_document(info, self._scheduler.claims, now(), self._rebinds())
        return answer(request, found, f"there is no node {name}")

    async def _drawing(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        info = self._scheduler.cache.nodes.get(name)
        seen = None if info is None else info.candidate()
        drawing = None
        if info is not None and seen is not None:
            claims = node_claims(self._scheduler.claims, info)
            drawing = drawing_of(seen, info, with_claimed_cpus(seen, claims), unused_cpus(claims))
        if drawing is None:
            return answer(request, None, f"the CPUs of node {name} are not known by id")
        return web.Response(text=svg(drawing, name), content_type="image/svg+xml")

    async def _waiting_pods(self, request: web.Request) -> web.Response:
        return answer(request, waiting_document(await self._waiting.read(), now()))

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        dump, known = self._pod_dump(namespace, name), find_pod(self._scheduler, namespace, name)
        if dump is None or known is None:
            return answer(request, None, f"pod {namespace}/{name} neither waits for this scheduler nor holds anything")
        shapes = [one for one in await self._waiting.read() if f"{namespace}/{name}" in {str(p.key) for p in one.pods}]
        pod, _ = known
        about = {"phase": pod.phase, "asks": asked(pod), "policies": policies(pod)}
        shape = shape_entry(shapes[0]) if shapes else None
        found = document("PodView", generatedAt=now(), source="scheduler", **dump, **about, shape=shape)
        return answer(request, found)

    async def _decisions(self, request: web.Request) -> web.Response:
        return answer(request, decisions_document(self._scheduler.handle.decisions.decisions, now()))


def now() -> str:
    """The time as RFC 3339, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def answer(request: web.Request, found: Document | None, missing: str = "") -> web.Response:
    """A document as JSON, compressed where it is large; 404 with a sentence when there is none."""
    if found is None:
        found, status = {"apiVersion": API_VERSION, "kind": "Status", "code": 404, "message": missing}, 404
    else:
        status = 200
    # Indented when read by people with curl, who do not ask for JSON by name.
    option = None if "application/json" in request.headers.get("Accept", "") else orjson.OPT_INDENT_2
    body = orjson.dumps(found, option=option) + b"\n"
    response = web.Response(status=status, body=body, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    if len(body) >= COMPRESSED:
        response.enable_compression()
    return response
