"""Numbers that sort as names do, whatever order the names come and go in."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.engine.ranking.node_numbers import SPACE, NameOrder

NAMES = st.lists(st.text(alphabet="abc019-", min_size=1, max_size=4), max_size=60)


@given(batches=st.lists(st.tuples(NAMES, NAMES), max_size=8))
def test_numbers_sort_as_names(batches: list[tuple[list[str], list[str]]]) -> None:
    order: NameOrder = NameOrder()
    present: set[str] = set()
    for comers, leavers in batches:
        for name in comers:
            order.add(name)
        present |= set(comers)
        for name in leavers:
            order.discard(name)
        present -= set(leavers)
        numbers = [order.number(name) for name in sorted(present)]
        assert numbers == sorted(set(numbers))
        assert all(0 < number < SPACE for number in numbers)


def test_numbers_stay_while_there_is_room_between_neighbours() -> None:
    order = NameOrder()
    for name in ("a", "c"):
        order.add(name)
    before, epoch = (order.number("a"), order.number("c")), order.epoch
    order.add("b")
    assert before[0] < order.number("b") < before[1]
    assert ((order.number("a"), order.number("c")), order.epoch) == (before, epoch)


def test_when_there_is_no_room_all_numbers_are_spread_anew() -> None:
    order = NameOrder()
    order.add("a")
    order.add("z")
    epoch = (order.number("a"), order.epoch)[1]
    for depth in range(1, 60):
        order.add("b" * depth + "c" if depth % 2 else "b" * depth)
        order.number("a")
    assert order.epoch > epoch
    names = ["a", "z", *("b" * depth + "c" if depth % 2 else "b" * depth for depth in range(1, 60))]
    assert [order.number(name) for name in sorted(names)] == sorted(order.number(name) for name in names)
