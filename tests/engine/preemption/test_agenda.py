"""Which class is being looked at, and which is due."""

import pytest

from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.pod_index import PodIndex
from koord_numa.engine.preemption.agenda import Agenda
from koord_numa.engine.queue.request_class import RequestClass, RequestClasses
from koord_numa.settings import Settings
from tests.engine.world import make_pod

CLASSES = RequestClasses(Settings(), PodIndex())


def request_class(priority: int) -> RequestClass:
    pod = make_pod(f"pod-{priority}")
    found = CLASSES.of(replace(pod, request=replace(pod.request, priority=priority)))
    assert found is not None
    return found


def test_the_highest_priority_is_looked_at_first() -> None:
    low, high = request_class(0), request_class(10)
    agenda = Agenda()
    agenda.add(low, high)
    with agenda.next() as (first, nodes):
        assert (first, nodes) == (high, None)
        assert low in agenda
        assert high in agenda
    assert high not in agenda


def test_an_exception_ends_the_look_at_a_class() -> None:
    """Else its pods would be taken to be in line for a plan, and would not be told why they wait."""
    agenda, due = Agenda(), request_class(0)
    agenda.add(due)
    with pytest.raises(LookupError), agenda.next():
        raise LookupError
    assert due not in agenda
    assert not agenda


def all_wait(_request_class: RequestClass) -> bool:
    return True


def test_a_node_that_changes_while_it_is_looked_at_is_looked_at_again() -> None:
    """It may have been passed already; that nothing helps turns out later."""
    agenda, first = Agenda(), request_class(0)
    agenda.add(first)
    with agenda.next():
        agenda.nodes_changed("a")
        agenda.look_again(all_wait)
        agenda.nodes_changed("b")
        agenda.note_hopeless(first, ())
    agenda.look_again(all_wait)
    with agenda.next() as found:
        assert found == (first, frozenset("ab"))


def test_a_look_that_is_due_takes_further_nodes_in() -> None:
    agenda, first = Agenda(), request_class(0)
    agenda.note_hopeless(first, ("a",))
    agenda.look_again(all_wait)
    agenda.nodes_changed("b")
    agenda.look_again(all_wait)
    with agenda.next() as found:
        assert found == (first, frozenset("ab"))


def test_a_look_at_all_nodes_does_not_shrink() -> None:
    agenda, first = Agenda(), request_class(0)
    agenda.add(first)
    agenda.note_hopeless(first, ("a",))
    agenda.look_again(all_wait)
    with agenda.next() as found:
        assert found == (first, None)
