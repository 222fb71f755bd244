"""Readiness of the sources: no decision is made before all kinds of objects are listed (client-go's ``HasSynced``)."""

import asyncio
from enum import StrEnum


class Source(StrEnum):
    """Sources of objects. Each must be listed completely before the first decision."""

    WAITING = "waiting"
    BOUND = "bound"
    NODES = "nodes"
    TOPOLOGIES = "topologies"
    NAMESPACES = "namespaces"
    DEVICES = "devices"  # only where Device objects are read
    WORKLOADS = "workloads"  # only where a default spread constraint may reject a node


class Readiness:
    """State of the sources. ``wait`` returns when all sources that are not ``optional`` have synced, or after ``end``."""

    def __init__(self, optional: frozenset[Source] = frozenset()) -> None:
        self._missing = set(Source) - optional
        self._begin = asyncio.Event()

    def __bool__(self) -> bool:
        """Return whether everything is known that a decision needs."""
        return not self._missing

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not synced yet."""
        return frozenset(self._missing)

    def synced(self, source: Source) -> None:
        """Record that this source is listed completely."""
        self._missing.discard(source)
        if not self._missing:
            self._begin.set()

    def end(self) -> None:
        """Stop waiting, because the process stops."""
        self._begin.set()

    async def wait(self) -> None:
        """Return when decisions may start, or after ``end``."""
        await self._begin.wait()
