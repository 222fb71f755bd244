"""
The request classes that fit nowhere, indexed by what may help them (kube-scheduler's unschedulable pods with their queueing hints).

Theory: an event names its kind and mostly a node. A class can profit from a change of one node only if the node has room for it by
whole-node amounts, whatever else refused it there; so the amounts of all classes are rows of one array, and one comparison tells for
thousands of classes which of them a node could take at all. A class that other nodes' changes may help too (affinity, spread, volumes) is
exempt for the kinds of event that do so.

Lines of the array are resources that nodes offer. Pods may name any others: that a class needs such a resource is one fact about it.
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
    ``_anywhere[row]`` the events that may help the class on the node concerned, or wherever it happens, as bits. ``_offered[row]`` is
    whether nodes have offered every resource that the class needs.
    """

    _rows: dict[RequestClass, int] = field(default_factory=dict)
    _classes: list[RequestClass | None] = field(default_factory=list)
    _vacant: list[int] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=lambda: {PODS: 0})
    _needs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, FIRST_ROWS), dtype=np.int64))
    _offered: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.bool_))
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

    @property
    def lines(self) -> int:
        """How many resources the array of amounts has: those that nodes have offered, and pods."""
        return len(self._lines)

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
            if not self._lines.keys() >= free.keys():
                self._add_lines(free)
            # int64[lines, 1] against int64[lines, rows]; what a node does not list is 0.
            limits = np.array([[min(max(0, free.get(name, 0)), MOST)] for name in self._lines], dtype=np.int64)
            here &= self._offered[:used] & (self._needs[:, :used] <= limits).all(axis=0)
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
            self._offered = np.append(self._offered, np.zeros_like(self._offered))
            self._needs = np.hstack([self._needs, np.zeros_like(self._needs)])
        return row

    def _add_lines(self, free: ResourceList) -> None:
        """A node offers resources that no node has offered before."""
        names = [name for name in free if name not in self._lines]
        self._lines.update(zip(names, range(len(self._lines), len(self._lines) + len(names)), strict=True))
        self._needs = np.vstack([self._needs, np.zeros((len(names), self._needs.shape[1]), dtype=np.int64)])
        for request_class, row in self._rows.items():
            if not self._offered[row]:
                self._write_needs(row, request_class.amounts)

    def _write_needs(self, row: int, amounts: ResourceList) -> None:
        self._needs[:, row] = 0
        # The shorter of both is gone through: a pod may name thousands of resources.
        for name in self._lines if len(self._lines) < len(amounts) else amounts:
            if name in self._lines and name in amounts:
                self._needs[self._lines[name], row] = min(amounts[name], MOST)
        self._offered[row] = all(name in self._lines for name, amount in amounts.items() if amount)
        # One pod, on the line of ``PODS``.
        self._needs[0, row] = 1
