"""The class that is evaluated, the class that is due, and their nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.request import Pod
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.preempt.victims import may_help
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.preemption.executor import Agenda, Glance
from koord_numa.engine.queue.pending_pod import RequestClass, RequestClasses
from koord_numa.settings import Settings
from tests.engine.preemption.world import crowded, important, running
from tests.engine.world import World, make_pod

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


def everywhere(_request_class: RequestClass, nodes: frozenset[str]) -> frozenset[str]:
    return nodes


def test_a_node_changed_during_evaluation_is_reevaluated() -> None:
    """It may have been passed already; that nothing helps turns out later."""
    agenda, first = Agenda(), request_class(0)
    agenda.add(first)
    with agenda.next():
        agenda.nodes_changed("a")
        agenda.look_again(all_wait, everywhere)
        agenda.nodes_changed("b")
        agenda.note_hopeless(first, ())
    agenda.look_again(all_wait, everywhere)
    with agenda.next() as found:
        assert found == (first, frozenset("ab"))


def test_a_look_that_is_due_takes_further_nodes_in() -> None:
    agenda, first = Agenda(), request_class(0)
    agenda.note_hopeless(first, ("a",))
    agenda.look_again(all_wait, everywhere)
    agenda.nodes_changed("b")
    agenda.look_again(all_wait, everywhere)
    with agenda.next() as found:
        assert found == (first, frozenset("ab"))


def test_a_look_at_all_nodes_does_not_shrink() -> None:
    agenda, first = Agenda(), request_class(0)
    agenda.add(first)
    agenda.note_hopeless(first, ("a",))
    agenda.look_again(all_wait, everywhere)
    with agenda.next() as found:
        assert found == (first, None)


CPUS = ("0-1", "2", "3", "4-5", "6-7")
PRIORITIES = st.sampled_from((-5, 0, 5, 10, 100))


def class_of(world: World, pod: Pod) -> RequestClass:
    found = world.engine.classes.of(pod)
    assert found is not None
    return found


@st.composite
def pods(draw: st.DrawFn) -> list[Pod]:
    """Some of five pods on one node, of any priority; some are leaving, some are static."""
    chosen = draw(st.lists(st.sampled_from(CPUS), unique=True))
    return [
        running(f"p{cpus}", cpus, priority=draw(PRIORITIES), deleting=draw(st.booleans()), mirror=draw(st.booleans()))
        for cpus in chosen
    ]


@given(pods(), PRIORITIES, st.integers(1, 9), st.none() | PRIORITIES, st.booleans())
def test_no_node_is_passed_over_on_which_evictions_may_help(
    there: list[Pod], priority: int, cpu: int, nominated: int | None, evicts: bool
) -> None:
    world = crowded(*there)
    cache = world.engine.cache
    if nominated is not None:
        nominee = important("nominee", 2, priority=nominated)
        cache.nominate("node", Nominee(nominee, holding_of(nominee)))
    evicted = {there[0].key.uid} if evicts and there else set()
    pod = important("new", cpu, priority=priority)
    request_class = class_of(world, pod)
    node = cache.nodes["node"].site_for(pod, frozenset())
    assert node is not None
    node = replace(
        node, pods={uid: replace(it, deleting=it.deleting or uid in evicted) for uid, it in node.pods.items()}
    )
    worth = Glance(cache, evicted).worth_a_look(request_class, ["node", "unknown"])
    if may_help(world.engine.handle.selector.requirements_now(request_class), node):
        assert worth == {"node"}


def test_what_only_pods_as_important_hold_is_passed_over() -> None:
    """And so is a node that is too small for the pod without all that may go."""
    world = crowded(running("a", "0-1", priority=10), running("b", "2-3"), running("c", "4-7", priority=10))
    glance = Glance(world.engine.cache, set())
    for priority, cpu, expected in ((10, 2, {"node"}), (10, 3, set()), (0, 1, set()), (11, 8, {"node"})):
        pod = make_pod("new", cpu=1000 * cpu)
        found = class_of(world, replace(pod, request=replace(pod.request, priority=priority)))
        assert glance.worth_a_look(found, ["node"]) == expected, (priority, cpu)
