"""
Events on nodes whose objects cannot be parsed, lack NUMA nodes, name unknown kubelet options, or have misspelled keys.

The leader writes one event per problem. A problem that a standby finds is reported when the standby becomes the leader.
"""

from typing import Final, TypeVar

from koord_numa.core.kubelet.view import unknown_words
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.ports import Dependencies

T = TypeVar("T", str, tuple[str, ...])

UNREADABLE: Final = "TopologyUnreadable"
NOT_READ: Final = "KeyNotRead"


class UnreadableTopologies:
    """Problems of node objects. ``problems`` and ``unread`` are current, by node."""

    def __init__(self, dependencies: Dependencies) -> None:
        self.problems: dict[str, str] = {}
        self.unread: dict[str, tuple[str, ...]] = {}
        self._dependencies = dependencies
        self._unsaid: set[str] = set()
        self._unsaid_keys: set[str] = set()
        self._judged: dict[
            str, tuple[Node | None, NodeResourceTopology | None]
        ] = {}  # by node, the objects that were checked last

    def node_changed(self, info: NodeInfo) -> None:
        """Check the node's objects if they have changed."""
        # Called for every added or removed pod, while topologies are replaced once a minute.
        node, topology = self._judged.get(info.name, (None, None))
        if info.current is topology and info.node is node:
            return
        if info.node is None:
            self._judged.pop(info.name, None)
        else:
            self._judged[info.name] = info.node, info.current
        problem = "" if info.current is None else problem_of(info.current)
        _update(self.problems, self._unsaid, info.name, problem)
        _update(self.unread, self._unsaid_keys, info.name, unread_of(info))

    def tick(self) -> None:
        """Write the events that are due, if this process leads."""
        if not (self._unsaid or self._unsaid_keys) or not self._dependencies.lease.fresh():
            return
        for name in sorted(self._unsaid):
            self._report(
                name,
                reason=UNREADABLE,
                message=f"pods that depend on the node's topology avoid it: {self.problems[name]}",
            )
        for name in sorted(self._unsaid_keys):
            self._report(name, reason=NOT_READ, message="; ".join(self.unread[name]))
        self._unsaid.clear()
        self._unsaid_keys.clear()

    def _report(self, node: str, *, reason: str, message: str) -> None:
        self._dependencies.recorder.node_event(node, warning=True, reason=reason, message=message)


def _update(known: dict[str, T], unsaid: set[str], node: str, found: T) -> None:
    """Store the current problem of a node; a change is reported."""
    if known.get(node) == (found or None):
        return
    if found:
        known[node] = found
        unsaid.add(node)
    else:
        del known[node]
        unsaid.discard(node)


def unread_of(info: NodeInfo) -> tuple[str, ...]:
    """Return a sentence for each key of the node's objects that is similar to a known key."""
    return (*(info.node.unread if info.node else ()), *(info.current.unread if info.current else ()))


def problem_of(topology: NodeResourceTopology) -> str:
    """Return an invalid key, a missing part, or an unknown kubelet option; empty if there is no problem."""
    if topology.problem or topology.gap:
        return topology.problem or topology.gap
    return unknown_words(topology.kubelet) if topology.owner is CpuOwner.KUBELET else ""
