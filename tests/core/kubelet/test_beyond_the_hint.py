"""CPUs that a container gets beyond the NUMA nodes of its hint, which best-effort admits: from which ones they come nothing tells."""

import pytest

from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.kubelet.variants import variants
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, finished, gpus, init, node, pod


def _free(belief: Belief) -> set[tuple[int, ...]]:
    return {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses}


def _beside_its_device() -> Belief:
    """Best-effort keeps a container beside its device on NUMA node 0, whose CPUs are all taken: it gets others."""
    on = node("4x1x2x2", policy=KubeletPolicy.BEST_EFFORT, devices={"vendor.com/gpu": gpus(1)})
    belief = _belief(on)
    belief.arrive("first", pod(app(4)), 0.0)
    belief.started("first", 1.0)
    belief.arrive("beside", pod(app(2, gpu=1)), 2.0)
    return belief


def _belief(on: KubeletNode) -> Belief:
    return Belief([Hypothesis(KubeletState.empty(replace(on, ids_are_real=False)))])


@pytest.mark.parametrize("place", [1, 2, 3])
def test_cpus_beyond_the_hint_may_come_from_any_numa_node(place: int) -> None:
    """The CPUs depend on sockets and CPU ids (takeByTopology in cpu_assignment.go), which no topology names."""
    belief = _beside_its_device()
    belief.started("beside", 3.0)
    whole, used = {"cpu": 4 * MILLI, "vendor.com/gpu": 1}, {0: 4, place: 2}
    zones = [
        Zone(
            numa,
            whole if not numa else {"cpu": 4 * MILLI},
            whole if not numa else {"cpu": 4 * MILLI},
            {"cpu": (4 - used.get(numa, 0)) * MILLI} | ({} if numa else {"vendor.com/gpu": 0}),
        )
        for numa in range(4)
    ]
    assert finished(belief.report([["first", "beside"]], zones, lambda _: True, 20.0, certain=True)) == [
        "first",
        "beside",
    ]
    assert _free(belief) == {tuple(4 - used.get(numa, 0) for numa in range(4))}


def test_decisions_consider_all_numa_nodes_of_unlocated_cpus() -> None:
    belief = _beside_its_device()
    rooms = {
        cpus_by_numa(one.state.managers.cpus, one.state.node) for each in belief.hypotheses for one in variants(each)
    }
    assert rooms == {(0, 2, 4, 4), (0, 4, 2, 4), (0, 4, 4, 2)}


def test_init_containers_may_hold_cpus_of_any_of_them() -> None:
    """If the pod came before another one left, its init container has CPUs of NUMA node 2, else of node 1; no topology shows which."""
    belief = _belief(node("4x1x2x2", policy=KubeletPolicy.BEST_EFFORT, devices={"vendor.com/gpu": gpus(1)}))
    for at, (uid, count) in enumerate({"first": 4, "stays": 1, "old": 3}.items()):
        belief.arrive(uid, pod(app(count)), at)
        belief.started(uid, at)
    belief.arrive("new", pod(init(3, gpu=1), app(1, gpu=1)), 6.0)
    belief.started("new", 8.0)
    belief.depart("old", 9.0)
    assert _free(belief) == {(0, 3, 0, 4), (0, 0, 3, 4)}


def test_an_init_container_may_hold_cpus_left_by_another_pod() -> None:
    """
    If ``old`` left before ``new`` came, the app's CPU is the one that it left, and not one of the init container's on NUMA node 1.

    The app is aligned by its two devices to both NUMA nodes, so that it is in the same place in either case.
    """
    belief = _belief(node("2x1x3x1", policy=KubeletPolicy.BEST_EFFORT, devices={"vendor.com/gpu": gpus(1, 1, 2, 2)}))
    for at, (uid, request) in enumerate(
        {"old": pod(app(1, gpu=1)), "low": pod(app(2)), "high": pod(app(1, gpu=1))}.items()
    ):
        belief.arrive(uid, request, at)
        belief.started(uid, at)
    belief.arrive("new", pod(init(2, gpu=1), app(1, gpu=2)), 6.0)
    belief.started("new", 8.0)
    belief.depart("old", 9.0)
    assert {one.state.managers.cpus.bit_count() for one in belief.hypotheses} >= {0, 1}
