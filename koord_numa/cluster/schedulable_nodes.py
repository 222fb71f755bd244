"""Which nodes take pods right now, as our own watch shows them: the last look before a bind. It knows nothing else of a node."""

from koord_numa.core.node import Node


class SchedulableNodes:
    """A sink of the nodes' mirror."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def takes_pods(self, node: str) -> bool:
        """It exists and is not cordoned."""
        return node in self._open

    def replace(self, nodes: list[Node]) -> None:
        """All nodes there are."""
        self._open = {node.name for node in nodes if not node.unschedulable}

    def observe(self, event: str | None, node: Node) -> None:
        """One node changed."""
        if event == "DELETED" or node.unschedulable:
            self._open.discard(node.name)
        else:
            self._open.add(node.name)
