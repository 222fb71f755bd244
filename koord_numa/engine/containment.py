"""
What is broken about one object costs that object only.

Theory: the engine reads objects that any user may write. Whatever is read, decided or written about one of them runs inside
``contained``; an exception there is a bug, but not one that may stop anything else. The object is *quarantined* by uid and
resourceVersion: it is left alone until it changes, or until a pause is over that doubles with each failure. Each time there is one event
on the object, one count in ``koord_numa_quarantined`` and one log record with the traceback. An exception about no object is not
caught here and ends the process.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from typing import Final

from cachetools import LRUCache

from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.queue.pending_pod import pause
from koord_numa.ports import Clock, ClusterError
from koord_numa.settings import BackoffSettings

log = getLogger(__name__)

PAUSES: Final = BackoffSettings(initial=1.0, max=300.0, jitter=0.0)
REMEMBERED: Final = 10_000
"""Objects whose failures are counted at once; the least recent is forgotten, and starts again."""


class Subject(ValueObject):
    """One object: its kind in the singular (``pod``, ``node``, ``topology`` ...), what it is called, its uid and resourceVersion."""

    kind: str
    name: str
    uid: str
    version: str = ""


@dataclass(slots=True)
class _Case:
    version: str
    failures: int
    until: float
    why: str


OnQuarantine = Callable[[Subject, str], None]
"""Told of the object and what went wrong, to say so where people look."""


class Quarantine:
    """Which objects are left alone for now. Times are monotonic seconds. ``counts`` is by kind, since the start."""

    def __init__(self, clock: Clock, tell: OnQuarantine) -> None:
        self._clock = clock
        self._tell = tell
        self._cases: LRUCache[tuple[str, str], _Case] = LRUCache(maxsize=REMEMBERED)
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many objects have failed and not worked since."""
        return len(self._cases)

    def until(self, subject: Subject) -> float:
        """Until when the object, as it is, is to be left alone; 0 when it is not."""
        case = self._cases.get((subject.kind, subject.uid))
        # Another resourceVersion is another object: it gets a new chance at once.
        return case.until if case is not None and case.version == subject.version else 0.0

    def holds(self, subject: Subject) -> bool:
        """Is the object to be left alone now?"""
        return self.until(subject) > self._clock()

    def release(self, subject: Subject) -> bool:
        """The object works, or is gone. Returns whether it was held."""
        return self._cases.pop((subject.kind, subject.uid), None) is not None

    def put(self, subject: Subject, error: BaseException) -> float:
        """Something went wrong about the object; returns until when it is left alone."""
        place = (subject.kind, subject.uid)
        former = self._cases.get(place)
        # Failures count for one version; a changed object starts at the first pause.
        failures = former.failures + 1 if former is not None and former.version == subject.version else 1
        until = self._clock() + pause(PAUSES, failures, 0.0)
        # Cut, as the text ends up in an event and in the log.
        why = f"{type(error).__name__}: {error}"[:MOST_TEXT]
        self._cases[place] = _Case(subject.version, failures, until, why)
        self.counts[subject.kind] += 1
        log.error("%s %s (uid %s) is left alone: %s", subject.kind, subject.name, subject.uid, why, exc_info=error)
        self._tell(subject, why)
        return until

    @contextmanager
    def contained(self, subject: Subject) -> Iterator[None]:
        """Whatever the body raises is about this object; errors of the cluster are answers, and pass."""
        try:
            yield
        except ClusterError:
            # Conflict, Gone and the like are handled where the call was made.
            raise
        except Exception as error:  # noqa: BLE001 - the one place where a bug about an object ends
            self.put(subject, error)


MOST_TEXT: Final = 500
"""Characters of an error that are shown: it may quote the object that caused it."""
