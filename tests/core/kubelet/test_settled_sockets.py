"""Conclusions from a topology about CPUs on any NUMA node of a socket, and remaining uncertainty."""

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa, released
from koord_numa.core.kubelet.reports import settled
from koord_numa.core.kubelet.state import (
    ContainerAffinity,
    ContainerGrant,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
)
from koord_numa.core.kubelet.variants import variants
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeQos
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod

ON_0 = ContainerAffinity(mask=1, preferred=True)


def one_socket() -> KubeletNode:
    """Four NUMA nodes of 8 CPUs in one socket, of which only the counts are known; CPUs 0 to 7 are NUMA node 0's, and so on."""
    some = node("1x4x4x2", policy=KubeletPolicy.RESTRICTED, options=("align-by-socket",))
    return replace(some, ids_are_real=False, aligns_by_socket=True, fills_sockets=True)


def holding(**pods: tuple[ContainerGrant, ...]) -> Hypothesis:
    """Pods by uid with these containers, all of them spread."""
    state = KubeletState.empty(one_socket())
    for uid, containers in pods.items():
        held = 0
        for each in containers:
            held |= each.cpus.bits
        asked = pod(*((init if each.kind is ContainerKind.INIT else app)(len(each.cpus)) for each in containers))
        left = ManagerState(state.managers.cpus & ~held, state.managers.devices, state.managers.memory)
        state = state.with_pod(uid, asked, Grant(KubeQos.GUARANTEED, containers), left)
    return Hypothesis(state, spread=frozenset(pods))


def container(cpus: str, kind: ContainerKind = ContainerKind.APP, numas: int = 0) -> ContainerGrant:
    """These CPUs by a hint of NUMA node 0."""
    return ContainerGrant(kind.value, kind, CpuSet.parse(cpus), hint=ON_0, numas=numas)


def zones(*used: int) -> list[Zone]:
    """So many CPUs in use on each NUMA node."""
    has = {"cpu": 8000}
    return [Zone(numa, has, has, {"cpu": 8000 - 1000 * count}) for numa, count in enumerate(used)]


def free(one: Hypothesis) -> tuple[int, ...]:
    return cpus_by_numa(one.state.managers.cpus, one.state.node)


def test_an_empty_numa_node_is_excluded_though_a_pod_has_left() -> None:
    """Three pods have CPUs of NUMA nodes 0 and 1. Which ones is open again without one of them, but none is of another NUMA node."""
    before = holding(a=(container("0-5"),), b=(container("8-9"),), c=(container("6-7"),))
    after = settled(before, ["a", "b", "c"], zones(7, 3, 0, 0))
    assert after.mixed == {"a", "b", "c"}
    for one in variants(released(after, "c")):
        assert free(one)[2:] == (8, 8)
        assert sum(free(one)) == 24


def test_what_init_containers_hold_stays_open() -> None:
    """The app's 4 CPUs are shown on NUMA node 0; the 2 that its init container may still hold are of NUMA node 0 or 1."""
    before = holding(a=(container("4-5", ContainerKind.INIT, numas=0b11), container("0-3", numas=0b11)))
    after = settled(before, ["a"], zones(4, 0, 0, 0))
    assert {free(one) for one in variants(after)} == {(2, 8, 8, 8), (4, 6, 8, 8)}


def test_a_topology_proves_init_cpus_to_be_given_back() -> None:
    """It shows 6 CPUs more in use on NUMA node 0 than are left beside the 4 that an init container may hold: these are not held."""
    first = (container("0-3", ContainerKind.INIT, numas=1), container("4-5", numas=1))
    before = replace(holding(a=first, b=(container("8-13"),)), loose={"a": 0b1111})
    after = settled(before, ["a", "b"], zones(8, 0, 0, 0))
    assert free(after) == (0, 8, 8, 8)
    assert not after.spread
    assert not after.loose
