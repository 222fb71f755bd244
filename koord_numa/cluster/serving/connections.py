"""
Limits on the connections of a served port: how long a peer may be silent, and how many peers there may be.

aiohttp ends a connection that is silent after a request, and not one that never sends a request. The limits here are enforced by closing
connections: the silent ones every second, and the one that is worth least when there are too many.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one port."""

    header_seconds: float = 10.0
    """Seconds from a connection to the end of its first request's headers. kube-scheduler: 32."""
    idle_seconds: float = 60.0
    """Seconds without a request on a connection that has had one. kube-scheduler: 90."""
    handshake_seconds: float = 10.0
    """Seconds of a TLS handshake."""
    most: int = 512
    """Connections. Each takes about 50 kB with TLS."""


LIMITS: Final = ConnectionLimits()


@dataclass(slots=True)
class _Peer:
    """One connection. ``welcome`` is whether a request of it was answered other than by 401 or 403."""

    since: float
    requests: int = 0  # that are being answered
    served: bool = False
    welcome: bool = False


@dataclass(slots=True)
class Connections:
    """The connections of one server."""

    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    limits: ConnectionLimits = LIMITS
    _peers: dict[Any, _Peer] = field(
        default_factory=dict
    )  # by protocol; without a transport it is in its handshake, or ended

    def __len__(self) -> int:
        return sum(1 for protocol in self._peers if protocol.transport is not None)

    def factory(self, server: Callable[[], Any]) -> Callable[[], Any]:
        """What makes the protocol of a new connection. At the limit the connection that is worth least makes room."""

        def connect() -> Any:
            if len(self._peers) >= self.limits.most:
                self._close_least()
            protocol = server()
            self._peers[protocol] = _Peer(self.clock())
            return protocol

        return connect

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Note that the peer is being answered."""
        peer = self._peers.get(request.protocol)
        if peer is None:
            return await handler(request)  # type: ignore[no-any-return]  # handlers are untyped in aiohttp
        peer.requests += 1
        try:
            response: web.StreamResponse = await handler(request)
            peer.welcome = peer.welcome or response.status not in (401, 403)
            return response
        finally:
            peer.requests -= 1
            peer.served, peer.since = True, self.clock()

    def close_silent(self) -> int:
        """Close connections that were silent for too long; returns how many."""
        now, closed = self.clock(), 0
        for protocol, peer in list(self._peers.items()):
            if protocol.transport is None:
                longest = self.limits.handshake_seconds
            else:
                longest = self.limits.idle_seconds if peer.served else self.limits.header_seconds
            if not peer.requests and now - peer.since > longest:
                closed += self._close(protocol)
        return closed

    async def watch(self) -> None:
        """Close silent connections until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.close_silent()

    def _close_least(self) -> None:
        """Close the connection that is worth least: ended, not being answered, never welcome, the longest silent."""

        def worth(protocol: Any) -> tuple[bool, bool, bool, float]:
            peer = self._peers[protocol]
            return protocol.transport is not None, peer.requests > 0, peer.welcome, peer.since

        self._close(min(self._peers, key=worth))

    def _close(self, protocol: Any) -> bool:
        del self._peers[protocol]
        if protocol.transport is None:
            return False
        # Not ``close``: a peer that does not answer the end of TLS would keep its descriptor.
        protocol.transport.abort()
        return True
