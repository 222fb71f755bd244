"""
Every node's entry of the cluster document, kept up to date as nodes change.

Theory. Deriving an entry takes tens of microseconds, so 5,000 at once would hold up decisions for a quarter of a second. Entries are
kept by the revision of their node: a refresh derives those that changed, a few at a time, and gives way to the scheduler in between.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from koord_numa.engine.scheduler import Scheduler
from koord_numa.view.documents import Document
from koord_numa.view.documents.cluster import node_entry

BATCH: Final = 25
"""Entries derived before other tasks get their turn: about 2 ms."""


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Entries that are new or different since the last refresh, and names of nodes that are gone."""

    nodes: tuple[Document, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.removed)


@dataclass(slots=True)
class NodeEntries:
    """Entries by node name; ``refresh`` may be called by several tasks, one of which works at a time."""

    scheduler: Scheduler
    entries: dict[str, Document] = field(default_factory=dict)
    _revisions: dict[str, int] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self) -> NodeChanges:
        """Derive what changed."""
        # One refresh at a time: two would both take the revisions, and each would report half of the changes.
        async with self._lock:
            changed = await self._derive()
            nodes = self.scheduler.cache.nodes
            gone = tuple(name for name in self._revisions if name not in nodes)
            removed = tuple(name for name in gone if self.entries.pop(name, None) is not None)
            for name in gone:
                del self._revisions[name]
            return NodeChanges(tuple(changed), removed)

    async def _derive(self) -> list[Document]:
        changed: list[Document] = []
        derived = 0
        # A copy: nodes come and go while other tasks have their turn.
        for name, info in list(self.scheduler.cache.nodes.items()):
            if self._revisions.get(name) == info.revision:
                continue
            self._revisions[name] = info.revision
            entry = node_entry(info)
            if entry is None:  # a topology or pods without a Node: nothing to show
                self.entries.pop(name, None)
            elif self.entries.get(name) != entry:
                self.entries[name] = entry
                changed.append(entry)
            derived += 1
            if derived % BATCH == 0:
                await asyncio.sleep(0)
        return changed
