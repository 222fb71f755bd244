"""
Controller of RebindResources: rebinds of the same node run sequentially, oldest first; each is reconciled step by step.

Level-based: events may be late, repeated or merged. A rebind that ends because the lease was lost restarts when this replica leads again,
unless another replica has finished it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from logging import getLogger
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.ordering import age_key
from koord_numa.core.rebind.layout import NodeLayout, amounts_after
from koord_numa.core.rebind.plan import (
    Move,
    NodeFigures,
    PodRevision,
    RebindAnswer,
    RebindMove,
    RebindPhase,
    RebindPlan,
    RebindRequest,
    node_figures,
    plan_rebind,
)
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.containment import MOST_TEXT
from koord_numa.engine.rebind.context import (
    RebindContext,
    RebindPorts,
    Stopped,
    obstacle,
    pods_kept_by_claims,
    rebind_subject,
)
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotLeader,
    ObjectReference,
    UnknownOutcome,
)
from koord_numa.wire import names, rfc3339


class RebindStatusReport(MutableObject):
    """
    Plan, completed steps, and the node's figures as far as they are known.

    ``numa_bound`` is the number of pods whose memory or devices keep them on their NUMA nodes. ``kept_by_claims`` is the number of pods
    that are not moved because devices of their resource claims cannot move.
    """

    context: RebindContext
    plan: RebindPlan | None = None
    done: list[Move] = value_field(default_factory=list)
    after: NodeFigures | None = None
    numa_bound: int = 0
    kept_by_claims: int = 0

    def answer(self, phase: RebindPhase, reason: str) -> RebindAnswer:
        """Return the current status."""
        context, plan = self.context, self.plan
        return RebindAnswer(
            phase=phase,
            reason=reason,
            time=time_of_day(context.ports.wall()),
            generation=context.request.generation,
            plan=net_moves(plan.moves) if plan else (),
            result=net_moves(self.done),
            steps=len(plan.moves) if plan else 0,
            stuck=() if plan is None else tuple(map(str, plan.dropped)),
            before=None if plan is None else plan.before,
            after=self.after,
            started=time_of_day(context.started) if context.started else "",
        )

    def outcome(self, before: NodeFigures, after: NodeFigures) -> str:
        """Return ``2 pods moved in 3 steps: NUMA-crossing pods 2 → 0, …``; in a dry run, the expected outcome."""
        dry = self.context.request.dry_run
        moves = self.plan.moves if dry and self.plan is not None else self.done
        pods = _counted(len(net_moves(moves)), "pod")
        verb = "would move" if dry else "moved"
        text = (
            f"{pods} {verb} in {_counted(len(moves), 'step')}{': ' if before != after else ''}{compared(before, after)}"
        )
        if self.plan is not None and self.plan.dropped:
            text += f"; no spare CPUs to move {_counted(len(self.plan.dropped), 'more pod')}"
        return text + self._kept()

    def nothing_to_move(self, plan: RebindPlan) -> str:
        """Return why no pod is moved."""
        if not plan.dropped:
            return f"nothing to improve{self._kept()}"
        return f"nothing can be improved without spare CPUs to move {_counted(len(plan.dropped), 'pod')}{self._kept()}"

    def _kept(self) -> str:
        text = ""
        if self.numa_bound:
            text = f"; {_counted(self.numa_bound, 'pod')} kept on the NUMA nodes of memory or devices (spec.moveMemory)"
        if self.kept_by_claims:
            text += f"; {_counted(self.kept_by_claims, 'pod')} not moved because of resource claims, whose devices cannot move"
        return text

    def stopped(self, why: str) -> str:
        """Return how many steps were completed and why the rebind stopped."""
        if self.plan is None or not self.plan.moves:
            return why
        return f"stopped after {len(self.done)} of {_counted(len(self.plan.moves), 'step')}: {why}"


def net_moves(moves: Iterable[Move]) -> tuple[RebindMove, ...]:
    """Return the first and last CPUs of every moved pod, in the order of the pods' first moves."""
    first: dict[PodKey, Move] = {}
    last: dict[PodKey, Move] = {}
    for move in moves:
        first.setdefault(move.pod, move)
        last[move.pod] = move
    return tuple(
        RebindMove(pod.namespace, pod.name, str(first[pod].before), str(last[pod].after))
        for pod in first
        if first[pod].before != last[pod].after
    )


