"""Leader election with a coordination Lease (``ports.Lease``), as in client-go: at most one process acts at any time.

Clocks of other processes are not used. A holder may act for ``renew`` seconds on its monotonic clock, counted from
before the renewal was sent. A candidate replaces a record only after it was unchanged for the whole duration on the
candidate's clock, conditional on its resourceVersion. A holder that is frozen, disconnected or killed therefore stops
acting before another starts. ``fresh`` only compares clock readings. The difference of both times is a reserve for
requests in flight: ``remaining`` is their deadline, which the server enforces.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from math import ceil
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Any, Final

from koord_numa.cluster.client import Api, Backoff, Body
from koord_numa.cluster.resources import LEASES, NAMESPACES, Call
from koord_numa.core.value_objects import MutableObject, ValueObject
from koord_numa.ports import Clock, ClusterError, Conflict, Gone
from koord_numa.settings import BackoffSettings
from koord_numa.wire import rfc3339_micro
from koord_numa.wire.names import LEASE_COMPONENT, LEASE_SCHEDULERS


class NoElection:
    """``ports.Lease`` without leader election, for a process that the operator runs as a single replica."""

    holder: Final = ""
    problem: Final = ""

    def fresh(self) -> bool:
        """Return true: this lease cannot be lost."""
        return True

    def remaining(self) -> float:
        """Return infinity: no other process acts, so requests need no deadline."""
        return float("inf")


_log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Return the seconds since boot. The clock is monotonic and includes suspended time."""
    return clock_gettime(CLOCK_BOOTTIME)


class LeaseConfig(ValueObject):
    """The Lease, the candidate, and times in seconds.

    client-go's names are LeaseDuration, RenewDeadline and RetryPeriod. The lease lasts ``duration``. Its holder acts
    for ``renew`` after a renewal and tries to renew it every ``retry``. Candidates read the Lease every ``look``. A
    new leader waits at least ``settle`` before it acts. ``scheduler_names`` are written to the Lease, so that other
    schedulers of the same names detect it.
    """

    name: str
    namespace: str
    identity: str
    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0
    look: float = 0.4
    settle: float = 0.3
    scheduler_names: tuple[str, ...] = ()


