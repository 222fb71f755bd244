"""Columns of the devices of all nodes, and the bounds on the scores of a pod with device requests."""

from typing import Final

import numpy as np

from koord_numa.core.devices import (
    UNUSED,
    DeviceDemand,
    DeviceMachine,
    DeviceUse,
    device_demand,
    fits_one_numa_node,
    partition_points,
)
from koord_numa.core.objects.devices import GPU
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.node_numbers import Ints, distinct, longer

NO_OBJECT: Final = 0
"""State of a node without a Device object."""


class DeviceState(ValueObject, gc=False):
    """Devices of a machine and what pods hold of them. ``machine`` is ``None`` if they are not known."""

    machine: DeviceMachine | None
    use: DeviceUse = UNUSED


class DeviceColumn:
    """
    Number of the device state of each row: ``rows[row]``. Nodes in equal states have the same number, so that a cold class evaluates
    each state once.

    ``states`` has the state of each number. ``version`` is incremented when a number is reused.
    """

    def __init__(self, rows: int) -> None:
        self.rows: Ints = np.zeros(rows, dtype=np.int64)
        self.states: list[DeviceState | None] = [None]
        self.version = 0
        self._numbers: dict[DeviceState, int] = {}
        self._counts: list[int] = [0]
        self._vacant: list[int] = []

    def grow(self, rows: int) -> None:
        """Add rows up to this number."""
        self.rows = longer(self.rows, rows)

    def write(self, row: int, record: NodeInfo | None) -> None:
        """Update the state of a row; ``None`` for a row without a node."""
        offer = None if record is None else record.devices
        if offer is None or record is None:
            self._set(row, NO_OBJECT)
            return
        known = not offer.problem
        state = DeviceState(offer.machine, offer.use(record.booked)) if known else DeviceState(None)
        number = self._numbers.get(state)
        if number is None:
            number = self._number_for(state)
        self._set(row, number)

    def _number_for(self, state: DeviceState) -> int:
        if self._vacant:
            number = self._vacant.pop()
            self.states[number] = state
            self.version += 1
        else:
            number = len(self.states)
            self.states.append(state)
            self._counts.append(0)
        self._numbers[state] = number
        return number

    def _set(self, row: int, number: int) -> None:
        former = int(self.rows[row])
        if former == number:
            return
        self.rows[row] = number
        if number:
            self._counts[number] += 1
        if former:
            self._counts[former] -= 1
            if not self._counts[former] and (state := self.states[former]) is not None:
                del self._numbers[state]
                self._vacant.append(former)


class DeviceBounds:
    """
    Points of the ``partitions`` scorer by row, ``never`` where the devices reject the pod. ``ask`` must have device requests.

    The result for a state is that of ``core.devices`` without NUMA nodes, which ``evaluate`` computes first.
    """

    def __init__(self, ask: SchedulingRequest, column: DeviceColumn, weight: int, never: int) -> None:
        demand = device_demand(ask.request)
        if not isinstance(demand, DeviceDemand):
            raise TypeError("the request has no device requests")
        self._demand = demand
        self._column = column
        self._weight = weight if any(each.type == GPU for each in demand.types) else 0
        self._never = never
        self._version = column.version
        self._points: Ints = np.zeros(0, dtype=np.int64)
        self._aligned: Ints = np.zeros(0, dtype=np.int64)  # ``never`` if the devices of one NUMA node do not suffice
        self._known: set[int] = set()

    def points(self, rows: Ints, lists_all: np.ndarray, needs_one: np.ndarray) -> Ints:
        """
        Return the points of these rows.

        ``needs_one``: the devices have to be on a single NUMA node.

        ``lists_all``: the Node lists every requested device resource, which a node without a Device object has to.
        """
        numbers = self._column.rows[rows]
        self._learn(numbers)
        points: Ints = np.where(needs_one, self._aligned[numbers], self._points[numbers])
        points[(numbers == NO_OBJECT) & ~lists_all] = self._never
        return points

    def _learn(self, numbers: Ints) -> None:
        column = self._column
        if self._version != column.version:
            self._version = column.version
            self._known.clear()
        if len(self._points) < len(column.states):
            self._points = longer(self._points, 2 * len(column.states))
            self._aligned = longer(self._aligned, 2 * len(column.states))
        for number in distinct(numbers).tolist():
            if number not in self._known:
                self._known.add(number)
                state = column.states[number]
                self._points[number] = self._aligned[number] = points = self._points_of(state)
                if points != self._never and state is not None and state.machine is not None:
                    fits = fits_one_numa_node(state.machine, state.use, self._demand)
                    self._aligned[number] = points if fits else self._never

    def _points_of(self, state: DeviceState | None) -> int:
        if state is None:
            return self._never if self._demand.spec_matters else self._weight * 100
        points = -1 if state.machine is None else partition_points(state.machine, state.use, self._demand)
        return self._never if points < 0 else self._weight * points
