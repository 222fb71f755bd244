"""HTTP handlers of the page and its read-only JSON API (``/api/v1``), with server-sent events for changes."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from aiohttp import web
from cachetools import TTLCache

from koord_numa.app.debug import find_pod, waited_seconds
from koord_numa.core.objects.gangs import GangKey
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.device_moves import DeviceMove
from koord_numa.engine.metrics import Result
from koord_numa.engine.queue import RequestClass
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view import API_VERSION, Document, document
from koord_numa.view.advice import Remedy, advise, plan_in_thread
from koord_numa.view.documents import (
    cluster_document,
    drawing_of,
    free_cpus,
    largest_cpus,
    move_entry,
    node_claims,
    node_document,
    node_entry,
    summary,
    unused_cpus,
    wanted_claims,
    with_claimed_cpus,
)
from koord_numa.view.drawing import svg
from koord_numa.view.page import served_page
from koord_numa.view.text import asked, natural, policies
from koord_numa.view.waiting import (
    SHAPES,
    WaitingGroups,
    WaitingShape,
    decisions_document,
    shape_entry,
    waiting_document,
)

FIRST: Final = 100
"""Nodes in the page itself, more than a screen shows. It shows them while the entries of all other nodes are built."""

BATCH: Final = 5
"""Entries built before other tasks get their turn: about 2 ms."""


class NodeChanges(ValueObject):
    """Entries that are new or different since the last message, and names of nodes without an entry."""

    nodes: tuple[Document, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.removed)


class NodeEntries(MutableObject):
    """Entries by node name. Several tasks may call ``refresh``: an entry and its revision are written together."""

    scheduler: Scheduler
    entries: dict[str, Document] = value_field(default_factory=dict)
    _revisions: dict[str, int] = value_field(default_factory=dict)

    async def refresh(self, names: Iterable[str] | None = None) -> None:
        """Rebuild the entries of changed nodes, by default of all nodes."""
        await self._derive(names)
        nodes = self.scheduler.cache.nodes
        for name in [name for name in self._revisions if name not in nodes]:
            del self._revisions[name]
            self.entries.pop(name, None)

    def changes_since(self, sent: Mapping[str, Document]) -> NodeChanges:
        """Return the difference to the entries that were sent."""
        # An entry is replaced only if it differs, so that identity is enough.
        nodes = tuple(entry for name, entry in self.entries.items() if sent.get(name) is not entry)
        return NodeChanges(nodes, tuple(name for name in sent if name not in self.entries))

    async def _derive(self, names: Iterable[str] | None) -> None:
        derived = 0
        # A copy, because nodes change while other tasks run.
        for name in list(self.scheduler.cache.nodes if names is None else names):
            info = self.scheduler.cache.nodes.get(name)
            if info is None or self._revisions.get(name) == info.revision:
                continue
            self._revisions[name] = info.revision
            entry = node_entry(info)
            if entry is None:  # a topology or pods without a Node
                self.entries.pop(name, None)
            elif self.entries.get(name) != entry:
                self.entries[name] = entry
            derived += 1
            if derived % BATCH == 0:
                await asyncio.sleep(0)


SAMPLES: Final = 120
"""Number of samples in the history: one hour."""

SAMPLE_SECONDS: Final = 30.0
"""Seconds between two samples."""


class Sample(ValueObject):
    """Pods scheduled and rejected since the previous sample, and the CPUs of the largest aligned request that fits."""

    scheduled: int
    rejected: int
    largest: int


class History:
    """The samples of the last hour, in memory. One instance per process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._samples: deque[Sample] = deque(maxlen=SAMPLES - 1)
        self._counted = (0, 0)
        self._known: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.take()

    async def take(self) -> None:
        """Add the current sample to the history and start the next sample."""
        sample = await self.current()
        scheduled, rejected = self._counted
        self._counted = (scheduled + sample.scheduled, rejected + sample.rejected)
        self._samples.append(sample)

    async def current(self) -> Sample:
        """Return the sample since the last ``take``."""
        largest = await self._largest_aligned()
        counts = Counter[Result]()
        for (result, _), histogram in self._scheduler.metrics.attempts.items():
            counts[result] += histogram.count
        scheduled, rejected = self._counted
        return Sample(counts[Result.SCHEDULED] - scheduled, counts[Result.UNSCHEDULABLE] - rejected, largest)

    async def read(self) -> Document:
        """Return the samples with the current sample, oldest first."""
        samples = [await self.current(), *reversed(self._samples)][::-1]
        columns = {name: [getattr(it, name) for it in samples] for name in ("scheduled", "rejected", "largest")}
        return document("HistoryView", generatedAt=now(), sampleSeconds=SAMPLE_SECONDS, **columns)

    async def _largest_aligned(self) -> int:
        # Nodes with the most free CPUs come first, and unchanged nodes are not evaluated again: with eight NUMA nodes
        # each, 5,000 nodes take 1 s. Evaluation ends when no other node can have more.
        nodes = self._scheduler.cache.nodes
        self._known = {name: it for name, it in self._known.items() if name in nodes}
        largest = evaluated = 0
        for bound, name in sorted(((free_cpus(info), name) for name, info in nodes.items()), reverse=True):
            if bound <= largest:
                break
            info = nodes.get(name)
            if info is None:
                continue
            if self._known.get(name, (None, 0))[0] != info.revision:
                self._known[name] = info.revision, largest_cpus(info)
                evaluated += 1
                if evaluated % BATCH == 0:
                    await asyncio.sleep(0)
            largest = max(largest, self._known[name][1])
        return largest


