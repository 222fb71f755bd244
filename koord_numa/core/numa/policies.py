"""
Topology policies as rows of a table: the hints to consider, the change of the merged hint, and the admission.

``kubelet_merge`` and ``koordinator_merge`` merge the hints.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.distances import Distances
from koord_numa.core.numa.exclusive import UNCONSTRAINED, NumaExclusivity
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
    """A policy. ``considers`` filters the hints, ``settles`` changes the merged one (given all NUMA nodes), ``admits`` decides."""

    # Rows instead of classes: the three policies differ only in these values.
    considers: Callable[[Hint], bool]
    settles: Callable[[Hint, int], Hint]
    admits: Callable[[Hint], bool]
    widest: int = MAX_NUMA  # no wider set passes ``considers``
    closest: bool = True  # applies prefer-closest-numa-nodes
    joins: str = ""  # separator of resources in Koordinator's rejection; empty for policies that never reject


class Decision(ValueObject):
    """The merged hint and whether the policy admits it. A rejection of a Koordinator policy has a reason."""

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
    # As policy_single_numa_node.go of both: a single NUMA node that is the whole machine constrains nothing.
    return Hint(None, hint.preferred) if hint.mask == nodes else hint


def _all_if_unsatisfied(hint: Hint, nodes: int) -> Hint:
    # As Koordinator's policy_best_effort.go: a set too narrow for a resource is replaced by the whole machine.
    return Hint(nodes, preferred=False) if hint.unsatisfied else hint


KUBELET: Final[Mapping[KubeletPolicy, PolicyRule]] = {
    KubeletPolicy.BEST_EFFORT: PolicyRule(_any, _as_is, _any),
    KubeletPolicy.RESTRICTED: PolicyRule(_any, _as_is, _preferred),
    KubeletPolicy.SINGLE_NUMA_NODE: PolicyRule(_single, _any_instead_of_all, _preferred, widest=1, closest=False),
}
"""The kubelet's policies. ``none`` has no row: it admits without hints."""

KOORDINATOR: Final[Mapping[NumaPolicy, PolicyRule]] = {
    NumaPolicy.BEST_EFFORT: PolicyRule(_any, _all_if_unsatisfied, _any),
    NumaPolicy.RESTRICTED: PolicyRule(_any, _as_is, _preferred, joins=" & "),
    NumaPolicy.SINGLE_NUMA_NODE: PolicyRule(_single, _any_instead_of_all, _preferred, widest=1, joins=","),
}
"""Koordinator's policies. ``NONE`` has no row."""

UNDECIDED: Final = Decision(Hint(None, preferred=False), admitted=True)
"""The decision of the policies without a row: no set of NUMA nodes, admitted."""


def admitted_affinity(
    policy: KubeletPolicy, answers: Sequence[Answer], nodes: int, distances: Distances | None = None
) -> Hint | None:
    """
    Return the merged hint that the kubelet's policy admits for a container or pod, ``None`` if it rejects it.

    ``nodes`` is the mask of the machine's NUMA nodes. ``distances`` are given if the option prefer-closest-numa-nodes
    is on. As topologymanager/policy_*.go. Hints that are not preferred are merged only if the policy may admit the
    result.
    """
    rule = KUBELET.get(policy)
    # The policy ``none`` uses no provider and admits every pod.
    if rule is None:
        return UNDECIDED.hint
    near = distances if rule.closest else None
    # If every resource has a rule, only the preferred masks of the first rule are listed.
    rules = _only_rules(answers)
    if rules:
        best = preferred_by_rules(rules, rule.widest, near)
    else:
        best = preferred_hint(considered(resource_hints(answers), rule), nodes, near)
    # Restricted and single-numa-node reject results that are not preferred, so the expensive merge is skipped.
    if best is None and rule.admits is _any:
        best = compromise(considered(resource_hints(answers), rule), nodes, near)
    return None if best is None else rule.settles(best, nodes)


def _only_rules(answers: Sequence[Answer]) -> list[HintRule]:
    """Return the hints of all resources if all are rules, else an empty list."""
    found: list[HintRule] = []
    for answer in answers:
        if answer is None:
            continue
        last = None
        for hints in answer.values():
            if hints is last or hints is None:
                continue  # the memory manager gives one rule for all its resources
            if not isinstance(hints, HintRule):
                return []
            found.append(last := hints)
    return found


def decide_koordinator(
    policy: NumaPolicy, answers: Iterable[Answer], nodes: int, exclusivity: NumaExclusivity = UNCONSTRAINED
) -> Decision:
    """
    Return the decision of Koordinator's topology manager for a pod on a node with the NUMA nodes ``nodes``.

    An impossible resource causes a rejection at once, except under best-effort. As topologymanager/policy_*.go of
    Koordinator.
    """
    rule = KOORDINATOR.get(policy)
    if rule is None:
        return UNDECIDED
    dimensions = resource_hints(answers)
    # Upstream rejects an impossible resource before merging, except under best-effort, which has no ``joins``.
    if rule.joins and any(wish.impossible for wish in dimensions):
        return Decision(
            rule.settles(Hint(nodes, preferred=False), nodes), admitted=False, refusal=refuse_impossible(dimensions)
        )
    best = rule.settles(merge_scored(considered(dimensions, rule), nodes, exclusivity.denied), nodes)
    admitted = rule.admits(best)
    return Decision(best, admitted, None if admitted else refuse_unaligned(dimensions, rule.joins))


def considered(dimensions: Sequence[ResourceHints], rule: PolicyRule) -> list[Takes]:
    """Return the hints of every resource that the rule considers. Of counted resources, only these sets are listed."""
    if rule.widest == MAX_NUMA:
        return [wish.takes for wish in dimensions]
    return [list(filter(rule.considers, hints_of(wish.takes, rule.widest))) for wish in dimensions]