class _Observed(MutableObject):
    """The last observed record and the local time of its last change."""

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
    """``ports.Lease``: ``run`` acquires and renews the lease, ``release`` gives it up immediately.

    A new leader first awaits ``prepare``, which processes the writes of its predecessor, and only then may act.
    ``elected`` is called at that time. A watch does not prove that all writes were seen: it may be late or silent.
    """

    def __init__(
        self,
        api: Api,
        config: LeaseConfig,
        clock: Clock = boot_clock,
        elected: Callable[[], None] = lambda: None,
        prepare: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.config = config
        self.problem = ""
        self.transitions = 0
        self._api = api
        self._clock = clock
        self._elected = elected
        self._prepare = prepare
        self._preparation: asyncio.Task[None] | None = None
        self._until = float("-inf")  # end of the permission to act, on the local clock
        self._from = float("inf")  # start of the permission to act
        self._seen = _Observed(None, clock())
        self._in_doubt = False  # whether a claim was sent whose response never arrived

    def fresh(self) -> bool:
        """Report whether this process may act now."""
        return self._from <= self._clock() < self._until

    def remaining(self) -> float:
        """Return the seconds until another process may act, by the local clock, or 0 without permission to act."""
        if not self.fresh():
            return 0.0
        # ``_until`` is ``renew`` after the start of the request. Other processes wait for ``duration`` after they saw
        # the renewal.
        return self._until - self.config.renew + self.config.duration - self._clock()

    @property
    def holder(self) -> str:
        """The last observed holder of the lease."""
        return str(self._seen.spec.get("holderIdentity") or "")

    async def run(self) -> None:
        """Acquire and renew the lease until cancelled. Errors only delay it."""
        backoff = Backoff(BackoffSettings(initial=self.config.retry / 4, max=self.config.retry, jitter=0.5))
        _log.info("competing for lease %s as %s", self._title, self.config.identity)
        while True:
            begun = self._clock()
            try:
                # Half of the renew deadline: a second request is possible if the first hangs.
                async with asyncio.timeout(self.config.renew / 2):
                    await self._try(begun)
                self.problem = ""
                backoff.reset()
                # Candidates read the Lease more often than holders renew it, to detect a release soon.
                pause = self.config.retry if self._holding() else self.config.look
            except (ClusterError, TimeoutError) as error:
                self._report(str(error) or "no answer in time")
                pause = backoff.pause()
            if self._until != float("-inf") and self._clock() >= self._until:
                _log.warning("leadership lost: lease %s could not be renewed for %g s", self._title, self.config.renew)
                self.stop_acting()
            if self._preparation is not None and self._preparation.done() and not self._preparation.cancelled():
                self._preparation.result()  # a failed preparation ends the process, which otherwise would only renew
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Stop acting and release the lease for a standby. Best effort: without a response the lease expires."""
        held = self._until != float("-inf") and self.holder == self.config.identity
        self.stop_acting()
        if not held and not self._in_doubt:
            return
        try:
            async with asyncio.timeout(self.config.retry):
                if not held:
                    await self._look()
                    if self.holder != self.config.identity:
                        return
                # Write an empty holder, unless another process holds the lease. Raises the errors of ``Api.send``.
                try:
                    await self._write(self._spec("", 1))
                except (Conflict, Gone):  # changed by a renewal in flight whose response never arrived
                    await self._look()
                    if self.holder == self.config.identity:
                        await self._write(self._spec("", 1))
            _log.info("leadership released")
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease could not be released and will expire: %s", error)

    @property
    def _title(self) -> str:
        return f"{self.config.namespace}/{self.config.name}"

    async def _try(self, begun: float) -> None:
        """Read the lease and claim it if permitted. ``begun`` is the local time at which this attempt started."""
        lost = ""
        if self._holding():
            try:  # no read before a renewal: the write is conditional on the last observed record
                await self._claim(begun)
                return
            except (Conflict, Gone) as error:  # changed by another process, or by an own write whose response was lost
                lost = str(error)
        await self._look()
        if self.holder != self.config.identity:
            self.stop_acting()
            if lost:
                _log.warning("leadership lost: lease %s is held by %s: %s", self._title, self.holder or "no one", lost)
        if self._entitled():
            try:
                await self._claim(begun)
            except Conflict:
                _log.info("another replica acquired the lease first")

    def _holding(self) -> bool:
        return self.holder == self.config.identity and bool(self._seen.version)

    def _entitled(self) -> bool:
        """Report whether the lease is free, held by this process, or expired by the local clock."""
        if self._seen.raw is None or self.holder in ("", self.config.identity):
            return True
        duration = float(self._seen.spec.get("leaseDurationSeconds") or self.config.duration)
        return self._clock() >= self._seen.since + duration

    async def _look(self) -> None:
        try:
            raw = await self._api.send(Call("get", LEASES, self.config.namespace, self.config.name))
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
        was_ours = self.holder == self.config.identity
        taking_over = self._clock() >= self._until
        self._in_doubt = True
        try:
            await self._write(self._spec(self.config.identity, ceil(self.config.duration)))
        except (Conflict, Gone):
            self._in_doubt = False
            raise
        self._in_doubt = False
        # Counted from before the request was sent: the response may be delayed.
        self._until = begun + self.config.renew
        if taking_over:
            self._from = self._clock() + self.config.settle if self._prepare is _nothing else float("inf")
            self.transitions += 0 if was_ours else 1
            self._preparation = asyncio.create_task(self._catch_up(), name="preparing to lead")
            _log.info("leading as %s", self.config.identity)

    async def _catch_up(self) -> None:
        await asyncio.sleep(self.config.settle)
        if self._prepare is not _nothing:
            await self._prepare()
            self._from = self._clock()
        self._elected()

    async def _write(self, spec: dict[str, Any]) -> None:
        call = Call("update", LEASES, self.config.namespace, self.config.name)
        if self._seen.raw is None:
            self._remember(await self._create(spec))
            return
        metadata = self._seen.raw.get("metadata") or {}
        lease = self._seen.raw | {"spec": spec, "metadata": metadata | self._marks(metadata)}
        self._remember(await self._api.send(call, Body(lease)))

    async def _create(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Create the Lease, and its namespace if it is missing in a cluster without the manifests.

        Raises the errors of ``Api.send`` except ``Gone``.
        """
        metadata = {"name": self.config.name, "namespace": self.config.namespace} | self._marks({})
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        call = Call("create", LEASES, self.config.namespace)
        try:
            created: dict[str, Any] = await self._api.send(call, Body(lease))
        except Gone:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.config.namespace}}
            _log.info("creating namespace %s for the lease", self.config.namespace)
            await self._api.send(Call("create", NAMESPACES), Body(namespace))
            created = await self._api.send(call, Body(lease))
        return created

    def _marks(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata by which another scheduler of the same names detects this Lease."""
        names = ",".join(self.config.scheduler_names)
        return {
            "labels": {**(metadata.get("labels") or {}), LEASE_COMPONENT[0]: LEASE_COMPONENT[1]},
            "annotations": {**(metadata.get("annotations") or {}), LEASE_SCHEDULERS: names},
        }

    def _spec(self, holder: str, duration: int) -> dict[str, Any]:
        now = rfc3339_micro(datetime.now(UTC))  # informational: no decision uses these times
        before = self._seen.spec
        begins = bool(holder) and holder != self.holder
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "renewTime": now,
            "acquireTime": now if begins else before.get("acquireTime", now),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + int(begins and self._seen.raw is not None),
        }

    def stop_acting(self) -> None:
        """End the permission to act. The Lease is not changed."""
        if self._preparation is not None:
            self._preparation.cancel()
        self._until = float("-inf")
        self._from = float("inf")

    def _report(self, problem: str) -> None:
        """Log a problem once, however often it repeats."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("lease %s: %s", self._title, problem)


PERIOD: Final = 20.0
"""Seconds between two checks."""


class Rival(ValueObject):
    """Another Lease that is held, and the scheduler names that it shares with this process."""

    namespace: str
    name: str
    holder: str
    scheduler_names: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.scheduler_names)
        return f"another scheduler places pods of {names}: {self.holder} holds lease {self.namespace}/{self.name}"