def compared(before: NodeFigures, after: NodeFigures) -> str:
    """Return the figures that differ."""
    rows = (
        ("NUMA-crossing pods", before.crossing_pods, after.crossing_pods),
        ("NUMA crossings", before.crossings, after.crossings),
        ("split cores", before.split_cores, after.split_cores),
        ("exclusivity conflicts", before.conflicts, after.conflicts),
        ("largest free block", _largest(before), _largest(after)),
    )
    return ", ".join(f"{what} {old} → {new}" for what, old, new in rows if old != new)


def time_of_day(seconds: float) -> str:
    """Return the time in RFC 3339 with whole seconds, as Kubernetes writes times."""
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def _largest(figures: NodeFigures) -> int:
    return max(figures.largest_block.values(), default=0)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


LOOK_SECONDS: Final = 0.02
"""Seconds between checks of the cluster state. Updates arrive by watch, usually within milliseconds."""

UNKNOWN_AFTER: Final = 3
"""Number of attempts to settle an unknown outcome after which it is reported."""


class Moves(ValueObject):
    """Execution of the steps of one plan. ``report_unknown`` reports that the outcome of a step is not known yet."""

    context: RebindContext
    planned: NodeLayout
    report_unknown: Callable[[str], Awaitable[None]]

    async def take(self, move: Move) -> None:
        """
        Move one pod and wait until the ledger shows it.

        Raises ``Stopped`` with the reason when the step was not and will not be taken, ``NotLeader`` when the lease is lost.
        """
        self.context.may_go_on()
        # Checked against the current node, not against the planned node.
        if why := obstacle(self.context.layout(), self.planned, move):
            raise Stopped(why)
        await self._write(move)
        await until_shown(self.context, move.pod, move.after)

    async def _write(self, move: Move) -> None:
        unsettled = 0
        for attempt in count(1):
            if unsettled:
                # A write that may have been executed has to be settled, even after the deadline.
                self.context.must_lead()
            else:
                self.context.may_go_on()
            try:
                await self._try(move)
                return
            except Gone:
                raise Stopped(f"pod {move.pod} is gone") from None
            except (Forbidden, Invalid) as error:
                raise Stopped(_refusal(move.pod, error)) from error
            except Conflict as error:
                problem: ClusterError = error  # changed between read and write: read again
            except UnknownOutcome as error:
                problem, unsettled = error, unsettled + 1
            except ClusterError as error:
                # An error while settling keeps the step unsettled; an error before it leaves no open write.
                problem, unsettled = error, unsettled + (unsettled > 0)
            if unsettled == UNKNOWN_AFTER:
                await self.report_unknown(
                    f"the API server does not say whether pod {move.pod} got CPUs {move.after}: {problem}"
                )
            await self.context.pause(attempt, problem)

    async def _try(self, move: Move) -> None:
        writer = self.context.ports.writer
        revision = await writer.read_pod(move.pod)
        held = revision.pod.assignment.cpus if revision.pod.assignment else CpuSet()
        if held == move.after:
            return  # an earlier attempt succeeded
        known = self.context.state.pod(move.pod.uid)
        # Neither before nor after: another writer has changed the pod, and the lost write can no longer take effect.
        if held != move.before or known is None or not _is_same(revision, known):
            raise Stopped(f"pod {move.pod} was changed by another writer")
        before = revision.pod.assignment.numa if revision.pod.assignment else ()
        after = amounts_after(before, self.planned.machine, move.after)
        # ``None`` keeps the amounts: the annotation is written only if it changes.
        await writer.patch_cpus(revision, move.after, None if after == before else after)


