"""
The request classes that fit nowhere, indexed by what may help them (kube-scheduler's unschedulable pods with their queueing hints).

Theory: an event names its kind and mostly a node. A class can profit from a change of one node only if the node has room for it by
whole-node amounts, whatever else refused it there; so the amounts of all classes are rows of one array, and one comparison tells for
thousands of classes which of them a node could take at all. A class that other nodes' changes may help too (affinity, spread, volumes) is
exempt for the kinds of event that do so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.resources import PODS, ResourceList
from koord_numa.engine.queue.cluster_events import ClusterEvent, Wakers
from koord_numa.engine.queue.request_class import RequestClass

FIRST_ROWS: Final = 64
MOST: Final = 1 << 60
"""Amounts saturate here, so that they fit 64 bits."""
_BIT: Final = {event: 1 << number for number, event in enumerate(ClusterEvent)}


def _bits(events: frozenset[ClusterEvent]) -> int:
    return sum(_BIT[event] for event in events)


@dataclass(slots=True)
class UnschedulableClasses:
    """
    Parked classes. Arrays have a row a class, reused when it leaves: ``_needs[resource, row]`` in our units, ``_here[row]`` and
    ``_anywhere[row]`` the events that may help the class on the node concerned, or wherever it happens, as bits.
    """

    _rows: dict[RequestClass, int] = field(default_factory=dict)
    _classes: list[RequestClass | None] = field(default_factory=list)
    _vacant: list[int] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=lambda: {PODS: 0})
    _needs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, FIRST_ROWS), dtype=np.int64))
    _here: NDArray[np.int64] = field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.int64))
    _anywhere: NDArray[np.int64] = field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RequestClass]:
        return iter(self._rows)

    @property
    def rows(self) -> int:
        """How many rows the arrays have."""
        return len(self._here)

    def park(self, request_class: RequestClass, wakers: Wakers) -> None:
        """Let a class wait for any of these events."""
        row = self._rows.get(request_class)
        if row is None:
            row = self._rows[request_class] = self._take_row(request_class)
            self._write_needs(row, request_class.amounts)
        # Written again for a known class: its verdict may have changed and with it the events.
        self._here[row], self._anywhere[row] = _bits(wakers.here), _bits(wakers.anywhere)

    def forget(self, request_class: RequestClass) -> None:
        """The class waits no longer; one that is not parked is no error."""
        row = self._rows.pop(request_class, None)
        if row is None:
            return
        self._classes[row] = None
        self._here[row] = self._anywhere[row] = 0
        # Zero needs and no events: a vacant row is never found.
        self._needs[:, row] = 0
        self._vacant.append(row)

    def helped_by(self, event: ClusterEvent, free: ResourceList | None) -> list[RequestClass]:
        """
        The classes that wait for this event, oldest class first. ``free`` is what the node concerned has left of each resource;
        classes that need more of any are left out, unless it does not matter to them where it happened.
        """
        used = len(self._classes)
        here = (self._here[:used] & _BIT[event]) != 0
        if free is not None and here.any():
            # int64[lines, 1] against int64[lines, rows]; what a node does not list is 0.
            limits = np.array([[min(max(0, free.get(name, 0)), MOST)] for name in self._lines], dtype=np.int64)
            here &= (self._needs[:, :used] <= limits).all(axis=0)
        chosen = np.flatnonzero(here | ((self._anywhere[:used] & _BIT[event]) != 0))
        found = [self._classes[row] for row in chosen.tolist()]
        return sorted(
            # By number: arrays keep rows in the order in which they were reused, which must not decide.
            (request_class for request_class in found if request_class is not None),
            key=lambda request_class: request_class.number,
        )

    def _take_row(self, request_class: RequestClass) -> int:
        if self._vacant:
            row = self._vacant.pop()
            self._classes[row] = request_class
            return row
        self._classes.append(request_class)
        row = len(self._classes) - 1
        if row >= len(self._here):
            self._here, self._anywhere = (np.append(old, np.zeros_like(old)) for old in (self._here, self._anywhere))
            self._needs = np.hstack([self._needs, np.zeros_like(self._needs)])
        return row

    def _write_needs(self, row: int, amounts: ResourceList) -> None:
        for name in amounts:
            if name not in self._lines:
                self._lines[name] = len(self._lines)
                self._needs = np.vstack([self._needs, np.zeros((1, self._needs.shape[1]), dtype=np.int64)])
        self._needs[:, row] = 0
        for name, amount in amounts.items():
            self._needs[self._lines[name], row] = min(amount, MOST)
        # One pod, on the line of ``PODS``.
        self._needs[0, row] = 1
