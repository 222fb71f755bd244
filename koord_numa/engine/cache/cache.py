"""
Cache of nodes, topologies, and every pod that holds resources, whichever scheduler placed it. It makes no decisions and does no I/O.

An observation replaces what was cached of the object, so that order and repetition do not matter. Between a decision and its confirmation a
pod is *assumed*: it is counted like a bound pod. An assumption ends in exactly one of three ways:

    assumed ──observed as bound──▶ counted by its own object
       │ ╲─bind failed──▶ released
       └──bound, but not observed: read from the server (``overdue``)──▶ one of the above
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import time

import msgspec

from koord_numa.core.cpus.kubelet_options import StatedOptions
from koord_numa.core.kubelet import OUT_OF, REASONS
from koord_numa.core.objects.devices import DeviceInventory
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.resources import ResourceList
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.core.state.ledger import Holding, holding_of
from koord_numa.core.value_objects import MutableObject, replace, value_field
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.cache.topology_lag import RECENT
from koord_numa.engine.keyed_heap import KeyedHeap
from koord_numa.ports import DELETED, Gone


class AssumedPod(msgspec.Struct):
    """Placement that the API server has not shown yet. ``confirmed`` is the time at which the bind succeeded, in monotonic seconds."""

    pod: Pod
    placement: Placement
    confirmed: float | None = None


def renewed(info: NodeInfo, new: NodeResourceTopology | None, now: float) -> bool:
    """Store a topology that differs from the published topology in the resource version only. Return whether it was stored."""
    known = info.published
    if known is None or new is None or new.owner is not CpuOwner.SCHEDULER or info.unpublished:
        return False
    version = new.resource_version
    if version == known.resource_version or replace(new, resource_version=known.resource_version) != known:
        return False
    info.published, info.topology_seen = new, now
    if info.topology is not None:  # it may have been completed with configured options
        info.topology = replace(info.topology, resource_version=version)
    return True


__all__ = ["DELETED", "Cache", "OnChange"]

OnChange = Callable[[ClusterEvent | None, NodeInfo, Pod | None], None]
"""Called with the event that may help waiting pods (``None``: no event), the node, and the pod that was added or removed, if any."""


def is_kubelet_rejection(pod: Pod) -> bool:
    """Return whether a kubelet rejected this pod at admission, by the reasons of its admission handlers (OutOfcpu, ...)."""
    return pod.phase == "Failed" and (pod.reason in REASONS or pod.reason.startswith(OUT_OF))


@dataclass(slots=True, eq=False)
class Cache:
    """Cache of the cluster state. ``on_change`` is called for every change that may help a waiting pod or affect a cached result."""

    on_change: OnChange
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    node_of: dict[str, str] = field(default_factory=dict)  # UID of a counted pod -> its node
    assumed: dict[str, AssumedPod] = field(default_factory=dict)
    index: PodIndex = field(default_factory=PodIndex)
    clock: Callable[[], float] = lambda: 0.0  # monotonic seconds
    wall_clock: Callable[[], float] = time  # seconds since the epoch
    headroom: ResourceList = field(default_factory=dict)  # kept free on every node that is not dedicated
    stated: tuple[StatedOptions, ...] = ()  # configured options of kubelets that publish none
    # Called when ``explore`` must continue a replay or an evaluation of kubelet states; ``None``: nothing takes several slices.
    on_unfinished: Callable[[], None] | None = None
    on_error: Callable[[str, Exception], None] | None = (
        None  # called with a node that could not be evaluated by ``explore``
    )
    _exploring: dict[str, None] = field(default_factory=dict)  # nodes with unfinished evaluations of kubelet states
    _unjudged: set[str] = field(default_factory=set)  # names of nodes with pods to compare with their topology
    _moved: set[str] = field(
        default_factory=set
    )  # kubelet-owned nodes where pods started, left or were rejected since the last judgment
    _lagging: KeyedHeap[str] = field(
        default_factory=KeyedHeap
    )  # nodes with pods that count as reported after a time, by that time
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def pod(self, uid: str) -> Pod | None:
        """Return a counted pod, ``None`` if it is not counted."""
        return None if (name := self.node_of.get(uid)) is None else self.nodes[name].pods[uid]

    def pods(self) -> Iterator[Pod]:
        """Iterate over all pods that are bound or assumed."""
        return (pod for info in self.nodes.values() for pod in info.pods.values())

    def node_exists(self, name: str) -> bool:
        """Return whether a Node object with this name exists."""
        return name in self.nodes and self.nodes[name].node is not None

    def observe_node(self, event: str | None, node: Node) -> None:
        """Process an added, changed or deleted Node."""
        info = self._info(node.name)
        new = None if event == DELETED else node
        if info.node != new:
            event_kind = ClusterEvent.NODE_ADDED if info.node is None else ClusterEvent.NODE_CHANGED
            if new is None or info.history.evidence.observe_node(new):
                info.history.restarted()
            info.set_objects(new, info.published)
            self.on_change(event_kind, info, None)
            if info.unreported.waits_for_time:
                self._unjudged.add(info.name)
        elif new is not None and info.node is not None and info.node.images != new.images:
            info.set_objects(new, info.published)
            self.on_change(None, info, None)  # more images may improve the score, never the feasibility
        self._forget_if_empty(info)

    def observe_topology(self, event: str | None, topology: NodeResourceTopology) -> None:
        """Process an added, changed or deleted NodeResourceTopology."""
        info = self._info(topology.node)
        new = None if event == DELETED else topology
        if info.published != new and not renewed(info, new, self.clock()):
            first, now = info.published is None, self.clock()
            if new is not None and new.resource_version != info.version:
                info.topology_seen = now
            # It may show pods that left before the first list and whose names are used by other pods now.
            is_young = now - self._began < RECENT
            info.history.oldest, info.history.reused_since = (
                now - RECENT,
                self.wall_clock() - RECENT if is_young else inf,
            )
            info.set_objects(info.node, new)
            info.unreported.topology_changed(info.topology, now, is_first=first, reading=info.history.read())
            self._note_lag(info)
            self.on_change(ClusterEvent.TOPOLOGY_CHANGED, info, None)
        self._forget_if_empty(info)

    def observe_devices(self, event: str | None, devices: DeviceInventory) -> None:
        """Process an added, changed or deleted Device object."""
        info = self._info(devices.node)
        new = None if event == DELETED else devices
        known = info.device_inventory
        if known != new:
            info.device_inventory = new
            # Agents write the object every minute: an equal one changes no decision.
            if known is None or new is None or replace(known, resource_version=new.resource_version) != new:
                info.touch()
                self.on_change(ClusterEvent.TOPOLOGY_CHANGED, info, None)
        self._forget_if_empty(info)

    def observe_pod(self, event: str | None, pod: Pod) -> None:
        """
        Process a pod with a node. It is counted by its own object until it has finished or is deleted.

        ``event`` is ``None`` for a pod that was read or listed: its bind may have been long before.
        """
        if event == DELETED or pod.finished or not pod.node:
            if pod.node and is_kubelet_rejection(pod):
                self._reject(pod)
            self.release(pod.key.uid)
            return
        uid = pod.key.uid
        assumption = self.assumed.pop(uid, None)
        if (former := self.node_of.get(uid, pod.node)) != pod.node:
            self.nodes[former].history.withdraw(uid)
            self.release(uid)
        info = self._info(pod.node)
        known, holding = info.pods.get(uid), holding_of(pod)
        if known is not None and pod.assignment is None and (assumption is not None or known.assignment is None):
            # The NUMA nodes that a kubelet chose are not published, so that the assumed NUMA nodes stay counted.
            holding = replace(holding, numa=info.ledger.holdings[uid].numa)
        self._count(info, pod, holding, listed=event is None)

    def _reject(self, pod: Pod) -> None:
        """Process a rejection by a kubelet. It is evidence even if the pod was never counted or failed before this process started."""
        info = self._info(pod.node)
        info.history.reject(pod, self.clock())
        self._note_move(info)
        if pod.key.uid not in info.pods:
            info.touch()
            self.on_change(None, info, None)
        self._forget_if_empty(info)

    def judge_found_pods(self) -> None:
        """For pods that ran when they were first observed, determine whether the topology shows them. Once per node after a list."""
        names, self._unjudged = self._unjudged, set()
        for name in sorted(names):
            info = self.nodes.get(name)
            if info is not None and info.unreported.judge(info.topology, self.clock(), info.history.read()):
                self._knowledge_changed(info)

    def judge_again(self) -> Iterator[None]:
        """
        Judge the last topologies of nodes again where pods started, left or were rejected since the topology was observed.

        Yield after every node.
        """
        names, self._moved = self._moved, set()
        for name in sorted(names):
            info = self.nodes.get(name)
            if info is not None and info.judge_again(self.clock()):
                self._knowledge_changed(info)
                self._note_lag(info)
            yield

    def rebuild(self, name: str) -> bool:
        """Rebuild the state of a node's kubelet from published data. Return whether the node has an inferred state."""
        info = self._inferred(name)
        if info is None:
            return False
        info.history.belief = None
        info.judge_again(self.clock())
        self._note_lag(info)
        self._knowledge_changed(info)
        return True

    def rebuild_where(self, name: str, helps: Callable[[], bool]) -> bool:
        """
        Rebuild the state like ``rebuild`` if ``helps()`` is true for the rebuilt state; otherwise keep the tracked state.

        Both cover all states that the kubelet may be in. Neither is always narrower than the other.
        """
        info = self._inferred(name)
        if info is None or info.history.belief is None:
            return False
        history, rebuilt = info.history, False
        followed = history.belief, history.shown
        # Replayed at once: in slices, ``helps`` would not see the result.
        history.belief, later, history.later = None, history.later, None
        info.touch()
        try:
            rebuilt = helps()
        finally:
            history.later = later
            if not rebuilt:
                history.belief, history.shown = followed
                info.touch()
            elif (belief := self.nodes[name].history.belief) is not None:
                belief.later = later
        if rebuilt:
            self._knowledge_changed(info)
        return rebuilt

    def _inferred(self, name: str) -> NodeInfo | None:
        """Return the node if the state of its kubelet is inferred from events and published amounts."""
        info = self.nodes.get(name)
        inferred = info is not None and info.inventory is None and info.topology is not None
        return info if inferred and info is not None and info.history.exact is None else None

    def explore(self) -> bool:
        """Run a slice of one unfinished replay or evaluation of kubelet states. Return whether there was one."""
        name = next(iter(self._exploring), None)
        if name is None:
            return False
        info = self.nodes.get(name)
        try:
            finished = info is None or info.explore()
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(name, error)
            finished = True
        if finished:
            del self._exploring[name]
            if info is not None:
                self.on_change(ClusterEvent.TOPOLOGY_CHANGED, info, None)
        return True

    def expire_unreported(self, patience: float = RECENT) -> None:
        """Treat pods as reported whose state was unknown for ``patience`` seconds, so that no node waits for a silent exporter."""
        before = self.clock() - patience
        while (name := self._lagging.pop_until((before,))) is not None:
            if (info := self.nodes.get(name)) is None:
                continue
            if info.unreported.expire(before):
                info.history.expire_namesakes(before)
                self._knowledge_changed(info)
            self._note_lag(info)

    @contextmanager
    def assume(self, pod: Pod, placement: Placement) -> Iterator[AssumedPod]:
        """Count a decision before it is confirmed. Any exception inside, including cancellation, releases the pod."""
        assumption = self.hold(pod, placement)
        try:
            yield assumption
        except BaseException as error:
            if self.assumed.get(pod.key.uid) is assumption:
                if not isinstance(error, Gone):  # a pod that is gone may have reached the node
                    self.nodes[placement.node].history.withdraw(pod.key.uid)
                self.release(pod.key.uid)
            raise

    def release(self, uid: str) -> None:
        """Stop counting the pod, assumed or bound."""
        self.assumed.pop(uid, None)
        name = self.node_of.pop(uid, None)
        if name is None:
            return
        pod = (info := self.nodes[name]).pods[uid]
        info.history.leave(uid, self.clock())
        self._note_move(info)
        info.discount(uid)
        self.index.remove(info, pod)
        self.on_change(ClusterEvent.CAPACITY_FREED, info, pod)
        if info.node is None:
            self._forget_if_empty(info)

    def overdue(self, before: float) -> list[AssumedPod]:
        """Return the pods whose bind was confirmed before this time and that no event has shown since."""
        return [a for a in self.assumed.values() if a.confirmed is not None and a.confirmed < before]

    def lock(self, name: str, why: str) -> None:
        """Reject all placements on this node; an empty reason unlocks it."""
        info = self._info(name)
        if info.locked != why:
            info.locked = why
            info.touch()
            self.on_change(None if why else ClusterEvent.NODE_UNLOCKED, info, None)
        self._forget_if_empty(info)

    def nominate(self, name: str, nominee: Nominee) -> None:
        """Reserve amounts on this node for a pod that is nominated to it, until ``withdraw``."""
        info = self._info(name)
        former = info.nominees.get(nominee.pod.key.uid)
        if former is not None:
            self.index.count_nominated(former.pod, -1)
        info.nominees[nominee.pod.key.uid] = nominee
        self.index.count_nominated(nominee.pod, 1)
        info.touch()
        self.on_change(None, info, None)

    def withdraw(self, name: str, uid: str) -> None:
        """Remove the nomination of this pod. Does nothing if there is none."""
        info = self.nodes.get(name)
        nominee = None if info is None else info.nominees.pop(uid, None)
        if info is None or nominee is None:
            return
        self.index.count_nominated(nominee.pod, -1)
        info.touch()
        self.on_change(ClusterEvent.CAPACITY_FREED, info, None)
        self._forget_if_empty(info)

    def set_bind_line(self, name: str, is_long: bool) -> None:
        """Set whether many binds to this node are queued. Such a node gets no further pods."""
        info = self._info(name)
        info.long_bind_line = is_long
        info.touch()
        self.on_change(None if is_long else ClusterEvent.BINDS_DONE, info, None)
        self._forget_if_empty(info)

    def set_cpus_by_claim(self, name: str, by_claim: bool) -> None:
        """Set whether a driver publishes the CPUs of a node and allocates them by claim."""
        info = self._info(name)
        if info.cpus_by_claim != by_claim:
            info.cpus_by_claim = by_claim
            info.set_objects(info.node, info.published)
            self.on_change(None if by_claim else ClusterEvent.TOPOLOGY_CHANGED, info, None)
        self._forget_if_empty(info)

    def set_broken(self, name: str, uid: str, why: str) -> None:
        """Reject all placements on the node because an object about it cannot be processed; an empty reason resets this."""
        info = self._info(name)
        if info.broken.get(uid, "") != why:
            if why:
                info.broken[uid] = why
            else:
                del info.broken[uid]
            info.touch()
            self.on_change(None if why else ClusterEvent.TOPOLOGY_CHANGED, info, None)
        self._forget_if_empty(info)

    def hold(self, pod: Pod, placement: Placement) -> AssumedPod:
        """Count a decision until ``release``, or until the pod is observed as bound. ``assume`` does the same and releases on failure."""
        if pod.key.uid in self.node_of:
            self.release(pod.key.uid)
        self.assumed[pod.key.uid] = assumption = AssumedPod(pod, placement)
        here = pod.placed(placement.node, placement.assignment, placement.devices)
        if placement.counted is not None:
            here = replace(here, request=replace(here.request, counted=placement.counted))
        info = self._info(placement.node)
        if placement.explores:
            info.history.evidence.explore(pod.key.uid, placement.explores)
        self._count(info, here, holding_of(here))
        return assumption

    def _count(self, info: NodeInfo, pod: Pod, holding: Holding, *, listed: bool = False) -> None:
        uid, shows_options = pod.key.uid, info.observe(pod, self.clock(), listed=listed)
        known = info.pods.get(uid)
        self.index.add(info, pod, known)
        if known is not None and info.ledger.holdings[uid] == holding:
            info.pods[uid] = pod
            self._note_start(info, pod, is_news=shows_options)
            if known.labels != pod.labels:
                info.count(pod, holding)  # the ledger contains labels (numa-spread)
            if known.labels != pod.labels or known.deleting != pod.deleting:
                self.on_change(ClusterEvent.POD_BOUND, info, pod)
            return
        self.node_of[uid] = info.name
        info.count(pod, holding)
        if known is None:
            info.unreported.add(pod, self.clock())
            self._note_lag(info)
        else:
            self._note_start(info, pod, is_news=False)
        self.on_change(ClusterEvent.POD_BOUND if known is None else ClusterEvent.CAPACITY_FREED, info, pod)

    def _note_start(self, info: NodeInfo, pod: Pod, *, is_news: bool) -> None:
        history = info.history
        started = pod.started and info.unreported.start(
            pod, info.topology, self.clock(), history.had_namesake, history.read
        )
        if started or is_news:
            self._knowledge_changed(info)
        self._note_lag(info)
        if pod.started:
            self._note_move(info)

    def _note_move(self, info: NodeInfo) -> None:
        if info.inventory is None and info.topology is not None:
            self._moved.add(info.name)

    def _note_lag(self, info: NodeInfo) -> None:
        if info.unreported.unjudged:
            self._unjudged.add(info.name)
        if info.unreported.waits_for_time:
            self._lagging.set(info.name, (info.unreported.earliest,))

    def _knowledge_changed(self, info: NodeInfo) -> None:
        info.touch()
        self.on_change(ClusterEvent.TOPOLOGY_CHANGED, info, None)

    def _info(self, name: str) -> NodeInfo:
        if (info := self.nodes.get(name)) is None:
            info = self.nodes[name] = NodeInfo(name, headroom=self.headroom, stated=self.stated)
            if self.on_unfinished is not None:
                info.explore_later = self._explore_later
                info.history.later = partial(self._explore_later, name)
        return info

    def _explore_later(self, name: str) -> None:
        self._exploring[name] = None
        if self.on_unfinished is not None:
            self.on_unfinished()

    def _forget_if_empty(self, info: NodeInfo) -> None:
        if info.empty:
            self.nodes.pop(info.name, None)


