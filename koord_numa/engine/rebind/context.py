"""What every part of one rebind needs: whom to ask and tell, and whether it may go on. It knows nothing of plans or steps."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from logging import getLogger
from time import time

from koord_numa.core.objects.rebind_request import RebindAnswer, RebindRequest
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.containment import Subject
from koord_numa.engine.queue.backoff import pause
from koord_numa.engine.rebind.snapshot import layout_of_node
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import (
    ClusterError,
    Dependencies,
    Gone,
    Invalid,
    NotLeader,
    RebindRecorder,
    RebindWriter,
    Unavailable,
)

log = getLogger(__name__)


def rebind_subject(request: RebindRequest) -> Subject:
    """A RebindResource, as quarantine knows it."""
    return Subject("rebind", request.name, request.uid, str(request.generation))


class Stopped(Exception):
    """The rebind must end here, between two steps. What was done stays; the text says why."""


@dataclass(frozen=True, slots=True)
class RebindPorts:
    """The ports of rebinds. ``wall`` is the time of day in seconds since the epoch, for deadlines that outlive a process."""

    writer: RebindWriter
    recorder: RebindRecorder
    wall: Callable[[], float] = time


@dataclass(slots=True)
class RebindContext:
    """
    One rebind under way. ``wanted`` says whether its RebindResource still exists, ``leads`` whether this replica may act.

    ``started`` is in seconds since the epoch, ``ends`` is the deadline by the engine's own clock.
    """

    engine: Scheduler
    ports: RebindPorts
    request: RebindRequest
    wanted: Callable[[], bool]
    leads: Callable[[], bool]
    started: float = 0.0
    ends: float = float("inf")

    @property
    def state(self) -> Cache:
        """What the engine knows."""
        return self.engine.cache

    @property
    def outside(self) -> Dependencies:
        """The engine's clock, lease and dice."""
        return self.engine.dependencies

    def begin(self, started: float) -> None:
        """Count the deadline from this time of day."""
        self.started = started
        # The deadline is kept by the monotonic clock, whatever happens to the time of day.
        # A start in the future, after the time of day went back, extends no deadline.
        elapsed = max(0.0, self.ports.wall() - started)
        self.ends = self.outside.clock() + self.request.deadline - elapsed

    def layout(self) -> NodeLayout | str:
        """The node as it is known now, or why it cannot be repacked."""
        return layout_of_node(self.state, self.request.node, self.engine.settings, move_memory=self.request.move_memory)

    def must_lead(self) -> None:
        """Raises ``NotLeader``: another replica may be working on the same node, or will be soon."""
        if not self.leads():
            raise NotLeader("the lease is not held any more")

    def may_go_on(self) -> None:
        """Raises ``NotLeader``, and ``Stopped`` after the deadline or when no pod wants the rebind any more."""
        self.must_lead()
        if not self.wanted():
            raise Stopped("the RebindResource was deleted")
        if self.outside.clock() >= self.ends:
            raise Stopped(f"the deadline of {self.request.deadline} s has passed")

    async def pause(self, attempt: int, error: ClusterError | None = None) -> None:
        """Wait before the next try, at least as long as the server asked for."""
        # At least what the server asked for, and never less than our own backoff.
        asked = (error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0
        backoff = self.engine.settings.api_backoff
        await self.outside.sleep(max(asked, pause(backoff, attempt, self.outside.random())))

    async def tell(self, answer: RebindAnswer) -> None:
        """Write the status, however long it takes; not for a RebindResource that is gone. Raises ``NotLeader``."""
        for attempt in count(1):
            self.must_lead()
            # Written until it is accepted, or until the object is gone: a status is the only memory of a rebind.
            if not self.wanted() or await self.try_to_tell(answer, attempt):
                return

    async def try_to_tell(self, answer: RebindAnswer, attempt: int) -> bool:
        """Write the status once; false after a pause when it did not work and may work later."""
        try:
            await self.ports.writer.answer(self.request, answer)
        except Gone:
            return True
        except Invalid as error:
            log.warning("the status of RebindResource %s is not accepted: %s", self.request.name, error)
            return True
        except ClusterError as error:
            if attempt == 1:
                log.warning("RebindResource %s cannot be answered now: %s", self.request.name, error)
            await self.pause(attempt, error)
            return False
        return True
