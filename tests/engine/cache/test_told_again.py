"""Facts that are told again, or no longer: what was noted about them ends with them, and what stays is no news."""

from collections.abc import Callable

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import Constraints, LabelSelector, PodTerm
from koord_numa.core.objects.node import KubeletAllocation
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.containment import Quarantine
from koord_numa.engine.event_handlers import BoundPodObjects
from tests.engine.world import bound, make_node, make_pod, make_topology, make_world

TERM = PodTerm("kubernetes.io/hostname", LabelSelector(()), ("default",))


def test_a_term_that_stays_is_no_news() -> None:
    """The status of a pod changes many times a minute; each time all waiting pods that its term selects would be classified again."""
    world = make_world(make_node("n"))
    pod = make_pod("a", started=True)
    pod = bound(replace(pod, request=replace(pod.request, constraints=Constraints(anti_affinity=(TERM,)))), "n")
    cache = world.engine.cache
    cache.observe_pod("ADDED", pod)
    assert cache.index.take_news() == (TERM,)
    cache.observe_pod("MODIFIED", replace(pod, resource_version="2"))
    assert cache.index.take_news() == ()
    cache.observe_pod("DELETED", pod)
    assert cache.index.take_news() == (TERM,)


def broken_once(cache: Cache) -> Callable[[str | None, Pod], None]:
    """Raises about every pod that exists, and takes note of those that are gone."""

    def apply(event: str | None, pod: Pod) -> None:
        if event != "DELETED":
            raise ZeroDivisionError(pod.key.name)
        cache.observe_pod(event, pod)

    return apply


def test_a_list_without_the_uncountable_pod_reopens_the_node() -> None:
    world = make_world(make_node("n"))
    cache = world.engine.cache
    handler = BoundPodObjects(cache, Quarantine(lambda: 0.0, lambda _subject, _why: None), broken_once(cache))
    handler.observe("ADDED", bound(make_pod("a"), "n"))
    assert cache.nodes["n"].barred() is not None
    handler.replace([])
    assert cache.nodes["n"].barred() is None


def test_a_clash_of_cpu_owners_is_said_again_when_it_comes_again() -> None:
    """The topology was deleted meanwhile, with everything that a kubelet said."""
    world = make_world(make_node("n"))
    given = KubeletAllocation("default", "static", "uid-static", CpuSet.parse("0-1"), managed_by_kubelet=True)
    topology = replace(make_topology("n"), kubelet_pods=(given,))
    held = bound(make_pod("a", cpu=2000, assignment=Assignment(cpus=CpuSet.parse("0-1")), started=True), "n")
    world.engine.handlers.bound_pods.observe("ADDED", held)
    for event in ("ADDED", "DELETED", "ADDED"):
        world.engine.handlers.topologies.observe(event, topology)
    assert world.diary.reasons("n").count("TwoCPUOwners") == 2