# Changes that a list of all bound pods implies for nodes whose kubelets are tracked: the first list, and lists after a watch has ended.
#
# A watch reports binds and departures in order, a list does not. If more than one change happened on a node in between, the kubelet's state
# cannot be derived until a topology shows the pods.


class ListedChanges(MutableObject):
    """Changes by node: the UIDs of pods that are new in a list, and the number of added and removed pods."""

    new: dict[str, list[str]] = value_field(default_factory=dict)
    count: Counter[str] = value_field(default_factory=Counter)

    @classmethod
    def of(
        cls, cache: Cache, listed: Iterable[Pod], contained: Callable[[Pod], AbstractContextManager[None]]
    ) -> "ListedChanges":
        """
        Compare a list with the counted pods, before the list is processed.

        Only pods count for which the kubelet of a tracked node allocates something, and on untracked nodes pods that have not started.
        ``contained`` is entered for every evaluated pod, so that a request that cannot be evaluated affects its pod only.
        """
        changes = cls()
        there = {pod.key.uid: pod for pod in listed if not pod.finished}
        for uid, pod in there.items():
            if cache.node_of.get(uid) != pod.node and not _runs_unfollowed(cache, pod):
                with contained(pod):
                    if _matters(cache, pod):
                        changes.new.setdefault(pod.node, []).append(uid)
                        changes.count[pod.node] += 1
        for uid, node in cache.node_of.items():
            if uid not in there and uid not in cache.assumed:
                pod = cache.nodes[node].pods[uid]
                if not _runs_unfollowed(cache, pod):
                    with contained(pod):
                        changes.count[node] += _matters(cache, pod)
        return changes

    def lose_order(self, cache: Cache) -> None:
        """Mark the order of new pods as unknown. Call it after the list was processed."""
        for node, uids in self.new.items():
            info = cache.nodes.get(node)
            if info is not None and self.count[node] > 1:
                info.history.lose_order([uid for uid in uids if uid in info.history.pods])
                info.touch()


def _runs_unfollowed(cache: Cache, pod: Pod) -> bool:
    """Return whether the pod runs on an untracked node. True for nearly all pods of the first list; their requests need no evaluation."""
    info = cache.nodes.get(pod.node)
    return pod.started and (info is None or info.history.belief is None)


def _matters(cache: Cache, pod: Pod) -> bool:
    info = cache.nodes.get(pod.node)
    if info is None or info.history.belief is None:
        return not pod.started  # pods that have not started are tracked from the first list on
    return info.history.is_tied(pod)
