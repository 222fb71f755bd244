"""
Fault injection, and the log of requests with their clients and response codes, for tests.

Every fault has its own seeded random numbers, so the same sequence of requests gets the same faults.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from koord_numa.sandbox.apiserver.errors import ApiError

KEPT: Final = 200_000
"""Maximum number of requests in the log."""


@dataclass(slots=True)
class Asked:
    """A request with its authorization attributes.

    ``status`` is 0 before the response and stays 0 if the response is lost. ``user`` is empty for the administrator.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""  # of non-resource requests
    query: str = ""
    user_agent: str = ""
    user: str = ""
    port: int = 0  # client port
    status: int = 0


class RequestLog:
    """The latest requests, oldest first."""

    def __init__(self) -> None:
        """Create an empty log."""
        self._requests: deque[Asked] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Asked]:
        """Iterate over the requests, oldest first."""
        return iter(tuple(self._requests))

    def __len__(self) -> int:
        """Return the number of logged requests."""
        return len(self._requests)

    def add(self, asked: Asked) -> None:
        """Log a request on arrival."""
        self._requests.append(asked)

    def clear(self) -> None:
        """Remove all requests."""
        self._requests.clear()

    def rules(self, user_agent: str = "") -> set[tuple[str, str, str]]:
        """Return the requests as RBAC rules (verb, group, resource[/subresource]).

        ``user_agent`` restricts them to clients whose user agent contains it.
        """
        return {
            (asked.verb, asked.group, f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource)
            for asked in self._requests
            if asked.resource and user_agent in asked.user_agent
        }


class Effect(StrEnum):
    """Effect of a fault.

    The first five apply to a request, the next four to the events of an open watch, and outage to all connections.
    """

    ERROR = "error"  # answer with ``status`` instead of serving
    DELAY = "delay"  # serve after ``seconds``
    DROP = "drop"  # close the connection without serving
    LOSE_ANSWER = "lose-answer"  # serve, then close the connection without an answer
    SLOW_ANSWER = "slow-answer"  # serve at once, answer after ``seconds``
    SLOW_WATCH = "slow-watch"  # wait ``seconds`` before each event
    SILENT_WATCH = "silent-watch"  # send nothing, not even bookmarks, while the fault is active
    EXPIRE_WATCH = "expire-watch"  # end the watch with an ERROR event of code 410
    CUT_WATCH = "cut-watch"  # close the connection
    OUTAGE = "outage"  # close every connection and drop every request


_WATCH_EFFECTS: Final = frozenset((Effect.SLOW_WATCH, Effect.SILENT_WATCH, Effect.EXPIRE_WATCH, Effect.CUT_WATCH))

