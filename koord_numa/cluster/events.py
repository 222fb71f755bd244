"""
Tells people what happens to pods and nodes (``ports.Recorder``), as ``events.k8s.io/v1`` events like kube-scheduler's own:
that group has series, so a repeated event is one object that counts, and ``kubectl describe`` shows it all the same.

Never blocks, never fails, never floods: equal events are merged, newer reasons to wait supersede older ones that are not posted yet, each
object has a budget, all together have a rate, and the queues are bounded. Warnings go first: in a flood, what is left unsaid is that
pods were placed, which the pods say themselves.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import uuid4

from cachetools import LRUCache

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import EVENTS, Call
from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.objects.request import PodKey
from koord_numa.ports import Clock, ClusterError, Gone, ObjectReference, Unavailable, UnknownOutcome
from koord_numa.settings import EventSettings
from koord_numa.wire import names
from koord_numa.wire.metadata import rfc3339_micro, shortened

LONGEST_NOTE: Final = 1024
"""Bytes of a note that the API server accepts."""

LONGEST_PREFIX: Final = 230
"""Characters of an object's name in the names of its events, which are as long as any name at most: 253."""

POSTERS: Final = 4
"""Events posted at a time."""

TRIES: Final = 8
"""Attempts to post a warning, 2 minutes in all with doubled pauses: a pod hears only once why it waits."""

LONGEST_RETRY: Final = 30.0
"""Seconds between two attempts to post a warning at most."""

CONTROLLER: Final = "koord-numa"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventLimits:
    """How much may be told. What is allowed per object is that of client-go's spam filter."""

    settings: EventSettings = field(default_factory=EventSettings)
    object_burst: int = 25
    object_rate: float = 1 / 300  # events a second
    series_pause: float = 60.0  # seconds between two updates of one series
    remembered: int = 20_000  # objects and series


class EventKey(NamedTuple):
    """What is said; equal notes form one series. A tuple: it is looked up some twenty times for each event, and hashed each time."""

    about: ObjectReference
    kind: str  # Normal or Warning
    reason: str
    action: str
    text: str


@dataclass(slots=True)
class _Series:
    """One event object: its name once posted, how often it happened, and when the server was last told."""

    name: str = ""
    count: int = 0
    tries: int = 0  # attempts that failed, since it was posted last
    told: float = 0.0
    last: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True)
class _Bucket:
    """A token bucket: ``burst`` at once, and ``rate`` a second for ever."""

    rate: float
    burst: float
    since: float
    tokens: float = -1.0

    def take(self, now: float) -> float:
        """Take a token and return 0; or, when there is none, return the seconds until there is one."""
        # Full at first: an object's first events are told at once.
        full = self.burst if self.tokens < 0 else min(self.burst, self.tokens + (now - self.since) * self.rate)
        self.since, self.tokens = now, full - 1 if full >= 1 else full
        return 0.0 if full >= 1 else (1 - full) / self.rate


