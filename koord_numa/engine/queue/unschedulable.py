"""
An index of parked request classes by what may wake them. Waking costs what wakes, not what is parked.

Classes that wait for freed capacity are kept in order of the CPU they ask for: an event on a node wakes only those small enough for
what is free there now.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from koord_numa.engine.cluster_events import ClusterEvent
from koord_numa.engine.queue.request_class import RequestClass


@dataclass(slots=True)
class UnschedulablePods:
    """Parked classes. A class is parked once; ``wake`` and ``forget`` take it out of every index."""

    _causes: dict[RequestClass, frozenset[ClusterEvent]] = field(default_factory=dict)
    _waiting: dict[ClusterEvent, dict[RequestClass, None]] = field(
        default_factory=lambda: {cause: {} for cause in ClusterEvent}
    )
    _for_room: list[tuple[int, int, RequestClass]] = field(default_factory=list)  # ascending by (CPU, class number)

    def __len__(self) -> int:
        return len(self._causes)

    def park(self, klass: RequestClass, causes: Iterable[ClusterEvent]) -> None:
        """Let a class wait for any of these changes."""
        self.forget(klass)
        self._causes[klass] = frozenset(causes)
        for cause in self._causes[klass]:
            if cause is ClusterEvent.CAPACITY_FREED:
                insort(self._for_room, (klass.cpu, klass.number, klass), key=lambda entry: entry[:2])
            else:
                self._waiting[cause][klass] = None

    def forget(self, klass: RequestClass) -> None:
        """The class waits no longer; one that is not parked is no error."""
        for cause in self._causes.pop(klass, ()):
            if cause is ClusterEvent.CAPACITY_FREED:
                place = bisect_left(self._for_room, (klass.cpu, klass.number), key=lambda entry: entry[:2])
                del self._for_room[place]
            else:
                del self._waiting[cause][klass]

    def wake(self, cause: ClusterEvent, room: int | None = None) -> tuple[RequestClass, ...]:
        """
        Take out and return the classes that wait for this change, oldest class first.

        ``room`` (milli-CPU free on the node where capacity came free) leaves the larger ones parked.
        """
        if cause is ClusterEvent.CAPACITY_FREED:
            end = (
                len(self._for_room) if room is None else bisect_right(self._for_room, room, key=lambda entry: entry[0])
            )
            woken = sorted((klass for _, _, klass in self._for_room[:end]), key=lambda klass: klass.number)
        else:
            woken = sorted(self._waiting[cause], key=lambda klass: klass.number)
        for klass in woken:
            self.forget(klass)
        return tuple(woken)
