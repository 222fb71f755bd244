"""In the place of which pods a topology may show a departed one of the same name."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.engine.cache.shown_pods.known_pod import KnownPod
from koord_numa.engine.cache.shown_pods.namesakes import namesakes
from tests.engine.world import make_pod


def pod(
    uid: str, bound: float, left_at: float | None = None, *, found: bool = False, unordered: bool = False
) -> KnownPod:
    """Its name is its uid without the number of its life: ``a2`` is the second pod ``a``."""
    known = KnownPod(uid, "default", uid[0], make_pod(uid[0]).request, bound, found=found, unordered=unordered)
    known.left, known.left_at = left_at is not None, left_at or 0.0
    return known


A, B = pod("a1", 1, 10), pod("b1", 2, 10)
A2, B2 = pod("a2", 20), pod("b2", 30)


@pytest.mark.parametrize(
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
        pytest.param([A], [A2, pod("c1", 15, unordered=True)], "a2", id="the-other-came-while-no-watch-told-the-order"),
        pytest.param([A, pod("c1", 15, 40)], [A2, pod("c1", 15, 40)], "", id="one-that-has-left-since-vouches-too"),
        pytest.param([pod("a0", 1, 3), A], [A], "", id="a-departed-pod-is-none-in-whose-place-one-is-shown"),
    ],
)
def test_which_pods_may_be_others_of_their_name(departed: list[KnownPod], shown: list[KnownPod], expected: str) -> None:
    known = {each.uid: each for each in (*departed, *shown)}
    assert namesakes([known[each.uid] for each in shown], known.values()) == frozenset(expected.split())


LIVES = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True), min_size=1, max_size=4)
"""Of each name the moments at which a pod is bound and seen gone, in turn; where their number is odd the last pod is there."""


@given(LIVES)
def test_whatever_may_have_run_at_one_moment_is_told(lives: list[list[int]]) -> None:
    """As is found by trying each pod of every name at each moment: whole ones, as all times are here."""
    names = [
        [pod(f"{name}{at}", *sorted(times)[2 * at : 2 * at + 2]) for at in range((len(times) + 1) // 2)]
        for name, times in zip("abcd", lives, strict=False)
    ]
    shown = [pods[-1] for pods in names if not pods[-1].left]
    ways = [pods for pods in names if not pods[-1].left]
    expected = {
        last.uid
        for moment in range(14)
        for way in product(*ways)
        if all(one.bound <= moment <= (one.left_at if one.left else 99) for one in way)
        for last, one in zip(shown, way, strict=True)
        if one is not last
    }
    assert namesakes(shown, [each for pods in names for each in pods]) == expected
