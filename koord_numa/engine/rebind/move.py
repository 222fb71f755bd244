"""
One step of a rebind: a pod gets other CPUs, and the step is over when the ledger shows it.

Theory. A step is a read and a write that is conditional on what was read (uid and resourceVersion). When the answer is lost, the pod
is read again: either it has its new CPUs; or it has changed otherwise, and then the lost write can never take effect; or it is as
before, and then the *same* write is sent again, of which at most one can win. So a step that was begun is always settled, also after
the deadline. Waiting for our own watch to show the result makes the ledger, from which the next step is checked and the next pod is
placed, as new as what was written.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.rebind_request import PodRevision
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pinned_pods import amounts_after
from koord_numa.core.rebind.plan import Move
from koord_numa.engine.rebind.context import RebindContext, Stopped
from koord_numa.engine.rebind.snapshot import obstacle
from koord_numa.ports import ClusterError, Conflict, Forbidden, Gone, Invalid, UnknownOutcome

LOOK_SECONDS: Final = 0.02
"""Between looks at the cluster state: what is waited for comes by watch, usually within milliseconds."""

UNKNOWN_AFTER: Final = 3
"""After so many tries to settle a lost answer, people are told that the outcome is unknown for now."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Takes the steps of one plan. ``report_unknown`` tells people that the outcome of a step is not known yet."""

    context: RebindContext
    planned: NodeLayout
    report_unknown: Callable[[str], Awaitable[None]]

    async def take(self, move: Move) -> None:
        """
        Move one pod and wait until the ledger shows it.

        Raises ``Stopped`` with the reason when the step was not taken and never will be, ``NotLeader`` when the lease is lost.
        """
        self.context.may_go_on()
        # The node as it is now, and not as it was planned: every step is checked again.
        if why := obstacle(self.context.layout(), self.planned, move):
            raise Stopped(why)
        await self._write(move)
        await until_shown(self.context, move.pod, move.after)

    async def _write(self, move: Move) -> None:
        unsettled = 0
        for attempt in count(1):
            if unsettled:
                # Once a write may have been carried out it has to be settled, also after the deadline.
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
                problem: ClusterError = error  # something changed between reading and writing: look again at what
            except UnknownOutcome as error:
                problem, unsettled = error, unsettled + 1
            except ClusterError as error:
                # An error while settling keeps the step unsettled; one before it leaves nothing open.
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
            return  # an earlier try had arrived
        known = self.context.state.pod(move.pod.uid)
        # Neither before nor after: another writer has changed the pod, and the lost write can never take effect.
        if held != move.before or known is None or not _is_same(revision, known):
            raise Stopped(f"pod {move.pod} was changed by another writer")
        before = revision.pod.assignment.numa if revision.pod.assignment else ()
        after = amounts_after(before, self.planned.machine, move.after)
        # ``None`` leaves amounts as they are: the annotation is not rewritten for nothing.
        await writer.patch_cpus(revision, move.after, None if after == before else after)


async def until_shown(context: RebindContext, pod: PodKey, cpus: CpuSet) -> None:
    """
    Wait until our own watch shows the pod with these CPUs, or gone.

    When it takes long, a pod may have changed the pod again: then it is enough that we know it as the API server does.
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
        return False  # also when it is gone: the watch will say so
    known = context.state.pod(pod.uid)
    return known is not None and known.resource_version == revision.pod.resource_version


def _is_same(revision: PodRevision, known: Pod) -> bool:
    """Is everything that the plan relied on as it was?"""
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
        return f"koord-numa lacks the right to {error.rule}"
    return f"the API server does not accept the change of pod {pod}: {error}"
