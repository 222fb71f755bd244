"""
Follow-up of binds: rejections by kubelets, ends of node back-offs, binds that no watch shows, and CPUs with two owners.

It corrects the cache and reports. It makes no placements.
"""

from asyncio import Semaphore, gather
from collections.abc import Callable
from logging import getLogger
from typing import Final

from cachetools import LRUCache

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import AssumedPod
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.queue.cluster_events import ClusterEvent
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.ports import ClusterError, Gone

log = getLogger(__name__)

REMEMBERED_REJECTIONS: Final = 20_000
"""Maximum number of remembered rejected pods. They stay in the API for a long time; each is counted once."""


class AssumedPods:
    """Follow-up of the binds of one engine. ``observe_bound`` processes pods that were read from the server."""

    def __init__(
        self, handle: Handle, table: NodeTable, node_backoff: NodeBackoff, observe_bound: Callable[[Pod], None]
    ) -> None:
        self._handle = handle
        self._table = table
        self._node_backoff = node_backoff
        self._observe_bound = observe_bound
        self._rejected: LRUCache[str, bool] = LRUCache(maxsize=REMEMBERED_REJECTIONS)
        self._distrusted: dict[str, str] = {}
        self._device_conflicts: dict[str, str] = {}  # by node, the message that was reported

    def note_rejection(self, pod: Pod, *, counts: bool) -> None:
        """
        Process the rejection of an own pod by a kubelet: the node backs off for such pods.

        Rejections found at startup are old and do not count (``counts`` is false).
        """
        handle, uid = self._handle, pod.key.uid
        # A pod of an earlier process has no class: it is derived from the pod without its node.
        request_class = handle.placed.get(uid) or handle.classes.of(_as_it_waited(pod))
        if request_class is None or uid in self._rejected:
            return
        # Before the count: rejections found at startup must not count later either.
        self._rejected[uid] = True
        if not counts:
            return
        handle.metrics.refusals[pod.reason] += 1
        self._node_backoff.refused(pod.node, request_class, pod.reason, handle.dependencies.clock())
        self._changed(pod.node)
        why = f"the kubelet answered {pod.reason} to {pod.key}; such pods avoid this node for a while"
        handle.dependencies.recorder.node_event(pod.node, warning=True, reason="KubeletRefusal", message=why)

    def say_cpu_conflict(self, record: NodeInfo) -> None:
        """Report CPUs of a node with two owners or of unknown pods, once per message. Called for every change of a node."""
        has_kubelet_pods = record.topology is not None and bool(record.topology.kubelet_pods)
        if record.name not in self._distrusted and not has_kubelet_pods and not record.unknown_cpus:
            return
        why = record.distrust
        # Reported when the message changes, not with every event of the node.
        if self._distrusted.get(record.name, "") == why:
            return
        if why:
            self._distrusted[record.name] = why
            self._handle.dependencies.recorder.node_event(
                record.name,
                warning=True,
                reason="CPUsUnknown" if why == record.unknown_cpus else "TwoCPUOwners",
                message=why,
            )
        else:
            del self._distrusted[record.name]

    def say_device_conflict(self, record: NodeInfo) -> None:
        """Report devices by id that are not known or held twice, once per message. Called for every change of a node."""
        offer = record.devices
        if offer is None and record.name not in self._device_conflicts:
            return
        conflict = "" if offer is None else offer.conflict(record.ledger)
        why = ("" if offer is None else offer.problem) or conflict
        if self._device_conflicts.get(record.name, "") == why:
            return
        if not why:
            del self._device_conflicts[record.name]
            return
        self._device_conflicts[record.name] = why
        self._handle.dependencies.recorder.node_event(
            record.name,
            warning=True,
            reason="DeviceConflict" if why == conflict else "DevicesUnknown",
            message=why,
        )

    def end_node_backoffs(self) -> list[str]:
        """End the expired back-offs and return the names of their nodes."""
        now = self._handle.dependencies.clock()
        nodes = self._node_backoff.ended(now)
        for name in nodes:
            # The rows of these nodes are outdated although the nodes have not changed.
            self._changed(name)
        if nodes:
            self._handle.queue.wake(ClusterEvent.BACKOFF_ENDED, now)
        return nodes

    async def read_back_overdue(self) -> None:
        """Read the pods whose bind was confirmed long ago and that no event has shown since."""
        before = self._handle.dependencies.clock() - self._handle.settings.settle_seconds
        # Concurrently: with slow responses, sequential reads would take minutes.
        reads = Semaphore(self._handle.settings.bind_concurrency)
        await gather(*(self._read_back_contained(each, reads) for each in self._handle.cache.overdue(before)))

    async def _read_back_contained(self, assumption: AssumedPod, reads: Semaphore) -> None:
        # Contained: a pod that cannot be read must not affect the others.
        with self._handle.quarantine.contained(subject_of(assumption.pod)):
            async with reads:
                await self._read_back(assumption)

    async def _read_back(self, assumption: AssumedPod) -> None:
        """Read one pod. If it was deleted before any event showed it, no later event would report that."""
        state, uid = self._handle.cache, assumption.pod.key.uid
        try:
            seen = await self._handle.dependencies.binder.read_pod(assumption.pod.key)
        except Gone:
            # Only for the same assumption: the pod may have been placed again during the read.
            if state.assumed.get(uid) is assumption:
                state.release(uid)
            return
        except ClusterError as error:
            log.info("pod %s cannot be read back now: %s", assumption.pod.key, error)
            return
        if state.assumed.get(uid) is assumption:
            self._observe_bound(seen)

    def _changed(self, node: str) -> None:
        record = self._handle.cache.nodes.get(node)
        if record is not None:
            self._table.changed(record)


def _as_it_waited(pod: Pod) -> Pod:
    """Return the pod without its node, so that it has the class of its siblings as far as possible."""
    constraints = replace(pod.request.constraints, node_name="")
    return replace(pod, request=replace(pod.request, constraints=constraints))