async def until_shown(context: RebindContext, pod: PodKey, cpus: CpuSet) -> None:
    """
    Wait until the own watch shows the pod with these CPUs, or its deletion.

    After ``settle_seconds`` another writer may have changed the pod again. Then the resource version of the API server is sufficient.
    """
    since = context.outside.clock()
    while not _is_shown(context.state.pod(pod.uid), cpus):
        await context.outside.sleep(LOOK_SECONDS)
        if context.outside.clock() - since >= context.engine.settings.settle_seconds:
            since = context.outside.clock()
            if await _is_up_to_date(context, pod):
                return


def _is_shown(known: Pod | None, cpus: CpuSet) -> bool:
    return known is None or (known.assignment is not None and known.assignment.cpus == cpus)


async def _is_up_to_date(context: RebindContext, pod: PodKey) -> bool:
    try:
        revision = await context.ports.writer.read_pod(pod)
    except ClusterError:
        return False  # also when it is deleted: the watch will report it
    known = context.state.pod(pod.uid)
    return known is not None and known.resource_version == revision.pod.resource_version


def _is_same(revision: PodRevision, known: Pod) -> bool:
    """Return whether everything that the plan relied on is unchanged."""
    pod = revision.pod
    return (pod.node, pod.request.bind, pod.deleting, pod.finished, pod.problem) == (
        known.node,
        known.request.bind,
        False,
        False,
        "",
    ) and (pod.assignment and pod.assignment.numa) == (known.assignment and known.assignment.numa)


def _refusal(pod: PodKey, error: Forbidden | Invalid) -> str:
    if isinstance(error, Forbidden):
        return f"koord-numa lacks the permission to {error.rule}"
    return f"the API server does not accept the change of pod {pod}: {error}"


log = getLogger(__name__)

Outcome = tuple[RebindPhase, str]


