"""On an empty node, amounts alone give the same answer as the kubelet's procedure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.bounds import has_room
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState
from koord_numa.core.kubelet.view import fits_empty_node, never_fits
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod
from tests.core.kubelet.test_admit import fill, nodes, pods

SHARED = gpus(0b11, 0b01, 0b10, None, unhealthy=(1,))


@st.composite
def seen_nodes(draw: st.DrawFn) -> KubeletNode:
    """Nodes as exporters show them, with NUMA nodes of different sizes, and devices near one NUMA node, several, or none."""
    some = draw(nodes())
    memory = {numa: {"memory": draw(st.integers(1, 6)) * GI} for numa in some.memory}
    device = st.sampled_from([None, *(mask for mask in range(1, 1 << len(some.machine.numa_ids)))])
    pool = gpus(*draw(st.lists(device, max_size=5)), unhealthy=draw(st.sampled_from([(), (0,)])))
    devices: dict[str, DevicePool] = {"vendor.com/gpu": pool} if some.devices else {}
    allocatable = {
        **some.allocatable,
        "cpu": draw(st.sampled_from([4_000, 10**9])),
        "vendor.com/gpu": len(pool.devices),
    }
    return replace(some, ids_are_real=draw(st.booleans()), memory=memory, devices=devices, allocatable=allocatable)


@given(seen_nodes(), pods())
def test_the_answer_is_the_one_of_the_whole_procedure(some: KubeletNode, one: PodRequest) -> None:
    whole = admit_pod(KubeletState.empty(some), "new", one)
    assert fits_empty_node(one, some) == isinstance(whole, Admitted)


@given(nodes(), st.lists(pods(), max_size=6), pods())
def test_a_pod_that_never_fits_is_refused_in_every_state(
    some: KubeletNode, before: list[PodRequest], one: PodRequest
) -> None:
    rule = some.whole_cores
    if never_fits(one, some, keeps_cores=rule is not None and rule.threads > 1):
        assert isinstance(admit_pod(fill(some, before), "new", one), NotAdmitted)


@pytest.mark.parametrize("scope", list(KubeletScope))
def test_a_container_larger_than_each_numa_node_never_fits(scope: KubeletScope) -> None:
    some = node(scope=scope, memory={0: {"memory": 4 * GI}, 1: {"memory": 4 * GI}})
    assert never_fits(pod(app(10)), some, keeps_cores=False)
    assert not never_fits(pod(app(8)), some, keeps_cores=False)
    # As a silent memory manager may serve one container of the pod after the other.
    assert never_fits(pod(app(1, memory=5 * GI)), some, keeps_cores=False) == (scope is KubeletScope.CONTAINER)
    assert not never_fits(pod(app(10)), node(policy=KubeletPolicy.RESTRICTED), keeps_cores=False)


def test_an_odd_number_of_cpus_never_fits_whole_cores() -> None:
    some = node(policy=KubeletPolicy.NONE)
    assert never_fits(pod(init(4), app(2, "a"), app(1, "b")), some, keeps_cores=True)
    assert not never_fits(pod(init(4), app(2, "a"), app(1, "b")), some, keeps_cores=False)
    assert not never_fits(pod(init(4), app(2, "a"), app(1.5, "b")), some, keeps_cores=True)


def test_a_pod_that_the_empty_node_refuses_may_fit_a_used_one() -> None:
    some = replace(node(memory={0: {"memory": GI}, 1: {"memory": 4 * GI}}), ids_are_real=False)
    assert not fits_empty_node(pod(init(4, memory=GI), app(6, memory=2 * GI)), some)
    assert not never_fits(pod(init(4, memory=GI), app(6, memory=2 * GI)), some, keeps_cores=True)


def test_one_numa_node_with_room_for_all_needs_no_procedure() -> None:
    some = replace(node(memory={0: {"memory": GI}, 1: {"memory": 4 * GI}}), ids_are_real=False)
    assert has_room(pod(app(4, "a"), app(4, "b")), some, KubeletState.empty(some).managers)
    # Which NUMA node an init container gets is open, so that each that may hold it must have room for all.
    assert has_room(pod(init(4), app(4)), some, KubeletState.empty(some).managers)
    assert not has_room(pod(init(4), app(4, memory=2 * GI)), some, KubeletState.empty(some).managers)


def test_an_init_container_ties_the_rest_to_a_small_numa_node() -> None:
    """NUMA node 1 could hold all of it, but the init container goes to NUMA node 0, which has too little memory for the app."""
    some = replace(node(memory={0: {"memory": GI}, 1: {"memory": 4 * GI}}), ids_are_real=False)
    tied = pod(init(4, memory=GI), app(6, memory=2 * GI))
    assert isinstance(admit_pod(KubeletState.empty(some), "new", tied), NotAdmitted)
    assert not fits_empty_node(tied, some)


def test_devices_of_two_numa_nodes_count_once_unhealthy_never() -> None:
    some = replace(node(devices={"vendor.com/gpu": SHARED}), ids_are_real=False)
    assert fits_empty_node(pod(app(1, gpu=2)), some)
    assert not fits_empty_node(pod(app(1, gpu=3)), some)
