"""The index of parked classes: its size follows from what nodes offer and not from names in pods."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.resources import PODS, ResourceList
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.engine.queue.scheduling_queue import UnschedulableClasses, Wakers
from koord_numa.settings import ProfileSettings
from tests.engine.world import make_pod

EVENT = ClusterEvent.CAPACITY_FREED
WAKERS = Wakers(here=frozenset({EVENT}), anywhere=frozenset())
NAMES = st.sampled_from(["cpu", "memory", "a.org/x", "a.org/y", "b.org/z"])
AMOUNTS = st.dictionaries(NAMES, st.integers(0, 3), max_size=3)


def classes(*amounts: ResourceList) -> list[RequestClass]:
    """Classes that need these amounts."""
    profile, request = ProfileSettings(), make_pod("p").request
    return [
        RequestClass(
            number=at, key=at, profile=profile, request=request, amounts=needed, pickers=frozenset(), claims=None
        )
        for at, needed in enumerate(amounts)
    ]


@given(st.lists(AMOUNTS, min_size=1, max_size=5), st.lists(AMOUNTS, min_size=1, max_size=6))
def test_a_node_helps_exactly_the_classes_that_it_has_room_for(
    needs: list[ResourceList], events: list[ResourceList]
) -> None:
    index = UnschedulableClasses()
    parked = classes(*needs)
    for request_class in parked:
        index.park(request_class, WAKERS)
    for free in events:
        free = {**free, PODS: 1}
        expected = [it for it in parked if all(amount <= free.get(name, 0) for name, amount in it.amounts.items())]
        assert index.helped_by(EVENT, free) == expected


def test_names_that_no_node_offers_take_no_room() -> None:
    index = UnschedulableClasses()
    many = classes(*({f"e.org/r{pod}-{at}": 1 for at in range(500)} for pod in range(20)))
    for request_class in many:
        index.park(request_class, WAKERS)
    assert len(index._lines) == 1
    assert index.helped_by(EVENT, {PODS: 10, "cpu": 64_000}) == []
    assert len(index._lines) == 2
    for request_class in many:
        index.forget(request_class)
    assert len(index) == 0
