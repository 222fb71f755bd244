"""A pod with CPUs of its own is told that a resize leaves it on them."""

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.object_events import RESIZE_KEEPS_CPUS
from tests.engine.world import bound, make_node, make_pod, make_world


def pinned(counted: int | None = None) -> Pod:
    """A pod on CPUs 0-1 that asks for two CPUs, or counts for something else while it is resized."""
    pod = bound(make_pod("p", cpu=2000), "n", assignment=Assignment(cpus=CpuSet.parse("0-1")), started=True)
    if counted is None:
        return pod
    return replace(pod, request=replace(pod.request, counted={"cpu": counted}))


def test_a_resized_pod_keeps_its_cpus_and_is_told_so() -> None:
    world = make_world(make_node("n"))
    handler = world.engine.handlers.bound_pods
    handler.observe("ADDED", pinned())
    handler.observe("MODIFIED", pinned())
    assert world.diary.reasons("p") == []
    handler.observe("MODIFIED", pinned(4000))
    handler.observe("MODIFIED", pinned(4000))
    assert world.diary.reasons("p") == [RESIZE_KEEPS_CPUS]
    held = world.engine.cache.nodes["n"].ledger.holdings["uid-p"]
    assert (str(held.cpus), held.amounts) == ("0-1", {"cpu": 4000})


def test_a_pod_without_cpus_of_its_own_is_told_nothing() -> None:
    world = make_world(make_node("n"))
    handler = world.engine.handlers.bound_pods
    for pod in (pinned(), pinned(4000)):
        handler.observe(None, replace(pod, assignment=None))
    assert world.diary.reasons("p") == []
