"""
Where one pod goes: every node is asked in turn, and the best of those that take it is chosen. Pure; it holds and changes nothing.

This is the specification of ``engine/ranking``, which gives the same answer from columns.
"""

from collections.abc import Iterable, Mapping

from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.ordering import node_key
from koord_numa.core.scheduling.evaluate import ScoredPlacement, evaluate, refuse_everywhere, score_parts
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import preference_points
from koord_numa.core.state.node_snapshot import NodeSnapshot

Answers = Mapping[str, ScoredPlacement | Rejection]
"""What each node says, by node name."""


def answers(
    ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile
) -> dict[str, ScoredPlacement | Rejection]:
    """Every node's answer. Scores are complete: preferences are compared over the nodes that fit; ``parts`` names each scorer's points."""
    found: dict[str, ScoredPlacement | Rejection] = {}
    fitting: list[tuple[NodeSnapshot, Placement]] = []
    everywhere = refuse_everywhere(ask)
    for seen in nodes:
        answer = everywhere or evaluate(ask, seen, profile)
        found[seen.node.name] = answer
        if isinstance(answer, ScoredPlacement):
            fitting.append((seen, answer.placement))
    # After all nodes: a preference is compared over those that fit, so that it needs every raw score first.
    compared = preference_points(ask, [seen for seen, _ in fitting], profile)
    for index, (seen, placement) in enumerate(fitting):
        parts = score_parts(ask, seen, placement, profile)
        parts.update({name: points[index] for name, points in compared.items()})
        found[seen.node.name] = ScoredPlacement(sum(parts.values()), placement, parts)
    return found


def choose(answered: Answers) -> Placement | Unschedulable:
    """
    The placement on the best node, or every node's reason why not.

    The highest score wins; equal scores go to the node whose name comes first. This is the only tie-break between nodes.
    """
    fitting = [answer for answer in answered.values() if isinstance(answer, ScoredPlacement)]
    if not fitting:
        return Unschedulable({name: no for name, no in answered.items() if isinstance(no, Rejection)})
    return min(fitting, key=lambda answer: node_key(answer.score, answer.placement.node)).placement


def decide(ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile) -> Placement | Unschedulable:
    """The placement on the best of these nodes, or every node's reason why not."""
    return choose(answers(ask, nodes, profile))
