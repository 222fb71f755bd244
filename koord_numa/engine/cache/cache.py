"""
What the engine believes about the cluster: nodes, topologies, and every pod that holds something, whoever placed it.

Theory: facts replace what was known of one object, so order and repetition do not matter. Between a decision and its confirmation
a pod is *assumed*: it is counted as if it were bound. An assumption ends in exactly one of three ways, each for this one pod:

    assumed ──seen bound──▶ counted by what its own object says
       │ ╲─its bind failed──▶ released
       └──bound, but never seen: read back (``overdue``)──▶ one of the above

Nothing here decides or talks to anyone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from koord_numa.core.ledger import Holding, holding_of
from koord_numa.core.node import Node, NodeResourceTopology
from koord_numa.core.preempt.node import Nominee
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.cache.pod_index import PodIndex
from koord_numa.engine.cache.topology_lag import RECENT, hidden_from_the_first, still_hidden
from koord_numa.engine.cluster_events import ClusterEvent

DELETED = "DELETED"
"""The event type that says an object is gone; every other type, ``None`` among them, says that it exists as shown."""

OnChange = Callable[[ClusterEvent, NodeInfo], None]


@dataclass(slots=True)
class AssumedPod:
    """A placement that the API server has not shown yet. ``confirmed`` is when the bind was answered, monotonic seconds."""

    pod: Pod
    placement: Placement
    confirmed: float | None = None


@dataclass(slots=True, eq=False)
class Cache:
    """Everything known. ``on_change`` hears every change that may help a waiting pod or alter a remembered result."""

    on_change: OnChange
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    node_of: dict[str, str] = field(default_factory=dict)  # uid of a counted pod -> its node
    assumed: dict[str, AssumedPod] = field(default_factory=dict)
    index: PodIndex = field(default_factory=PodIndex)
    clock: Callable[[], float] = lambda: 0.0  # monotonic seconds
    _unseen: set[str] = field(
        default_factory=set
    )  # names of nodes with pods that ran when they were first seen, to be looked at
    _undated: set[str] = field(
        default_factory=set
    )  # names of nodes that were, and may have pods of which nobody can tell

    def pod(self, uid: str) -> Pod | None:
        """A counted pod."""
        name = self.node_of.get(uid)
        return None if name is None else self.nodes[name].pods[uid]

    def node_exists(self, name: str) -> bool:
        """Is there a Node object of this name?"""
        info = self.nodes.get(name)
        return info is not None and info.node is not None

    def observe_node(self, event: str | None, node: Node) -> None:
        """A Node came, changed or went."""
        record = self._record(node.name)
        new = None if event == DELETED else node
        if record.node != new:
            cause = ClusterEvent.NODE_ADDED if record.node is None else ClusterEvent.NODE_CHANGED
            record.set_objects(new, record.published)
            self.on_change(cause, record)
            if record.undated:
                self._unseen.add(record.name)
        self._forget_if_empty(record)

    def observe_topology(self, event: str | None, topology: NodeResourceTopology) -> None:
        """A NodeResourceTopology came, changed or went."""
        record = self._record(topology.node)
        new = None if event == DELETED else topology
        if record.published != new:
            is_first = record.published is None
            if new is not None and new.resource_version != record.version:
                record.topology_seen = self.clock()
            record.set_objects(record.node, new)
            if is_first and record.undated:
                record.unpublished = hidden_from_the_first(record)
            else:
                record.unpublished = still_hidden(record)
                record.undated.clear()
            self.on_change(ClusterEvent.TOPOLOGY_CHANGED, record)
        self._forget_if_empty(record)

    def observe_pod(self, event: str | None, pod: Pod) -> None:
        """A pod with a node: counted until it has finished or is gone, by what its own object says."""
        if event == DELETED or pod.finished or not pod.node:
            self.release(pod.key.uid)
            return
        uid = pod.key.uid
        assumption = self.assumed.pop(uid, None)
        if self.node_of.get(uid, pod.node) != pod.node:
            self.release(uid)
        record = self._record(pod.node)
        known = record.pods.get(uid)
        holding = holding_of(pod)
        if known is not None and pod.assignment is None and (assumption is not None or known.assignment is None):
            # Nobody says where a kubelet put the pod, so what was assumed of it stays counted.
            holding = replace(holding, numa=record.ledger.holdings[uid].numa)
        self._count(record, pod, holding)

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        """These nodes exist and no others."""
        found = {node.name: node for node in nodes}
        for record in [r for r in self.nodes.values() if r.node is not None and r.name not in found]:
            if record.node is not None:
                self.observe_node(DELETED, record.node)
        for node in found.values():
            self.observe_node(None, node)

    def replace_topologies(self, topologies: Iterable[NodeResourceTopology]) -> None:
        """These NodeResourceTopologies exist and no others."""
        found = {topology.node: topology for topology in topologies}
        for record in [r for r in self.nodes.values() if r.published is not None and r.name not in found]:
            if record.published is not None:
                self.observe_topology(DELETED, record.published)
        for topology in found.values():
            self.observe_topology(None, topology)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """These pods have a node and no others, except those that are assumed: a list may be older than a bind."""
        found = {pod.key.uid: pod for pod in pods}
        for uid in [uid for uid in self.node_of if uid not in found and uid not in self.assumed]:
            self.release(uid)
        for uid, pod in found.items():
            if uid in self.assumed or self.pod(uid) is not pod:
                self.observe_pod(None, pod)
        self.look_again()

    def look_again(self, patience: float = RECENT) -> None:
        """
        Find out which of the pods that ran already when they were first seen the topologies show. Until then none of them is.

        Once for each node after a list, not for each pod. Those of which nobody can tell are taken to be shown ``patience`` seconds after
        they were first seen, so that no node waits for an exporter which has nothing new to say.
        """
        unseen, self._unseen = self._unseen, set()
        for name in sorted(unseen):
            record = self.nodes.get(name)
            if record is not None and record.undated:
                self._undated.add(name)
                self._set_hidden(record, hidden_from_the_first(record))
        believed = self.clock() - patience
        for name in sorted(self._undated):
            record = self.nodes.get(name)
            if record is None or not record.undated:
                self._undated.discard(name)
                continue
            old = {uid for uid, seen in record.undated.items() if seen <= believed}
            for uid in old:
                del record.undated[uid]
            self._set_hidden(record, record.unpublished - old)

    @contextmanager
    def assume(self, pod: Pod, placement: Placement) -> Iterator[AssumedPod]:
        """Count a decision before it is confirmed; whatever goes wrong inside, cancellation too, gives everything back."""
        assumption = self.hold(pod, placement)
        try:
            yield assumption
        except BaseException:
            if self.assumed.get(pod.key.uid) is assumption:
                self.release(pod.key.uid)
            raise

    def release(self, uid: str) -> None:
        """The pod holds nothing any more, assumed or counted."""
        self.assumed.pop(uid, None)
        name = self.node_of.pop(uid, None)
        if name is None:
            return
        record = self.nodes[name]
        record.discount(uid)
        self.index.remove(uid)
        self.on_change(ClusterEvent.CAPACITY_FREED, record)
        self._forget_if_empty(record)

    def overdue(self, before: float) -> list[AssumedPod]:
        """Pods whose bind was confirmed before this time and that nobody has shown since."""
        return [a for a in self.assumed.values() if a.confirmed is not None and a.confirmed < before]

    def lock(self, name: str, why: str) -> None:
        """Place nothing on this node; an empty reason unlocks it."""
        record = self._record(name)
        if record.locked == why:
            return
        record.locked = why
        record.touch()
        self.on_change(ClusterEvent.NODE_CHANGED if why else ClusterEvent.UNLOCKED, record)
        self._forget_if_empty(record)

    def nominate(self, name: str, nominee: Nominee) -> None:
        """Keep room on this node for a pod for which it is being freed, until ``withdraw``."""
        record = self._record(name)
        record.nominees[nominee.pod.key.uid] = nominee
        record.touch()
        self.on_change(ClusterEvent.POD_BOUND, record)

    def withdraw(self, name: str, uid: str) -> None:
        """Nothing is kept for this pod any more; one for which nothing was kept is no error."""
        record = self.nodes.get(name)
        if record is None or record.nominees.pop(uid, None) is None:
            return
        record.touch()
        self.on_change(ClusterEvent.CAPACITY_FREED, record)
        self._forget_if_empty(record)

    def hold(self, pod: Pod, placement: Placement) -> AssumedPod:
        """Count a decision until ``release``, or until the pod is seen bound. ``assume`` is the same, undone by failure."""
        if pod.key.uid in self.node_of:
            self.release(pod.key.uid)
        self.assumed[pod.key.uid] = assumption = AssumedPod(pod, placement)
        here = pod.placed(placement.node, placement.assignment)
        self._count(self._record(placement.node), here, holding_of(here))
        return assumption

    def _count(self, record: NodeInfo, pod: Pod, holding: Holding) -> None:
        uid = pod.key.uid
        known = record.pods.get(uid)
        if known is not None and record.ledger.holdings[uid] == holding:
            record.pods[uid] = pod
            self.index.add(record, pod)
            if known.labels != pod.labels or known.deleting != pod.deleting:
                self.on_change(ClusterEvent.POD_BOUND, record)
            return
        if known is None:
            record.unpublished.add(uid)
            if pod.started:
                record.undated[uid] = self.clock()
                self._unseen.add(record.name)
        self.node_of[uid] = record.name
        record.count(pod, holding)
        self.index.add(record, pod)
        self.on_change(ClusterEvent.POD_BOUND if known is None else ClusterEvent.CAPACITY_FREED, record)

    def _set_hidden(self, record: NodeInfo, hidden: set[str]) -> None:
        if record.unpublished != hidden:
            record.unpublished = hidden
            record.touch()
            self.on_change(ClusterEvent.TOPOLOGY_CHANGED, record)

    def _record(self, name: str) -> NodeInfo:
        record = self.nodes.get(name)
        if record is None:
            record = self.nodes[name] = NodeInfo(name)
        return record

    def _forget_if_empty(self, record: NodeInfo) -> None:
        if record.empty:
            self.nodes.pop(record.name, None)
