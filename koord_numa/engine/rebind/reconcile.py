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

from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, node_figures, plan_rebind
from koord_numa.core.rebind_request import RebindPhase, RebindRequest
from koord_numa.engine.rebind.context import RebindContext, Stopped
from koord_numa.engine.rebind.move import LOOK_SECONDS, Moves
from koord_numa.engine.rebind.status import RebindStatusReport
from koord_numa.ports import ClusterError, Gone

log = getLogger(__name__)

Outcome = tuple[RebindPhase, str]


class RebindReconciler:
    """Works on one RebindResource."""

    def __init__(self, errand: RebindContext) -> None:
        self._errand = errand
        self._story = RebindStatusReport(errand)

    async def wait(self) -> None:
        """Say that it waits for its turn. Raises ``NotLeader``."""
        other = f"waits until another rebind of node {self._errand.request.node} has ended"
        await self._tell(RebindPhase.PENDING, other)

    async def run(self) -> None:
        """Do what is asked, from where the objects say that it stands. Raises ``NotLeader``; then the objects say how far it came."""
        errand = self._errand
        seen = await self._look()
        if seen is None or seen.is_answered or seen.deleting:
            return
        errand.request = seen
        resumes = seen.started and not seen.settled and seen.observed_generation == seen.generation
        errand.begin(seen.started if resumes else errand.ports.wall())
        if seen.problem:
            await self._end((RebindPhase.FAILED, seen.problem))
            return
        await self._tell(RebindPhase.PENDING, f"node {seen.node} is looked at")
        self._event("RebindStarted", f"{'going on with' if resumes else 'beginning with'} node {seen.node}")
        await self._end(await self._stoppable() if seen.dry_run else await self._locked())

    async def _look(self) -> RebindRequest | None:
        """The RebindResource as it is: our watch may be behind what an earlier leader wrote. ``None`` when it is gone."""
        for attempt in count(1):
            self._errand.must_lead()
            try:
                return await self._errand.ports.writer.read_rebind(self._errand.request)
            except Gone:
                return None
            except ClusterError as error:
                await self._errand.pause(attempt, error)
        raise AssertionError("counting never ends")

    async def _locked(self) -> Outcome:
        """Nothing is placed on the node meanwhile; every step that was taken is in the ledger before it is unlocked."""
        engine, request = self._errand.engine, self._errand.request
        engine.lock_node(request.node, f"RebindResource {request.name}")
        try:
            return await self._stoppable()
        finally:
            engine.unlock_node(request.node)

    async def _stoppable(self) -> Outcome:
        try:
            return await self._plan_and_move()
        except Stopped as stop:
            return RebindPhase.FAILED, self._story.stopped(str(stop))

    async def _plan_and_move(self) -> Outcome:
        errand, story = self._errand, self._story
        await self._until_quiet()
        board = errand.board()
        if isinstance(board, str):
            raise Stopped(board)
        # A second of arithmetic on large nodes: beside the event loop, on a board that nobody else sees.
        story.plan = plan = await asyncio.to_thread(plan_rebind, board)
        errand.may_go_on()
        if not plan:
            story.after = plan.before
            return RebindPhase.SUCCEED, story.idle(plan)
        if errand.request.dry_run:
            story.after = plan.after
            return RebindPhase.SUCCEED, story.outcome(plan.before, plan.after)
        return await self._move(board, plan)

    async def _move(self, board: NodeLayout, plan: RebindPlan) -> Outcome:
        errand, story = self._errand, self._story
        await self._tell(RebindPhase.PENDING, f"pods are moved in {len(plan.moves)} steps")
        steps = Moves(errand, board, self._doubt)
        try:
            for move in plan.moves:
                await steps.take(move)
                story.done.append(move)
                why = f"CPUs {move.before} became {move.after} by RebindResource {errand.request.name}"
                errand.ports.recorder.event(move.pod, warning=False, reason="CPUsRebound", message=why)
        finally:
            now = errand.board()
            story.after = None if isinstance(now, str) else node_figures(now, now.now)
        return RebindPhase.SUCCEED, story.outcome(plan.before, story.after or plan.after)

    async def _until_quiet(self) -> None:
        """Placements on the node that are not confirmed yet would be missing in the plan."""
        errand = self._errand
        errand.may_go_on()
        while any(held.placement.node == errand.request.node for held in errand.state.assumed.values()):
            await errand.outside.sleep(LOOK_SECONDS)
            errand.may_go_on()

    async def _doubt(self, why: str) -> None:
        self._errand.must_lead()
        await self._errand.try_to_tell(self._story.answer(RebindPhase.UNKNOWN, self._story.stopped(why)), attempt=1)

    async def _end(self, outcome: Outcome) -> None:
        phase, reason = outcome
        await self._tell(phase, reason)
        failed = phase is RebindPhase.FAILED
        self._event("RebindFailed" if failed else "RebindSucceeded", reason, warning=failed)
        log.info("RebindResource %s: %s: %s", self._errand.request.name, phase.value, reason)

    async def _tell(self, phase: RebindPhase, reason: str) -> None:
        await self._errand.tell(self._story.answer(phase, reason))

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._errand.ports.recorder.rebind_event(self._errand.request, warning=warning, reason=reason, message=message)