ADVISED: Final = 20
"""Maximum number of shapes with advice in one document. Shapes with most pods come first."""

ADVICE_SECONDS: Final = 30.0
"""Lifetime of cached advice, in seconds. Advice evaluates dozens of changed pods and plans a rebind."""


class WaitingShapes:
    """The waiting pods grouped by shape, with cached advice. One instance per process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._advice: TTLCache[RequestClass, tuple[Remedy, ...]] = TTLCache(maxsize=SHAPES, ttl=ADVICE_SECONDS)
        self._lock = asyncio.Lock()

    async def read(self) -> list[WaitingShape]:
        # One reader at a time: a second reader would compute the same advice again.
        """Return all waiting pods, by shape."""
        async with self._lock:
            groups = sorted(self._groups().items(), key=lambda entry: (-len(entry[1]), entry[0][0].number))
            return [await self._shape(pods, at < ADVISED) for at, (_, pods) in enumerate(groups)]

    async def remedies(self, pod: Pod, rejections: Mapping[str, Rejection]) -> tuple[Remedy, ...]:
        """Return the advice for one pod."""
        request_class = self._scheduler.classes.of(pod)
        if request_class is None:
            return ()
        if request_class not in self._advice:
            self._advice[request_class] = tuple(await advise(self._scheduler, pod, rejections, plan_in_thread))
        return self._advice[request_class]

    def _groups(self) -> dict[tuple[RequestClass, GangKey | None], list[Pod]]:
        groups: dict[tuple[RequestClass, GangKey | None], list[Pod]] = {}
        for pod in self._scheduler.waiting():
            request_class, gang = self._scheduler.classes.of(pod), pod.request.gang
            if request_class is not None:
                groups.setdefault((request_class, None if gang is None else gang.key), []).append(pod)
        return groups

    # The oldest pod represents its shape, because its verdict is the oldest.
    async def _shape(self, pods: list[Pod], advised: bool) -> WaitingShape:
        pods.sort(key=lambda pod: (pod.created, str(pod.key)))
        uid = pods[0].key.uid
        verdict = self._scheduler.queue.verdict(self._scheduler.handle.pending.get(uid))
        # One shape per turn of the event loop: decisions have priority.
        rejections = {} if verdict is None else verdict.rejections
        await asyncio.sleep(0)
        return WaitingShape(
            pods,
            self._scheduler.explain(uid) or pods[0].problem or "no decision yet",
            rejections,
            max(waited_seconds(self._scheduler, pod.key.uid) for pod in pods),
            # Advice about a member alone would not help its group.
            await self.remedies(pods[0], rejections) if advised and rejections and pods[0].request.gang is None else (),
            wanted_claims(self._scheduler.claims, pods[0]),
        )


READERS: Final = 32
"""Maximum number of pages with live updates. Further pages get 503."""

INTERVAL: Final = 1.0
"""Seconds between two checks for changes."""

BACKLOG: Final = 8
"""Maximum number of queued changes for a slow reader. A reader with more must reload everything."""

WHOLE: Final = 500
"""Number of changed nodes above which a reload of the whole document is cheaper."""

RELOAD: Final = b"event: reload\ndata: {}\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


class LiveFeed:
    """Sender of changes to open pages. ``moves`` returns the report of moves that gather devices."""

    def __init__(self, entries: NodeEntries, moves: Callable[[], tuple[DeviceMove, ...]] = tuple) -> None:
        self._entries = entries
        self._moves = moves
        self._readers: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve the stream of one page until the page is closed."""
        if len(self._readers) >= READERS:
            raise web.HTTPServiceUnavailable(text=f"{READERS} pages are open already\n")
        queue: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        # Registered before the first await, so that concurrent requests count it.
        self._readers.add(queue)
        try:
            with suppress(ConnectionError):
                await response.prepare(request)
                if self._task is None or self._task.done():
                    self._task = asyncio.create_task(self._watch(), name="live page")
                while True:
                    await response.write(await self._next(queue))
        finally:
            self._readers.discard(queue)
        return response

    async def stop(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _next(self, queue: asyncio.Queue[bytes]) -> bytes:
        try:
            async with asyncio.timeout(15 * INTERVAL):
                return await queue.get()
        except TimeoutError:
            return KEEP_ALIVE

    async def _watch(self) -> None:
        # Changes before the first stream opened are in the document that the page then loads. Only later changes are sent.
        await self._entries.refresh()
        sent = dict(self._entries.entries)
        waiting, moves = len(self._entries.scheduler.waiting()), self._moves()
        # The loop ends with the last reader, so that it costs nothing without pages.
        while self._readers:
            await asyncio.sleep(INTERVAL)
            await self._entries.refresh()
            changes = self._entries.changes_since(sent)
            sent = dict(self._entries.entries)
            before = waiting, moves
            waiting, moves = len(self._entries.scheduler.waiting()), self._moves()
            if changes or (waiting, moves) != before:
                self._send(self._message(changes, waiting))

    def _message(self, changes: NodeChanges, waiting: int) -> bytes:
        if len(changes.nodes) > WHOLE:
            return RELOAD
        change: Document = {
            "nodes": changes.nodes,
            "removed": changes.removed,
            "summary": summary(self._entries.entries.values(), waiting),
            "moves": [move_entry(move) for move in self._moves()],
        }
        return b"event: change\ndata: " + orjson.dumps(change) + b"\n\n"

    def _send(self, message: bytes) -> None:
        for queue in self._readers:
            if queue.full():
                # Queued changes are dropped, because the reader reloads everything.
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(RELOAD)
            else:
                queue.put_nowait(message)


COMPRESSED: Final = 16_384
"""Minimum size in bytes of a compressed response."""

PATHS: Final = (
    "/api/v1/cluster",
    "/api/v1/nodes/{name}",
    "/api/v1/nodes/{name}/drawing.svg",
    "/api/v1/waiting",
    "/api/v1/pods",
    "/api/v1/pods/{namespace}/{name}",
    "/api/v1/groups/{namespace}/{name}",
    "/api/v1/decisions",
    "/api/v1/history",
    "/api/v1/events",
)

FOUND: Final = 50
"""Maximum number of pods in the answer to a search."""

PodDump = Callable[[str, str], Mapping[str, Any] | None]


class ViewApi:
    """
    Read-only API of one scheduler.

    ``pod_dump`` returns the debug dump of a pod. ``rebinds`` returns the known RebindResources, ``moves`` the report of
    moves that gather devices.
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
        self._groups = WaitingGroups(scheduler)
        self.live = LiveFeed(self._entries, moves)
        self.history = History(scheduler)

    def routes(self) -> list[web.RouteDef]:
        """Return all routes. All of them are read-only."""
        return [
            web.get("/", self._page),
            web.get("/api/v1", self._index),
            web.get("/api/v1/cluster", self._cluster),
            web.get("/api/v1/nodes/{name}", self._node),
            web.get("/api/v1/nodes/{name}/drawing.svg", self._drawing),
            web.get("/api/v1/waiting", self._waiting_pods),
            web.get("/api/v1/pods", self._pods),
            web.get("/api/v1/pods/{namespace}/{name}", self._pod),
            web.get("/api/v1/groups/{namespace}/{name}", self._group),
            web.get("/api/v1/decisions", self._decisions),
            web.get("/api/v1/history", self._history),
            web.get("/api/v1/events", self.live.serve),
        ]

    async def _page(self, _: web.Request) -> web.Response:
        first = await self._first_nodes(FIRST)
        # Only scripts and styles of this page are allowed, because names of pods and nodes are untrusted text.
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        response = web.Response(text=served_page(nonce, first), content_type="text/html", headers=headers)
        response.enable_compression()
        return response

    async def _index(self, request: web.Request) -> web.Response:
        return answer(request, document("Index", paths=list(PATHS)))

    async def _cluster(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "")
        return answer(request, await self._first_nodes(int(limit) if limit.isdecimal() else None))

    # The request itself refreshes the entries, because no page may be open.
    async def _first_nodes(self, limit: int | None) -> Document:
        names = sorted(self._scheduler.cache.nodes, key=natural)
        listed = names[:limit]
        await self._entries.refresh(listed)
        entries = [entry for name in listed if (entry := self._entries.entries.get(name)) is not None]
        waiting, more = len(self._scheduler.waiting()), len(names) - len(listed)
        return cluster_document(entries, waiting, now(), self._moves(), more)

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
        return answer(request, waiting_document(await self._waiting.read(), now(), await self._groups.read()))

    async def _pods(self, request: web.Request) -> web.Response:
        text = request.query.get("search", "")
        found = [(str(pod.key), "") for pod in self._scheduler.waiting() if text in str(pod.key)]
        # Copies, because nodes and pods change while other tasks run.
        for at, (name, info) in enumerate(list(self._scheduler.cache.nodes.items())):
            if at % BATCH == BATCH - 1:
                await asyncio.sleep(0)
            found += [(str(pod.key), name) for pod in info.pods.values() if text in str(pod.key)]
        items = [{"pod": pod, "node": node} for pod, node in sorted(found)[:FOUND]]
        return answer(request, document("PodMatches", generatedAt=now(), items=items, more=max(0, len(found) - FOUND)))

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        dump, known = self._pod_dump(namespace, name), find_pod(self._scheduler, namespace, name)
        if dump is None or known is None:
            return answer(request, None, f"pod {namespace}/{name} neither waits for this scheduler nor holds resources")
        shapes = [one for one in await self._waiting.read() if f"{namespace}/{name}" in {str(p.key) for p in one.pods}]
        pod, _ = known
        about = {"phase": pod.phase, "asks": asked(pod), "policies": policies(pod)}
        shape = shape_entry(shapes[0]) if shapes else None
        group = await self._groups.of(pod)
        found = document("PodView", generatedAt=now(), source="scheduler", **dump, **about, shape=shape, group=group)
        return answer(request, found)

    async def _group(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        entry = await self._groups.named(namespace, name)
        found = None if entry is None else document("GroupView", generatedAt=now(), source="scheduler", **entry)
        return answer(request, found, f"there is no group {namespace}/{name}")

    async def _decisions(self, request: web.Request) -> web.Response:
        return answer(
            request, decisions_document(self._scheduler.handle.decisions.decisions, now(), self._scheduler.cache.nodes)
        )

    async def _history(self, request: web.Request) -> web.Response:
        return answer(request, await self.history.read())


def now() -> str:
    """Return the time in RFC 3339 with whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def answer(request: web.Request, found: Document | None, missing: str = "") -> web.Response:
    """Return a document as JSON, compressed if it is large, or 404 with a message if it is missing."""
    if found is None:
        found, status = {"apiVersion": API_VERSION, "kind": "Status", "code": 404, "message": missing}, 404
    else:
        status = 200
    # Indented for users of curl, which does not request JSON explicitly.
    option = None if "application/json" in request.headers.get("Accept", "") else orjson.OPT_INDENT_2
    body = orjson.dumps(found, option=option) + b"\n"
    response = web.Response(status=status, body=body, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    if len(body) >= COMPRESSED:
        response.enable_compression()
    return response
