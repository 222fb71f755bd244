"""Unseen departures can move pods in flight to other NUMA nodes. An admission holds nevertheless."""

from random import Random
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet import prediction
from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.bounds import has_room_in_all_ways
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.prediction import TOO_MANY
from koord_numa.core.kubelet.variants import device_layouts
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from koord_numa.wire import parse_pod
from tests.kubelets.law import broken
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, GPU, container
from tests.kubelets.test_busy_node import life_of

ROOM = 20
"""CPUs of each NUMA node that the scenario does not need."""


def life(
    spare: int = 0,
    policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE,
    scope: KubeletScope = KubeletScope.CONTAINER,
    memory: str = "None",
) -> NodeLife:
    """NUMA node 0 has 7 exclusive CPUs and a GPU, NUMA node 1 has 8 and two GPUs, and ``spare`` cores each besides."""
    reserved = CpuSet.of((0,))
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=scope,
        cpu_policy="static",
        memory_policy=memory,
        reserved_cpus=reserved,
    )
    hardware = Shape(2, 1, 8 + spare, 1, 16 * GIB, devices={GPU: (0, 1, 1)}).build()
    return NodeLife(NodeDescription("n", hardware, Style.KUBELET, config, reserved=reserved))


def pod(cpus: int, gpus: int = 0) -> dict[str, Any]:
    return {"containers": [container("app", cpus, 1, gpus)]}


def run(one: NodeLife, *cpus: int) -> None:
    """Pods that run, and whose place a topology shows."""
    for count in cpus:
        one.place(pod(count))
    one.settle()


def test_a_gpu_that_a_pod_in_flight_may_get_is_not_promised() -> None:
    one = life()
    run(one, 1, 5)
    one.place(pod(2))
    one.place(pod(1, gpus=1))
    one.end(0)
    # Foreseen is NUMA node 0 for the pod with a GPU, but the one before it takes its CPU there.
    assert not isinstance(one.ask(pod(1, gpus=2)), Placement)
    one.place(pod(1, gpus=2))
    one.settle()
    assert not broken(one)
    # Told of the departure and the verdicts, it is still a no; without the pods on their way it was a yes.
    assert not isinstance(one.ask(pod(1, gpus=2)), Placement)


def test_irrelevant_departures_keep_no_pod_waiting() -> None:
    """Pods on NUMA node 1 may leave: what goes to NUMA node 0 stays there."""
    one = life()
    run(one, 3)
    one.place(pod(2))
    one.place(pod(1, gpus=1))
    assert isinstance(one.ask(pod(1, gpus=2)), Placement)


def test_room_for_all_that_are_in_flight_needs_no_replay() -> None:
    one = life(spare=ROOM)
    run(one, 1, 25)
    one.place(pod(2))
    one.place(pod(1))
    seen = one.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    assert seen.offer.in_flight is not None
    assert seen.offer.in_flight.leaves_room(parse_pod(one.pod("question", pod(20))).request)
    assert isinstance(one.ask(pod(20)), Placement)


