"""
Leader election by a coordination Lease (``ports.Lease``): at most one process acts at any moment.

Theory. Nobody trusts another's clock. A holder renews the lease and counts, on its own monotonic clock and from before the
request was sent, for how long that entitles it to act: shorter than the lease lasts. A candidate measures, on its own clock and
from when it first saw the current record, that nothing changed for the whole duration, and only then replaces it, conditional
on the resourceVersion it saw. So a holder that is frozen, cut off or killed has stopped acting before another can begin, and it
finds out by itself: ``fresh`` only compares clock readings. The difference of the two times is the reserve for requests that
were sent in the last moment of being fresh.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Any, Final

from koord_numa.cluster.backoff import Backoff
from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import LEASES, Call
from koord_numa.ports import Clock, ClusterError, Conflict, Gone
from koord_numa.settings import BackoffSettings

_log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Seconds since the machine booted: monotonic, and it goes on while the machine is suspended."""
    return clock_gettime(CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """
    Which Lease, who we are, and the times in seconds.

    The lease lasts ``duration``; its holder acts for ``renew`` after a renewal and tries to renew every ``retry``. Candidates
    look every ``look``. ``settle`` is how long a new leader waits at least before it acts.
    """

    name: str
    namespace: str
    identity: str
    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0
    look: float = 0.4
    settle: float = 0.3


@dataclass(slots=True)
class _Observed:
    """The last record we saw, and when on our clock it last changed."""

    raw: dict[str, Any] | None
    since: float

    @property
    def spec(self) -> dict[str, Any]:
        return (self.raw or {}).get("spec") or {}

    @property
    def version(self) -> str:
        return str(((self.raw or {}).get("metadata") or {}).get("resourceVersion", ""))


async def _nothing() -> None:
    pass


class LeaderElection:
    """
    ``ports.Lease``: ``run`` competes and renews; ``release`` gives it up at once.

    A new leader first awaits ``prepare``, in which it catches up with what the one before has done, and only then may act;
    ``elected`` is called at that moment. A watch is no proof that we have seen everything: it may be late, or silent.
    """

    def __init__(
        self,
        api: Api,
        term: LeaseConfig,
        clock: Clock = boot_clock,
        elected: Callable[[], None] = lambda: None,
        prepare: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.term = term
        self.problem = ""
        self.transitions = 0
        self._api = api
        self._clock = clock
        self._elected = elected
        self._prepare = prepare
        self._preparation: asyncio.Task[None] | None = None
        self._until = float("-inf")  # we may act before this moment of our clock
        self._from = float("inf")  # ... and not before this one
        self._seen = _Observed(None, clock())

    def fresh(self) -> bool:
        """May we act right now?"""
        return self._from <= self._clock() < self._until

    @property
    def holder(self) -> str:
        """Who holds the lease, as last seen."""
        return str(self._seen.spec.get("holderIdentity") or "")

    async def run(self) -> None:
        """Compete for the lease and renew it until cancelled; errors only delay it."""
        backoff = Backoff(BackoffSettings(initial=self.term.retry / 4, max=self.term.retry, jitter=0.5))
        while True:
            begun = self._clock()
            try:
                # Half of the time that a renewal gives: a request that hangs leaves room for a second one.
                async with asyncio.timeout(self.term.renew / 2):
                    await self._try(begun)
                self.problem = ""
                backoff.reset()
                pause = self._pause()
            except (ClusterError, TimeoutError) as error:
                self._say(error)
                pause = backoff.pause()
            self._notice_loss()
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Act no more, and let a standby take over at once. Best effort: without an answer the lease runs out by itself."""
        held = self._until != float("-inf") and self.holder == self.term.identity
        self._stop_acting()
        if not held:
            return
        try:
            async with asyncio.timeout(self.term.retry):
                await self._write(self._spec("", 1))
            _log.info("leadership released")
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease could not be released and runs out by itself: %s", error)

    async def _try(self, begun: float) -> None:
        """One look at the lease, and a claim where we are entitled to one. ``begun`` is when this try began, on our clock."""
        if self._holding():
            try:  # no look before a renewal: the write itself is conditional on the record we know
                await self._claim(begun)
                return
            except (Conflict, Gone):  # changed by someone else, or by our own write whose answer was lost
                _log.info("the lease is not as we left it")
        await self._look()
        if self.holder != self.term.identity:
            self._stop_acting()
        if self._entitled():
            try:
                await self._claim(begun)
            except Conflict:
                _log.info("another candidate was faster")

    def _holding(self) -> bool:
        return self.holder == self.term.identity and bool(self._seen.version)

    def _entitled(self) -> bool:
        """Nobody holds it, we do, or its holder has not moved for as long as it asked for, by our clock."""
        if self._seen.raw is None or self.holder in ("", self.term.identity):
            return True
        duration = float(self._seen.spec.get("leaseDurationSeconds") or self.term.duration)
        return self._clock() >= self._seen.since + duration

    async def _look(self) -> None:
        try:
            raw = await self._api.send(Call("get", LEASES, self.term.namespace, self.term.name))
        except Gone:
            raw = None
        self._remember(raw)

    def _remember(self, raw: dict[str, Any] | None) -> None:
        before = self._seen
        seen = _Observed(raw, self._clock())
        if raw is not None and seen.version == before.version:
            seen.since = before.since
        self._seen = seen

    async def _claim(self, begun: float) -> None:
        was_ours = self.holder == self.term.identity
        taking_over = self._clock() >= self._until
        await self._write(self._spec(self.term.identity, ceil(self.term.duration)))
        self._until = begun + self.term.renew
        if taking_over:
            self._from = self._clock() + self.term.settle if self._prepare is _nothing else float("inf")
            self.transitions += 0 if was_ours else 1
            self._preparation = asyncio.create_task(self._catch_up(), name="preparing to lead")
            _log.info("leading as %s", self.term.identity)

    async def _catch_up(self) -> None:
        await asyncio.sleep(self.term.settle)
        if self._prepare is not _nothing:
            await self._prepare()
            self._from = self._clock()
        self._elected()

    async def _write(self, spec: dict[str, Any]) -> None:
        if self._seen.raw is None:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.term.name, "namespace": self.term.namespace},
                "spec": spec,
            }
            call = Call("create", LEASES, self.term.namespace)
        else:
            lease = self._seen.raw | {"spec": spec}
            call = Call("update", LEASES, self.term.namespace, self.term.name)
        self._remember(await self._api.send(call, Body(lease)))

    def _spec(self, holder: str, duration: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people: nobody decides by these times
        before = self._seen.spec
        changes = holder != self.holder
        begins = bool(holder) and changes
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "renewTime": now,
            "acquireTime": now if begins else before.get("acquireTime", now),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + int(begins and self._seen.raw is not None),
        }

    def _pause(self) -> float:
        """Until the next try: a holder renews steadily, a candidate looks more often, to take over soon after a release."""
        return self.term.retry if self._holding() else self.term.look

    def _stop_acting(self) -> None:
        if self._preparation is not None:
            self._preparation.cancel()
        self._until = float("-inf")
        self._from = float("inf")

    def _notice_loss(self) -> None:
        if self._until != float("-inf") and self._clock() >= self._until:
            _log.warning("leadership lost: the lease could not be renewed in time")
            self._stop_acting()

    def _say(self, error: ClusterError | TimeoutError) -> None:
        text = str(error) or "no answer in time"
        if text != self.problem:
            self.problem = text
            _log.warning("lease %s/%s: %s", self.term.namespace, self.term.name, text)


class NoElection:
    """``ports.Lease`` of a process that is the only one, by decision of who started it."""

    holder: Final = ""
    problem: Final = ""

    def fresh(self) -> bool:
        """Always."""
        return True
