"""Event recorder (``ports.Recorder``) for ``events.k8s.io/v1`` events, as in kube-scheduler.

This API group has series, so a repeated event is a single object with a count, and ``kubectl describe`` shows it. The
recorder never blocks and never fails. Equal events are merged. A new reason for waiting supersedes an earlier reason
that is not yet posted. Budgets per object, a total rate and bounded queues limit the number of events. Warnings are
posted first: under load the events of placements are dropped, because the pods show their placement.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import uuid4

from cachetools import LRUCache

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import EVENTS, Call
from koord_numa.core.objects.request import PodKey
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.ports import Clock, ClusterError, Gone, ObjectReference, Unavailable, UnknownOutcome
from koord_numa.settings import EventSettings
from koord_numa.wire import rfc3339_micro, shortened

LONGEST_NOTE: Final = 1024
"""Maximum bytes of a note that the API server accepts."""

LONGEST_PREFIX: Final = 230
"""Maximum characters of an object's name in the names of its events. Event names have at most 253 characters."""

POSTERS: Final = 4
"""Maximum number of concurrent posts."""

TRIES: Final = 8
"""Maximum attempts to post a warning, over 2 minutes with doubled pauses.

A pod gets its reason for waiting only once.
"""

LONGEST_RETRY: Final = 30.0
"""Maximum seconds between two attempts to post a warning."""

CONTROLLER: Final = "koord-numa"

_log = logging.getLogger(__name__)


class EventLimits(ValueObject):
    """Limits of the recorder. The limits per object are the defaults of client-go's spam filter."""

    settings: EventSettings = value_field(default_factory=EventSettings)
    object_burst: int = 25
    object_rate: float = 1 / 300  # events per second
    series_pause: float = 60.0  # seconds between two updates of a series
    remembered: int = 20_000  # objects and series


class EventKey(NamedTuple):
    """The content of an event. Equal keys form a series.

    A tuple, because a key is hashed about twenty times per event.
    """

    about: ObjectReference
    kind: str  # Normal or Warning
    reason: str
    action: str
    text: str


class _Series(MutableObject):
    """An event object: its name once posted, the count, and the time of the last post."""

    name: str = ""
    count: int = 0
    tries: int = 0  # failed attempts since the last successful post
    told: float = 0.0
    last: datetime = value_field(default_factory=lambda: datetime.now(UTC))


class _Bucket(MutableObject):
    """A token bucket with ``burst`` tokens that refills at ``rate`` tokens per second."""

    rate: float
    burst: float
    since: float
    tokens: float = -1.0

    def take(self, now: float) -> float:
        """Take a token and return 0, or return the seconds until a token is available."""
        # Initially full: the first events of an object are posted immediately.
        full = self.burst if self.tokens < 0 else min(self.burst, self.tokens + (now - self.since) * self.rate)
        self.since, self.tokens = now, full - 1 if full >= 1 else full
        return 0.0 if full >= 1 else (1 - full) / self.rate