class RebindReconciler:
    """Reconciler of one RebindResource."""

    def __init__(self, context: RebindContext) -> None:
        self._context = context
        self._report = RebindStatusReport(context)

    async def wait(self) -> None:
        """Report that the rebind waits for its turn. Raises ``NotLeader``."""
        other = f"waits until another rebind of node {self._context.request.node} has ended"
        await self._tell(RebindPhase.PENDING, other)

    async def run(self) -> RebindRequest | None:
        """
        Execute the rebind, starting from the state that the objects show. Raises ``NotLeader``; the objects then show the progress.

        If the RebindResource names another node by now, returns it and does nothing, because another rebind may run on that node.
        """
        context = self._context
        seen = await self._look()
        if seen is None or seen.is_answered or seen.deleting:
            return None
        if seen.node != context.request.node:
            return seen
        context.request = seen
        # Only for the same generation: a changed spec restarts with a new deadline.
        resumes = seen.started and not seen.settled and seen.observed_generation == seen.generation
        context.begin(seen.started if resumes else context.ports.wall())
        if seen.problem:
            await self._end((RebindPhase.FAILED, seen.problem))
            return None
        await self._tell(RebindPhase.PENDING, f"node {seen.node} is looked at")
        self._event("RebindStarted", f"{'going on with' if resumes else 'beginning with'} node {seen.node}")
        # A dry run moves nothing and needs no lock.
        await self._end(await self._stoppable() if seen.dry_run else await self._locked())
        return None

    async def _look(self) -> RebindRequest | None:
        """Read the RebindResource from the server, because the watch may lag behind an earlier leader. ``None`` when it is gone."""
        for attempt in count(1):
            self._context.must_lead()
            try:
                return await self._context.ports.writer.read_rebind(self._context.request)
            except Gone:
                return None
            except ClusterError as error:
                await self._context.pause(attempt, error)
        raise AssertionError("counting never ends")

    async def _locked(self) -> Outcome:
        """Run with the node locked against new placements. Completed steps are in the ledger before the node is unlocked."""
        engine, request = self._context.engine, self._context.request
        engine.lock_node(request.node, f"RebindResource {request.name}")
        try:
            return await self._stoppable()
        finally:
            engine.unlock_node(request.node)

    async def _stoppable(self) -> Outcome:
        try:
            return await self._plan_and_move()
        except Stopped as stop:
            # A rebind that ends early has failed; its status lists the completed steps.
            return RebindPhase.FAILED, self._report.stopped(str(stop))
        except ClusterError:
            raise
        except Exception as error:  # noqa: BLE001 - contained: a bug in this rebind fails only this rebind
            self._context.engine.handle.quarantine.put(rebind_subject(self._context.request), error)
            return RebindPhase.FAILED, self._report.stopped(f"{type(error).__name__}: {error}"[:MOST_TEXT])

    async def _plan_and_move(self) -> Outcome:
        context, report = self._context, self._report
        await self._until_quiet()
        layout = context.layout()
        if isinstance(layout, str):
            raise Stopped(layout)
        report.numa_bound = sum(pinned.cpus_per_numa is not None for pinned in layout.pods)
        report.kept_by_claims = pods_kept_by_claims(context.state, context.request.node)
        # Up to a second of CPU time on large nodes: in a thread, on a layout that is not shared.
        report.plan = plan = await asyncio.to_thread(plan_rebind, layout)
        # Planning took time: the deadline may have passed, or the lease may be lost.
        context.may_go_on()
        if not plan:
            report.after = plan.before
            return RebindPhase.SUCCEED, report.nothing_to_move(plan)
        if context.request.dry_run:
            report.after = plan.after
            return RebindPhase.SUCCEED, report.outcome(plan.before, plan.after)
        return await self._move(layout, plan)

    async def _move(self, layout: NodeLayout, plan: RebindPlan) -> Outcome:
        context, report = self._context, self._report
        await self._tell(RebindPhase.PENDING, f"pods are moved in {len(plan.moves)} steps")
        steps = Moves(context, layout, self._report_unknown)
        try:
            for move in plan.moves:
                await steps.take(move)
                report.done.append(move)
                context.engine.metrics.rebinds.moves += 1
                why = f"CPUs {move.before} became {move.after} by RebindResource {context.request.name}"
                context.ports.recorder.event(move.pod, warning=False, reason="CPUsRebound", message=why)
        finally:
            # For any outcome the figures show the current state of the node.
            now = context.layout()
            report.after = None if isinstance(now, str) else node_figures(now, now.now)
        return RebindPhase.SUCCEED, report.outcome(plan.before, report.after or plan.after)

    async def _until_quiet(self) -> None:
        """Wait until all placements on the node are confirmed. Assumed placements would be missing in the plan."""
        context = self._context
        context.may_go_on()
        # Assumed pods have CPUs that no annotation shows yet.
        while any(held.placement.node == context.request.node for held in context.state.assumed.values()):
            await context.outside.sleep(LOOK_SECONDS)
            context.may_go_on()

    async def _report_unknown(self, why: str) -> None:
        self._context.must_lead()
        await self._context.try_to_tell(self._report.answer(RebindPhase.UNKNOWN, self._report.stopped(why)), attempt=1)

    async def _end(self, outcome: Outcome) -> None:
        phase, reason = outcome
        await self._tell(phase, reason)
        counted, report, dry_run = self._context.engine.metrics.rebinds, self._report, self._context.request.dry_run
        counted.ended[phase.value, dry_run] += 1
        if report.plan is not None and report.after is not None and not dry_run:
            counted.crossings_before += report.plan.before.crossings
            counted.crossings_after += report.after.crossings
        failed = phase is RebindPhase.FAILED
        self._event("RebindFailed" if failed else "RebindSucceeded", reason, warning=failed)
        log.info("RebindResource %s: %s: %s", self._context.request.name, phase.value, reason)

    async def _tell(self, phase: RebindPhase, reason: str) -> None:
        await self._context.tell(self._report.answer(phase, reason))

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        request = self._context.request
        version = f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}"
        about = ObjectReference(names.REBIND_KIND, "", request.name, request.uid, version)
        self._context.ports.recorder.object_event(about, warning=warning, reason=reason, message=message)


