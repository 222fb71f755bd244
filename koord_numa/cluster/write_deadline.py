"""
Writes of a leader end before its lease does, also when the process stands still in the middle of one.

Theory. The server gets a deadline for the whole request, but counts it from when it receives the request. Between the moment when the
deadline is set and the moment when the bytes leave, a connection may have to be made and the process may be stopped (``SIGSTOP``, a paused
virtual machine): the request would then arrive with its whole deadline, long after another replica has begun to lead. So the lease is
looked at once more when the body is written, and less than it has left is promised, so that ordinary delays do not spend the rest.
"""

from collections.abc import Callable
from functools import lru_cache
from math import floor
from typing import Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from koord_numa.cluster.resources import Call
from koord_numa.ports import NotLeader

SHORTEST_WRITE: Final = 0.5
"""Seconds that a write under a lease must have left; a write takes some milliseconds, and up to this much on a busy server."""

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to get a connection."""

PROMISED: Final = 0.9
"""Share of what the lease has left that the server gets; the rest is for what lies before the first byte, such as a new connection."""


class LeaseEnded(Exception):
    """What ends the writing of a body; aiohttp makes a connection error of it, and gives the connection up."""


class FencedBody(aiohttp.BytesPayload):
    """
    The body of a write that the server may carry out for ``seconds`` after it has received it.

    It is written only while ``remaining`` is at least that much. Without its body a request is not carried out, so that nothing was sent.
    """

    def __init__(self, value: bytes, seconds: float, remaining: Callable[[], float]) -> None:
        super().__init__(value)
        self.seconds = seconds
        self.withheld = False
        """Was the body asked for when it was too late?"""
        self._remaining = remaining

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Raises ``LeaseEnded``. Between the look and the write nothing else runs."""
        if self._remaining() < self.seconds:
            self.withheld = True
            raise LeaseEnded
        await super().write_with_length(writer, content_length)


def fenced(call: Call, data: bytes, remaining: Callable[[], float], longest: float) -> FencedBody:
    """
    The body of a write that must not be carried out after ``remaining`` seconds, nor take longer than ``longest``.

    Raises ``NotLeader``.
    """
    left = remaining()
    if left < SHORTEST_WRITE:
        raise NotLeader(f"{call}: the lease ends in {left:.1f} s, too soon for a write")
    # Tenths of a second, rounded down: there are few of them, so that what is made of a deadline is made once.
    return FencedBody(data, floor(min(PROMISED * left, longest) * 10) / 10, remaining)


@lru_cache(maxsize=256)  # a deadline for each tenth of a second, see ``fenced``
def deadline(seconds: float) -> tuple[str, aiohttp.ClientTimeout]:
    """
    What a write gets that must not be carried out after so many seconds: the part of its query with the server's deadline for the whole
    request, counted from when it receives it, and what its client waits at most.

    ``timeout``, see ``WithRequestDeadline`` in k8s.io/apiserver; what has not reached etcd by then fails.
    """
    # Milliseconds, as the server parses a Go duration.
    query = f"timeout={int(seconds * 1000)}ms"
    return query, aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT))