class EventRecorder:
    """``ports.Recorder``. ``run`` posts what ``event`` and ``node_event`` queue; dropped ones are counted in ``dropped``."""

    def __init__(self, api: Api, identity: str, limits: EventLimits | None = None, clock: Clock = monotonic) -> None:
        self.dropped = 0
        self.posted = 0
        self._api = api
        # As long as the API accepts a reporting instance.
        self._identity = identity[:128]
        self._limits = limits or EventLimits()
        self._clock = clock
        self._warnings: OrderedDict[EventKey, EventKey] = OrderedDict()  # by what it supersedes, see ``_turn``
        self._others: OrderedDict[EventKey, EventKey] = OrderedDict()
        self._posting: set[EventKey] = set()
        self._wake = asyncio.Event()
        self._series: LRUCache[EventKey, _Series] = LRUCache(maxsize=self._limits.remembered)
        self._budgets: LRUCache[ObjectReference, _Bucket] = LRUCache(maxsize=self._limits.remembered)

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """An event on a pod."""
        self._record(ObjectReference("Pod", pod.namespace, pod.name, pod.uid), _kind(warning), reason, message)

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """An event on a node. Its uid is the node's name, as the kubelet does, so that ``kubectl describe node`` finds it."""
        self._record(ObjectReference("Node", "", node, node), _kind(warning), reason, message)

    def rebind_event(self, rebind: RebindRequest, *, warning: bool, reason: str, message: str) -> None:
        """An event on a RebindResource."""
        about = ObjectReference(
            names.REBIND_KIND, "", rebind.name, rebind.uid, f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}"
        )
        self._record(about, _kind(warning), reason, message)

    def lease_event(self, namespace: str, name: str, *, warning: bool, reason: str, message: str) -> None:
        """An event on a Lease."""
        about = ObjectReference("Lease", namespace, name, "", "coordination.k8s.io/v1")
        self._record(about, _kind(warning), reason, message)

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """An event on an object of any other kind."""
        self._record(about, _kind(warning), reason, message)

    def _record(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        note = EventKey(about, kind, reason, _ACTIONS.get(reason, "Scheduling"), shortened(message, LONGEST_NOTE))
        # One series an equal note: repetitions count up instead of filling the cluster.
        series = self._series.get(note)
        queue, turn = self._warnings if kind == "Warning" else self._others, _turn(note)
        if series is None:
            # One that supersedes a note which was not posted needs no more of the budget.
            if turn not in queue and not self._afford(about):
                self.dropped += 1
                return
            series = self._series[note] = _Series()
        series.count += 1
        series.last = datetime.now(UTC)
        # The server keeps the count that it was told last; it is brought up to date once a minute.
        if series.count > 1 and self._clock() - series.told < self._limits.series_pause:
            return  # counted; the server hears of it with the next update
        # A full queue drops the new note, and never one that waits already.
        if turn not in queue and len(queue) >= self._limits.settings.queue:
            self.dropped += 1
            return
        queue[turn] = note  # in the place of the one that it supersedes, if there is one
        self._wake.set()

    def _afford(self, about: ObjectReference) -> bool:
        """A pod that fails in ever new words cannot fill the cluster with events."""
        now = self._clock()
        bucket = self._budgets.get(about)
        if bucket is None:
            bucket = self._budgets[about] = _Bucket(self._limits.object_rate, self._limits.object_burst, now)
        return not bucket.take(now)

    async def run(self) -> None:
        """
        Post until cancelled, at a limited rate, as telling people must never crowd out binding pods.

        Some at a time: an event that the server is slow to take, for instance because of a webhook, does not delay those of others.
        """
        allowed = self._limits.settings
        bucket = _Bucket(allowed.rate, allowed.burst, self._clock())
        slots = asyncio.Semaphore(POSTERS)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                # The slot before the token: a token must not be spent on a note that cannot be posted yet.
                await slots.acquire()
                while pause := bucket.take(self._clock()):  # noqa: ASYNC110  (only time fills a bucket)
                    await asyncio.sleep(pause)
                note = self._take()
                if note is None:  # what is queued is being posted, and happened again
                    self._wake.clear()
                    slots.release()
                    continue
                if not (self._warnings or self._others):
                    self._wake.clear()
                self._posting.add(note)
                tasks.create_task(self._post_in_slot(note, slots))

    async def flush(self) -> None:
        """Post all that is queued now, at once."""
        # Without the rate limit: the process ends, and what waits would be lost.
        while (note := self._take()) is not None:
            await self._post_or_drop(note)

    async def _post_in_slot(self, note: EventKey, slots: asyncio.Semaphore) -> None:
        try:
            await self._post_or_drop(note, retry=True)
        finally:
            self._posting.discard(note)
            slots.release()
            # A note that was held back while its series had no name may go now.
            if self._warnings or self._others:
                self._wake.set()

    def _take(self) -> EventKey | None:
        """The next to be posted, warnings first. One that is being posted waits: its series has no name yet."""
        for queue in (self._warnings, self._others):
            note = next((each for each in queue.values() if each not in self._posting), None)
            if note is not None:
                del queue[_turn(note)]
                return note
        return None

    async def _post_or_drop(self, note: EventKey, *, retry: bool = False) -> None:
        try:
            await self._post(note)
        except (Unavailable, UnknownOutcome) as error:
            if not (retry and self._retry_later(note)):
                _log.debug("event %s dropped: %s", note.reason, error)
                self.dropped += 1
            if isinstance(error, Unavailable):
                await asyncio.sleep(min(error.retry_after or 1.0, LONGEST_RETRY))
        except ClusterError as error:
            # No retry helps: the pod it is about may be gone, or a right is missing.
            _log.log(logging.DEBUG if isinstance(error, Gone) else logging.WARNING, "event dropped: %s", error)
            self.dropped += 1

    def _retry_later(self, note: EventKey) -> bool:
        """Queue a warning again after a pause, unless it was tried ``TRIES`` times. A placement is told by the pod itself."""
        series = self._series.get(note)
        if note.kind != "Warning" or series is None or series.tries + 1 >= TRIES:
            return False
        series.tries += 1
        pause = min(2.0 ** (series.tries - 1), LONGEST_RETRY)
        asyncio.get_running_loop().call_later(pause, self._queue_again, note)
        return True

    def _queue_again(self, note: EventKey) -> None:
        # A newer warning supersedes this one.
        if len(self._warnings) < self._limits.settings.queue:
            self._warnings.setdefault(_turn(note), note)
            self._wake.set()
        else:
            self.dropped += 1

    async def _post(self, note: EventKey) -> None:
        series = self._series.get(note) or _Series(count=1)
        series.told = self._clock()
        # Events of objects without a namespace are in ``default``, as the kubelet's and client-go's.
        namespace = note.about.namespace or "default"
        if series.name and series.count > 1:
            update = {"series": {"count": series.count, "lastObservedTime": rfc3339_micro(series.last)}}
            try:
                await self._api.send(Call("patch", EVENTS, namespace, series.name), Body(update, MERGE_PATCH))
            except Gone:  # the server keeps events for an hour: begin a new one
                series.name, series.count = "", 1
            else:
                self.posted += 1
                return
        # Names of events are unique per object; 230 characters leave room for the suffix within 253.
        name = f"{note.about.name[:LONGEST_PREFIX].rstrip('.-')}.{uuid4().hex[:16]}"
        await self._api.send(Call("create", EVENTS, namespace), Body(self._event(note, series, name, namespace)))
        series.name, series.tries = name, 0
        self.posted += 1

    def _event(self, note: EventKey, series: _Series, name: str, namespace: str) -> Mapping[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": rfc3339_micro(series.last),
            "type": note.kind,
            "reason": note.reason,
            "action": note.action,
            "regarding": _reference(note.about),
            "note": note.text,
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity,
        }


def _reference(about: ObjectReference) -> dict[str, str]:
    parts = {
        "apiVersion": about.version,
        "kind": about.kind,
        "namespace": about.namespace,
        "name": about.name,
        "uid": about.uid,
    }
    return {key: value for key, value in parts.items() if value}


_ACTIONS: Final[Mapping[str, str]] = {
    "Scheduled": "Binding",
    "FailedScheduling": "Scheduling",
    "Preempted": "Preempting",
    "CPUsRebound": "Rebinding",
    "RebindStarted": "Rebinding",
    "RebindSucceeded": "Rebinding",
    "RebindFailed": "Rebinding",
}
"""What was being done: kube-scheduler's actions for its reasons, and one more for rebinds."""


def _turn(note: EventKey) -> EventKey:
    """What a note has in common with those that supersede it before it is posted: why a pod waits now is told, and not why it did."""
    # client-go goes further: its series have the text of their first event (``getKey`` of ``event_broadcaster.go``).
    return note._replace(text="") if note.reason == "FailedScheduling" else note


def _kind(warning: bool) -> str:
    return "Warning" if warning else "Normal"
