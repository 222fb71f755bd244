"""
What whole nodes have free, in NumPy columns: a row a node, a column for everything that requests are compared with.

What most requests need of a node is a few numbers side by side in memory, as a decision reads the few rows that changed. Each operation on
them costs about the same for one row as for a hundred, so that the numbers are those which the fewest operations are needed with.
"""

from itertools import repeat
from operator import sub
from typing import Final

import numpy as np

from koord_numa.core.resources import CPU, MEMORY, NOTHING, PODS, ResourceList
from koord_numa.core.score.device_reserve import is_device
from koord_numa.core.score.node_resources import MAX_SCORE
from koord_numa.core.state.ledger import Ledger
from koord_numa.engine.ranking.columns.numa_table import UNLIMITED, Ints, longer
from koord_numa.engine.ranking.columns.row_writer import RowWriter

FIRST_RESOURCES: Final = (PODS, CPU, MEMORY)
"""Every node has these, so they get the first lines, side by side."""

MOST_HELD: Final = 1 << 50
MOST_OFFERED: Final = 1 << 52
"""
Amounts saturate in the table, so that no sum or product of them leaves 64 bits: a pebibyte held and a pebibyte wanted are within the four
that are offered, and a hundred times that is within 2**63. What is beyond is for ``evaluate`` to tell, which has no limits.
"""

MOST_LINES: Final = 256
"""Resources with a line of their own. Of others, whose names any user may invent in a pod, only ``evaluate`` knows."""

PODS_LINE, CPU_LINE, MEMORY_LINE = range(len(FIRST_RESOURCES))

DIVISORS: Final = slice(0, 2)
"""Of ``AmountTable.numbers``: how much CPU and memory is offered, 1 where none is, as what is held is divided by it."""
SPARES: Final = 2
"""The percent of the least used device, 100 without any."""
HELD: Final = slice(3, 5)
"""How much CPU and memory is held, times 100, as percents are asked for."""
FREE: Final = 5
"""From here on what is free of each resource, perhaps less than nothing. Where nothing may go no pods are free."""

ZEROS: Final = repeat(0)


class AmountTable:
    """
    ``numbers[row, line]`` is what most requests are compared with, and ``offered[resource, row]`` what there is. ``resources`` says which
    resource is where, after ``FREE`` in the first and from the beginning in the second. ``bare`` are rows without CPUs or memory.
    """

    def __init__(self, rows: int) -> None:
        self.resources: dict[str, int] = {name: place for place, name in enumerate(FIRST_RESOURCES)}
        self._set_numbers(_empty(rows, FREE + len(FIRST_RESOURCES)))
        self.offered: Ints = np.zeros((len(FIRST_RESOURCES), rows), dtype=np.int64)
        self.bare: set[int] = set()
        # By row, what is offered of each resource, and how many pods may be there.
        self._offers: dict[int, list[int]] = {}
        self._devices: dict[int, tuple[tuple[str, int], ...]] = {}  # by row, how many there are, of rows that have any

    @property
    def spares(self) -> Ints:
        """By row, the percent of the least used device, 100 without any."""
        spares: Ints = self.numbers[:, SPARES]
        return spares

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        before, lines = self.numbers.shape
        self._set_numbers(np.vstack([self.numbers, _empty(rows - before, lines)]))
        self.offered = longer(self.offered, rows)

    def place(self, resource: str) -> int:
        """Where a resource is; made when it is new."""
        found = self.resources.get(resource)
        if found is None:
            found = self.resources[resource] = len(self.resources)
            self._set_numbers(np.pad(self.numbers, ((0, 0), (0, 1))))
            self.offered = np.pad(self.offered, ((0, 1), (0, 0)))
            for offered in self._offers.values():
                offered.append(0)
        return found

    def offer(self, row: int, allocatable: ResourceList) -> None:
        """The objects of a row's node changed. ``write`` has to follow."""
        for resource in allocatable:
            if len(self.resources) < MOST_LINES:
                self.place(resource)
        offered = [min(allocatable.get(resource, 0), MOST_OFFERED) for resource in self.resources]
        offered[PODS_LINE] = min(allocatable.get(PODS, UNLIMITED), MOST_OFFERED)
        self._offers[row] = offered
        self.offered[:, row] = offered
        self.numbers[row, DIVISORS] = max(1, offered[CPU_LINE]), max(1, offered[MEMORY_LINE])
        if allocatable.get(CPU) and allocatable.get(MEMORY):
            self.bare.discard(row)
        else:
            self.bare.add(row)
        self._note_devices(row, allocatable)

    def write(self, row: int, booked: Ledger, *, takes_pods: bool) -> None:
        """Pods came to a row's node or went."""
        amounts, offered = booked.amounts, self._offers.get(row) or [0] * len(self.resources)
        # What has no line is offered nowhere.
        held = [*map(amounts.get, self.resources, ZEROS)]
        free = [*map(sub, offered, held)]
        free[PODS_LINE] = offered[PODS_LINE] - len(booked.holdings) if takes_pods else 0
        if min(free) < -MOST_HELD:  # never, outside of tests
            held, free = [min(amount, MOST_HELD) for amount in held], [max(amount, -MOST_HELD) for amount in free]
        spare = MAX_SCORE
        if (devices := self._devices.get(row)) is not None:
            spare = min(MAX_SCORE, *[amounts.get(name, 0) * MAX_SCORE // count for name, count in devices])
        # All that pods change is side by side, and written at once.
        self._writer.write(row, (spare, held[CPU_LINE] * MAX_SCORE, held[MEMORY_LINE] * MAX_SCORE, *free))

    def refuse(self, row: int) -> None:
        """Nothing may go to this row."""
        self.numbers[row, FREE + PODS_LINE] = 0

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self.bare.discard(row)
        self._note_devices(row, NOTHING)

    def _set_numbers(self, numbers: Ints) -> None:
        self.numbers = numbers
        self._writer = RowWriter(numbers, SPARES)

    def _note_devices(self, row: int, allocatable: ResourceList) -> None:
        devices = tuple((name, count) for name, count in allocatable.items() if count > 0 and is_device(name))
        if devices:
            self._devices[row] = devices
        elif self._devices.pop(row, None):
            self.numbers[row, SPARES] = MAX_SCORE


def _empty(rows: int, lines: int) -> Ints:
    numbers: Ints = np.zeros((rows, lines), dtype=np.int64)
    numbers[:, DIVISORS] = 1
    numbers[:, SPARES] = MAX_SCORE
    return numbers
