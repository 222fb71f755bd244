"""Metrics and readiness of the agent, if a port is given: in plain HTTP, or over TLS with authorization by the API server."""

import os
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from koord_numa.cluster.serving import Refusal

_PREFIX = "koord_numa_node_agent_"


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per request, so that a slow client delays no probe."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: port scanners and probes end connections before or in the handshake."""


class _SilentHandler(WSGIRequestHandler):
    timeout = 10.0
    """Seconds without progress, after which a connection is closed."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in the base class)
        """Log nothing."""


@dataclass(frozen=True, slots=True)
class Protection:
    """TLS, and the reason to reject a request by its Authorization header, method and path."""

    tls: ssl.SSLContext
    refusal: Callable[[str, str, str], "Refusal | None"]


class AgentMetrics:
    """The metrics of an agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.writes = self._counter("topology_writes_total", "Server-side applies of the NodeResourceTopology.")
        self.errors = Counter(
            f"{_PREFIX}errors_total", "Failed reads and writes, by source.", ["source"], registry=self.registry
        )
        self.differences = Gauge(
            f"{_PREFIX}cpuset_differences", "Pods that run on other CPUs than decided.", registry=self.registry
        )
        self.compared = Gauge(f"{_PREFIX}cpuset_compared", "Pods with a decided cpuset.", registry=self.registry)
        self.missing = Gauge(
            f"{_PREFIX}cpuset_cgroups_missing",
            "Pods with a decided cpuset and a running container whose cgroup is not found.",
            registry=self.registry,
        )
        self.kept_off = self._gauge("interrupts_kept_off", "Interrupts that are kept off exclusive CPUs.")
        self.unmovable = self._gauge(
            "interrupts_unmovable",
            "Interrupts on exclusive CPUs that the kernel does not move.",
        )
        self.returned = self._counter(
            "interrupts_returned_total", "Interrupts that another program has moved back to exclusive CPUs."
        )
        self.isolation_refused = self._gauge(
            "isolation_refused", "Pods whose requested isolation of CPUs is not honored."
        )
        self.updates = self._counter("cpuset_updates_total", "Containers whose cpuset was changed.")
        self.rereads = self._counter("kubelet_rereads_total", "Repeated contradictory readings of the kubelet.")
        self.state_known = Gauge(
            f"{_PREFIX}kubelet_state_known",
            "1 while the kubelet's exact state is known and published, else 0.",
            registry=self.registry,
        )
        self.pinned = Histogram(
            f"{_PREFIX}pinned_seconds",
            "Time from the start of a container to its decided CPUs.",
            # From a container event in time to two missed rounds.
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
            registry=self.registry,
        )

    def serve(self, port: int, not_ready: Callable[[], str], protection: Protection | None = None) -> int:
        """
        Serve ``/metrics``, ``/healthz`` and ``/readyz`` on every address of the pod, in separate threads. Return the port.

        ``not_ready`` returns the reason for which the agent is not ready, or "". With ``protection``, the port speaks TLS.
        """
        metrics = make_wsgi_app(self.registry)

        def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            path, headers = environ["PATH_INFO"], [("Content-Type", "text/plain; charset=utf-8")]
            if protection is not None:
                asked = environ.get("HTTP_AUTHORIZATION", ""), environ["REQUEST_METHOD"], path
                if (refused := protection.refusal(*asked)) is not None:
                    status = HTTPStatus(refused.status)
                    challenge = [("WWW-Authenticate", "Bearer")] if status is HTTPStatus.UNAUTHORIZED else []
                    start_response(f"{status.value} {status.phrase}", [*headers, *challenge])
                    return [f"{refused.text}\n".encode()]
            if path not in ("/healthz", "/readyz"):
                found: Iterable[bytes] = metrics(environ, start_response)
                return found
            why = not_ready() if path == "/readyz" else ""
            start_response("503 Service Unavailable" if why else "200 OK", headers)
            return [(why or "ok").encode()]

        try:
            server = make_server("", port, answer, _Server, _SilentHandler)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"cannot listen on port {port}: {reason}; --metrics-port sets the port") from error
        if protection is not None:
            # The handshake is part of the first read, in the thread of the request.
            server.socket = protection.tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server.server_port

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(_PREFIX + name, text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(_PREFIX + name, text, registry=self.registry)
