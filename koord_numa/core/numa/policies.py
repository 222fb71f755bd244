"""
Topology policies as rows of a table, the texts of their rejections, and exclusivity of NUMA nodes.

``kubelet_merge`` and ``koordinator_merge`` merge the hints.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.hints import (
    Answer,
    Distances,
    Hint,
    HintRule,
    Hints,
    ResourceHints,
    Takes,
    hints_of,
    resource_hints,
)
from koord_numa.core.numa.merge import compromise, merge_scored, preferred_by_rules, preferred_hint
from koord_numa.core.objects.vocabulary import NUMA_PREFERRED, NUMA_REQUIRED, KubeletPolicy, NumaExclusive, NumaPolicy
from koord_numa.core.value_objects import ValueObject

# Reasons of rejections by a Koordinator policy, with Koordinator's texts, which are created when they are read.
#
# Explains hints. Numbers of free and needed amounts are explained elsewhere.


class NumaRejection(ValueObject):
    """The reason of a rejection: the ``impossible`` resources, or all ``wishes`` that could not be merged."""

    impossible: tuple[str, ...] = ()
    wishes: Sequence[ResourceHints] = ()
    joins: str = ""

    def reasons(self) -> list[str]:
        """Return the sentences. As NUMATopologyUnsatisfied and NUMATopologyUnaligned of Koordinator's topologymanager."""
        if self.impossible:
            return [f"Unsatisfied NUMA {resource}" for resource in self.impossible]
        # Sorted as in Koordinator: map order must not change the message.
        wanted = sorted(f"{wish.resource} {_wanted(wish.stated)}" for wish in self.wishes if wish.stated is not None)
        return [f"Unaligned NUMA Hint cause {self.joins.join(wanted)}"]


def refuse_impossible(wishes: Iterable[ResourceHints]) -> NumaRejection:
    """Return a rejection for resources that no set of NUMA nodes could serve."""
    return NumaRejection(impossible=tuple(sorted(wish.resource for wish in wishes if wish.impossible)))


def refuse_unaligned(wishes: Sequence[ResourceHints], joins: str) -> NumaRejection:
    """Return a rejection for resources that are possible, but not together under the policy."""
    return NumaRejection(wishes=wishes, joins=joins)


def _wanted(stated: Hints) -> str:
    hints = [hint for hint in (hints_of(stated) if stated else ()) if not hint.unsatisfied]
    preferred = " ".join(mask_text(hint.mask) for hint in hints if hint.preferred)
    return f"prefer [{preferred}] among [{' '.join(mask_text(hint.mask) for hint in hints)}]"


@lru_cache(maxsize=4096)
def mask_text(mask: int | None) -> str:
    """
    Return a set in binary, padded to pairs of digits, as Koordinator's bitmask prints it.

    The comparison with powers of four is inclusive, so an exact power has one digit more: 4 is ``100``, 5 ``0101``.
    """
    if mask is None:
        return "<nil>"
    width = 2
    while mask > 1 << width:
        width += 2
    return format(mask, f"0{width}b")


# Exclusivity of NUMA nodes: pods on a single NUMA node and pods on several avoid each other.
#
# Compares sets with the use of NUMA nodes, which readers of the ledger determine.


class NumaOccupancy(ValueObject, gc=False):
    """The NUMA nodes used only by single-NUMA pods, and those used by a pod on several. By NUMA id, not by position."""

    single: int = 0
    shared: int = 0

    def others(self, size: int) -> int:
        """Return the NUMA nodes with pods of the other kind, for a pod on ``size`` NUMA nodes."""
        return self.shared if size == 1 else self.single

    def disturbs(self, mask: int) -> bool:
        """Return whether a pod on this set would share a NUMA node with pods of the other kind."""
        return bool(mask & self.others(mask.bit_count()))


UNUSED = NumaOccupancy()


class NumaExclusivity(ValueObject, gc=False):
    """The exclusivity that a pod requests (``singleNUMANodeExclusive``), and the occupancy of the node."""

    wish: NumaExclusive = NumaExclusive.NONE
    occupancy: NumaOccupancy = UNUSED

    def denied(self, size: int) -> int:
        """Return the NUMA nodes that no preferred set of this size may contain (``Required``). As Koordinator's checkExclusivePolicy."""
        return self.occupancy.others(size) if self.wish is NUMA_REQUIRED else 0

    def score(self, mask: int, score: int) -> int:
        """
        Return the score of a set, 0 if it disturbs other pods (``Preferred``).

        Source: pod-level NUMA policy proposal, "Hint". Upstream does not implement it.
        """
        return 0 if self.wish is NUMA_PREFERRED and self.occupancy.disturbs(mask) else score

    def scoring(self, score_of: Callable[[int], int]) -> Callable[[int], int]:
        """Return ``score_of`` with the rule of ``score`` applied."""
        if self.wish is not NUMA_PREFERRED:
            return score_of
        return lambda mask: self.score(mask, score_of(mask))

    def undisturbed(self, masks: list[int]) -> list[int]:
        """Return the sets without pods of the other kind (``Preferred``). All sets if there is none."""
        if self.wish is not NUMA_PREFERRED:
            return masks
        # A preference never excludes all sets.
        return [mask for mask in masks if not self.occupancy.disturbs(mask)] or masks


UNCONSTRAINED = NumaExclusivity()


class PolicyRule(ValueObject):
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
