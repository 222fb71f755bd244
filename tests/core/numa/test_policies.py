"""One table of hints, the verdict of every policy of both kinds, and the laws between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.numa.hints import Answer, Hint, mask_of
from koord_numa.core.numa.policies import Decision, NumaExclusivity, NumaOccupancy, decide_koordinator, mask_text
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaExclusive, NumaPolicy
from tests.core.numa import random_hints
from tests.core.numa.kubelet_decisions import decide_kubelet
from tests.tables import each_row

ALL = 0b11
YES_0, YES_1, YES_BOTH = Hint(0b01, True), Hint(0b10, True), Hint(0b11, True)
NO_0, NO_BOTH = Hint(0b01, False), Hint(0b11, False)
ANY, NONE = Hint(None, True), Hint(None, False)
IMPOSSIBLE: list[Hint] = []

# id, answers; then (mask, preferred) under best-effort, restricted and single-numa-node, None = refused
TABLE: list[tuple[str, list[Answer], Hint, Hint | None, Hint | None]] = [
    ("no provider", [], YES_BOTH, YES_BOTH, ANY),
    ("nothing to say", [None, {}], YES_BOTH, YES_BOTH, ANY),
    ("no preference", [{"cpu": None}], YES_BOTH, YES_BOTH, ANY),
    ("one resource", [{"cpu": [YES_0, YES_1, NO_BOTH]}], YES_0, YES_0, YES_0),
    ("aligned", [{"cpu": [YES_0, YES_1, NO_BOTH]}, {"gpu": [YES_1, NO_BOTH]}], YES_1, YES_1, YES_1),
    ("spans", [{"cpu": [YES_BOTH], "memory": [YES_BOTH]}], YES_BOTH, YES_BOTH, None),
    ("different widths", [{"cpu": [YES_BOTH]}, {"gpu": [YES_0]}], NO_0, None, None),
    ("disjoint", [{"cpu": [YES_0]}, {"gpu": [YES_1]}], NO_BOTH, None, None),
    ("not preferred", [{"cpu": [NO_0]}], NO_0, None, None),
    ("impossible", [{"cpu": [YES_0], "gpu": IMPOSSIBLE}], NO_0, None, None),
]
COLUMNS = [
    pytest.param(2, KubeletPolicy.BEST_EFFORT, NumaPolicy.BEST_EFFORT, id="best-effort"),
    pytest.param(3, KubeletPolicy.RESTRICTED, NumaPolicy.RESTRICTED, id="restricted"),
    pytest.param(4, KubeletPolicy.SINGLE_NUMA_NODE, NumaPolicy.SINGLE_NUMA_NODE, id="single-numa-node"),
]


@each_row("row", TABLE, ids=[row[0] for row in TABLE])
@each_row(("column", "kubelet", "koordinator"), COLUMNS)
def test_verdicts(
    row: tuple[str, list[Answer], Hint, Hint | None, Hint | None],
    column: int,
    kubelet: KubeletPolicy,
    koordinator: NumaPolicy,
) -> None:
    answers, expected = row[1], row[column]
    decided = decide_kubelet(kubelet, answers, ALL)
    assert decided.admitted == (expected is not None)
    assert decided.hint == expected or expected is None
    assert decide_koordinator(koordinator, answers, ALL).admitted == decided.admitted


@each_row("row", TABLE, ids=[row[0] for row in TABLE])
def test_no_policy_asks_no_provider(row: tuple[str, list[Answer], object, object, object]) -> None:
    expected = Decision(NONE, admitted=True)
    assert decide_kubelet(KubeletPolicy.NONE, row[1], ALL) == expected
    assert decide_koordinator(NumaPolicy.NONE, row[1], ALL) == expected


def test_koordinator_best_effort_drops_a_too_narrow_set() -> None:
    answers: list[Answer] = [{"cpu": [YES_BOTH]}, {"gpu": [YES_0]}]
    assert decide_koordinator(NumaPolicy.BEST_EFFORT, answers, ALL) == Decision(NO_BOTH, admitted=True)


@pytest.mark.parametrize(
    ("policy", "answers", "hint", "reason"),
    [
        pytest.param(
            NumaPolicy.RESTRICTED,
            [{"gpu": IMPOSSIBLE, "cpu": IMPOSSIBLE}],
            NO_BOTH,
            ["Unsatisfied NUMA cpu", "Unsatisfied NUMA gpu"],
            id="impossible",
        ),
        pytest.param(
            NumaPolicy.RESTRICTED,
            [{"memory": [YES_BOTH]}, {"cpu": [YES_0, NO_BOTH, Hint(2, True, unsatisfied=True)], "fpga": None}],
            Hint(0b01, False, unsatisfied=True),
            ["Unaligned NUMA Hint cause cpu prefer [01] among [01 11] & memory prefer [11] among [11]"],
            id="restricted",
        ),
        pytest.param(
            NumaPolicy.SINGLE_NUMA_NODE,
            [{"memory": [NO_BOTH]}, {"cpu": [YES_0, YES_1]}],
            NONE,
            ["Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10],memory prefer [] among [11]"],
            id="single-numa-node",
        ),
    ],
)
def test_a_refusal_says_why(policy: NumaPolicy, answers: list[Answer], hint: Hint, reason: list[str]) -> None:
    decided = decide_koordinator(policy, answers, ALL)
    assert (decided.hint, decided.admitted) == (hint, False)
    assert decided.refusal is not None
    assert decided.refusal.reasons() == reason


@each_row(
    ("mask", "text"),
    [(None, "<nil>"), (1, "01"), (2, "10"), (3, "11"), (4, "100"), (5, "0101"), (16, "10000"), (17, "010001")],
)
def test_masks_read_as_koordinator_prints_them(mask: int | None, text: str) -> None:
    assert mask_text(mask) == text


def test_required_exclusivity_takes_the_next_set() -> None:
    """NUMA node 0 is used by a pod that spans nodes: a pod on one NUMA node keeps away from it, or is refused."""
    wish = NumaExclusivity(NumaExclusive.REQUIRED, NumaOccupancy(shared=0b01))
    both: list[Answer] = [{"cpu": [YES_0, YES_1]}]
    assert decide_koordinator(NumaPolicy.SINGLE_NUMA_NODE, both, ALL, wish).hint == YES_1
    assert not decide_koordinator(NumaPolicy.SINGLE_NUMA_NODE, [{"cpu": [YES_0]}], ALL, wish).admitted
    assert decide_koordinator(NumaPolicy.BEST_EFFORT, [{"cpu": [YES_0]}], ALL, wish) == Decision(NO_0, admitted=True)


@st.composite
def asked(draw: st.DrawFn) -> tuple[list[Answer], int]:
    """Providers with lists of hints, no preference, or nothing possible."""
    nodes = mask_of(draw(random_hints.IDS))
    lists = draw(st.lists(st.none() | st.just([]) | random_hints.hints(nodes), max_size=3))
    return [{f"r{i}": one} for i, one in enumerate(lists)], nodes


@given(asked(), st.sampled_from(NumaExclusive), st.integers(0, 31), st.integers(0, 31))
def test_what_a_strict_policy_admits_a_laxer_one_admits(
    case: tuple[list[Answer], int], wish: NumaExclusive, single: int, shared: int
) -> None:
    answers, nodes = case
    exclusivity = NumaExclusivity(wish, NumaOccupancy(single, shared))
    kubelet = [decide_kubelet(policy, answers, nodes).admitted for policy in list(KubeletPolicy)[1:]]
    koordinator = [decide_koordinator(policy, answers, nodes, exclusivity).admitted for policy in list(NumaPolicy)[1:]]
    for verdicts in (kubelet, koordinator):
        assert verdicts == sorted(verdicts, reverse=True)
        assert verdicts[0]


@given(asked())
def test_an_admitted_single_numa_node_is_one_numa_node(case: tuple[list[Answer], int]) -> None:
    answers, nodes = case
    for decided in (
        decide_kubelet(KubeletPolicy.SINGLE_NUMA_NODE, answers, nodes),
        decide_koordinator(NumaPolicy.SINGLE_NUMA_NODE, answers, nodes),
    ):
        mask = decided.hint.mask
        assert not decided.admitted or mask is None or (mask.bit_count() == 1 and mask != nodes)
