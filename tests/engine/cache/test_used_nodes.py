"""Kubelet-owned nodes that were in use when the scheduler started, or whose topology contradicts what was believed of them."""

from time import time

import pytest

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.demand import TOPOLOGY_AFFINITY
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import KubeletAdmission
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    KubeletCheckpoint,
    KubeletConfig,
    NodeResourceTopology,
    Zone,
)
from koord_numa.core.objects.request import Container, Pod, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.ports import DELETED
from tests.engine.world import list_into, make_node, make_pod

WHOLE = {"cpu": 8000}


def _shows(free: tuple[int, int], *names: str, version: str) -> NodeResourceTopology:
    """Two zones of 8 CPUs, of which these pods leave so many free."""
    return NodeResourceTopology(
        "n",
        CpuOwner.KUBELET,
        zones=tuple(Zone(numa, WHOLE, WHOLE, {"cpu": count * 1000}) for numa, count in enumerate(free)),
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static", memory_policy="None"
        ),
        fingerprint=fingerprint(("default", name) for name in names),
        fingerprint_method="with-exclusive-resources",
        resource_version=version,
    )


def _running(name: str, cpus: int, started_at: float) -> Pod:
    return replace(make_pod(name, cpu=cpus * 1000), node="n", started=True, started_at=started_at)


def _view(cache: Cache) -> KubeletView:
    cache.judge_found_pods()
    seen = cache.nodes["n"].candidate()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    return seen.offer


def _free(view: KubeletView) -> set[tuple[int, ...]]:
    """CPUs free on each NUMA node, by hypothesis."""
    return {
        tuple((one.state.managers.cpus & here).bit_count() for here in one.state.node.machine.numa_bits.values())
        for one in view.hypotheses
    }


def _started(*pods: Pod, topology: NodeResourceTopology) -> Cache:
    cache = Cache(lambda *_: None)
    list_into(cache, nodes=[make_node("n")], pods=list(pods), topologies=[topology])
    return cache


def test_a_used_node_is_followed_from_what_its_topology_shows() -> None:
    """In whatever order pods are listed. c came after the start and goes where the kubelet puts it."""
    pods = [_running("b", 5, 200.0), _running("a", 3, 100.0)]
    cache = _started(*pods, topology=_shows((5, 3), "a", "b", version="1"))
    assert _view(cache).followed
    cache.observe_pod(None, replace(_running("c", 4, 0.0), started=False))
    cache.observe_pod(None, _running("c", 4, 300.0))
    view = _view(cache)
    assert view.followed
    assert _free(view) == {(1, 3)}


@pytest.mark.parametrize(
    ("coined", "age", "followed"), [(False, 170.0, False), (False, 190.0, True), (True, 0.0, True)]
)
def test_a_shown_pod_may_have_the_name_of_a_departed_pod(*, coined: bool, age: float, followed: bool) -> None:
    """Unless its name is new, or it is older than every topology that may still arrive."""
    pod = replace(_running("a", 3, 100.0), coined=coined, created=time() - age)
    cache = _started(pod, topology=_shows((5, 8), "a", version="1"))
    assert _view(cache).followed is followed


def test_a_found_pod_may_have_arrived_beside_a_departed_one() -> None:
    """c came after the scan. A pod that left before the list may have been on the NUMA node on which c is foreseen."""
    pods = [_running("c", 4, 300.0), _running("b", 5, 200.0), _running("a", 3, 100.0)]
    cache = _started(*pods, topology=_shows((5, 3), "a", "b", version="1"))
    assert not _view(cache).followed
    cache.observe_topology(None, _shows((1, 3), "a", "b", "c", version="2"))
    view = _view(cache)
    assert view.followed
    assert _free(view) == {(1, 3)}


def test_a_used_node_with_unexplained_use_is_not_followed() -> None:
    view = _view(_started(_running("a", 3, 100.0), topology=_shows((4, 3), "a", version="1")))
    assert not view.followed
    assert [zone.available[CPU] for zone in view.zones] == [4000, 3000]


