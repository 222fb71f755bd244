"""The API server: start, stop, address, and in-process access for tests and simulated machines."""

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml
from aiohttp import web

from koord_numa.sandbox.apiserver.direct import Cluster, DirectStore
from koord_numa.sandbox.apiserver.documents import JsonObject
from koord_numa.sandbox.apiserver.faults import Faults, RequestLog
from koord_numa.sandbox.apiserver.handler import Handler, LocalPorts, Serving
from koord_numa.sandbox.apiserver.storage import HISTORY

_NAME = "koord-numa-sandbox"


def kubeconfig(url: str, user: str = "") -> JsonObject:
    """Return a kubeconfig with a single cluster, user and context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": url}}],
        "users": [{"name": _NAME, "user": {"token": f"sandbox:{user}" if user else "sandbox"}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, url: str, user: str = "") -> Path:
    """Write a kubeconfig to a file with mode 0600 and return its path."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(kubeconfig(url, user), sort_keys=False), encoding="utf-8")
    return path


_HOST: Final = "127.0.0.1"
_MAX_BODY: Final = 3 * 1024 * 1024  # bytes, the limit of kube-apiserver
_BOOKMARKS: Final = 10.0  # seconds; kube-apiserver sends a bookmark about every minute, too rarely for tests
_ACCEPTING: Final = 5
"""Iterations of the event loop that give an accepted connection its handler.

Without a handler it would never be closed.
"""

_SHUTDOWN: Final = 2.0  # seconds that running requests get to complete


class ApiServer:
    """An in-memory Kubernetes API server on loopback.

    Its objects survive ``stop`` and are served again after ``start``.
    """

    def __init__(
        self,
        port: int = 0,
        crds: Sequence[Path | str] = (),
        history: int = HISTORY,
        bookmark_interval: float = _BOOKMARKS,
        namespace_delay: float = 0.0,
    ) -> None:
        """Create the server.

        ``port`` 0 selects a free port. ``crds`` are manifest files to load. ``history`` is the number of changes per
        kind that a watch can lag behind. ``bookmark_interval`` and ``namespace_delay``, the time from the deletion of a
        namespace to the removal of its content, are in seconds.
        """
        self._port = port
        self._cluster = Cluster(history)
        self._namespace_delay = namespace_delay
        self.faults: Final = Faults()
        self.requests: Final = RequestLog()
        self.store: Final = DirectStore(self._cluster)
        self.local_ports: Final[LocalPorts] = {}
        self._handler = Handler(Serving(self._cluster, self.faults, self.requests, bookmark_interval, self.local_ports))
        self._runner: web.ServerRunner | None = None
        self._server: web.Server | None = None
        self._site: web.SockSite
        self._listening: socket.socket
        self._kept: socket.socket | None = None  # reserves the port while the server is suspended
        self.faults.on_change(self._faults_changed)
        for path in crds:
            self.apply_file(path)

    async def __aenter__(self) -> Self:
        """Start the server."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        await self.stop()

    async def start(self) -> None:
        """Listen for requests.

        A stopped or suspended server listens on the same port. Raises ``OSError`` when the port is in use.
        """
        self._handler.resume()
        if self._namespace_delay:
            loop = asyncio.get_running_loop()
            self._cluster.deleter.later = lambda action: loop.call_later(self._namespace_delay, action)
        server = web.Server(self._handler, request_factory=_request, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN)
        await runner.setup()
        try:
            kept, self._kept = self._kept, None
            self._listening = kept or socket.create_server((_HOST, self._port), backlog=1024)
            self._site = web.SockSite(runner, self._listening, backlog=1024)
            await self._site.start()
        except OSError as error:
            await runner.cleanup()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"cannot listen on port {self._port}: {reason}") from error
        self._runner, self._server = runner, server
        self._port = runner.addresses[0][1]

    async def stop(self) -> None:
        """End watches, complete running requests and stop listening. No effect if the server is not running."""
        await self.suspend()
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def suspend(self) -> None:
        """Stop until the next ``start``, but reserve the port.

        Connections are refused, and other processes cannot bind the port.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            self._handler.stop()
            asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(_ACCEPTING):
                await asyncio.sleep(0)
            await self._site.stop()
            kept = socket.socket()
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind((_HOST, self._port))
            self._kept = kept
            await runner.cleanup()

    def _faults_changed(self) -> None:
        """Close all connections, including idle connections, when an outage begins."""
        if self.faults.outage and self._server is not None:
            for connection in self._server.connections:
                connection.force_close()

    @property
    def port(self) -> int:
        """The port, or 0 before the first start if a free port is to be selected."""
        return self._port

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{_HOST}:{self._port}"

    @property
    def revision(self) -> int:
        """The resourceVersion of the latest change."""
        return self._cluster.backend.storage.revision

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return self._handler.open_watches

    def kubeconfig(self, user: str = "") -> JsonObject:
        """Return a kubeconfig for this server.

        Requests have the permissions that RBAC grants to ``user``. Without a user they have all permissions.
        """
        return kubeconfig(self.url, user)

    def write_kubeconfig(self, path: Path | str, user: str = "") -> Path:
        """Write the kubeconfig to a file and return its path."""
        return write_kubeconfig(Path(path), self.url, user)

    def apply_file(self, path: Path | str) -> list[JsonObject]:
        """Create or update every object of a YAML or JSON file."""
        return self.store.apply_file(path)

    def compact(self) -> int:
        """Discard the history: watches from earlier revisions get 410. Returns the current revision."""
        return self._cluster.compact()


def _request(message, payload, protocol, writer, task) -> web.BaseRequest:  # type: ignore[no-untyped-def]  # types private to aiohttp
    """Create a request with a higher body limit than the default of aiohttp."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY)
