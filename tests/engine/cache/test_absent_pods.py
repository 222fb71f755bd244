"""Pods that a topology proves a kubelet not to count any more, before any event of theirs has shown it."""

from itertools import chain, count, repeat
from random import Random
from time import time

import pytest

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.resources import CPU, PODS
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.ports import DELETED
from tests.engine.world import make_node, make_pod
from tests.kubelets.law import broken
from tests.kubelets.test_busy_node import life_of

WHOLE = {"cpu": 8000}


def shows(*names: str, version: int, method: str = "all") -> NodeResourceTopology:
    """A topology that shows these pods. What it says of CPUs is of no matter here: nothing is in use that a kubelet gives out."""
    return NodeResourceTopology(
        "n",
        CpuOwner.KUBELET,
        zones=(Zone(0, WHOLE, WHOLE, WHOLE),),
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static", memory_policy="None"
        ),
        fingerprint=fingerprint(("default", name) for name in names),
        fingerprint_method=method,
        resource_version=str(version),
    )


def shared(name: str, **changes: object) -> Pod:
    """A pod on the node that takes 1.5 CPUs of those that all share, created in this moment."""
    return replace(make_pod(name, cpu=1500), node="n", created=time(), **changes)  # type: ignore[arg-type]  # changes are named fields


def node_with(*names: str, started: bool = True, age: float = 180.0) -> Cache:
    """A node to which these pods came, one after the other, when the cache was so many seconds old."""
    times = chain([0.0], repeat(age))
    cache = Cache(lambda *_: None, clock=lambda: next(times))
    cache.observe_node(None, make_node("n"))
    cache.observe_topology(None, shows(version=1))
    for name in names:
        cache.observe_pod(None, shared(name))
        if started:
            cache.observe_pod(None, shared(name, started=True))
    return cache


def taken(cache: Cache) -> list[str]:
    """The pods that a decision counts there."""
    seen = cache.nodes["n"].candidate()
    assert seen is not None
    assert cache.nodes["n"].free[CPU] == 8000 - seen.ledger.amounts.get(CPU, 0)
    assert cache.nodes["n"].free[PODS] == 110 - len(seen.ledger)
    return sorted(held.pod.name for held in seen.ledger)


@pytest.mark.parametrize("started", [True, False])
def test_a_pod_older_than_a_shown_one_is_rejected_or_gone(started: bool) -> None:
    cache = node_with("a", "b", "c", started=started)
    assert taken(cache) == ["a", "b", "c"]
    cache.observe_topology(None, shows("b", version=2))
    assert taken(cache) == ["b", "c"]  # c may be newer than the topology


def test_a_pod_that_was_shown_and_is_not_any_more_is_gone() -> None:
    cache = node_with("a", "b")
    cache.observe_topology(None, shows("a", "b", version=2))
    cache.observe_topology(None, shows("a", version=3))
    assert taken(cache) == ["a"]
    cache.observe_topology(None, shows("a", version=4))
    assert taken(cache) == ["a"]
    cache.observe_pod(DELETED, shared("b", started=True))
    assert taken(cache) == ["a"]


@pytest.mark.parametrize("late", [["ab", "b", ""], ["ab", "a", ""], ["ab", "", "ab"]])
def test_late_topologies_prove_nothing_about_namesakes(late: list[str]) -> None:
    """Neither of two pods that came back under their names vouches for the other."""
    times = chain([0.0], count(200.0))
    cache = Cache(lambda *_: None, clock=lambda: next(times))
    cache.observe_node(None, make_node("n"))
    cache.observe_topology(None, shows(version=1))
    first, second = ([replace(shared(name), key=uid_of(name, life)) for name in "ab"] for life in (1, 2))
    for pod in first:
        cache.observe_pod(None, pod)
        cache.observe_pod(None, replace(pod, started=True))
    for pod in first:
        cache.observe_pod(DELETED, pod)
    for pod in second:
        cache.observe_pod(None, pod)
        cache.observe_pod(None, replace(pod, started=True))
    for version, names in enumerate(late, 2):
        cache.observe_topology(None, shows(*names, version=version))
        assert taken(cache) == ["a", "b"], names


def uid_of(name: str, life: int) -> PodKey:
    return replace(make_pod(name).key, uid=f"{name}{life}")


def test_a_topology_that_speaks_of_other_pods_proves_nothing() -> None:
    """Pods without CPUs of their own are in no fingerprint of this method."""
    cache = node_with("a", "b")
    cache.observe_pod(None, replace(make_pod("own", cpu=2000), node="n"))
    cache.observe_topology(None, shows("own", version=2, method="with-exclusive-resources"))
    assert taken(cache) == ["a", "b", "own"]


def test_a_pod_is_counted_again_that_is_bound_again() -> None:
    """Its bind had failed while a topology of that time proved it absent."""
    cache = node_with("b", "c")
    first = cache.nodes["n"].history
    cache.observe_topology(None, shows("c", version=2))
    assert taken(cache) == ["c"]
    first.withdraw("uid-b")
    cache.observe_pod(DELETED, shared("b"))
    cache.observe_pod(None, shared("b"))
    assert taken(cache) == ["b", "c"]


