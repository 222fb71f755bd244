"""
The current cluster as the scheduler would know it after a restart. Read once from API objects. Nothing is written.

The scheduler of a snapshot is never run. It only does the accounting and answers what it would decide. State of a
running scheduler is unknown: nodes in back-off, and the node of an active rebind.
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from koord_numa.cli.cluster.objects import ClusterObjects
from koord_numa.cluster.resources import (
    BUDGETS,
    CLAIMS,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    TAINT_RULES,
    VOLUMES,
)
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.claims.pod_claims import claim_work
from koord_numa.engine.dry_run import verdict_on
from koord_numa.engine.pod_status import why_everywhere, with_remark
from koord_numa.engine.queue.nominator import Nomination
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import Dependencies, ObjectReference
from koord_numa.settings import DeviceObjectSupport, Settings
from koord_numa.wire.pod.pod_annotations import resource_status


class ReadOnlyPorts:
    """Read-only binder, recorder and lease for a scheduler that is never run."""

    def fresh(self) -> bool:
        """Return False: this scheduler is never the leader."""
        return False

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Discard the event."""

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Discard the event."""

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Discard the event."""

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Raise ``AssertionError``."""
        _refuse("bind", pod, node, annotations)

    async def read_pod(self, pod: PodKey) -> Pod:
        """Raise ``AssertionError``: all pods have been read before."""
        _refuse("read_pod", pod)

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Raise ``AssertionError``."""
        _refuse("set_unschedulable", pod, message)

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Raise ``AssertionError``."""
        _refuse("nominate", pod, node, why)

    async def delete(self, pod: PodKey) -> None:
        """Raise ``AssertionError``."""
        _refuse("delete", pod)

    async def evict(self, pod: PodKey, message: str) -> None:
        """Raise ``AssertionError``."""
        _refuse("evict", pod, message)


def _refuse(*what: object) -> NoReturn:
    raise AssertionError(f"a read-only scheduler was asked to write: {what}")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WouldWait:
    """The reason why a pod would wait, in the words of the scheduler, and the preemption candidate."""

    why: str
    candidate: PreemptionCandidate | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one time. ``pods`` are the pods of all schedulers."""

    scheduler: Scheduler
    pods: Sequence[Pod]
    topologies: Mapping[str, NodeResourceTopology]

    def find(self, namespace: str, name: str) -> Pod | None:
        """Return a pod by its name, or None."""
        return next((pod for pod in self.pods if (pod.key.namespace, pod.key.name) == (namespace, name)), None)

    def candidates(self) -> list[NodeSnapshot]:
        """Return all nodes, sorted by name."""
        records = sorted(self.scheduler.cache.nodes.items())
        return [seen for _, record in records if (seen := record.candidate()) is not None]

    def decide(self, pod: Pod) -> Placement | WouldWait:
        """Return the placement of the pod now, or the reason why it would wait."""
        request_class = self.scheduler.classes.of(pod)
        if request_class is None:
            names = ", ".join(self.scheduler.settings.scheduler_names)
            return WouldWait(f"the pod asks for {pod.scheduler}, which is none of our scheduler names: {names}")
        if untried := _untried(pod):
            return WouldWait(untried)
        verdict = verdict_on(self.scheduler.handle, pod, request_class)
        if isinstance(verdict, Placement):
            return verdict
        remark, candidate = run_inline(self.scheduler.preemption.foresee(pod, request_class, verdict))
        return WouldWait(with_remark(why_everywhere(verdict), remark), candidate)

    def answers(self, pod: Pod) -> dict[str, Placement | Rejection]:
        """
        Return the answer of each node to the pod, by node name.

        Empty for a pod of another scheduler or a pod that is not tried.
        """
        run = None if _untried(pod) else self.scheduler.dry_run(pod)
        nodes = {} if run is None else run.nodes
        return {
            name: answer if isinstance(answer, Rejection) else answer.placement
            for name, answer in sorted(nodes.items())
        }

    def hold(self, pod: Pod, placement: Placement) -> None:
        """Assume the pod in the snapshot, for later decisions. The cluster is unchanged."""
        self.scheduler.cache.hold(pod, placement)
        for each in claim_work(self.scheduler.claims, self.scheduler.handle.resource_claims, pod, placement):
            if each.allocation is not None:
                self.scheduler.claims.assume(each.claim, each.allocation, pod.key.uid)

    def release(self, uid: str) -> None:
        """Remove an assumed pod from the snapshot. The cluster is unchanged."""
        self.scheduler.cache.release(uid)

    def make_room(self, pod: Pod, candidate: PreemptionCandidate) -> None:
        """Nominate the pod and treat its victims as terminating, for later decisions. The cluster is unchanged."""
        request_class = self.scheduler.classes.of(pod)
        if request_class is None:
            raise AssertionError(f"{pod.key} is not ours")
        nominations = self.scheduler.handle.nominator
        for displaced in candidate.displaced:
            nominations.end(displaced.uid)
        nominations.begin(Nomination(pod, request_class, candidate))
        for victim in candidate.victims:
            self.scheduler.preemption.evaluator.note_evicted(candidate.node, victim.key.uid)


