"""Which requests were made, by whom, and how they were answered: what a test of permissions or of call counts reads."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

KEPT: Final = 200_000


@dataclass(slots=True)
class Asked:
    """
    One request, as authorization sees it. ``status`` is 0 until it is answered, and stays 0 when the answer is lost. ``user`` is empty for
    the administrator.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""  # of requests that are about no resource
    query: str = ""
    user_agent: str = ""
    user: str = ""
    port: int = 0  # of the client
    status: int = 0


class RequestLog:
    """The latest requests, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        """``kept`` bounds the memory it takes."""
        self._requests: deque[Asked] = deque(maxlen=kept)

    def __iter__(self) -> Iterator[Asked]:
        """Oldest first."""
        return iter(tuple(self._requests))

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._requests)

    def add(self, asked: Asked) -> None:
        """Remember a request that has just arrived."""
        self._requests.append(asked)

    def clear(self) -> None:
        """Forget all."""
        self._requests.clear()

    def rules(self, user_agent: str = "") -> set[tuple[str, str, str]]:
        """What was asked for as RBAC rules: (verb, group, resource[/subresource]), of clients with that user agent."""
        return {
            (asked.verb, asked.group, f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource)
            for asked in self._requests
            if asked.resource and user_agent in asked.user_agent
        }

    def describe(self) -> list[JsonObject]:
        """All kept requests, for other processes."""
        return [asdict(asked) for asked in self._requests]
