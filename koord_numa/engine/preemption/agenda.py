"""Which classes the executor looks at next, on which nodes, and which of them it has looked at in vain. It plans nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from koord_numa.engine.queue.request_class import RequestClass

Nodes = frozenset[str] | None
"""Names of the nodes to look at; ``None``: all."""


class Agenda:
    """One class is looked at at a time, inside ``next``. What nothing helped is looked at again on nodes that a pod has left."""

    def __init__(self) -> None:
        self._current: RequestClass | None = None
        self._due: dict[RequestClass, Nodes] = {}
        self._hopeless: dict[RequestClass, None] = {}  # nothing helped them when all nodes were looked at
        self._freed: set[str] = set()  # nodes that a pod has left since the last look

    def __bool__(self) -> bool:
        return bool(self._due)

    def __contains__(self, request_class: object) -> bool:
        """Is the class being looked at, or about to be?"""
        return request_class in self._due or (request_class is not None and request_class is self._current)

    def add(self, *request_classes: RequestClass) -> None:
        """All nodes are to be looked at for these classes."""
        self._due.update(dict.fromkeys(request_classes))

    @contextmanager
    def next(self) -> Iterator[tuple[RequestClass, Nodes]]:
        """
        The class to look at, and on which nodes: the highest priority first, as it may displace what the others are given. It is being
        looked at until the block ends, in whatever way.
        """
        self._current = min(self._due, key=lambda request_class: (-request_class.priority, request_class.number))
        try:
            yield self._current, self._due.pop(self._current)
        finally:
            self._current = None

    def note_helped(self, request_class: RequestClass) -> None:
        """A node was found for a pod of this class."""
        self._hopeless.pop(request_class, None)

    def note_hopeless(self, request_class: RequestClass, again: Iterable[str]) -> None:
        """Nothing helps this class by now, but these nodes are worth another look soon."""
        self._hopeless[request_class] = None
        self._freed.update(again)

    def node_freed(self, node: str) -> None:
        """A pod has left this node: too little for the waiting pods, perhaps, but now others may be worth evicting."""
        if self._hopeless:
            self._freed.add(node)

    def look_again(self, waits: Callable[[RequestClass], bool]) -> None:
        """Hopeless classes are looked at on the nodes that pods have left; those of which no pod waits any more are forgotten."""
        # Collected until now, so that many departures cost one look at the classes.
        freed, self._freed = frozenset(self._freed), set()
        for request_class in list(self._hopeless) if freed else ():
            if waits(request_class):
                # A look at all nodes that is due already must not shrink to these.
                self._due.setdefault(request_class, freed)
            else:
                del self._hopeless[request_class]
