"""
Node-wide amounts of many nodes at once: does a request fit, and what are filling and sparing worth? Exactly as the scalar scores.

All resources are taken out of the columns together, as an array ``(resources, rows)``.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.resources import CPU, MEMORY, PODS
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import scored_by_claim
from koord_numa.core.score.device_reserve import is_device
from koord_numa.core.score.node_resources import ALWAYS_SCORED, MAX_SCORE
from koord_numa.core.value_objects import value_object
from koord_numa.engine.ranking.columns.node_table import MOST_HELD, MOST_LINES, NodeTable
from koord_numa.engine.ranking.columns.numa_table import Bools, Ints

Floats = NDArray[np.float64]

# Array operations on a few rows are twice as fast with numbers that are arrays already.
ZERO: Final = np.array(0)
ONE: Final = np.array(1)
FULL: Final = np.array(MAX_SCORE)


@value_object
class Sums:
    """Per row: do the node's amounts fall short, and two parts of the score. ``ahead`` is what sparing takes off ``MAX_SCORE``."""

    short: Bools
    filling: Ints
    ahead: Ints | None  # ``None`` where nothing is taken off any row


Some = slice | list[int]
"""Some of the resources; neighbours as a slice, which costs nothing to take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which lines matter, and how. Valid while no resource is new."""

    # int64[lines, 1], so that it is added to int64[lines, rows] by broadcasting.
    wanted: Ints  # a line a resource, to be added to each row
    needed: Some
    scored: Some
    weights: Ints
    everywhere: Ints | None  # the sum of the weights, where only resources are scored that all but ``bare`` nodes have
    common: slice
    most_of_common: bool  # is that all that is scored, and by how much of it is in use?
    percents: slice  # the lines of which anything is asked in percent
    devices: list[int]  # where the request wants some
    spares: bool  # where it wants none: are there devices that nodes know the use of?
    by_claim: list[int]  # a row that has none of these serves them by claim


@value_object
class Taken:
    """
    By resource and row: what there is, what is used with the pod, and how much that is in percent, of the lines ``percents`` of the plan.
    ``common`` are the percents of CPU and memory, 100 at most.
    """

    offered: Ints
    used: Ints
    percent: Ints
    common: Ints


