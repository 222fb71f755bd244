"""
The Reserve and PreBind stages of the scheduling cycle, as rows: what must be true before a pod may be bound.

Theory: one pod's cycle is ``decide -> reserve -> PreBind steps -> bind`` (kube-scheduler, ``schedule_one.go``). ``reserve`` runs in
the same turn of the event loop as the decision, so the next decision counts what was reserved. ``do`` writes to the API server and may
take long; it runs beside other pods' cycles and occupies no worker. Whatever fails later undoes the rows in reverse order:

    reserve A, reserve B, do A, do B, bind fails  ->  undo B, undo A, unreserve B, unreserve A

Both context managers here are that order in code. A bind whose outcome is unknown has not failed: nothing is undone until it is settled.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from enum import Enum
from logging import getLogger
from typing import Protocol

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.ports import ClusterError, Conflict, UnknownOutcome

log = getLogger(__name__)


class OnConflict(Enum):
    """What it means for the decision when ``do`` meets an object that has changed (``ports.Conflict``)."""

    DECIDE_AGAIN = "decide again"
    """The decision rests on the old object: undo, release, and schedule the pod again without a pause."""
    BACK_OFF = "back off"
    """Another writer is at work: undo, release, and schedule the pod again after its backoff."""


class PreBindFailed(ClusterError):
    """A PreBind step did not succeed; ``step`` is its name and the message says why. The pod is not bound."""

    def __init__(self, step: str, message: str, *, at_once: bool = False) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step
        self.at_once = at_once


class PreBindStep(Protocol):
    """
    One row of the PreBind stage.

    ``name`` labels metrics and messages. ``timeout`` is the longest that ``do`` may take, in seconds, and bounds ``undo`` as well.
    Calls about one pod come in the order of the module docstring and never overlap; calls about different pods do.
    """

    @property
    def name(self) -> str:
        """As in ``VolumeBinding``."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds."""
        ...

    @property
    def on_conflict(self) -> OnConflict:
        """What ``Conflict`` raised by ``do`` means."""
        ...

    def applies(self, pod: Pod, placement: Placement) -> bool:
        """Does this pod need the step? Cheap: it is asked for every pod that is placed."""
        ...

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """
        Count what the pod is going to use (a volume, a device), so that no later decision uses it too. Synchronous, no I/O.

        Raises ``Conflict`` when that is not possible any more: the pod is scheduled again.
        """
        ...

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """Count it no more. Called once for each ``reserve`` unless the pod was bound."""
        ...

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound (kube-scheduler's PostBind): called once instead of ``unreserve``. Synchronous, no I/O."""
        ...

    async def do(self, pod: Pod, placement: Placement) -> None:
        """
        Make it true in the API server, and return when it is.

        Every write is idempotent: after ``UnknownOutcome`` it is called again until ``timeout``. Raises any ``ClusterError``.
        """
        ...

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Take back what ``do`` wrote, as far as it got. Whatever it raises is logged and changes nothing."""
        ...


@contextmanager
def reserved(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> Iterator[tuple[PreBindStep, ...]]:
    """
    Reserve by the rows that apply, and yield these; if the body raises, unreserve in reverse order, otherwise tell them of the bind.

    Raises ``PreBindFailed`` when a row cannot reserve.
    """
    chosen = tuple(step for step in steps if step.applies(pod, placement))
    if not chosen:  # as for most pods
        yield chosen
        return
    with ExitStack() as undo:
        # Only rows that were reserved are undone.
        for step in chosen:
            try:
                step.reserve(pod, placement)
            except Conflict as error:
                raise PreBindFailed(step.name, str(error), at_once=True) from error
            undo.callback(step.unreserve, pod, placement)
        yield chosen
        # The body succeeded, so that nothing is to be undone.
        undo.pop_all()
        for step in chosen:
            step.post_bind(pod, placement)


@asynccontextmanager
async def pre_bound(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> AsyncIterator[None]:
    """
    Run ``do`` of these rows, one after the other; if one fails or the body raises, run ``undo`` of those begun in reverse order.

    Nothing is undone when this is cancelled: a bind that is cut off may still be carried out, and the pod then needs what was written.
    The pod's next cycle, here or in the next leader, meets it and goes on from there.

    Raises ``PreBindFailed``.
    """
    if not steps:
        yield
        return
    async with AsyncExitStack() as undo:
        try:
            for step in steps:
                undo.push_async_callback(_undo, step, pod, placement)
                await _do(step, pod, placement)
            yield
        except (asyncio.CancelledError, GeneratorExit):
            undo.pop_all()
            raise
        undo.pop_all()


async def _do(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    try:
        async with asyncio.timeout(step.timeout):
            await _repeat_unknown(step, pod, placement)
    except TimeoutError as error:
        raise PreBindFailed(step.name, f"not done within {step.timeout:g} s") from error
    except Conflict as error:
        raise PreBindFailed(step.name, str(error), at_once=step.on_conflict is OnConflict.DECIDE_AGAIN) from error
    except ClusterError as error:
        raise PreBindFailed(step.name, str(error)) from error


REPEAT_SECONDS = 0.2
"""Pause before a step whose outcome is unknown runs again."""


async def _repeat_unknown(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    while True:
        try:
            await step.do(pod, placement)
        except UnknownOutcome:
            await asyncio.sleep(REPEAT_SECONDS)
            continue
        return


async def _undo(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    """An undo that fails leaves an object that the next cycle of the pod meets; it must not hide why the cycle failed."""
    try:
        async with asyncio.timeout(step.timeout):
            await step.undo(pod, placement)
    except (ClusterError, TimeoutError) as error:
        log.warning("pod %s: %s cannot be undone: %r", pod.key, step.name, error)
