"""
Containment of failures: an error about one object affects that object only, and rejections by kubelets cause a back-off.

The engine reads objects that any user may write. All processing of an object runs inside ``contained``; an exception there is a bug. The
object is *quarantined* by UID and resourceVersion: it is ignored until it changes, or until a pause ends that doubles with each failure.
Each failure causes an event on the object, an increment of ``koord_numa_quarantined``, and a log record with the traceback. An exception
that is not about an object is not caught and ends the process.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import getLogger
from typing import Final

from cachetools import LRUCache

from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.value_objects import MutableObject, ValueObject
from koord_numa.engine.queue import RequestClass
from koord_numa.ports import Clock, ClusterError
from koord_numa.settings import BackoffSettings

log = getLogger(__name__)

PAUSES: Final = BackoffSettings(initial=1.0, max=300.0, jitter=0.0)
REMEMBERED: Final = 10_000
"""Maximum number of objects with counted failures. The least recently used object is dropped and starts again."""


class Subject(ValueObject):
    """Identity of an object: its kind in the singular (``pod``, ``node``, ``topology`` ...), name, UID and resourceVersion."""

    kind: str
    name: str
    uid: str
    version: str = ""


class _Case(MutableObject):
    version: str
    failures: int
    until: float
    why: str


OnQuarantine = Callable[[Subject, str], None]
"""Called with the object and the error, to report them to users."""


class Quarantine:
    """Quarantined objects. Times are monotonic seconds. ``counts`` are failures by kind since the start."""

    def __init__(self, clock: Clock, tell: OnQuarantine) -> None:
        self._clock = clock
        self._tell = tell
        self._cases: LRUCache[tuple[str, str], _Case] = LRUCache(maxsize=REMEMBERED)
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of objects that have failed and not succeeded since."""
        return len(self._cases)

    def until(self, subject: Subject) -> float:
        """Return the end of the object's quarantine; 0 if this version is not quarantined."""
        case = self._cases.get((subject.kind, subject.uid))
        # A new resourceVersion is not quarantined, because it may have been corrected.
        return case.until if case is not None and case.version == subject.version else 0.0

    def holds(self, subject: Subject) -> bool:
        """Return whether the object is quarantined now."""
        return self.until(subject) > self._clock()

    def release(self, subject: Subject) -> bool:
        """End the quarantine of an object that works or is gone. Return whether it had failed."""
        return self._cases.pop((subject.kind, subject.uid), None) is not None

    def put(self, subject: Subject, error: BaseException) -> float:
        """Quarantine the object after a failure and return the end of the quarantine."""
        place = (subject.kind, subject.uid)
        former = self._cases.get(place)
        # Failures count per version; a changed object starts with the shortest pause.
        failures = former.failures + 1 if former is not None and former.version == subject.version else 1
        until = self._clock() + PAUSES.pause(failures, 0.0)
        # Truncated, because the text is used in an event and in the log.
        why = f"{type(error).__name__}: {error}"[:MOST_TEXT]
        self._cases[place] = _Case(subject.version, failures, until, why)
        self.counts[subject.kind] += 1
        log.error("%s %s (uid %s) is quarantined: %s", subject.kind, subject.name, subject.uid, why, exc_info=error)
        self._tell(subject, why)
        return until

    @contextmanager
    def contained(self, subject: Subject) -> Iterator[None]:
        """Quarantine the object if the body raises an exception. Errors of the cluster are raised again."""
        try:
            yield
        except ClusterError:
            # Conflict, Gone and similar errors are handled by the caller.
            raise
        except Exception as error:  # noqa: BLE001 - the only place that contains a bug about an object
            self.put(subject, error)


MOST_TEXT: Final = 500
"""Maximum length of a reported error in characters, because it may quote the object."""


# Exponential back-off per node and request class after a kubelet has rejected a pod.
#
# Without it, a controller that recreates the same pod would loop. Each consecutive rejection doubles the pause, up to a limit.


class _Pause(MutableObject):
    until: float
    times: int
    why: str
    over: bool = False  # the end of the pause has been reported


@dataclass(slots=True)
class NodeBackoff:
    """Paused pairs of node and request class. Times are monotonic seconds. Each consecutive rejection doubles the pause, up to a limit."""

    backoff: BackoffSettings
    _pauses: dict[tuple[str, RequestClass], _Pause] = field(default_factory=dict)

    def refused(self, node: str, request_class: RequestClass, why: str, now: float) -> float:
        """Record that a kubelet rejected a pod of this class and return the end of the pause."""
        known = self._pauses.get((node, request_class))
        times = known.times + 1 if known else 1
        # 2**32 times any pause exceeds the limit; larger exponents have no effect.
        until = now + min(self.backoff.max, self.backoff.initial * 2.0 ** min(times - 1, 32))
        self._pauses[node, request_class] = _Pause(until, times, why)
        return until

    def refusal(self, node: str, request_class: RequestClass, now: float) -> Rejection | None:
        """Return the rejection of this class by this node during a pause, else ``None``."""
        pause = self._pauses.get((node, request_class))
        if pause is None or pause.until <= now:
            return None
        detail = f"its kubelet answered {pause.why} {pause.times} time(s) to such pods"
        message = "node(s) had a kubelet that recently rejected such a pod"
        return Rejection(Reason.COOLING_DOWN, message, detail, resolvable=False)

    def ended(self, now: float) -> list[str]:
        """Return the nodes with pauses that ended since the last call. Pairs without a rejection for the maximum pause are removed."""
        nodes = set()
        for pair, rejected in list(self._pauses.items()):
            if rejected.until <= now and not rejected.over:
                rejected.over = True
                nodes.add(pair[0])
            # Another maximum pause without a rejection: the pair restarts with the initial pause.
            if rejected.until + self.backoff.max <= now:
                del self._pauses[pair]
        return sorted(nodes)

    def __len__(self) -> int:
        return len(self._pauses)
