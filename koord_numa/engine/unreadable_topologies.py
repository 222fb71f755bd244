"""
Events on nodes whose NodeResourceTopology cannot be read, lacks its NUMA nodes, or names unknown options of the kubelet.

The leader writes one event per problem. A problem that a standby finds is reported when the standby becomes the leader.
"""

from typing import Final

from koord_numa.core.kubelet.view import unknown_words
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.handle import Handle

UNREADABLE: Final = "TopologyUnreadable"


class UnreadableTopologies:
    """One per scheduler. ``problems`` are those that exist, by node."""

    def __init__(self, handle: Handle) -> None:
        self.problems: dict[str, str] = {}
        self._handle = handle
        self._unsaid: set[str] = set()
        self._judged: dict[str, NodeResourceTopology] = {}  # by node, the topology that ``problems`` speaks of

    def node_changed(self, info: NodeInfo) -> None:
        """The node's objects may have changed."""
        # Called for every pod that comes or goes, while topologies are replaced once a minute.
        if info.current is self._judged.get(info.name):
            return
        if info.current is None:
            del self._judged[info.name]
        else:
            self._judged[info.name] = info.current
        problem = "" if info.current is None else problem_of(info.current)
        if self.problems.get(info.name, "") == problem:
            return
        if problem:
            self.problems[info.name] = problem
            self._unsaid.add(info.name)
        else:
            del self.problems[info.name]
            self._unsaid.discard(info.name)

    def tick(self) -> None:
        """Say what has not been said yet, where this process leads."""
        if not self._unsaid or not self._handle.dependencies.lease.fresh():
            return
        for name in sorted(self._unsaid):
            message = f"pods that depend on the node's topology avoid it: {self.problems[name]}"
            self._handle.dependencies.recorder.node_event(name, warning=True, reason=UNREADABLE, message=message)
        self._unsaid.clear()


def problem_of(topology: NodeResourceTopology) -> str:
    """Return a key that cannot be read, a part that is missing, or an option of the kubelet that is not known here; else nothing."""
    if topology.problem or topology.gap:
        return topology.problem or topology.gap
    return unknown_words(topology.kubelet) if topology.owner is CpuOwner.KUBELET else ""
