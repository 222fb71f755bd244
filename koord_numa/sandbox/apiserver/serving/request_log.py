"""The log of requests with their clients and response codes, for tests of permissions and call counts."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

KEPT: Final = 200_000


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

    def __init__(self, kept: int = KEPT) -> None:
        """Create the log. ``kept`` is the maximum number of requests."""
        self._requests: deque[Asked] = deque(maxlen=kept)

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

    def describe(self) -> list[JsonObject]:
        """Return all logged requests as JSON objects."""
        return [asdict(asked) for asked in self._requests]