def test_what_a_topology_contradicts_is_begun_again_with_it() -> None:
    """The pod was foreseen on NUMA node 0; something that no event has shown had put it on 1."""
    cache = _started(topology=_shows((8, 8), version="1"))
    assert _free(_view(cache)) == {(8, 8)}
    cache.observe_pod(None, replace(_running("a", 3, 0.0), started=False))
    cache.observe_pod(None, _running("a", 3, 100.0))
    assert _free(_view(cache)) == {(5, 8)}
    cache.observe_topology(None, _shows((8, 5), "a", version="2"))
    view = _view(cache)
    assert view.followed
    assert _free(view) == {(8, 5)}
    cache.observe_pod(None, replace(_running("b", 8, 0.0), started=False))
    assert _free(_view(cache)) == {(0, 5)}


def test_an_unexplained_state_begins_again_with_a_topology() -> None:
    """The kubelet has refused a pod that had room by all that is known; later pods come after whatever the reason was."""
    cache = _started(topology=_shows((8, 8), version="1"))
    assert _free(_view(cache)) == {(8, 8)}
    for pod in (_running("a", 3, 100.0), _running("b", 4, 200.0)):
        cache.observe_pod(None, replace(pod, started=False))
        if pod.key.name == "a":
            cache.observe_pod(None, pod)
        else:
            cache.observe_pod(None, replace(pod, started=False, phase="Failed", reason=TOPOLOGY_AFFINITY))
    assert not _view(cache).followed
    cache.observe_pod(None, replace(_running("c", 4, 0.0), started=False))
    cache.observe_pod(None, _running("c", 4, 300.0))
    cache.observe_topology(None, _shows((1, 8), "a", "c", version="2"))
    view = _view(cache)
    assert view.followed
    assert _free(view) == {(1, 8)}


def test_only_init_containers_with_cpus_use_an_empty_node() -> None:
    """Its finished init container may hold 5 CPUs of either NUMA node, which no topology shows."""
    own, shared = {"cpu": 5000, "memory": 1}, {"cpu": 500, "memory": 1}
    parts = (Container("i", ContainerKind.INIT, own, own), Container("a", ContainerKind.APP, shared, shared))
    there = replace(_running("a", 1, 100.0), request=PodRequest(containers=parts))
    cache = _started(there, topology=_shows((8, 8), version="1"))
    view = _view(cache)
    assert not view.followed
    assert _free(view) == {(3, 3)}


def test_a_pod_counts_with_the_amounts_of_the_asked_state() -> None:
    """Of a, which has left either NUMA node, its 4 CPUs stay counted: the new pod takes 5 all the same, and not just one more."""
    pods = [_running("a", 4, 100.0), _running("b", 4, 200.0), _running("c", 3, 300.0)]
    cache = Cache(lambda *_: None)
    shown = _shows((2, 3), "a", "b", "c", version="1")
    list_into(cache, nodes=[make_node("n", cpu=16)], pods=pods, topologies=[shown])
    assert _view(cache).followed
    cache.observe_pod(DELETED, pods[0])
    view = _view(cache)
    assert _free(view) == {(2, 3)}
    admission = would_admit(make_pod("new", cpu=5000).request, view)
    assert isinstance(admission, KubeletAdmission)
    assert admission.numa == ((0, {"cpu": 5000}), (1, {"cpu": 5000}))


@pytest.mark.parametrize("topology_first", [True, False])
def test_a_pod_in_the_kubelets_state_counts_once(*, topology_first: bool) -> None:
    """Also if the state reaches the scheduler before the pod, as after a restart."""
    cpus = tuple(CpuRow(cpu, cpu, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16))
    state = KubeletCheckpoint(
        read_at=1.0,
        cpus=cpus,
        cpu_policy="static",
        pods={"uid-a": {"app": ContainerState(0b111, (), {})}},
        active=frozenset({"uid-a"}),
    )
    pod = _running("a", 3, 100.0)
    assert pod.key.uid == "uid-a"
    topology = replace(_shows((5, 8), "a", version="1"), checkpoint=state)
    cache = Cache(lambda *_: None)
    cache.observe_node(None, make_node("n"))
    if topology_first:
        cache.observe_topology(None, topology)
        assert _view(cache).followed
    cache.observe_pod(None, pod)
    cache.observe_topology(None, topology)
    view = _view(cache)
    assert view.followed
    assert _free(view) == {(5, 8)}
    cache.observe_pod(DELETED, pod)
    assert _free(_view(cache)) == {(8, 8)}
