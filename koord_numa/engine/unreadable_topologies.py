"""
Says, on a node, which key of its NodeResourceTopology cannot be read or is not known here: pods that depend on it avoid the node.

Once for each problem, by the leader: a problem that a standby finds is said when it leads.
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
        # Asked with every pod that comes or goes, while topologies are replaced once a minute.
        if info.topology is self._judged.get(info.name):
            return
        if info.topology is None:
            del self._judged[info.name]
        else:
            self._judged[info.name] = info.topology
        problem = "" if info.topology is None else problem_of(info.topology)
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
    """What is wrong with a topology as such: a key that cannot be read, or an option of the kubelet that is not known here."""
    if topology.problem:
        return topology.problem
    return unknown_words(topology.kubelet) if topology.owner is CpuOwner.KUBELET else ""
