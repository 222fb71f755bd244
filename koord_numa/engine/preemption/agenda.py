"""Which classes the executor looks at next, on which nodes, and which of them it has looked at in vain. It plans nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from koord_numa.engine.queue.request_class import RequestClass

Nodes = frozenset[str] | None
"""Names of the nodes to look at; ``None``: all."""


class Agenda:
    """One class is looked at at a time, inside ``next``. What nothing helped is looked at again on nodes that have changed since."""

    def __init__(self) -> None:
        self._current: RequestClass | None = None
        self._due: dict[RequestClass, Nodes] = {}
        self._hopeless: dict[RequestClass, None] = {}  # nothing helped them when all nodes were looked at
        # Nodes of which something has changed since the last look that may make evictions help.
        self._changed: set[str] = set()

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
        self._changed.update(again)

    def nodes_changed(self, *nodes: str) -> None:
        """Pods have left these, or more is known of them: too little for those that wait, perhaps, but others may be worth evicting now."""
        # Also for a class that is being looked at: it may have passed the node already.
        if self._hopeless or self._current is not None:
            self._changed.update(nodes)

    def bind_confirmed(self, node: str) -> None:
        """A pod of this node may be evicted from now on."""
        # Where it is not confirmed by the end of a look ``note_hopeless`` names the node; in between only this tells.
        if self._current is not None:
            self._changed.add(node)

    def look_again(
        self,
        waits: Callable[[RequestClass], bool],
        worth_a_look: Callable[[RequestClass, frozenset[str]], frozenset[str]],
    ) -> None:
        """
        Hopeless classes are looked at on those of the nodes that have changed which are worth it; those of which no pod waits any more are
        forgotten.
        """
        # Collected until now, so that many changes cost one look at the classes.
        changed, self._changed = frozenset(self._changed), set()
        if not changed:
            return
        # That it is hopeless turns out at the end of a look, and this change may have come in its midst.
        if self._current is not None:
            self._add_on(self._current, changed)
        for request_class in list(self._hopeless):
            if not waits(request_class):
                del self._hopeless[request_class]
            elif found := worth_a_look(request_class, changed):
                self._add_on(request_class, found)

    def _add_on(self, request_class: RequestClass, nodes: frozenset[str]) -> None:
        due = self._due.get(request_class, frozenset())
        # A look at all nodes that is due already must not shrink to these, nor one at others.
        self._due[request_class] = None if due is None else due | nodes
