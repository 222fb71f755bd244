"""
Evaluation of a node: filters in ascending order of cost, then the placement, then the absolute scores.

Results may be cached as long as the snapshot of the node does not change, except for filters of the scope ``CLUSTER``.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.ordering import node_key
from koord_numa.core.scheduling.filters import (
    NUMA_RESERVE,
    OF_NODE_OBJECT,
    PRE_FILTERS,
    Filter,
    filters_of,
    node_filters_of,
)
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, on_node
from koord_numa.core.scheduling.scorers import SCORERS, Score, preference_points, weight_of
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.value_objects import ValueObject

_NOTHING_OFFERED: Final = Rejection(Reason.NO_TOPOLOGY, "only the Node object is looked at")
_NO_PODS: Final = Ledger()
_NAMES: Final = tuple(row.name for row in SCORERS)

EARNING: Final = "earning"
"""Key of the relevant scorers in ``SchedulingRequest.derived``."""


class ScoredPlacement(ValueObject, gc=False):
    """
    Placement on a node with its score.

    ``score`` is the sum of the weighted points; ``parts`` are the points by scorer, set in dry runs only.
    """

    score: int
    placement: Placement
    parts: Mapping[str, int] | None = None


def refuse_everywhere(ask: SchedulingRequest) -> Rejection | None:
    """Return the rejection of a pod that applies to every node: unsupported requirements are rejected, never ignored."""
    for row in PRE_FILTERS:
        if (refusal := row.check(ask)) is not None:
            return refusal
    return None


def evaluate(ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile) -> ScoredPlacement | Rejection:
    """Return the placement of the pod on this node with the score of the absolute scorers, or the rejection."""
    return _evaluate(filters_of(ask.request), ask, seen, profile)


def evaluate_alone(ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile) -> ScoredPlacement | Rejection:
    """Evaluate without rules that depend on other pods and volumes: the result may be cached until the node changes."""
    return _evaluate(node_filters_of(ask.request), ask, seen, profile)


def fits_node_object(ask: SchedulingRequest, node: Node) -> Rejection | None:
    """Evaluate the filters on the Node object only: name, cordon, taints and labels."""
    # A rejecting offer and an empty ledger, which filters of this scope do not read.
    seen = NodeSnapshot(node, _NOTHING_OFFERED, _NO_PODS)
    return _first_refusal(OF_NODE_OBJECT, ask, seen)


def score_parts(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> dict[str, int]:
    """
    Return the weighted points of each absolute scorer.

    The points of an exploring placement are 0, so that every node with a known result is preferred and a rejection is risked only if no
    other node is left, apart from the pod's own preferences.
    """
    # All zero, with every scorer, so that columns and scalars have the same parts.
    if placement.explores:
        return dict.fromkeys([row.name for row in SCORERS], 0)
    return dict(zip(_NAMES, _points(on_node(ask, seen.node), seen, placement, profile), strict=True))


def _points(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> list[int]:
    """Return the points of each scorer, in their order."""
    return [weight_of(row, profile) * row.score(ask, seen, placement, profile) for row in SCORERS]


def _score(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> int:
    """Return the sum of ``score_parts``."""
    if placement.explores:
        return 0
    points = 0
    for weight, score in _scorers(ask, profile):
        points += weight * score(ask, seen, placement, profile)
    return points


def _scorers(ask: SchedulingRequest, profile: Profile) -> list[tuple[int, Score]]:
    """Return the scorers that may give points to the request on any node, with their weights."""
    known: tuple[Profile, list[tuple[int, Score]]] | None = ask.derived.get(EARNING)
    if known is None or known[0] is not profile:
        found = [(weight_of(row, profile), row.score) for row in SCORERS if row.concerns(ask)]
        known = ask.derived[EARNING] = profile, found
    return known[1]


def _evaluate(
    rows: Iterable[Filter], ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile
) -> ScoredPlacement | Rejection:
    ask = on_node(ask, seen.node)
    refusal = _first_refusal(rows, ask, seen)
    if refusal is not None:
        return refusal
    placed = NUMA_RESERVE.place(ask, seen)
    if isinstance(placed, Rejection):
        return placed
    return ScoredPlacement(_score(ask, seen, placed, profile), placed)


def _first_refusal(rows: Iterable[Filter], ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    for row in rows:
        if (refusal := row.check(ask, seen)) is not None:
            return refusal
    return None


Answers = Mapping[str, ScoredPlacement | Rejection]
"""Results by node name."""


def answers(
    ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile
) -> dict[str, ScoredPlacement | Rejection]:
    """Return every node's result with complete scores: preferences are normalized over the nodes that fit; ``parts`` has all points."""
    found: dict[str, ScoredPlacement | Rejection] = {}
    fitting: list[tuple[NodeSnapshot, Placement]] = []
    everywhere = refuse_everywhere(ask)
    for seen in nodes:
        answer = everywhere or evaluate(ask, seen, profile)
        found[seen.node.name] = answer
        if isinstance(answer, ScoredPlacement):
            fitting.append((seen, answer.placement))
    # After all nodes: normalization over the nodes that fit needs all raw scores.
    compared = preference_points(ask, [seen for seen, _ in fitting], profile)
    for index, (seen, placement) in enumerate(fitting):
        parts = score_parts(ask, seen, placement, profile)
        parts.update({name: points[index] for name, points in compared.items()})
        found[seen.node.name] = ScoredPlacement(sum(parts.values()), placement, parts)
    return found


def choose(answered: Answers) -> Placement | Unschedulable:
    """
    Return the placement on the best node, or every node's rejection.

    The highest score wins; among equal scores, the node whose name comes first. This is the only tie-break between nodes.
    """
    fitting = [answer for answer in answered.values() if isinstance(answer, ScoredPlacement)]
    if not fitting:
        return Unschedulable({name: no for name, no in answered.items() if isinstance(no, Rejection)})
    return min(fitting, key=lambda answer: node_key(answer.score, answer.placement.node)).placement


def decide(ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile) -> Placement | Unschedulable:
    """Return the placement on the best of these nodes, or every node's rejection."""
    return choose(answers(ask, nodes, profile))
