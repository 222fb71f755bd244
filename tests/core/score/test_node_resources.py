"""Laws of the score by filling: places that are scored together get what each gets by itself."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.score.node_resources import score_each, score_parts

Part = tuple[int, list[int], list[int]]


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    """Weights, uses and capacities of up to three resources in one number of places; a capacity may be 0, and a use beyond it."""
    places, amounts = draw(st.integers(1, 8)), st.integers(0, 200)
    numbers = st.lists(amounts, min_size=places, max_size=places)
    return draw(st.lists(st.tuples(st.integers(0, 5), numbers, numbers), min_size=1, max_size=3))


@given(st.sampled_from(list(ScoringType)), parts())
def test_places_scored_together_get_what_each_gets_by_itself(strategy: ScoringType, found: list[Part]) -> None:
    places = range(len(found[0][1]))
    each = [[(weight, used[at], there[at]) for weight, used, there in found if there[at]] for at in places]
    assert score_each(strategy, found) == [score_parts(strategy, one) for one in each]


def test_no_resource_that_counts_scores_nothing_anywhere() -> None:
    assert score_each(ScoringType.BALANCED_ALLOCATION, []) == []
