"""
Node-wide amounts of many nodes at once: does a request fit, and what are filling and sparing worth? Exactly as the scalar scores.

All resources that matter to a request are taken out of the columns together, as an array ``(rows, resources)``.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.decide import Ask, Rules
from koord_numa.core.score.filling import ALWAYS_SCORED, MAX_SCORE
from koord_numa.core.score.sparing import is_device
from koord_numa.core.vocabulary import ScoringType
from koord_numa.engine.columns import Columns
from koord_numa.engine.zone_columns import Bools, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sums:
    """Per row: does the request fit the node's amounts, and two parts of the score."""

    fits: Bools
    filling: Ints
    sparing: Ints


Some = slice | list[int]
"""Some of the resources; neighbours as a slice, which costs nothing to take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which columns matter, and how. Valid while no resource is new."""

    places: Ints
    wanted: Ints
    needed: Some
    scored: Some
    weights: Ints
    common: Some
    devices: Some


class Bookkeeping:
    """The amounts of one request under one set of rules."""

    def __init__(self, ask: Ask, rules: Rules, columns: Columns) -> None:
        self._amounts = ask.amounts
        self._rules = rules
        self._columns = columns
        self._plan = self._make_plan()
        self._known = len(columns.resources)

    def sums(self, rows: Ints) -> Sums:
        """As ``fits_resources``, ``score_filling`` and ``score_sparing`` of whole nodes, for every row."""
        if self._known != len(self._columns.resources):
            self._plan, self._known = self._make_plan(), len(self._columns.resources)
        plan = self._plan
        index = (rows[:, None], plan.places)
        offered, used = self._columns.offered[index], self._columns.held[index] + plan.wanted
        percent = used * MAX_SCORE // np.maximum(offered, 1)
        fits: Bools = np.logical_and.reduce((used <= offered)[:, plan.needed], axis=1)
        return Sums(fits, self._filling(offered, used, percent), self._sparing(offered, percent))

    def _make_plan(self) -> Plan:
        columns, weights = self._columns, self._rules.weights
        names = list(dict.fromkeys((*ALWAYS_SCORED, *self._amounts, *weights, *filter(is_device, columns.resources))))
        places = [columns.place(name) for name in names]
        scored = [i for i, name in enumerate(names) if name in weights and self._counts(name)]
        return Plan(
            places=np.array(places, dtype=np.int64),
            wanted=np.array([self._amounts.get(name, 0) for name in names], dtype=np.int64),
            needed=_some([i for i, name in enumerate(names) if self._amounts.get(name, 0) > 0]),
            scored=_some(scored),
            weights=np.array([weights[names[i]] for i in scored], dtype=np.int64),
            common=_some([i for i, name in enumerate(names) if name in ALWAYS_SCORED]),
            devices=_some([i for i, name in enumerate(names) if is_device(name)]),
        )

    def _counts(self, name: str) -> bool:
        return name in ALWAYS_SCORED or self._amounts.get(name, 0) > 0

    def _filling(self, offered: Ints, used: Ints, percent: Ints) -> Ints:
        plan, strategy = self._plan, self._rules.scoring
        there = offered[:, plan.scored]
        if strategy is ScoringType.LEAST_NUMA_NODES or not len(plan.weights):
            return np.zeros(len(offered), dtype=np.int64)
        if strategy is ScoringType.BALANCED_ALLOCATION:
            return _balance(there, used[:, plan.scored])
        if strategy is ScoringType.MOST_ALLOCATED:
            terms = np.minimum(MAX_SCORE, percent[:, plan.scored])
        else:
            terms = np.maximum(0, there - used[:, plan.scored]) * MAX_SCORE // np.maximum(there, 1)
        counts = there > 0
        return np.asarray((terms * counts) @ plan.weights // np.maximum(counts @ plan.weights, 1), dtype=np.int64)

    def _sparing(self, offered: Ints, percent: Ints) -> Ints:
        plan = self._plan
        devices = offered[:, plan.devices]
        if not devices.shape[1]:
            return np.full(len(offered), MAX_SCORE, dtype=np.int64)
        least = np.where(devices > 0, percent[:, plan.devices], MAX_SCORE).min(axis=1)
        common = (percent[:, plan.common] * (offered[:, plan.common] > 0)).max(axis=1)
        ahead: Ints = np.minimum(MAX_SCORE, common) - least
        return MAX_SCORE - np.maximum(0, ahead)


def _some(numbers: list[int]) -> Some:
    if not numbers:
        return slice(0, 0)
    whole = slice(numbers[0], numbers[-1] + 1)
    return whole if len(numbers) == whole.stop - whole.start else numbers


def _balance(offered: Ints, used: Ints) -> Ints:
    """As the balanced score: the same operations in the same order, so that not even the last digit differs."""
    known = offered > 0
    shares = np.where(known, np.minimum(1.0, used / np.maximum(offered, 1)), 0.0)
    count = np.maximum(1, known.sum(axis=1))
    mean = _in_order(shares) / count
    off = shares - mean[:, None]
    squares = np.where(known, off * off, 0.0)
    score = ((1 - np.sqrt(_in_order(squares) / count)) * MAX_SCORE).astype(np.int64)
    return np.where(known.any(axis=1), score, 0)


def _in_order(values: Floats) -> Floats:
    """Sums of rows, added from left to right as Python adds."""
    return reduce(np.add, (values[:, i] for i in range(values.shape[1])))