def test_what_is_kept_for_nominees_is_counted_beside_the_others() -> None:
    cache = node_with("a", "b")
    cache.nominate("n", Nominee(make_pod("nominee"), holding_of(make_pod("nominee"))))
    cache.observe_topology(None, shows("b", version=2))
    seen = cache.nodes["n"].candidate()
    assert seen is not None
    assert sorted(held.pod.name for held in seen.ledger) == ["b", "nominee"]


def test_no_pod_is_evicted_that_is_gone() -> None:
    cache = node_with("a", "b")
    cache.observe_topology(None, shows("b", version=2))
    node = cache.nodes["n"].site_for(make_pod("asks"), frozenset())
    assert node is not None
    assert [pod.key.name for pod in node.pods.values()] == ["b"]


def test_another_machine_of_the_same_name_proves_nothing() -> None:
    cache = node_with("a", "b")
    cache.observe_topology(None, shows("b", version=2))
    cache.nodes["n"].history.reset()
    cache.nodes["n"].touch()
    assert taken(cache) == ["a", "b"]


def test_a_young_cache_takes_no_pod_for_absent() -> None:
    """The topology may be older than the cache and show a pod that it does not know, whose name another has by now."""
    for age, counted in ((179.0, ["a", "b"]), (180.0, ["b"])):
        cache = node_with("a", "b", age=age)
        cache.observe_topology(None, shows("b", version=2))
        assert taken(cache) == counted


def test_old_pods_prove_it_to_a_young_cache_too() -> None:
    """No topology of today shows another pod that had the name before the pod was created."""
    cache = node_with(age=60.0)
    for each in "ab":
        cache.observe_pod(None, replace(shared(each), created=time() - 181.0))
    cache.observe_topology(None, shows("b", version=2))
    assert taken(cache) == ["b"]


def test_new_names_prove_it_to_a_young_cache_too() -> None:
    for name, counted in (("a", ["a", "b"]), ("b", ["b"])):
        cache = node_with(age=60.0)
        for each in "ab":
            cache.observe_pod(None, shared(each, coined=each == name))
        cache.observe_topology(None, shows("b", version=2))
        assert taken(cache) == counted


def test_pods_that_were_to_end_may_all_be_gone_before_it_is_told() -> None:
    cache = node_with(*"abcdefg")
    cache.observe_topology(None, shows(*"abcdefg", version=2))
    for each in "fcbe":
        cache.observe_pod(None, shared(each, started=True, deleting=True))
    cache.observe_topology(None, shows(*"abdeg", version=3))
    assert taken(cache) == [*"abdeg"]
    cache.observe_topology(None, shows(*"adg", version=4))
    assert taken(cache) == [*"adg"]


def test_of_the_pods_that_were_to_end_any_may_go_first() -> None:
    cache = node_with(*"abcd")
    cache.observe_topology(None, shows(*"abcd", version=2))
    for each in "abc":
        cache.observe_pod(None, shared(each, started=True, deleting=True))
    cache.observe_topology(None, shows(*"bd", version=3))
    assert taken(cache) == [*"bd"]


def own(name: str, cpus: int, **changes: object) -> Pod:
    """A pod with CPUs of its own."""
    return replace(make_pod(name, cpu=cpus * 1000), node="n", **changes)  # type: ignore[arg-type]  # changes are named fields


def refused(pod: Pod) -> Pod:
    return replace(pod, phase="Failed", reason=SMT_ALIGNMENT)


def test_a_pod_in_flight_wider_than_a_numa_node_is_not_counted() -> None:
    cache = node_with("a")
    cache.observe_pod("MODIFIED", own("wide", 10))
    assert taken(cache) == ["a"]


def test_odd_counts_are_rejected_after_evidence_of_whole_cores() -> None:
    cache = node_with("a")
    for name in ("first", "other"):
        cache.observe_pod("MODIFIED", own(name, 3))
    assert taken(cache) == ["a", "first", "other"]
    cache.observe_pod("MODIFIED", refused(own("first", 3)))
    assert taken(cache) == ["a"]
    cache.observe_pod("MODIFIED", own("next", 1))
    cache.observe_pod("MODIFIED", own("even", 2))
    assert taken(cache) == ["a", "even"]
    # Against all that was concluded, so that it was wrong.
    cache.observe_pod("MODIFIED", own("next", 1, started=True))
    assert taken(cache) == ["a", "even", "next", "other"]


def test_a_pod_that_may_have_lacked_cpus_tells_nothing_of_cores() -> None:
    cache = node_with("a")
    for name in ("first", "other"):
        cache.observe_pod("MODIFIED", own(name, 5))
    cache.observe_pod("MODIFIED", refused(own("other", 5)))
    assert taken(cache) == ["a", "first"]


def test_a_life_with_a_name_used_before_the_scheduler_started() -> None:
    """Found by the law of busy nodes: a pod that runs was not counted any more, and its huge page given away twice."""
    assert not broken(life_of(Random(53)))
