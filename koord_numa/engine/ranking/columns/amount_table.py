"""Writes what whole nodes have free into the node numbers, and keeps what they offer."""

from typing import Final

import numpy as np

from koord_numa.core.resources import CPU, MEMORY, NOTHING, PODS, ResourceList
from koord_numa.core.score.node_scores import MAX_SCORE, is_device
from koord_numa.core.state.ledger import Ledger
from koord_numa.engine.ranking.columns.node_numbers import (
    DIVISORS,
    FIRST_RESOURCES,
    FREE,
    SPARES,
    UNLIMITED,
    Ints,
    NodeNumbers,
    longer,
)

MOST_HELD: Final = 1 << 50
MOST_OFFERED: Final = 1 << 52
"""
Amounts saturate in the table, so that no sum or product of them leaves 64 bits: a pebibyte held and a pebibyte wanted are within the four
that are offered, and a hundred times that is within 2**63. What is beyond is for ``evaluate`` to tell, which has no limits.
"""

LEAST_FREE: Final = -MAX_SCORE * MOST_HELD

MOST_LINES: Final = 256
"""Resources with a line of their own. Of others, whose names any user may invent in a pod, only ``evaluate`` knows."""

CPU_LINE, MEMORY_LINE, PODS_LINE = range(len(FIRST_RESOURCES))


class AmountTable:
    """
    ``offered[resource, row]`` is what there is; ``resources`` says which resource is where. ``bare`` are rows without CPUs or memory.
    """

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        self.resources = numbers.resources
        self.offered: Ints = np.zeros((len(self.resources), len(numbers.rows)), dtype=np.int64)
        self.bare: set[int] = set()
        # By row, a hundredfold, what is offered of each resource, and how many pods may be there.
        self._offers: dict[int, list[int]] = {}
        self._devices: dict[int, tuple[tuple[str, int], ...]] = {}  # by row, how many there are, of rows that have any

    @property
    def spares(self) -> Ints:
        """By row, the percent of the least used device, 100 without any."""
        spares: Ints = MAX_SCORE + self._numbers.rows[:, SPARES]
        return spares

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self.offered = longer(self.offered, rows)

    def place(self, resource: str) -> None:
        """A line for a resource that is new."""
        if resource not in self.resources:
            self._numbers.add_resource(resource)
            self.offered = np.pad(self.offered, ((0, 1), (0, 0)))
            for offered in self._offers.values():
                offered.append(0)

    def offer(self, row: int, allocatable: ResourceList) -> None:
        """The objects of a row's node changed. ``write`` has to follow."""
        for resource in allocatable:
            if len(self.resources) < MOST_LINES:
                self.place(resource)
        offered = [min(allocatable.get(resource, 0), MOST_OFFERED) for resource in self.resources]
        offered[PODS_LINE] = min(allocatable.get(PODS, UNLIMITED), MOST_OFFERED)
        self._offers[row] = [MAX_SCORE * amount for amount in offered]
        self.offered[:, row] = offered
        self._numbers.rows[row, DIVISORS] = max(1, offered[CPU_LINE]), max(1, offered[MEMORY_LINE])
        if allocatable.get(CPU) and allocatable.get(MEMORY):
            self.bare.discard(row)
        else:
            self.bare.add(row)
        self._note_devices(row, allocatable)

    def write(self, row: int, booked: Ledger, *, takes_pods: bool) -> None:
        """Pods came to a row's node or went."""
        amounts, lines = booked.amounts, self.resources
        offered = self._offers.get(row) or [0] * len(lines)
        free = offered.copy()
        for name, amount in amounts.items():
            if name in lines:  # what has no line is offered nowhere
                free[lines[name]] -= MAX_SCORE * amount
        free[PODS_LINE] = offered[PODS_LINE] - MAX_SCORE * len(booked.holdings) if takes_pods else 0
        if min(free) < LEAST_FREE:  # never, outside of tests
            free = [max(amount, LEAST_FREE) for amount in free]
        spare = 0
        if (devices := self._devices.get(row)) is not None:
            spare = min(0, *[amounts.get(name, 0) * MAX_SCORE // count - MAX_SCORE for name, count in devices])
        self._numbers.whole.write(row, (spare, *free))

    def refuse(self, row: int) -> None:
        """Nothing may go to this row."""
        self._numbers.rows[row, FREE + PODS_LINE] = 0

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self.bare.discard(row)
        self._note_devices(row, NOTHING)

    def _note_devices(self, row: int, allocatable: ResourceList) -> None:
        devices = tuple((name, count) for name, count in allocatable.items() if count > 0 and is_device(name))
        if devices:
            self._devices[row] = devices
        elif self._devices.pop(row, None):
            self._numbers.rows[row, SPARES] = 0