class LeaseConflicts:
    """Detector of other schedulers with the same names. ``run`` checks periodically; ``rivals`` has the last result.

    ``found`` is called once for every new rival.
    """

    def __init__(
        self, api: Api, config: LeaseConfig, found: Callable[[Rival], None], clock: Clock = boot_clock
    ) -> None:
        self.rivals: tuple[Rival, ...] = ()
        self._api = api
        self._config = config
        self._found = found
        self._clock = clock
        self._versions: dict[
            tuple[str, str], tuple[str, float]
        ] = {}  # Lease -> resourceVersion and the local time of its first observation
        self._problem = ""

    async def run(self) -> None:
        """Check until cancelled. Without permission to list Leases nothing is found, which is logged."""
        while True:
            try:
                await self.look()
                self._problem = ""
            except ClusterError as error:
                # A problem is logged once, however often it repeats.
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.warning("a second scheduler cannot be detected: %s", error)
            await asyncio.sleep(PERIOD)

    async def look(self) -> None:
        """List the Leases of this component once. Raises every ``ClusterError`` of a read."""
        selector = "=".join(LEASE_COMPONENT)
        answer = await self._api.send(Call("list", LEASES), params={"labelSelector": selector})
        before = set(self.rivals)
        self.rivals = tuple(rival for raw in answer.get("items") or () if (rival := self._rival(raw)) is not None)
        for rival in self.rivals:
            # Every rival is reported once: an event every 20 s would be redundant.
            if rival not in before:
                _log.error("%s; CPUs may be allocated twice", rival)
                self._found(rival)

    def _rival(self, raw: Mapping[str, Any]) -> Rival | None:
        metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
        key = (str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        names = str((metadata.get("annotations") or {}).get(LEASE_SCHEDULERS, "")).split(",")
        shared = tuple(name for name in self._config.scheduler_names if name in names)
        holder = str(spec.get("holderIdentity") or "")
        # The own Lease, free Leases, and Leases of schedulers with other names are not rivals.
        if not shared or not holder or key == (self._config.namespace, self._config.name):
            return None
        return (
            Rival(*key, holder, shared) if self._is_held(key, str(metadata.get("resourceVersion", "")), spec) else None
        )

    def _is_held(self, key: tuple[str, str], version: str, spec: Mapping[str, Any]) -> bool:
        duration = float(spec.get("leaseDurationSeconds") or self._config.duration)
        now = self._clock()
        known = self._versions.get(key)
        if known is None:
            # At the first observation only the times in the Lease indicate its age.
            self._versions[key] = (version, now - _age(spec))
        elif known[0] != version:
            self._versions[key] = (version, now)
        return now - self._versions[key][1] < duration


def _age(spec: Mapping[str, Any]) -> float:
    """Return the seconds since the last renewal by the times in the Lease, or infinity without them."""
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime", "")))
        return max(0.0, (datetime.now(UTC) - renewed).total_seconds())
    except (ValueError, TypeError):
        return float("inf")
