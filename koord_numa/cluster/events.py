"""
Tells people what happens to pods and nodes (``ports.Recorder``), as ``events.k8s.io/v1`` events like kube-scheduler's own:
that group has series, so a repeated event is one object that counts, and ``kubectl describe`` shows it all the same.

Never blocks, never fails, never floods: equal events are merged, each object has a budget, the queue is bounded.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from cachetools import LRUCache

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import EVENTS, Call
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import PodKey
from koord_numa.ports import Clock, ClusterError, Gone, Unavailable
from koord_numa.wire import names

LONGEST_NOTE: Final = 1024
"""Bytes of a note that the API server accepts."""

CONTROLLER: Final = "koord-numa"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be told. Burst and refill are those of client-go's spam filter, per object."""

    queue: int = 10_000
    burst: int = 25
    refill: float = 300.0  # seconds until one more event about the same object is allowed
    series_pause: float = 60.0  # seconds between two updates of one series
    remembered: int = 20_000  # objects and series


@dataclass(frozen=True, slots=True)
class About:
    """The object that an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = "v1"

    @property
    def reference(self) -> dict[str, str]:
        """As an ObjectReference."""
        parts = {
            "apiVersion": self.version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in parts.items() if value}


@dataclass(frozen=True, slots=True)
class Note:
    """What is said; equal notes form one series."""

    about: About
    kind: str  # Normal or Warning
    reason: str
    action: str
    text: str


@dataclass(slots=True)
class _Series:
    """One event object: its name once posted, how often it happened, and when the server was last told."""

    name: str = ""
    count: int = 0
    told: float = 0.0
    last: datetime = field(default_factory=lambda: datetime.now(UTC))


class EventRecorder:
    """``ports.Recorder``. ``run`` posts what ``event`` and ``node_event`` queue; dropped ones are counted in ``dropped``."""

    def __init__(self, api: Api, identity: str, limits: Limits | None = None, clock: Clock = monotonic) -> None:
        self.dropped = 0
        self.posted = 0
        self._api = api
        self._identity = identity[:128]
        self._limits = limits or Limits()
        self._clock = clock
        self._queue: OrderedDict[Note, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._series: LRUCache[Note, _Series] = LRUCache(maxsize=self._limits.remembered)
        self._budgets: LRUCache[About, tuple[float, float]] = LRUCache(maxsize=self._limits.remembered)

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """An event on a pod."""
        self._record(About("Pod", pod.namespace, pod.name, pod.uid), _kind(warning), reason, message)

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """An event on a node. Its uid is the node's name, as the kubelet does, so that ``kubectl describe node`` finds it."""
        self._record(About("Node", "", node, node), _kind(warning), reason, message)

    def rebind_event(self, rebind: RebindRequest, *, warning: bool, reason: str, message: str) -> None:
        """An event on a RebindResource."""
        about = About(
            names.REBIND_KIND, "", rebind.name, rebind.uid, f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}"
        )
        self._record(about, _kind(warning), reason, message)

    def _record(self, about: About, kind: str, reason: str, message: str) -> None:
        note = Note(about, kind, reason, _ACTIONS.get(reason, "Scheduling"), _shortened(message))
        series = self._series.get(note)
        if series is None:
            if not self._afford(about):
                self.dropped += 1
                return
            series = self._series[note] = _Series()
        series.count += 1
        series.last = datetime.now(UTC)
        if series.count > 1 and self._clock() - series.told < self._limits.series_pause:
            return  # counted; the server hears of it with the next update
        if note not in self._queue and len(self._queue) >= self._limits.queue:
            self.dropped += 1
            return
        self._queue[note] = None
        self._wake.set()

    def _afford(self, about: About) -> bool:
        """A token bucket per object: a pod that fails in ever new words cannot fill the cluster with events."""
        now = self._clock()
        tokens, since = self._budgets.get(about, (float(self._limits.burst), now))
        tokens = min(float(self._limits.burst), tokens + (now - since) / self._limits.refill)
        affordable = tokens >= 1
        self._budgets[about] = (tokens - 1 if affordable else tokens, now)
        return affordable

    async def run(self) -> None:
        """Post until cancelled, one at a time: telling people must never crowd out binding pods."""
        while True:
            await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Post what is queued now."""
        while self._queue:
            note, _ = self._queue.popitem(last=False)
            try:
                await self._post(note)
            except Unavailable as error:
                _log.debug("event %s dropped: %s", note.reason, error)
                self.dropped += 1
                await asyncio.sleep(min(error.retry_after or 1.0, 30.0))
            except ClusterError as error:
                # An event is worth no retry: the pod it is about may be gone, and the next attempt says it again.
                _log.log(logging.DEBUG if isinstance(error, Gone) else logging.WARNING, "event dropped: %s", error)
                self.dropped += 1
        self._wake.clear()

    async def _post(self, note: Note) -> None:
        series = self._series.get(note) or _Series(count=1)
        series.told = self._clock()
        namespace = note.about.namespace or "default"
        if series.name and series.count > 1:
            update = {"series": {"count": series.count, "lastObservedTime": _micro(series.last)}}
            try:
                await self._api.send(Call("patch", EVENTS, namespace, series.name), Body(update, MERGE_PATCH))
            except Gone:  # the server keeps events for an hour: begin a new one
                series.name, series.count = "", 1
            else:
                self.posted += 1
                return
        name = f"{note.about.name}.{uuid4().hex[:16]}"
        await self._api.send(Call("create", EVENTS, namespace), Body(self._event(note, series, name, namespace)))
        series.name = name
        self.posted += 1

    def _event(self, note: Note, series: _Series, name: str, namespace: str) -> Mapping[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": _micro(series.last),
            "type": note.kind,
            "reason": note.reason,
            "action": note.action,
            "regarding": note.about.reference,
            "note": note.text,
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity,
        }


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


def _kind(warning: bool) -> str:
    return "Warning" if warning else "Normal"


def _shortened(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= LONGEST_NOTE else raw[: LONGEST_NOTE - 3].decode("utf-8", "ignore") + "..."


def _micro(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