class ResourceBounds:
    """The amounts of one request under one set of rules."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> None:
        self._amounts = ask.amounts
        self._extended = frozenset(name for name, _ in ask.claims.extended) if ask.claims is not None else frozenset()
        self._rules = rules
        self._columns = columns
        self._plan = self._make_plan()

    def sums(self, rows: Ints) -> Sums:
        """As ``fits_resources``, ``score_filling`` and ``score_sparing`` of whole nodes, for every row."""
        # A resource that is new has made the table higher: line numbers stay, the plan's arrays are too short.
        if len(self._plan.wanted) != len(self._columns.resources):
            self._plan = self._make_plan()
        plan = self._plan
        # By resource and row from here on; a copy, so that ``+=`` does not write into the table.
        offered, used = self._columns.amounts.take(rows, axis=0).transpose(1, 2, 0).copy()
        used += plan.wanted
        # Only what is requested can be short (fitsRequest skips zero requests).
        lacks = used > offered
        if plan.by_claim:
            lacks[plan.by_claim] &= offered[plan.by_claim] > ZERO
        short: Bools = np.logical_or.reduce(lacks[plan.needed])  # over the resources, the first axis
        there = offered[plan.percents]
        percent = used[plan.percents] * FULL
        # Where nothing is offered the divisor is 1.
        percent //= np.maximum(there, ONE)
        if self._columns.bare or plan.everywhere is None:
            percent *= there > ZERO  # of nothing no part is used
        common = percent if plan.percents == plan.common else percent[plan.common]
        taken = Taken(offered, used, percent, np.minimum(FULL, common))
        filling = self._filling(taken)
        return Sums(short, self._with_claims(filling, taken) if self._extended else filling, self._ahead(rows, taken))

    def _make_plan(self) -> Plan:
        columns, weights = self._columns, self._rules.weights
        for name in (*ALWAYS_SCORED, *weights, *self._amounts):
            # Names in a pod are any user's: beyond the limit a resource has no line and only ``evaluate`` judges it.
            if len(columns.resources) < MOST_LINES:
                columns.place(name)
        lines = columns.resources
        wanted = {PODS: 1, **self._amounts}
        common = (lines[CPU], lines[MEMORY])  # neighbours: ``FIRST_RESOURCES``
        scored = {line: weights[name] for name, line in lines.items() if name in weights and self._counts(name)}
        devices = [line for name, line in lines.items() if is_device(name)]
        sparing = any(is_device(name) for name, amount in self._amounts.items() if amount > 0)
        whole = slice(common[0], common[1] + 1)
        everywhere = bool(scored) and set(scored) <= set(common)
        return Plan(
            # Cut as amounts in the table are, so that sums stay within 64 bits.
            wanted=np.array([[min(wanted.get(name, 0), MOST_HELD)] for name in lines], dtype=np.int64),
            needed=_some([line for name, line in lines.items() if wanted.get(name, 0) > 0]),
            scored=_some(list(scored)),
            weights=np.array(list(scored.values()), dtype=np.int64),
            everywhere=np.array(sum(scored.values())) if everywhere else None,
            common=whole,
            most_of_common=self._rules.scoring is ScoringType.MOST_ALLOCATED and set(scored) == set(common),
            percents=whole if everywhere and not sparing else slice(0, len(lines)),
            devices=devices if sparing else [],
            spares=bool(devices) and not sparing,
            by_claim=[line for name, line in lines.items() if name in self._extended],
        )

    def _counts(self, name: str) -> bool:
        return name in ALWAYS_SCORED or self._amounts.get(name, 0) > 0

    def _with_claims(self, filling: Ints, taken: Taken) -> Ints:
        """Rows that serve scored resources by claim count as the best that they can be: their devices are counted when they are chosen."""
        for name in scored_by_claim(self._extended, self._rules):
            line = self._columns.resources.get(name)
            # Beyond the table's limit nothing is known of any row.
            filling = (
                np.full_like(filling, MAX_SCORE)
                if line is None
                else np.where(taken.offered[line] > ZERO, filling, FULL)
            )
        return filling

    def _filling(self, taken: Taken) -> Ints:
        plan = self._plan
        if plan.most_of_common:
            terms = taken.common
        elif (strategy := self._rules.scoring) is ScoringType.LEAST_NUMA_NODES or not len(plan.weights):
            return np.zeros(taken.offered.shape[1], dtype=np.int64)
        elif strategy is ScoringType.BALANCED_ALLOCATION:
            return _balance(taken.offered[plan.scored], taken.used[plan.scored])
        elif strategy is ScoringType.MOST_ALLOCATED:
            terms = np.minimum(FULL, taken.percent[plan.scored])
        else:
            offered = taken.offered[plan.scored]
            terms = np.maximum(ZERO, offered - taken.used[plan.scored]) * FULL // np.maximum(offered, ONE)
        # ``dot`` costs half of ``@`` on a few rows: (resources,) by (resources, rows) is (rows,).
        points: Ints = plan.weights.dot(terms)
        if plan.everywhere is not None and not self._columns.bare:
            return points // plan.everywhere
        # Weights of resources that the node has; without any the divisor is 1.
        return np.asarray(
            points // np.maximum(plan.weights.dot(taken.offered[plan.scored] > ZERO), ONE), dtype=np.int64
        )

    def _ahead(self, rows: Ints, taken: Taken) -> Ints | None:
        """By how many points the fullest of CPU and memory is ahead of the least used device."""
        plan = self._plan
        if plan.spares:
            least = self._columns.spares[rows]
        elif plan.devices:
            least = self._least(taken)
        else:
            return None
        ahead: Ints = np.maximum(taken.common[0], taken.common[1])
        ahead -= least
        np.maximum(ZERO, ahead, out=ahead)
        return ahead

    def _least(self, taken: Taken) -> Ints:
        """The percent of the least used device, with those that the pod wants."""
        first, *others = self._plan.devices
        # Rows without the device are at 100, as those are never at risk; above it nothing is ahead either.
        least: Ints = taken.percent[first]
        np.putmask(least, taken.offered[first] <= ZERO, FULL)
        for line in others:
            np.minimum(least, taken.percent[line], out=least, where=taken.offered[line] > ZERO)
        return least


def _some(numbers: list[int]) -> Some:
    if not numbers:
        return slice(0, 0)
    whole = slice(numbers[0], numbers[-1] + 1)
    # Neighbouring lines as a slice are a view; a list of numbers would copy.
    return whole if len(numbers) == whole.stop - whole.start else numbers


def _balance(offered: Ints, used: Ints) -> Ints:
    """As the balanced score: the same operations in the same order, so that not even the last digit differs."""
    known = offered > 0
    shares = np.where(known, np.minimum(1.0, used / np.maximum(offered, 1)), 0.0)
    count = np.maximum(1, known.sum(axis=0))
    off = shares - _in_order(shares) / count
    squares = np.where(known, off * off, 0.0)
    score = ((1 - np.sqrt(_in_order(squares) / count)) * MAX_SCORE).astype(np.int64)
    return np.where(known.any(axis=0), score, 0)


def _in_order(values: Floats) -> Floats:
    """Sums over the resources, added one after the other as Python adds."""
    return reduce(np.add, values)