class EventRecorder:
    """``ports.Recorder``. ``run`` posts the queued events. ``dropped`` is the number of dropped events."""

    def __init__(self, api: Api, identity: str, limits: EventLimits | None = None, clock: Clock = monotonic) -> None:
        self.dropped = 0
        self.posted = 0
        self._api = api
        # Maximum length of a reporting instance in the API.
        self._identity = identity[:128]
        self._limits = limits or EventLimits()
        self._clock = clock
        # Queues by the key that superseding events share, see ``_turn``.
        self._warnings: OrderedDict[EventKey, EventKey] = OrderedDict()
        self._others: OrderedDict[EventKey, EventKey] = OrderedDict()
        self._posting: set[EventKey] = set()
        self._wake = asyncio.Event()
        self._series: LRUCache[EventKey, _Series] = LRUCache(maxsize=self._limits.remembered)
        self._budgets: LRUCache[ObjectReference, _Bucket] = LRUCache(maxsize=self._limits.remembered)

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on a pod."""
        self._record(ObjectReference("Pod", pod.namespace, pod.name, pod.uid), _kind(warning), reason, message)

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on a node.

        Its uid is the node name, as in the kubelet, so that ``kubectl describe node`` shows the event.
        """
        self._record(ObjectReference("Node", "", node, node), _kind(warning), reason, message)

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on an object of another kind."""
        self._record(about, _kind(warning), reason, message)

    def _record(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        note = EventKey(about, kind, reason, _ACTIONS.get(reason, "Scheduling"), shortened(message, LONGEST_NOTE))
        # Equal notes share a series: repetitions increase its count instead of creating objects.
        series = self._series.get(note)
        queue, turn = self._warnings if kind == "Warning" else self._others, _turn(note)
        if series is None:
            # A note that supersedes an unposted note does not use the budget.
            if turn not in queue and not self._afford(about):
                self.dropped += 1
                return
            series = self._series[note] = _Series()
        series.count += 1
        series.last = datetime.now(UTC)
        # The count on the server is updated once a minute.
        if series.count > 1 and self._clock() - series.told < self._limits.series_pause:
            return  # counted; posted with the next update
        # A full queue drops the new note, never a queued note.
        if turn not in queue and len(queue) >= self._limits.settings.queue:
            self.dropped += 1
            return
        queue[turn] = note  # takes the position of the note that it supersedes
        self._wake.set()

    def _afford(self, about: ObjectReference) -> bool:
        """Take a token of the object's budget, which limits a pod that fails with changing messages.

        Returns false if the budget is exhausted.
        """
        now = self._clock()
        bucket = self._budgets.get(about)
        if bucket is None:
            bucket = self._budgets[about] = _Bucket(self._limits.object_rate, self._limits.object_burst, now)
        return not bucket.take(now)

    async def run(self) -> None:
        """Post events until cancelled, at a limited rate that leaves capacity for binding pods.

        Several posts run concurrently, so that an event that the server processes slowly, for example because of a
        webhook, does not delay others.
        """
        allowed = self._limits.settings
        bucket = _Bucket(allowed.rate, allowed.burst, self._clock())
        slots = asyncio.Semaphore(POSTERS)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                # The slot precedes the token: a token must not be spent on a note that cannot be posted yet.
                await slots.acquire()
                while pause := bucket.take(self._clock()):  # noqa: ASYNC110  (only time refills a bucket)
                    await asyncio.sleep(pause)
                note = self._take()
                if note is None:  # all queued notes are being posted and occurred again
                    self._wake.clear()
                    slots.release()
                    continue
                if not (self._warnings or self._others):
                    self._wake.clear()
                self._posting.add(note)
                tasks.create_task(self._post_in_slot(note, slots))

    async def flush(self) -> None:
        """Post all queued events immediately."""
        # Without the rate limit: the process ends, and queued events would be lost.
        while (note := self._take()) is not None:
            await self._post_or_drop(note)

    async def _post_in_slot(self, note: EventKey, slots: asyncio.Semaphore) -> None:
        try:
            await self._post_or_drop(note, retry=True)
        finally:
            self._posting.discard(note)
            slots.release()
            # A note that waited for the name of its series may be posted now.
            if self._warnings or self._others:
                self._wake.set()

    def _take(self) -> EventKey | None:
        """Return the next note to post, warnings first.

        A note that is being posted is skipped, because its series has no name yet.
        """
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
            # A retry does not help: the pod may be deleted, or a permission is missing.
            _log.log(logging.DEBUG if isinstance(error, Gone) else logging.WARNING, "event dropped: %s", error)
            self.dropped += 1

    def _retry_later(self, note: EventKey) -> bool:
        """Queue a warning again after a pause, at most ``TRIES`` times.

        Other events are not retried. Returns whether it is retried.
        """
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
        # Events of cluster-scoped objects are in ``default``, as in the kubelet and client-go.
        namespace = note.about.namespace or "default"
        if series.name and series.count > 1:
            update = {"series": {"count": series.count, "lastObservedTime": rfc3339_micro(series.last)}}
            try:
                await self._api.send(Call("patch", EVENTS, namespace, series.name), Body(update, MERGE_PATCH))
            except Gone:  # the server keeps events for an hour: start a new event
                series.name, series.count = "", 1
            else:
                self.posted += 1
                return
        # Event names are unique per object; 230 characters leave room for the suffix within 253.
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
"""Action by reason: the actions of kube-scheduler, and an action for rebinds."""


def _turn(note: EventKey) -> EventKey:
    """Return the key that a note shares with later notes that supersede it in the queue.

    A superseded reason for waiting is not posted.
    """
    # client-go always ignores the text: its series keep the text of their first event (``getKey`` of
    # ``event_broadcaster.go``).
    return note._replace(text="") if note.reason == "FailedScheduling" else note


def _kind(warning: bool) -> str:
    return "Warning" if warning else "Normal"