_ERRORS: Final = {
    400: ("BadRequest", "the request was refused on demand"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden: denied on demand"),
    404: ("NotFound", "the server could not find the requested resource"),
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    410: ("Expired", "too old resource version"),
    429: ("TooManyRequests", "too many requests, please try again later"),
    500: ("InternalError", "Internal error occurred: on demand"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


class Fault(BaseModel):
    """A fault: its effect and the requests that it applies to.

    ``*`` matches any value; commas separate alternatives.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    effect: Effect = Effect.ERROR
    verb: str = "*"
    group: str = "*"
    resource: str = "*"
    subresource: str = "*"  # "" matches only requests without a subresource
    namespace: str = "*"
    name: str = "*"
    user_agent: str = "*"  # substring
    status: int = Field(500, ge=400, le=599)
    message: str = ""
    retry_after: int = Field(0, ge=0)  # seconds
    seconds: float | None = Field(0.0, ge=0)  # null: while the fault is active
    skip: int = Field(0, ge=0)  # number of matching requests that are not affected first
    count: int | None = Field(None, ge=1)  # maximum number of hits; unlimited by default
    probability: float = Field(1.0, ge=0, le=1)
    seed: int = 0

    def matches(self, asked: Asked) -> bool:
        """Report whether the fault applies to the request."""
        return all(
            pattern == "*" or value in pattern.split(",")
            for pattern, value in (
                (self.verb, asked.verb),
                (self.group, asked.group),
                (self.resource, asked.resource),
                (self.subresource, asked.subresource),
                (self.namespace, asked.namespace),
                (self.name, asked.name),
            )
        ) and (self.user_agent == "*" or self.user_agent in asked.user_agent)

    def error(self) -> ApiError:
        """Return the response of the effect ERROR."""
        reason, message = _ERRORS.get(self.status, ("", "refused on demand"))
        details = {"retryAfterSeconds": self.retry_after} if self.retry_after else {}
        return ApiError(self.status, reason, self.message or message, details)


class _Armed:
    """A fault with its counters."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.number = number
        self.fault = fault
        self.seen = 0
        self.hits = 0
        self._random = random.Random(fault.seed)  # noqa: S311  (repeatable random numbers, not a secret)

    @property
    def spent(self) -> bool:
        return self.fault.count is not None and self.hits >= self.fault.count

    def strikes(self) -> bool:
        """Count a matching request and report whether the fault affects it."""
        if self.spent:
            return False
        self.seen += 1
        if self.seen <= self.fault.skip or self._random.random() >= self.fault.probability:
            return False
        self.hits += 1
        return True


class Faults:
    """The active faults. Without any, a request costs only the check of an empty list."""

    def __init__(self) -> None:
        """Start without faults."""
        self._armed: list[_Armed] = []
        self._issued = 0
        self._on_change: list[Callable[[], None]] = []

    def add(self, fault: Fault) -> int:
        """Activate a fault and return its number for ``remove``."""
        self._issued += 1
        self._armed.append(_Armed(self._issued, fault))
        self._tell()
        return self._issued

    def remove(self, number: int) -> None:
        """Deactivate a fault. Unknown numbers are ignored."""
        self._armed = [armed for armed in self._armed if armed.number != number]
        self._tell()

    def clear(self) -> None:
        """Deactivate all faults."""
        self._armed.clear()
        self._tell()

    def in_force(self, fault: Fault) -> bool:
        """Report whether this ``Fault`` instance is active."""
        return any(armed.fault is fault for armed in self._armed)

    def hits(self, number: int) -> int:
        """Return how often a fault has affected requests. 0 for unknown numbers."""
        return next((armed.hits for armed in self._armed if armed.number == number), 0)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a fault is activated or deactivated."""
        self._on_change.append(callback)

    @property
    def outage(self) -> bool:
        """True if a fault with the effect OUTAGE is active."""
        return any(armed.fault.effect is Effect.OUTAGE and not armed.spent for armed in self._armed)

    def denies(self, asked: Asked) -> bool:
        """Report whether a fault of status 403 matches the request. Does not count as a hit."""
        return any(
            armed.fault.effect is Effect.ERROR
            and armed.fault.status == 403
            and not armed.spent
            and armed.fault.matches(asked)
            for armed in self._armed
        )

    def on_request(self, asked: Asked) -> list[Fault]:
        """Return the faults that affect a request, in the order in which they were added."""
        return [] if not self._armed else list(self._striking(asked, lambda effect: effect not in _WATCH_EFFECTS))

    def on_event(self, asked: Asked) -> list[Fault]:
        """Return the faults that affect an open watch before it sends an event."""
        return [] if not self._armed else list(self._striking(asked, lambda effect: effect in _WATCH_EFFECTS))

    def _striking(self, asked: Asked, concerns: Callable[[Effect], bool]) -> Iterator[Fault]:
        for armed in tuple(self._armed):
            if concerns(armed.fault.effect) and armed.fault.matches(asked) and armed.strikes():
                yield armed.fault

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()


def first(faults: Iterable[Fault], *effects: Effect) -> Fault | None:
    """Return the first fault with any of these effects."""
    return next((fault for fault in faults if fault.effect in effects), None)
