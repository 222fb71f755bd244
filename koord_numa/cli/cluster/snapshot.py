"""
The current cluster as the scheduler would know it after a restart. Read once from API objects. Nothing is written.

The scheduler of a snapshot is never run. It only does the accounting and answers what it would decide. State of a
running scheduler is unknown: nodes in back-off, and the node of an active rebind.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
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
from koord_numa.core.objects.gangs import Dialect, GangKey
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import ValueObject, replace, value_field
from koord_numa.engine.claims.pod_claims import claim_work
from koord_numa.engine.gangs.group_report import GroupReport, dry_run_group
from koord_numa.engine.object_events import why_everywhere, with_remark
from koord_numa.engine.preemption import GroupPlan
from koord_numa.engine.queue import Nomination, PendingPod, RequestClass
from koord_numa.engine.scheduler import Scheduler, verdict_on
from koord_numa.ports import Dependencies
from koord_numa.settings import DeviceObjectSupport, Settings
from koord_numa.wire import resource_status


class ReadOnlyPorts:
    """Binder, recorder and lease of a scheduler that is never run. Events are discarded, and every request is a mistake."""

    def fresh(self) -> bool:
        """Return False: this scheduler is never the leader."""
        return False

    def _discard(self, *_: object, **__: object) -> None:
        pass

    async def _refuse(self, *what: object) -> NoReturn:
        raise AssertionError(f"a read-only scheduler was asked to write: {what}")

    event = node_event = object_event = _discard
    bind = read_pod = set_unschedulable = nominate = delete = evict = _refuse


T = TypeVar("T")


class WouldWait(ValueObject):
    """The reason why a pod would wait, in the words of the scheduler, and the preemption candidate."""

    why: str
    candidate: PreemptionCandidate | None = None


class Snapshot(ValueObject):
    """The cluster at one time. ``pods`` are the pods of all schedulers."""

    scheduler: Scheduler
    pods: Sequence[Pod]
    topologies: Mapping[str, NodeResourceTopology]
    # Decisions about groups, and their documents with advice, until the snapshot changes.
    _reports: dict[tuple[GangKey, ...], GroupReport] = value_field(default_factory=dict)
    _plans: dict[tuple[GangKey, ...], tuple[str, GroupPlan | None]] = value_field(default_factory=dict)
    group_views: dict[tuple[GangKey, ...], Mapping[str, Any]] = value_field(default_factory=dict)

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
        report = self.group_report(pod)
        if report is not None and report.placed is None:
            remark, plan = self.group_plan(report)
            return WouldWait(with_remark(report.why, remark), _candidates(plan).get(pod.key.uid))
        if report is not None and report.placed is not None and pod.key.uid in report.placed.placements:
            return report.placed.placements[pod.key.uid]
        return self._decide_alone(pod, request_class)

    def _decide_alone(self, pod: Pod, request_class: RequestClass) -> Placement | WouldWait:
        verdict = verdict_on(self.scheduler.handle, pod, request_class)
        if isinstance(verdict, Placement):
            return verdict
        remark, candidate = run_inline(self.scheduler.preemption.foresee(pod, request_class, verdict))
        return WouldWait(with_remark(why_everywhere(verdict), remark), candidate)

    def expect(self, pod: Pod) -> None:
        """
        Add a pending pod of a group, instead of a pending member of the same name.

        Pods without a group, or of other schedulers, are ignored.
        """
        ref, request_class = pod.request.gang, self.scheduler.classes.of(pod)
        if ref is None or request_class is None or _untried(pod):
            return
        self._changed()
        groups = self.scheduler.handle.pod_groups
        for uid in [it.uid for it in groups.gang(ref.key).pending.values() if it.pod.key.name == pod.key.name]:
            groups.remove_pending(uid)
        groups.add_pending(PendingPod(pod, request_class, 0.0, order=len(groups.gang(ref.key).pending)))

    def _changed(self) -> None:
        self._reports.clear()
        self._plans.clear()
        self.group_views.clear()

    def group_of(self, pod: Pod) -> tuple[GangKey, ...]:
        """Return the gangs that are decided on together with a pending pod; empty for a pod without a group."""
        ref, groups = pod.request.gang, self.scheduler.handle.pod_groups
        if ref is None or ref.problem or pod.key.uid not in groups.gang(ref.key).pending:
            return ()
        return groups.group(ref.key)[0]

    def group_report(self, pod: Pod) -> GroupReport | None:
        """Return the decision about the group of a pending pod; ``None`` for a pod without a group."""
        keys = self.group_of(pod)
        return self.report_on(keys) if keys else None

    def report_on(self, keys: tuple[GangKey, ...]) -> GroupReport:
        """Return the decision about these gangs."""
        if keys not in self._reports:
            self._reports[keys] = run_inline(dry_run_group(self.scheduler.handle, keys))
        return self._reports[keys]

    def group_plan(self, report: GroupReport) -> tuple[str, GroupPlan | None]:
        """Return the message about preemption for a group that is not placed, and the plan that would be carried out."""
        known = self._plans.get(report.keys)
        if known is None:
            beside = {} if report.rejection is None else report.rejection.beside
            nodes = [placement.node for placement in beside.values()]
            known = ("", None)
            if self.scheduler.settings.preemption.enabled:
                known = run_inline(self.scheduler.preemption.groups.foresee(report.keys, nodes))
            self._plans[report.keys] = known
        return known

    def place_group(self, pod: Pod) -> list[tuple[Pod, Placement | WouldWait]]:
        """Decide on all pending members of the group of a pod, and assume those that are placed, or the evictions for them."""
        report = self.group_report(pod)
        if report is None:
            raise AssertionError(f"{pod.key} is in no group")
        placements = {} if report.placed is None else report.placed.placements
        members = {member.key.uid: member for member in report.members}
        remark, plan = ("", None) if placements else self.group_plan(report)
        candidates = _candidates(plan)
        if plan is not None:
            self._changed()
            for displaced in plan.candidate.displaced:
                self.scheduler.handle.nominator.end_together(displaced.uid)
            self.scheduler.handle.nominator.begin(*plan.nominations)
            self._evict(plan.candidate.victims)
        found: list[tuple[Pod, Placement | WouldWait]] = []
        for uid, placement in placements.items():
            self.hold(members[uid], placement)
            found.append((members[uid], placement))
        for member in (member for uid, member in members.items() if uid not in placements):
            request_class = self.scheduler.classes.of(member)
            if placements and request_class is not None:
                found.append((member, self._decide_alone(member, request_class)))  # beyond the minimal count
            else:
                found.append((member, WouldWait(with_remark(report.why, remark), candidates.get(member.key.uid))))
        return found

    def answers(self, pod: Pod) -> dict[str, Placement | Rejection]:
        """
        Return the answer of each node to the pod, by node name.

        Empty for a pod of another scheduler or a pod that is not tried.
        """
        run = None if _untried(pod) else self.scheduler.dry_run(pod)
        return {
            name: answer if isinstance(answer, Rejection) else answer.placement
            for name, answer in sorted((run or {}).items())
        }

    def hold(self, pod: Pod, placement: Placement) -> None:
        """Assume the pod in the snapshot, for later decisions. The cluster is unchanged."""
        self._changed()
        self.scheduler.handle.pod_groups.remove_pending(pod.key.uid)
        self.scheduler.cache.hold(pod, placement)
        claims = self.scheduler.claims
        for each in claim_work(claims, self.scheduler.handle.resource_claims, pod, placement):
            if each.allocation is not None and each.in_memory:
                claims.assume(each.claim, each.allocation, pod.key.uid)
            elif each.allocation is not None:  # as written by the cycle, so that other pods share the claim
                claims.observe_claim(None, replace(each.claim, allocation=each.allocation))

    def release(self, uid: str) -> None:
        """Remove an assumed pod from the snapshot. The cluster is unchanged."""
        self._changed()
        self.scheduler.cache.release(uid)

    def make_room(self, pod: Pod, candidate: PreemptionCandidate) -> None:
        """Nominate the pod and treat its victims as terminating, for later decisions. The cluster is unchanged."""
        self._changed()
        request_class = self.scheduler.classes.of(pod)
        if request_class is None:
            raise AssertionError(f"{pod.key} is not ours")
        nominations = self.scheduler.handle.nominator
        for displaced in candidate.displaced:
            nominations.end(displaced.uid)
        nominations.begin(Nomination(pod, request_class, candidate))
        self._evict(candidate.victims)

    def _evict(self, victims: Iterable[Pod]) -> None:
        for victim in victims:
            self.scheduler.preemption.evaluator.note_evicted(victim.node, victim.key.uid)


def _candidates(plan: GroupPlan | None) -> dict[str, PreemptionCandidate]:
    """Return the preemption candidates of the members, by UID."""
    return {} if plan is None else {it.pod.key.uid: it.candidate for it in plan.nominations}


def _untried(pod: Pod) -> str:
    """Return the reason why a pod is not tried, or an empty string."""
    if pod.problem:
        return f"the pod is malformed: {pod.problem}"
    if pod.request.gang is not None and pod.request.gang.problem:
        return pod.request.gang.problem
    if pod.deleting:
        return "the pod is being deleted"
    if pod.finished:
        return f"the pod has finished: {pod.phase}"
    return "the pod waits for its scheduling gates" if pod.gated else ""


def snapshot_of(settings: Settings, objects: ClusterObjects) -> Snapshot:
    """Return a snapshot with a scheduler that holds the objects and is never run."""
    read_only = ReadOnlyPorts()
    scheduler = Scheduler(settings, Dependencies(read_only, read_only, read_only, resource_status))
    scheduler.cache.on_unfinished = None  # nothing would continue an evaluation
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
    snapshot = Snapshot(scheduler, objects.pods, topologies)
    _add_groups(snapshot, objects)
    return snapshot


def _add_groups(snapshot: Snapshot, objects: ClusterObjects) -> None:
    scheduler = snapshot.scheduler
    for dialect in Dialect:
        scheduler.groups.replace_groups(
            dialect, [group for group in objects.pod_groups if group.key.dialect is dialect]
        )
    scheduler.groups.replace_completed([pod for pod in objects.pods if pod.phase == "Succeeded"])
    scheduler.handle.pod_groups.settle(())
    for pod in objects.pods:
        if not pod.node:
            snapshot.expect(pod)


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only yields to other tasks, without an event loop. Returns its result."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration does not say what it carries
