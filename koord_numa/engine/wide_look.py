"""
The best node for a pod that cares for other pods or for volumes: everything is looked at anew, but few nodes are asked everything.

A sweep bounds what each node can be worth by itself; what other pods add is exact and cheap. Nodes are then asked from the
highest bound down, until none of the rest can be better.
"""

import numpy as np

from koord_numa.core.decide import (
    Profile,
    SchedulingRequest,
    ScoredPlacement,
    evaluate,
    fits_around,
    refuse_everywhere,
    score_around,
)
from koord_numa.core.verdicts import Placement
from koord_numa.engine.columns import Columns
from koord_numa.engine.ranking import Bars
from koord_numa.engine.sweep import NO, Sweep


def best_around(ask: SchedulingRequest, rules: Profile, columns: Columns, bars: Bars) -> Placement | None:
    """What ``core.decide.decide`` would choose among all nodes that nothing bars; ``None`` when it would choose none."""
    if refuse_everywhere(ask) is not None:
        return None
    best: tuple[int, str] | None = None
    chosen: Placement | None = None
    for bound, name, row in _promising(ask, rules, columns):
        if best is not None and best <= (bound, name):
            break
        candidate = columns.candidate(row)
        if candidate is None or bars(name) is not None:
            continue
        answer = evaluate(ask, candidate, rules)
        if isinstance(answer, ScoredPlacement) and (best is None or (-answer.score, name) < best):
            best, chosen = (-answer.score, name), answer.placement
    return chosen


def _promising(ask: SchedulingRequest, rules: Profile, columns: Columns) -> list[tuple[int, str, int]]:
    """Rows that may take the pod, by the most they can be worth and then by name: negated bound, name, row."""
    columns.refresh()
    bounds = Sweep(ask, rules, columns).bounds(np.arange(len(columns), dtype=np.int64))
    found: list[tuple[int, str, int]] = []
    for row in np.flatnonzero(bounds > NO).tolist():
        record = columns.records[row]
        if record is not None and record.node is not None and fits_around(ask, record.node) is None:
            found.append((-int(bounds[row]) - score_around(ask, record.node, rules), record.name, row))
    return sorted(found)
