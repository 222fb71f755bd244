"""
How a request ended, in the words of ``ports``: HTTP statuses and broken connections become the error tree there.

The one distinction that must not be lost: a write that was never sent is ``Unavailable``, one that was sent and not answered
is ``UnknownOutcome``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final

import aiohttp
import orjson

from koord_numa.cluster.resources import Call
from koord_numa.ports import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from koord_numa.settings import BackoffSettings

CLIENT: BackoffSettings = BackoffSettings(initial=0.2, max=30.0, jitter=0.5)
"""Of lists and watches."""


@dataclass(slots=True)
class Backoff:
    """A count of failures in a row, and how long to wait after each."""

    limits: BackoffSettings = CLIENT
    random: Callable[[], float] = field(default=SystemRandom().random)
    failures: int = 0

    def pause(self, at_least: float = 0.0) -> float:
        """Count a failure and return the pause in seconds; ``at_least`` is what the server asked for with Retry-After."""
        self.failures += 1
        # What the server asked for is a lower bound: our own pause may be longer by now.
        return max(at_least, self.limits.pause(self.failures, self.random()))

    def reset(self) -> None:
        """A success: the next failure starts a new series."""
        self.failures = 0


LONGEST_MESSAGE: Final = 500
"""Characters of a server's message that are kept: proxies answer with whole pages."""

AMBIGUOUS: Final = frozenset({500, 502, 504})
"""
Server errors after which a write may have been carried out all the same: etcd or a proxy gave up waiting. 503 and 429 are
answered before anything is done.
"""


class Expired(ClusterError):
    """A list or watch must start over: its resourceVersion or continue token is too old (410)."""


_PLAIN: Final[Mapping[int, Callable[[str], ClusterError]]] = {
    401: Unauthenticated,
    404: Gone,
    409: Conflict,
    410: Expired,
}


def refusal(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> ClusterError:
    """The error that an HTTP status of 300 and above stands for."""
    message = f"{call}: {status} {_message(body)}".rstrip()
    if (plain := _PLAIN.get(status)) is not None:
        return plain(message)
    if status == 403:
        return Forbidden(message, call.rule)
    # 503 and 429 are answered before anything is done; of the ambiguous ones only a write leaves anything open.
    if status == 429 or status >= 500:
        if call.writes and status in AMBIGUOUS:
            return UnknownOutcome(message)
        return Unavailable(message, _retry_after(headers))
    return Invalid(message)


def broken(call: Call, error: aiohttp.ClientError | TimeoutError | OSError) -> ClusterError:
    """The error that a connection problem stands for: only a failure to connect proves that nothing was sent."""
    message = f"{call}: {type(error).__name__}: {error}".rstrip(": ")
    # Nothing was sent, since there was no connection; every other error may have come after the last byte.
    unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if call.writes and not unsent:
        return UnknownOutcome(message)
    return Unavailable(message)


def _message(body: bytes) -> str:
    """The ``message`` of a ``Status``, or the beginning of whatever else was answered."""
    try:
        status: Any = orjson.loads(body)
    # Proxies answer with HTML, and so may a server that is not Kubernetes.
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict) and isinstance(status.get("message"), str):
        return str(status["message"])[:LONGEST_MESSAGE]
    return body[:LONGEST_MESSAGE].decode("utf-8", "replace")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asked for; its other form, a date, is not used by Kubernetes and ignored."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
