"""Which kinds of objects have been told completely: nothing is decided before all of them have (client-go's ``HasSynced``)."""

import asyncio
from enum import StrEnum


class Source(StrEnum):
    """Where facts come from; each must have told everything once before the first decision."""

    WAITING = "waiting"
    BOUND = "bound"
    NODES = "nodes"
    TOPOLOGIES = "topologies"
    NAMESPACES = "namespaces"
    WORKLOADS = "workloads"  # only where a default spread constraint may refuse a node


class Readiness:
    """
    ``wait`` returns when every source has synced, apart from those that are ``optional``, or when ``end`` says that nothing is waited for
    any more.
    """

    def __init__(self, optional: frozenset[Source] = frozenset()) -> None:
        self._missing = set(Source) - optional
        self._begin = asyncio.Event()

    def __bool__(self) -> bool:
        """Is everything known that a decision needs?"""
        return not self._missing

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not told everything yet."""
        return frozenset(self._missing)

    def synced(self, source: Source) -> None:
        """This source has told everything that exists."""
        self._missing.discard(source)
        if not self._missing:
            self._begin.set()

    def end(self) -> None:
        """Wait no longer: the process stops."""
        self._begin.set()

    async def wait(self) -> None:
        """Return when decisions may begin."""
        await self._begin.wait()
