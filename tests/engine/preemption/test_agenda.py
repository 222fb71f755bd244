"""Which class is being looked at, and which is due."""

from dataclasses import replace

import pytest

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