IDLE_SECONDS: Final = 0.2
"""Seconds between checks whether this replica may work."""


class RebindController:
    """
    ``EventHandler`` of RebindResources. ``run`` executes them.

    An exception fails the rebind and is reported in its status. If the status cannot be written, the rebind is not retried until it
    changes.
    """

    def __init__(self, engine: Scheduler, ports: RebindPorts) -> None:
        self._engine = engine
        self._ports = ports
        self._known: dict[str, RebindRequest] = {}
        self._ended: dict[str, int] = {}  # uid -> answered generation, which the watch may not show yet
        self._under_way: set[str] = set()
        self._last: dict[str, asyncio.Task[None]] = {}  # node -> last task of the node, for the next to wait for
        self._news = asyncio.Event()
        self._stopping = False

    def replace(self, objects: Iterable[RebindRequest]) -> None:
        """Replace the known RebindResources by this complete list."""
        found = {request.uid: request for request in objects}
        # The difference is a copy, because ``observe`` changes the dictionary.
        for uid in self._known.keys() - found.keys():
            self.observe(DELETED, self._known[uid])
        for request in found.values():
            self.observe(None, request)

    def observe(self, event: str | None, obj: RebindRequest) -> None:
        """Process the current state of a RebindResource; ``DELETED`` when it is gone."""
        if event == DELETED:
            self._known.pop(obj.uid, None)
            self._ended.pop(obj.uid, None)
            return
        self._known[obj.uid] = obj
        self._news.set()

    def synced(self) -> None:
        """Ignore the end of the first list. Objects are processed as soon as they are observed."""

    def known(self) -> list[RebindRequest]:
        """Return every RebindResource as last observed."""
        return list(self._known.values())

    async def run(self) -> None:
        """Work until ``stop``. Return when all steps in progress are settled."""
        async with asyncio.TaskGroup() as jobs:
            while not self._stopping:
                await self._news.wait()
                self._news.clear()
                if not (self._engine.ready and self._leads()):
                    # Polled, because there is no event for changes of the lease.
                    await self._engine.dependencies.sleep(IDLE_SECONDS)
                    self._news.set()
                    continue
                for request in self._open():
                    self._under_way.add(request.uid)
                    work = self._work(request, self._last.get(request.node))
                    self._last[request.node] = jobs.create_task(work, name=f"rebind {request.name}")

    def stop(self) -> None:
        """Start no more rebinds and no more steps."""
        self._stopping = True
        self._news.set()

    def _leads(self) -> bool:
        return not self._stopping and self._engine.dependencies.lease.fresh()

    def _open(self) -> list[RebindRequest]:
        if self._stopping:
            return []
        waiting = (
            request
            for request in self._known.values()
            if request.uid not in self._under_way
            and not request.is_answered
            and not request.deleting
            # The watch may still show the state before the last answer.
            and self._ended.get(request.uid, -1) < request.generation
        )
        return sorted(waiting, key=lambda request: age_key(request.created, request.name))

    async def _work(self, request: RebindRequest, before: asyncio.Task[None] | None) -> None:
        uid, moved = request.uid, None
        job = RebindReconciler(
            RebindContext(self._engine, self._ports, request, lambda: uid in self._known, self._leads)
        )
        try:
            with self._engine.handle.quarantine.contained(rebind_subject(request)):
                # Rebinds of a node wait for each other, which the ``Pending`` status reports.
                if before is not None and not before.done():
                    await job.wait()
                    await asyncio.wait({before})
                moved = await job.run()
            # Only while it exists: UIDs of deleted objects must not accumulate.
            if uid in self._known:
                if moved is None:
                    self._ended[uid] = request.generation
                else:
                    # It restarts in the queue of its new node, which the watch may not show yet.
                    self._known[uid] = moved
        except NotLeader:
            pass  # the next leader continues
        finally:
            self._under_way.discard(uid)
            # Unless a later rebind of the node waits for this task.
            if self._last.get(request.node) is asyncio.current_task():
                del self._last[request.node]
            self._news.set()
