"""
One RebindResource from its beginning to its end.

    Pending ──▶ node locked, binds in flight awaited, plan made ──▶ step, step, … ──▶ node unlocked ──▶ Succeed or Failed
                                                                     └─ an answer is lost for long: Unknown meanwhile

Nothing is remembered outside the API objects: after a restart, or under another leader, a rebind that is Pending begins again with a
new plan from where the pods are, with its old deadline.
"""

import asyncio
from itertools import count
from logging import getLogger

from koord_numa.core.objects.rebind_request import RebindPhase, RebindRequest
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, node_figures, plan_rebind
from koord_numa.engine.containment import MOST_TEXT
from koord_numa.engine.rebind.context import RebindContext, Stopped, rebind_subject
from koord_numa.engine.rebind.move import LOOK_SECONDS, Moves
from koord_numa.engine.rebind.snapshot import pods_kept_by_claims
from koord_numa.engine.rebind.status import RebindStatusReport
from koord_numa.ports import ClusterError, Gone

log = getLogger(__name__)

Outcome = tuple[RebindPhase, str]


class RebindReconciler:
    """Works on one RebindResource."""

    def __init__(self, context: RebindContext) -> None:
        self._context = context
        self._report = RebindStatusReport(context)

    async def wait(self) -> None:
        """Say that it waits for its turn. Raises ``NotLeader``."""
        other = f"waits until another rebind of node {self._context.request.node} has ended"
        await self._tell(RebindPhase.PENDING, other)

    async def run(self) -> RebindRequest | None:
        """
        Do what is asked, from where the objects say that it stands. Raises ``NotLeader``; then the objects say how far it came.

        Returns the RebindResource when it names another node by now: nothing is done, as other rebinds may be at work there.
        """
        context = self._context
        seen = await self._look()
        if seen is None or seen.is_answered or seen.deleting:
            return None
        if seen.node != context.request.node:
            return seen
        context.request = seen
        # Its own generation only: a changed spec begins again with a new deadline.
        resumes = seen.started and not seen.settled and seen.observed_generation == seen.generation
        context.begin(seen.started if resumes else context.ports.wall())
        if seen.problem:
            await self._end((RebindPhase.FAILED, seen.problem))
            return None
        await self._tell(RebindPhase.PENDING, f"node {seen.node} is looked at")
        self._event("RebindStarted", f"{'going on with' if resumes else 'beginning with'} node {seen.node}")
        # A dry run locks nothing, as it moves nothing.
        await self._end(await self._stoppable() if seen.dry_run else await self._locked())
        return None

    async def _look(self) -> RebindRequest | None:
        """The RebindResource as it is: our watch may be behind what an earlier leader wrote. ``None`` when it is gone."""
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
        """Nothing is placed on the node meanwhile; every step that was taken is in the ledger before it is unlocked."""
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
            # A rebind that ends early has failed, with what it did in its status.
            return RebindPhase.FAILED, self._report.stopped(str(stop))
        except ClusterError:
            raise
        except Exception as error:  # noqa: BLE001 - contained: a bug that this rebind has found costs this rebind only
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
        # A second of arithmetic on large nodes: beside the event loop, on a layout that no pod else sees.
        report.plan = plan = await asyncio.to_thread(plan_rebind, layout)
        # The plan took a while: the deadline may have passed, or the lease be lost.
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
            # Whatever ended the steps: the figures say how the node stands now.
            now = context.layout()
            report.after = None if isinstance(now, str) else node_figures(now, now.now)
        return RebindPhase.SUCCEED, report.outcome(plan.before, report.after or plan.after)

    async def _until_quiet(self) -> None:
        """Placements on the node that are not confirmed yet would be missing in the plan."""
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
        self._count(phase)
        failed = phase is RebindPhase.FAILED
        self._event("RebindFailed" if failed else "RebindSucceeded", reason, warning=failed)
        log.info("RebindResource %s: %s: %s", self._context.request.name, phase.value, reason)

    def _count(self, phase: RebindPhase) -> None:
        counted, report, dry_run = self._context.engine.metrics.rebinds, self._report, self._context.request.dry_run
        counted.ended[phase.value, dry_run] += 1
        if report.plan is not None and report.after is not None and not dry_run:
            counted.crossings_before += report.plan.before.crossings
            counted.crossings_after += report.after.crossings

    async def _tell(self, phase: RebindPhase, reason: str) -> None:
        await self._context.tell(self._report.answer(phase, reason))

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._context.ports.recorder.rebind_event(
            self._context.request, warning=warning, reason=reason, message=message
        )