def test_a_pod_without_managed_resources_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many states there are in which those may go elsewhere: none of them is asked."""
    monkeypatch.setattr(prediction, "DECISION", 0)
    one = life()
    run(one, 1, 5)
    one.place(pod(2))
    one.place(pod(1, gpus=1))
    without: dict[str, Any] = {"containers": [{"name": "app", "resources": {}}]}
    assert not isinstance(one.ask(pod(1, gpus=2)), Placement)
    assert isinstance(one.ask(without), Placement)


def test_a_container_moved_by_a_device_leaves_cpus_of_the_next() -> None:
    """Foreseen is the first container on NUMA node 1 and the next on node 0; should the first pod have left, both want NUMA node 0."""
    one = life()
    shared = pod(1, gpus=1)
    for amounts in shared["containers"][0]["resources"].values():
        amounts["cpu"] = "500m"
    one.place(shared)
    run(one, 3)
    one.place(pod(6, gpus=1))
    one.settle()
    wanted = {"containers": [container("a", 1, 1, 1), container("b", 4, 1)]}
    assert isinstance(one.ask({"containers": [container("b", 4, 1)]}), Placement)
    assert not isinstance(one.ask(wanted), Placement)
    one.end(0)
    one.place(wanted)
    one.settle()
    assert not broken(one)
    # With CPUs alone the order of containers takes nothing from any of them.
    assert isinstance(one.ask({"containers": [container("a", 1, 1), container("b", 3, 1)]}), Placement)


def test_a_pod_with_too_many_states_to_evaluate_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    one = life()
    run(one, 3, 2)
    assert isinstance(one.ask(pod(1)), Placement)
    monkeypatch.setattr(prediction, "DECISION", 0)
    monkeypatch.setattr(prediction, "fits_in_every_state", lambda *_: False)
    answer = one.ask(pod(1))
    assert isinstance(answer, Rejection)
    assert answer.detail == TOO_MANY


def test_a_topology_may_show_pods_that_are_unknown_and_gone() -> None:
    """The init container of 2 goes to NUMA node 1 by what is published, and to node 0 in truth, which has no 8 CPUs for the app."""
    one = life()
    unwatched = one.pod("unwatched", pod(7))
    one.agent.admit(parse_pod(unwatched))
    one.scan()
    one.deliver()
    one.agent.remove("unwatched")
    seen = one.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    assert not seen.offer.followed
    tied = {"initContainers": [container("init", 2, 1)], **pod(8)}
    assert isinstance(one.ask(pod(8)), Placement)
    assert not isinstance(one.ask(tied), Placement)


def tied(init: int, cpus: int) -> dict[str, Any]:
    return {"initContainers": [container("init", init, 1)], **pod(cpus)}


def test_a_pod_may_leave_after_another_on_its_way_went_elsewhere() -> None:
    """The pod of 4 CPUs goes to NUMA node 0 for the first one; the second leaves 3 CPUs there, where the init container goes, and no 4."""
    one = life()
    run(one, 3, 2)
    one.place(pod(4))
    assert isinstance(one.ask(pod(4)), Placement)
    assert not isinstance(one.ask(tied(3, 4)), Placement)
    one.end(0)
    one.admit()
    one.end(0)
    one.place(tied(3, 4))
    one.settle()
    assert not broken(one)


def test_lives_that_gave_gpus_away_twice() -> None:
    """Found by the law of busy nodes: a pod of 1 CPU had left unseen, and two pods on their way changed places."""
    assert not broken(life_of(Random(1_064_286_751)))


@pytest.mark.parametrize("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@pytest.mark.parametrize("scope", KubeletScope)
@pytest.mark.parametrize("memory", ["None", "Static"])
def test_equal_pods_in_flight_leave_room_for_another(
    policy: KubeletPolicy, scope: KubeletScope, memory: str, pytestconfig: pytest.Config
) -> None:
    """A pod that is equal to all pods in flight is admitted, although another pod has left unseen."""
    asked = 0
    for seed in range(int(pytestconfig.getoption("--law-examples")) // 4):
        dice = Random(seed)
        one = life(spare=dice.randrange(8), policy=policy, scope=scope, memory=memory)
        run(one, *(dice.randint(1, 4) for _ in range(dice.randint(1, 5))))
        wanted = pod(dice.randint(1, 3), gpus=dice.randrange(2))
        for _ in range(dice.randint(1, 3)):
            one.place(wanted)
        request = parse_pod(one.pod("question", wanted)).request
        seen = one.seen()
        assert seen is not None
        if not one.arriving or not isinstance(one.ask(wanted), Placement):
            continue
        assert isinstance(seen.offer, KubeletView)
        assert seen.offer.in_flight is not None
        assert seen.offer.in_flight.all_equal(request)
        asked += 1
        one.end(dice.randrange(9))  # no event has shown it yet
        one.place(wanted)
        one.settle()
        assert not broken(one), seed
    assert asked


def test_pods_that_are_not_equal_are_asked_with_departures() -> None:
    one = life()
    run(one, 3)
    one.place(pod(2))
    seen = one.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    assert seen.offer.in_flight is not None
    for spec, equal in ((pod(2), True), (pod(1), False), (pod(2, gpus=1), False)):
        assert seen.offer.in_flight.all_equal(parse_pod(one.pod("question", spec)).request) == equal


@pytest.mark.parametrize("seed", [53, 57, 61])
def test_where_amounts_tell_the_whole_procedure_says_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In busy lives amounts are compared after one dry run, and all that would have been asked is asked all the same."""
    told = 0

    def checked(request: PodRequest, one: Hypothesis) -> bool:
        nonlocal told
        if not has_room_in_all_ways(request, one):
            return False
        told += 1
        for laid in device_layouts(one, request):
            state = replace(laid.state, requested={})  # node-wide amounts are compared elsewhere
            for order in (CpuReuse.LEAST, CpuReuse.MOST):
                assert isinstance(dry_run(state, request, one.trust, order), DryRunAdmitted)
        return True

    monkeypatch.setattr(prediction, "FEW", 1)
    monkeypatch.setattr(prediction, "has_room_in_all_ways", checked)
    assert not broken(life_of(Random(seed)))
    assert told
