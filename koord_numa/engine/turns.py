"""
Who may bind to a node: one after the other, in the order of the decisions. It knows only names of nodes.

What is foreseen of a kubelet's choice rests on everybody who was placed there before; two pods that overtake one another may both get
other NUMA nodes than was foreseen, or none.
"""

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """A line of waiting binds for every node that has one."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def at(self, node: str) -> asyncio.Lock:
        """To be held during a bind. Whoever asks first is served first; a line that nobody stands in is forgotten."""
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        return lock
