"""
What the pods of a waiting class are told, and when that is news. Words come from ``core.explain``.

Numbers of single nodes change all the time; a pod hears of them again only when the counts of reasons differ, or after a while.

The sentence for a pod that fits nowhere. Words come from ``core.explain``; this only chooses them.
"""

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

from koord_numa.core.explain import explain
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.engine.queue.request_class import RequestClass

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
