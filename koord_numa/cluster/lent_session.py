"""
An HTTP session for a client that closes it while requests are on their way, as Kopf does after a 401.

Theory. ``aiohttp.ClientSession.close`` drops its connector at once. A request that is waiting for a connection at that moment, or whose
connection breaks afterwards and which aiohttp sends once more, then stumbles over the missing connector, with an ``AssertionError`` or
``AttributeError`` that no client can tell from a bug. Here the session is closed behind the last request.
"""

from typing import Any

import aiohttp
from multidict import CIMultiDict


class LentSession:
    """What Kopf uses of an ``aiohttp.ClientSession``: ``request``, ``headers``, ``closed`` and ``close``."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._closed = False
        self._session = session
        self._under_way = 0

    @property
    def closed(self) -> bool:
        """Are new requests refused? Also when the connections are closed that it shares."""
        return self._closed or self._session.closed

    @property
    def headers(self) -> CIMultiDict[str]:
        """What every request carries."""
        return self._session.headers

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        """
        The beginning of an answer.

        Raises as aiohttp; ``RuntimeError`` with its words when the session is closed, before or meanwhile.
        """
        self._refuse_when_closed()
        self._under_way += 1
        try:
            response = await self._session.request(method, url, **options)
        finally:
            self._under_way -= 1
            await self._close_behind_the_last()
        if self.closed:
            # Who closed the session has closed all answers that there were, and does not know of this one.
            response.close()
        self._refuse_when_closed()
        return response

    async def close(self) -> None:
        """Begin nothing more; what is on its way goes on. May be called again."""
        self._closed = True
        await self._close_behind_the_last()

    def _refuse_when_closed(self) -> None:
        if self.closed:
            raise RuntimeError("Session is closed")

    async def _close_behind_the_last(self) -> None:
        if self._closed and not self._under_way:
            await self._session.close()
