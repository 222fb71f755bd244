"""Pods whose CPUs come from any NUMA node of a socket: what init containers may hold, and what pods leave whose place is not known."""

from koord_numa.core.cpuset import lowest
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.replay import arrive
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.kubelet.variants import without
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod


def sockets(shape: str) -> KubeletNode:
    """A node of which only the counts of CPUs are known, and which NUMA nodes are in one socket."""
    some = node(shape, KubeletPolicy.RESTRICTED, options=("align-by-socket",))
    return replace(some, ids_are_real=False, aligns_by_socket=True)


def with_free(shape: str, *counts: int) -> KubeletState:
    """So many CPUs are free on each NUMA node."""
    state = KubeletState.empty(sockets(shape))
    numas = state.node.machine.numa_bits.values()
    free = sum(lowest(here, count) for here, count in zip(numas, counts, strict=True))
    return replace(state, managers=replace(state.managers, cpus=free))


def test_cpus_that_an_init_container_may_hold_are_counted_in_sum() -> None:
    """Its CPU is of NUMA node 0; a container that does not take it over gets one more of NUMA node 1 instead."""
    (after,) = arrive(Hypothesis(with_free("1x2x4x2", 1, 8)), "uid", pod(init(1), app(3))).values()
    assert after.has("uid")
    loose = sum(bits.bit_count() for bits in after.loose.values())
    assert sum(cpus_by_numa(after.state.managers.cpus, after.state.node)) == 9 - 3 - 1
    assert loose == 1


def test_a_leaving_pod_may_have_spanned_numa_nodes_of_a_socket() -> None:
    """Two pods hold 10 CPUs of two NUMA nodes of 8. Where one of 4 goes, every part of these may be of either."""
    start = Hypothesis(with_free("2x2x4x2", 0, 6, 8, 8), unlocated={"a": pod(app(4)), "b": pod(app(6))})
    left = {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in without(start, ["a"])}
    assert left == {(2, 8, 8, 8), (3, 7, 8, 8), (4, 6, 8, 8)}


def test_without_sockets_it_was_on_one_numa_node() -> None:
    start = Hypothesis(with_free("2x2x4x2", 0, 6, 8, 8), unlocated={"a": pod(app(4)), "b": pod(app(6))})
    plain = replace(start.state, node=replace(start.state.node, aligns_by_socket=False))
    left = {
        cpus_by_numa(one.state.managers.cpus, one.state.node) for one in without(replace(start, state=plain), ["a"])
    }
    assert left == {(4, 6, 8, 8)}


def test_pods_leave_alike_in_whatever_order_a_set_has_them() -> None:
    """The place of a pod narrows the places of the next pod: another order would list the same states in another order."""
    requests = {"a": pod(app(4)), "b": pod(app(6)), "c": pod(app(2))}
    start = Hypothesis(with_free("2x2x4x2", 0, 4, 8, 8), unlocated=requests)
    one, other = ([repr(each) for each in without(start, uids)] for uids in (["a", "b"], ["b", "a"]))
    assert one == other
