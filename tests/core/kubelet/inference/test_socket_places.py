"""CPUs of sockets whose NUMA nodes are not known one by one: what pods leave of a known sum, and which NUMA nodes may have least."""

from dataclasses import replace

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, cpus_by_numa, released
from koord_numa.core.kubelet.inference.variants import MOST_ASKED, variants
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState, ManagerState
from koord_numa.core.kubelet.managers.results import ContainerAffinity, ContainerGrant, Grant
from koord_numa.core.kubelet.report import settled
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeQos
from tests.core.kubelet.nodes import app, init, node, pod

ON_0 = ContainerAffinity(mask=1, preferred=True)


def one_socket() -> KubeletNode:
    """Four NUMA nodes of 8 CPUs in one socket, of which only the counts are known; CPUs 0 to 7 are NUMA node 0's, and so on."""
    some = node("1x4x4x2", policy=KubeletPolicy.RESTRICTED, options=("align-by-socket",))
    return replace(some, ids_are_real=False, aligns_by_socket=True, packs_sockets=True)


def holding(**pods: str) -> Hypothesis:
    """Pods by uid with one container and these CPUs."""
    state = KubeletState.empty(one_socket())
    for uid, text in pods.items():
        cpus = CpuSet.parse(text)
        grant = Grant(KubeQos.GUARANTEED, (ContainerGrant("app", ContainerKind.APP, cpus, hint=ON_0),))
        left = replace(state.managers, cpus=state.managers.cpus & ~cpus.bits)
        state = state.with_pod(uid, pod(app(len(cpus))), grant, left)
    return Hypothesis(state)


def free(one: Hypothesis) -> tuple[int, ...]:
    return cpus_by_numa(one.state.managers.cpus, one.state.node)


def test_what_a_pod_leaves_of_a_known_sum_is_free_somewhere_and_the_rest_is_not() -> None:
    """NUMA nodes 0 and 1 have 2 and 4 CPUs free, used by no other pod. A pod of 2 leaves 2 of the 10 that three pods hold there."""
    before = replace(holding(a="0-3", b="4-5,8-9", c="10-11"), mixed=frozenset("abc"))
    assert free(before) == (2, 4, 8, 8)
    after = list(variants(released(before, "c"), MOST_ASKED))
    assert {(2, 6, 8, 8), (4, 4, 8, 8)} <= {free(one) for one in after}
    for one in after:
        assert sum(free(one)) == sum(free(before)) + 2
        assert all(least <= now <= least + 2 for least, now in zip(free(before), free(one), strict=True))
        held = 0
        for each in one.state.pods.values():
            held |= each.grant.containers[0].cpus.bits
        assert not held & one.state.managers.cpus


def test_the_last_of_them_leaves_nothing_open() -> None:
    after = released(released(replace(holding(a="0-3", b="4-5"), mixed=frozenset("ab")), "a"), "b")
    assert free(after) == (8, 8, 8, 8)
    assert not after.freed
    assert not after.mixed


def test_what_init_containers_hold_opens_all_places_again() -> None:
    """No topology shows it, so that the sum of the others is not known either."""
    before = replace(holding(a="0-3", b="4-5,8-9"), mixed=frozenset("ab"))
    pods = dict(before.state.pods)
    (given,) = pods["b"].grant.containers
    more = ContainerGrant("init", ContainerKind.INIT, CpuSet.parse("16-17"), hint=ON_0)
    pods["b"] = replace(pods["b"], grant=replace(pods["b"].grant, containers=(more, given)))
    after = released(replace(before, state=replace(before.state, pods=pods)), "a")
    assert after.spread == {"b"}
    assert not after.freed


def test_several_numa_nodes_may_have_least_at_once() -> None:
    """All free CPUs may be on one NUMA node, where nothing near the others can be given."""
    before = replace(holding(a="0-7,8-13", b="16-21", c="24-29"), spread=frozenset("abc"))
    assert free(before) == (0, 2, 2, 2)
    assert (0, 0, 6, 0) in {free(one) for one in variants(before, MOST_ASKED)}


def test_a_topology_proves_init_cpus_to_be_given_back() -> None:
    """It shows 6 CPUs more in use on NUMA node 0 than are left beside the 4 that an init container may hold: these are not held."""
    start = KubeletState.empty(one_socket())
    first = Grant(
        KubeQos.GUARANTEED,
        (
            ContainerGrant("init", ContainerKind.INIT, CpuSet.parse("0-3"), hint=ON_0, certain=True),
            ContainerGrant("app", ContainerKind.APP, CpuSet.parse("4-5"), hint=ON_0, certain=True),
        ),
    )
    second = Grant(KubeQos.GUARANTEED, (ContainerGrant("app", ContainerKind.APP, CpuSet.parse("8-13"), hint=ON_0),))
    one = Hypothesis(_with(_with(start, "a", pod(init(4), app(2)), first), "b", pod(app(6)), second))
    one = replace(one, loose={"a": 0b1111}, spread=frozenset("b"))
    has = {"cpu": 8000}
    zones = [Zone(numa, has, has, {"cpu": 1000 * left}) for numa, left in enumerate((0, 8, 8, 8))]
    after = settled(one, ["a", "b"], zones)
    assert free(after) == (0, 8, 8, 8)
    assert not after.spread
    assert not after.loose


def _with(state: KubeletState, uid: str, request: PodRequest, grant: Grant) -> KubeletState:
    held = 0
    for each in grant.containers:
        held |= each.cpus.bits
    managers = state.managers
    return state.with_pod(uid, request, grant, ManagerState(managers.cpus & ~held, managers.devices, managers.memory))
