"""Decisions of the kubelet's topology manager, with the merged hint that it logs for a rejected unit."""

from collections.abc import Sequence

from koord_numa.core.numa.hints import Answer, Distances, resource_hints
from koord_numa.core.numa.merge import compromise
from koord_numa.core.numa.policies import KUBELET, Decision, admitted_affinity, considered
from koord_numa.core.objects.vocabulary import KubeletPolicy


def decide_kubelet(
    policy: KubeletPolicy, answers: Sequence[Answer], nodes: int, distances: Distances | None = None
) -> Decision:
    """As ``admitted_affinity``; for a rejected unit with the merged hint that the kubelet would have logged."""
    admitted = admitted_affinity(policy, answers, nodes, distances)
    if admitted is not None:
        return Decision(admitted, admitted=True)
    rule = KUBELET[policy]
    takes = considered(resource_hints(answers), rule)
    return Decision(rule.settles(compromise(takes, nodes, distances if rule.closest else None), nodes), admitted=False)
