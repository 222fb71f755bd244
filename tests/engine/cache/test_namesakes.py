"""In the place of which pods a topology may show a departed one of the same name."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.shown_pods import MOST_WAYS, KnownPod, ways_to_show
from tests.engine.world import make_pod
from tests.tables import each_row


def pod(uid: str, bound: float, left_at: float | None = None, *, found: bool = False, listed: bool = False) -> KnownPod:
    """Its name is its uid without the number of its life: ``a2`` is the second pod ``a``."""
    known = KnownPod(uid, "default", uid[0], make_pod(uid[0]).request, bound, found=found, listed=listed)
    known.left, known.left_at = left_at is not None, left_at or 0.0
    return known


A, B = pod("a1", 1, 10), pod("b1", 2, 10)
A2, B2 = pod("a2", 20), pod("b2", 30)


@each_row(
    ("departed", "shown", "expected"),
    [
        pytest.param([], [A2, B2], "", id="no-pod-had-the-name-before"),
        pytest.param([A], [A2], "a2", id="the-scan-may-be-older-than-the-bind"),
        pytest.param([A], [A2, pod("c1", 5)], "a2", id="another-came-before-the-first-one-left"),
        pytest.param([A], [A2, pod("c1", 10)], "a2", id="another-came-as-the-first-one-was-seen-gone"),
        pytest.param([A], [A2, pod("c1", 15)], "", id="another-came-after-the-first-one-had-left"),
        pytest.param([A, B], [A2, B2], "a2 b2", id="two-that-may-be-others-do-not-vouch-for-each-other"),
        pytest.param([A, B], [A2, B2, pod("c1", 25)], "", id="a-third-vouches-for-both"),
        # The first a was gone when c came. So the second is there, and before its bind the first b was gone.
        pytest.param(
            [A, pod("b1", 2, 18)], [A2, B2, pod("c1", 12)], "", id="one-that-is-sure-by-then-vouches-for-the-next"
        ),
        pytest.param([A, pod("b1", 2, 25)], [A2, B2, pod("c1", 12)], "b2", id="one-is-sure-and-the-other-is-not"),
        # The first a left before the first b came.
        pytest.param([A, pod("b1", 15, 25)], [A2, B2], "b2", id="two-that-never-ran-together"),
        pytest.param([A], [A2, pod("c1", 15, found=True)], "a2", id="when-the-other-came-is-not-known"),
        pytest.param([A], [A2, pod("c1", 15, listed=True)], "a2", id="the-other-came-while-no-watch-told-its-bind"),
        pytest.param([A, pod("c1", 15, 40)], [A2, pod("c1", 15, 40)], "", id="one-that-has-left-since-vouches-too"),
        pytest.param([pod("a0", 1, 3), A], [A], "a1", id="of-two-departed-ones-either"),
    ],
)
def test_which_pods_may_be_others_of_their_name(departed: list[KnownPod], shown: list[KnownPod], expected: str) -> None:
    known = {each.uid: each for each in (*departed, *shown)}
    ways = ways_to_show([known[each.uid] for each in shown], known.values())
    assert ways[0] == {each.uid for each in shown}
    assert ways[0] - ways[0].intersection(*ways) == frozenset(expected.split())


def test_pods_of_several_names_are_told_together() -> None:
    """The first a and b, or the second a beside either b, but not the second b beside the first a."""
    earlier, later = pod("b1", 2, 25), pod("b2", 30)
    ways = ways_to_show([A2, later], [A, A2, earlier, later])
    assert ways == [{"a2", "b2"}, {"a1", "b1"}, {"a2", "b1"}]


@pytest.mark.parametrize(("oldest", "expected"), [(9.0, 2), (10.0, 2), (11.0, 1)])
def test_a_topology_of_a_later_time_shows_no_departed_pod(oldest: float, expected: int) -> None:
    assert len(ways_to_show([A2], [A, A2], oldest)) == expected


def test_too_many_sets_are_not_told_apart() -> None:
    first = [pod(f"{name}1", 0, 10) for name in "abcdefg"]
    second = [pod(f"{name}2", 10) for name in "abcdefg"]
    assert 2 ** len(first) > MOST_WAYS
    assert not ways_to_show(second, [*first, *second])
    assert len(ways_to_show(second[:4], [*first, *second])) == 2**4


LIVES = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True), min_size=1, max_size=4)
"""Of each name the moments at which a pod is bound and seen gone, in turn; where their number is odd the last pod is there."""


@given(LIVES)
def test_whatever_may_have_run_at_one_moment_is_told(lives: list[list[int]]) -> None:
    """As is found by trying each pod of every name at each moment: whole ones, as all times are here."""
    names = [
        [pod(f"{name}{at}", *sorted(times)[2 * at : 2 * at + 2]) for at in range((len(times) + 1) // 2)]
        for name, times in zip("abcd", lives, strict=False)
    ]
    ways = [pods for pods in names if not pods[-1].left]
    expected = {
        frozenset(one.uid for one in way)
        for moment in range(14)
        for way in product(*ways)
        if all(one.bound <= moment <= (one.left_at if one.left else 99) for one in way)
    }
    assert {*ways_to_show([pods[-1] for pods in ways], [each for pods in names for each in pods])} == expected
