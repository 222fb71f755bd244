"""Events and the PodScheduled condition of pods, and their texts."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import getLogger
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

from koord_numa.core.explain import explain
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement, Unschedulable
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.ports import ClusterError, Dependencies, Forbidden, Gone, Invalid

NEWS_SECONDS: Final = 60.0
"""After so long the numbers of single nodes are worth telling again."""

_message = attrgetter("message")


@dataclass(frozen=True, slots=True)
class Message:
    """What was said of a class, when, and for which counts of reasons."""

    text: str
    counts: Counter[str]
    since: float


@dataclass(slots=True)
class Messages:
    """The last sentence of every waiting class. Times are monotonic seconds."""

    _last: WeakKeyDictionary[RequestClass, Message] = field(default_factory=WeakKeyDictionary)
    _current: WeakKeyDictionary[RequestClass, tuple[Unschedulable, str]] = field(default_factory=WeakKeyDictionary)

    def say(self, request_class: RequestClass, verdict: Unschedulable, now: float) -> tuple[str, bool]:
        """What a pod of this class is to be told now, and whether that is news for the others."""
        # Counts of sentences without details: numbers of single nodes change with every placement.
        counts = Counter(map(_message, verdict.rejections.values()))
        last = self._last.get(request_class)
        if last is not None and last.counts == counts and now - last.since < NEWS_SECONDS:
            return last.text, False
        text = why_everywhere(verdict)
        self._last[request_class] = Message(text, counts, now)
        return text, last is None or last.text != text

    def told(self, request_class: RequestClass, verdict: Unschedulable) -> str:
        """What pods of this class were told last, for a remark beside it: that is news without new numbers of single nodes."""
        last = self._last.get(request_class)
        return self.current(request_class, verdict) if last is None else last.text

    def current(self, request_class: RequestClass, verdict: Unschedulable) -> str:
        """What a pod is told that has just come to wait in this class: numbers of the class's last verdict, however old its message is."""
        found = self._current.get(request_class)
        # Made once for each verdict: thousands of pods may come to wait in one class.
        if found is None or found[0] is not verdict:
            found = self._current[request_class] = (verdict, why_everywhere(verdict))
        return found[1]


def why_everywhere(verdict: Unschedulable) -> str:
    """kube-scheduler's sentence with numbers, or what to say when there is no node at all."""
    if not verdict.rejections:
        return "0/0 nodes are available: no node is known."
    return explain(verdict.rejections)


def with_remark(why: str, remark: str) -> str:
    """The remark comes right after the first sentence, before lines about single nodes."""
    if not remark:
        return why
    first, line, rest = why.partition("\n")
    return f"{first} {remark}{line}{rest}"


log = getLogger(__name__)

SCHEDULED: Final = "Scheduled"
FAILED: Final = "FailedScheduling"
RETRY_SECONDS: Final = 2.0
HELD_SECONDS: Final = 5.0
"""Seconds that a condition waits at most for a request that takes it along."""
WRITERS: Final = 4
"""So many conditions are written at once: a call that hangs holds up none but its own writer."""


@dataclass(slots=True)
class _Later:
    """Conditions that become due by themselves after so many seconds, by uid with when that is, the first to be due first."""

    seconds: float
    conditions: OrderedDict[str, tuple[float, PodKey, str]] = field(default_factory=OrderedDict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, pod: PodKey, why: str, now: float) -> None:
        known = self.conditions.get(pod.uid)
        # News of a pod that is here already keeps its time, or ever new ones would put it off for ever.
        self.conditions[pod.uid] = (now + self.seconds if known is None else known[0], pod, why)
        self.news.set()

    def pop(self, uid: str) -> tuple[PodKey, str] | None:
        found = self.conditions.pop(uid, None)
        return None if found is None else found[1:]


