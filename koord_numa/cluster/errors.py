"""Mapping of HTTP statuses and connection errors to the errors in ``ports``.

The essential distinction: a write that was never sent is ``Unavailable``, a write that was sent without a response is
``UnknownOutcome``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

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

LONGEST_MESSAGE: Final = 500
"""Maximum characters of a server message that are kept. Proxies respond with whole pages."""

AMBIGUOUS: Final = frozenset({500, 502, 504})
"""Server errors after which a write may have been carried out: etcd or a proxy timed out.

503 and 429 are sent before a write is carried out.
"""


class Expired(ClusterError):
    """The resourceVersion or continue token is too old (410): the list or watch must start over."""


_PLAIN: Final[Mapping[int, Callable[[str], ClusterError]]] = {
    401: Unauthenticated,
    404: Gone,
    409: Conflict,
    410: Expired,
}


def refusal(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> ClusterError:
    """Return the error for an HTTP status of 300 and above."""
    message = f"{call}: {status} {_message(body)}".rstrip()
    if (plain := _PLAIN.get(status)) is not None:
        return plain(message)
    if status == 403:
        return Forbidden(message, call.rule)
    # 503 and 429 are sent before a write is carried out. The ambiguous statuses matter only for writes.
    if status == 429 or status >= 500:
        if call.writes and status in AMBIGUOUS:
            return UnknownOutcome(message)
        return Unavailable(message, _retry_after(headers))
    return Invalid(message)


def _message(body: bytes) -> str:
    """Return the ``message`` of a ``Status``, or the beginning of any other response."""
    try:
        status: Any = orjson.loads(body)
    # Proxies and other servers respond with HTML.
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict) and isinstance(status.get("message"), str):
        return str(status["message"])[:LONGEST_MESSAGE]
    return body[:LONGEST_MESSAGE].decode("utf-8", "replace")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After. Its date form is ignored, because Kubernetes does not use it."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
