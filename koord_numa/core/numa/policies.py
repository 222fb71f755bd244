"""
Topology policies as rows of a table: which hints they consider, what they make of the merged one, and whom they admit.

The rows decide; how hints are merged is in ``kubelet_merge`` and ``koordinator_merge``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.distances import Distances
from koord_numa.core.numa.exclusive import UNCONSTRAINED, Exclusivity
from koord_numa.core.numa.hint_providers import Answer, ResourceHints, Takes, hints_of, resource_hints
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.koordinator_merge import merge_scored
from koord_numa.core.numa.kubelet_merge import compromise, preferred_by_rules, preferred_hint
from koord_numa.core.numa.refusals import NumaRejection, refuse_impossible, refuse_unaligned
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaPolicy
from koord_numa.core.value_objects import ValueObject


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One policy. ``considers`` filters the hints, ``settles`` changes the merged one (given all NUMA nodes), ``admits`` decides."""

    # Rows instead of classes: the three policies differ in these values only.
    considers: Callable[[Hint], bool]
    settles: Callable[[Hint, int], Hint]
    admits: Callable[[Hint], bool]
    widest: int = MAX_NUMA  # no wider set passes ``considers``
    closest: bool = True  # does it heed prefer-closest-numa-nodes?
    joins: str = ""  # between the resources in Koordinator's refusal; policies that never refuse have none


class Decision(ValueObject):
    """The merged hint and whether the policy admits it; a Koordinator policy that does not says why."""

    hint: Hint
    admitted: bool
    refusal: NumaRejection | None = None


def _any(_: Hint) -> bool:
    return True


def _preferred(hint: Hint) -> bool:
    return hint.preferred


def _single(hint: Hint) -> bool:
    return hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)


def _as_is(hint: Hint, _: int) -> Hint:
    return hint


def _any_instead_of_all(hint: Hint, nodes: int) -> Hint:
    # As policy_single_numa_node.go of both: one NUMA node that is the whole machine constrains nothing.
    return Hint(None, hint.preferred) if hint.mask == nodes else hint


def _all_if_unsatisfied(hint: Hint, nodes: int) -> Hint:
    # As Koordinator's policy_best_effort.go: a set too narrow for some resource is given up for the whole machine.
    return Hint(nodes, preferred=False) if hint.unsatisfied else hint


KUBELET: Final[Mapping[KubeletPolicy, PolicyRule]] = {
    KubeletPolicy.BEST_EFFORT: PolicyRule(_any, _as_is, _any),
    KubeletPolicy.RESTRICTED: PolicyRule(_any, _as_is, _preferred),
    KubeletPolicy.SINGLE_NUMA_NODE: PolicyRule(_single, _any_instead_of_all, _preferred, widest=1, closest=False),
}
"""The kubelet's policies. ``none`` has no row: it asks no provider and admits."""

KOORDINATOR: Final[Mapping[NumaPolicy, PolicyRule]] = {
    NumaPolicy.BEST_EFFORT: PolicyRule(_any, _all_if_unsatisfied, _any),
    NumaPolicy.RESTRICTED: PolicyRule(_any, _as_is, _preferred, joins=" & "),
    NumaPolicy.SINGLE_NUMA_NODE: PolicyRule(_single, _any_instead_of_all, _preferred, widest=1, joins=","),
}
"""Koordinator's policies. ``NONE`` has no row either."""

UNDECIDED: Final = Decision(Hint(None, preferred=False), admitted=True)
"""The answer of the policies without a row: no set of NUMA nodes, admitted."""


def admitted_affinity(
    policy: KubeletPolicy, answers: Sequence[Answer], nodes: int, distances: Distances | None = None
) -> Hint | None:
    """
    The merged hint that the kubelet's policy admits for one container or pod, ``None`` when it rejects it.

    ``nodes`` is the mask of the machine's NUMA nodes; ``distances`` are given when the option prefer-closest-numa-nodes is on. As
    topologymanager/policy_*.go. Hints that are not preferred are merged only where the policy admits the result.
    """
    rule = KUBELET.get(policy)
    # The policy ``none`` asks no provider at all, so that every pod is admitted.
    if rule is None:
        return UNDECIDED.hint
    near = distances if rule.closest else None
    # Where every resource answers by rule, only the first one's preferred masks are listed, and none are written down for the
    # others.
    rules = _only_rules(answers)
    if rules:
        best = preferred_by_rules(rules, rule.widest, near)
    else:
        best = preferred_hint(considered(resource_hints(answers), rule), nodes, near)
    # Restricted and single-numa-node reject whatever is not preferred, so that the costly merge is skipped for them.
    if best is None and rule.admits is _any:
        best = compromise(considered(resource_hints(answers), rule), nodes, near)
    return None if best is None else rule.settles(best, nodes)


def _only_rules(answers: Sequence[Answer]) -> list[HintRule]:
    """The hints of all resources where all are given by rule; else none."""
    found: list[HintRule] = []
    for answer in answers:
        if answer is None:
            continue
        last = None
        for hints in answer.values():
            if hints is last or hints is None:
                continue  # the memory manager gives one for all its resources
            if not isinstance(hints, HintRule):
                return []
            found.append(last := hints)
    return found


def decide_koordinator(
    policy: NumaPolicy, answers: Iterable[Answer], nodes: int, exclusivity: Exclusivity = UNCONSTRAINED
) -> Decision:
    """
    What Koordinator's topology manager decides for one pod on one node with the NUMA nodes ``nodes``.

    An impossible resource refuses at once, except under best-effort. As topologymanager/policy_*.go of Koordinator.
    """
    rule = KOORDINATOR.get(policy)
    if rule is None:
        return UNDECIDED
    dimensions = resource_hints(answers)
    # Upstream refuses an impossible resource before merging, except under best-effort, which has no ``joins``.
    if rule.joins and any(wish.impossible for wish in dimensions):
        return Decision(
            rule.settles(Hint(nodes, preferred=False), nodes), admitted=False, refusal=refuse_impossible(dimensions)
        )
    best = rule.settles(merge_scored(considered(dimensions, rule), nodes, exclusivity.denied), nodes)
    admitted = rule.admits(best)
    return Decision(best, admitted, None if admitted else refuse_unaligned(dimensions, rule.joins))


def considered(dimensions: Sequence[ResourceHints], rule: PolicyRule) -> list[Takes]:
    """What the rule leaves of every resource's hints. Of counted resources only the sets it can look at are listed."""
    if rule.widest == MAX_NUMA:
        return [wish.takes for wish in dimensions]
    return [list(filter(rule.considers, hints_of(wish.takes, rule.widest))) for wish in dimensions]