@dataclass(slots=True)
class PodConditions:
    """
    Conditions still to be written, by uid, oldest first. What a pod was told last is in its record.

    A condition is *held* while ``will_be_lent`` says that its pod's status is about to be written anyway: until ``lent``, ``release``, or
    ``HELD_SECONDS`` later.
    """

    dependencies: Dependencies
    will_be_lent: Callable[[PendingPod], bool] = lambda _: False
    _due: OrderedDict[str, tuple[PodKey, str]] = field(default_factory=OrderedDict)
    _failed: _Later = field(default_factory=lambda: _Later(RETRY_SECONDS))
    _held: _Later = field(default_factory=lambda: _Later(HELD_SECONDS))
    _writing: set[str] = field(default_factory=set)  # at most one writer a pod
    _lent: set[str] = field(default_factory=set)  # those of them that are written along with something else
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Conditions not written yet."""
        return len(self._due) + len(self._failed.conditions) + len(self._held.conditions)

    @property
    def held(self) -> int:
        """How many conditions are held."""
        return len(self._held.conditions)

    def waits(self, pending: PendingPod, why: str) -> None:
        """The pod waits: an event and the condition, if it was told something else before. Its remark goes with it."""
        why = with_remark(why, pending.remark)
        pending.provisional = False
        # Said already: the same verdict comes with every attempt.
        if pending.message == why:
            return
        pending.message = why
        key = pending.pod.key
        self.warn(key, why)
        # News replaces what could not be written before.
        self._failed.pop(key.uid)
        if self.will_be_lent(pending):
            self._due.pop(key.uid, None)
            self._held.add(key, why, self.dependencies.clock())
            return
        self._held.pop(key.uid)
        self._due[key.uid] = (key, why)
        self._news.set()

    def release(self, uid: str) -> None:
        """Nothing takes the condition of this pod along, so that it is due if it was held."""
        if (held := self._held.pop(uid)) is not None:
            self._due[uid] = held
            self._news.set()

    def warn(self, pod: PodKey, why: str) -> None:
        """Only an event: something went wrong that does not mean that the pod fits nowhere."""
        self.dependencies.recorder.event(pod, warning=True, reason=FAILED, message=why)

    def placed(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound: where, and with what."""
        message = f"Successfully assigned {pod.key} to {placement.node}{describe_placement(placement)}"
        self.dependencies.recorder.event(pod.key, warning=False, reason=SCHEDULED, message=message)

    def forget(self, uid: str) -> None:
        """The pod waits no longer."""
        self._due.pop(uid, None)
        self._failed.pop(uid)
        self._held.pop(uid)
        self._lent.discard(uid)

    @contextmanager
    def lent(self, uid: str) -> Iterator[str]:
        """
        The message that is due or held for this pod, for a request that writes it along with something else; it is due when that raises.

        Empty when there is none, or a writer is at the pod.
        """
        due = None if uid in self._writing else self._due.pop(uid, None) or self._held.pop(uid)
        if due is None:
            yield ""
            return
        self._writing.add(uid)
        self._lent.add(uid)
        try:
            yield due[1]
        except BaseException:
            # Not for a pod that was forgotten meanwhile; and news of it is due already.
            if uid in self._lent:
                self._due.setdefault(uid, due)
            raise
        finally:
            self._writing.discard(uid)
            self._lent.discard(uid)
            self._news.set()

    async def run(self) -> None:
        """Write conditions until cancelled. Of several about one pod only the latest is written."""
        # A task group: an exception in a writer is a bug and ends the process.
        async with asyncio.TaskGroup() as tasks:
            for later in (self._failed, self._held):
                tasks.create_task(self._wait_for(later))
            for _ in range(WRITERS):
                tasks.create_task(self._write_due())

    async def _write_due(self) -> None:
        while True:
            # Oldest first; news of a pod that is in the line already keeps its place.
            while (uid := self._next()) is not None:
                pod, why = self._due.pop(uid)
                self._writing.add(uid)
                try:
                    await self._write(pod, why)
                finally:
                    self._writing.discard(uid)
            self._news.clear()
            await self._news.wait()

    def _next(self) -> str | None:
        """A pod that no other writer is at: one whose conditions hang and change would hold up all writers otherwise."""
        return next((uid for uid in self._due if uid not in self._writing), None)

    async def _wait_for(self, later: _Later) -> None:
        while True:
            while later.conditions:
                uid, (until, pod, why) = next(iter(later.conditions.items()))
                wait = until - self.dependencies.clock()
                if wait > 0:
                    await self.dependencies.sleep(wait)
                # Replaced or forgotten while it was waited for: then it is not due any more.
                if later.conditions.get(uid) == (until, pod, why):
                    later.pop(uid)
                    # ``setdefault``, as news of the same pod may be due already.
                    self._due.setdefault(uid, (pod, why))
                    self._news.set()
            later.news.clear()
            await later.news.wait()

    async def _write(self, pod: PodKey, why: str) -> None:
        try:
            if self.dependencies.lease.fresh():
                await self.dependencies.binder.set_unschedulable(pod, why)
                return
        except (Gone, Invalid):
            return
        except Forbidden as error:
            log.warning("conditions cannot be written: the right to %s is missing", error.rule)
            return
        except ClusterError as error:
            log.debug("the condition of pod %s cannot be written now: %s", pod, error)
        except Exception:
            log.exception("the condition of pod %s cannot be written", pod)  # contained: it costs this pod only
            return
        if pod.uid not in self._due:  # otherwise there is news of it already
            self._failed.add(pod, why, self.dependencies.clock())


def describe_placement(placement: Placement) -> str:
    """``: NUMA 0, CPUs 0-3``, and why nothing was aligned where nothing was; empty when there is nothing to say."""
    parts = []
    if placement.mask is not None:
        numa = [str(number) for number in range(placement.mask.bit_length()) if placement.mask >> number & 1]
        parts.append(f"NUMA {', '.join(numa)}")
    if placement.cpus:
        parts.append(f"CPUs {placement.cpus}")
    if placement.note:
        parts.append(placement.note)
    return f": {', '.join(parts)}" if parts else ""