def _untried(pod: Pod) -> str:
    """Return the reason why a pod is not tried, or an empty string."""
    if pod.problem:
        return f"the pod cannot be understood: {pod.problem}"
    if pod.deleting:
        return "the pod is being deleted"
    if pod.finished:
        return f"the pod has finished: {pod.phase}"
    return "the pod waits for its scheduling gates" if pod.gated else ""


def snapshot_of(settings: Settings, objects: ClusterObjects) -> Snapshot:
    """Return a snapshot with a scheduler that holds the objects and is never run."""
    read_only = ReadOnlyPorts()
    scheduler = Scheduler(settings, Dependencies(read_only, read_only, read_only, resource_status))
    scheduler.namespaces.replace(objects.namespaces)
    scheduler.handlers.nodes.replace(objects.nodes)
    topologies = {topology.node: topology for topology in objects.topologies}
    scheduler.handlers.topologies.replace(topologies.values())
    if settings.device_objects is not DeviceObjectSupport.OFF:
        scheduler.handlers.devices.replace(objects.devices)
    scheduler.handlers.bound_pods.replace(pod for pod in objects.pods if pod.node)
    scheduler.cache.judge_found_pods()
    scheduler.cache.expire_unreported(
        patience=0
    )  # no update follows, so amounts that no fingerprint explains are taken as shown
    scheduler.volumes.claims.replace(objects.claims)
    scheduler.volumes.volumes.replace(objects.volumes)
    scheduler.volumes.classes.replace(objects.classes)
    if objects.unread.keys().isdisjoint((CLAIMS, VOLUMES, STORAGE_CLASSES)):
        scheduler.volumes.synced()
    scheduler.claims.replace_slices(objects.resource_slices)
    scheduler.claims.replace_taint_rules(objects.taint_rules)
    scheduler.claims.replace_classes(objects.device_classes)
    scheduler.claims.replace_claims(objects.resource_claims)
    if objects.unread.keys().isdisjoint((RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, *TAINT_RULES)):
        scheduler.claims.synced()
    for workload in objects.workloads:
        scheduler.workloads.observe(None, workload)
    if BUDGETS not in objects.unread:
        scheduler.handlers.budgets.replace(objects.budgets)
    for pod in objects.pods:
        is_ours = settings.profile(pod.scheduler) is not None
        if not pod.node and pod.nominated and (settings.preemption.enabled or not is_ours):
            scheduler.handlers.nominated_pods.observe(None, pod)
    return Snapshot(scheduler, objects.pods, topologies)


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only yields to other tasks, without an event loop. Returns its result."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration does not say what it carries
