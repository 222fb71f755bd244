"""The topology manager's merge: laws, cases from its rules, and every small input against the full enumeration."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.admit import align
from koord_numa.core.kubelet.demand import TOPOLOGY_AFFINITY, AdmitRejection
from koord_numa.core.kubelet.state import ContainerAffinity, KubeletNode
from koord_numa.core.numa.hints import IMPOSSIBLE, HintRule
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import node
from tests.tables import each_row

POLICIES = (KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)
NUMA = 3


def rule(size: int, *fitting: int) -> HintRule:
    """The hints of a resource that takes exactly these masks, preferred when they have this size."""
    nodes = 0
    for mask in fitting:
        nodes |= mask
    return HintRule(nodes=nodes, size=size, fits=lambda mask: mask in fitting, grows=False)


def merge(machine: KubeletNode, rules: list[HintRule]) -> ContainerAffinity | AdmitRejection:
    """Each rule is another resource's."""
    return align(machine, [{f"resource-{number}": rule for number, rule in enumerate(rules)}] if rules else [])


def of(policy: KubeletPolicy) -> KubeletNode:
    """A machine of three NUMA nodes."""
    return node(f"{NUMA}x1x1x1", policy)


CASES: dict[str, tuple[list[HintRule], dict[KubeletPolicy, tuple[int | None, bool] | None]]] = {
    "no preference": ([], {POLICIES[0]: (7, True), POLICIES[1]: (7, True), POLICIES[2]: (None, True)}),
    "the lowest common one": (
        [rule(1, 1, 2, 3), rule(1, 2, 4, 6)],
        dict.fromkeys(POLICIES, (2, True)),
    ),
    "a common pair": ([rule(2, 3, 6), rule(2, 6)], {POLICIES[0]: (6, True), POLICIES[1]: (6, True), POLICIES[2]: None}),
    "different preferred ones": (
        [rule(2, 3), rule(1, 1)],
        {POLICIES[0]: (1, False), POLICIES[1]: None, POLICIES[2]: None},
    ),
    "one is impossible": (
        [rule(1, 2), IMPOSSIBLE],
        {POLICIES[0]: (2, False), POLICIES[1]: None, POLICIES[2]: None},
    ),
    "nothing in common": ([rule(1, 1), rule(1, 2)], {POLICIES[0]: (7, False), POLICIES[1]: None, POLICIES[2]: None}),
}


@each_row("policy", POLICIES)
@each_row(("rules", "expected"), CASES.values(), ids=CASES)
def test_cases(
    rules: list[HintRule], expected: dict[KubeletPolicy, tuple[int | None, bool] | None], policy: KubeletPolicy
) -> None:
    answer = merge(of(policy), rules)
    due = expected[policy]
    if due is None:
        assert isinstance(answer, AdmitRejection)
        assert answer.reason == TOPOLOGY_AFFINITY
    else:
        assert answer == ContainerAffinity(*due)


def test_closest_numa_nodes_break_ties() -> None:
    far_first = node("2x2x1x1", KubeletPolicy.RESTRICTED, topology_options={"prefer-closest-numa-nodes": True})
    distances = {(a, b): 10 if a == b else 12 if {a, b} == {1, 2} else 30 for a in range(4) for b in range(4)}
    object.__setattr__(far_first.machine, "distances", distances)
    assert merge(far_first, [rule(2, 3, 6, 9)]) == ContainerAffinity(6, preferred=True)


@st.composite
def rules(draw: st.DrawFn) -> list[HintRule]:
    """Up to three resources with any masks of three NUMA nodes."""
    masks = st.sets(st.integers(1, 2**NUMA - 1), min_size=1)
    parts = draw(st.lists(st.tuples(st.integers(1, NUMA), masks), min_size=1, max_size=3))
    return [rule(size, *sorted(fitting)) for size, fitting in parts]


def enumerated(policy: KubeletPolicy, parts: list[HintRule]) -> ContainerAffinity | None:
    """The merge by its definition: every combination of one hint per resource, compared one after the other."""
    lists = [[(hint.mask or 0, hint.preferred) for hint in part.hints()] for part in parts]
    width = max(min(mask.bit_count() for mask, _ in hints) for hints in lists)
    if policy is KubeletPolicy.SINGLE_NUMA_NODE:
        lists = [[hint for hint in hints if hint[1] and hint[0].bit_count() == 1] for hints in lists]
    best: tuple[int, bool] | None = None
    for combination in product(*lists):
        merged = 2**NUMA - 1
        for mask, _ in combination:
            merged &= mask
        preferred = all(one for _, one in combination) and len({mask for mask, _ in combination}) == 1
        if merged and (best is None or _beats((merged, preferred), best, width)):
            best = (merged, preferred)
    if best is None:
        best = (2**NUMA - 1, False)
    if policy is not KubeletPolicy.BEST_EFFORT and not best[1]:
        return None
    if policy is KubeletPolicy.SINGLE_NUMA_NODE and best[0] == 2**NUMA - 1:
        return ContainerAffinity(None, preferred=True)
    return ContainerAffinity(*best)


def _beats(new: tuple[int, bool], old: tuple[int, bool], width: int) -> bool:
    if new[1] != old[1]:
        return new[1]
    narrower = (new[0].bit_count(), new[0]) < (old[0].bit_count(), old[0])
    size, before = new[0].bit_count(), old[0].bit_count()
    if new[1] or before > width or size == before:
        return narrower
    if before == width:
        return False
    return before < size <= width


@given(rules(), st.sampled_from(POLICIES))
def test_agrees_with_the_full_enumeration(parts: list[HintRule], policy: KubeletPolicy) -> None:
    answer = merge(of(policy), parts)
    assert (None if isinstance(answer, AdmitRejection) else answer) == enumerated(policy, parts)


@given(rules())
def test_what_a_strict_policy_admits_the_laxer_ones_do(parts: list[HintRule]) -> None:
    refused = [isinstance(merge(of(policy), parts), AdmitRejection) for policy in POLICIES]
    assert refused == sorted(refused)


@given(rules(), st.sampled_from(POLICIES))
def test_the_order_of_managers_does_not_matter(parts: list[HintRule], policy: KubeletPolicy) -> None:
    assert merge(of(policy), parts) == merge(of(policy), parts[::-1])


@pytest.mark.parametrize("option", ["numa-allocation-strategy", "numa-score-weights"])
def test_options_about_the_order_of_equal_hints(option: str) -> None:
    usual = of(KubeletPolicy.RESTRICTED)
    some = replace(usual, config=replace(usual.config, topology_options={option: True}))
    assert (usual.numa_order_known, some.numa_order_known) == (True, False)
    assert merge(some, [rule(1, 1, 2)]) == merge(usual, [rule(1, 1, 2)])
