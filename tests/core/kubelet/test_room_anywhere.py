"""Best-effort nodes that bind memory: amounts that tell of a pod wherever others are, against the kubelet's whole procedure."""

from random import Random

import pytest

from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.departures.anywhere import has_room_anywhere
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.sharing.choices import unclear
from koord_numa.core.kubelet.sharing.reach import SharedPool
from koord_numa.core.kubelet.state import Charge, DevicePool, KubeletAdmission, KubeletNode, KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod
from tests.core.kubelet.test_enough_room import admits


def _node(
    shape: str = "4x1x4x1",
    gpu: DevicePool | None = None,
    *,
    memory: int = 8,
    scope: KubeletScope = KubeletScope.CONTAINER,
) -> KubeletNode:
    sockets, per_socket, *_ = map(int, shape.split("x"))
    supply = {numa: {"memory": memory * GI} for numa in range(sockets * per_socket)}
    devices = {} if gpu is None else {"vendor.com/gpu": gpu}
    here = node(shape, KubeletPolicy.BEST_EFFORT, scope, supply, devices=devices)
    return replace(here, ids_are_real=False)


def _some_pod(dice: Random) -> PodRequest:
    parts = []
    for place in range(dice.choice([1, 1, 2, 3])):
        gpu = {"gpu": dice.choice((1, 2))} if dice.random() < 0.3 else {}
        kind, memory = dice.choice((init, app, app)), dice.choice([1, 2, 3, 6]) * GI
        parts.append(kind(dice.choice([0.5, 1, 2]), f"c{place}", memory=memory, **gpu))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts, app(dice.choice([0.5, 1, 2]), "last", memory=dice.choice([1, 4]) * GI))


def _without_some(dice: Random, state: KubeletState, share: float) -> KubeletState:
    for uid in list(state.pods):
        state = state.without(uid) if dice.random() < share else state
    return state


@pytest.mark.parametrize("scope", list(KubeletScope))
@pytest.mark.parametrize("seed", range(30))
def test_a_pod_with_room_anywhere_is_admitted_wherever_others_are(seed: int, scope: KubeletScope) -> None:
    dice = Random(seed)
    for _ in range(20):
        shape = dice.choice(["2x1x4x1", "4x1x4x1", "3x1x4x1"])
        numas = int(shape[0])
        pool = gpus(*(1 << numa % numas for numa in range(numas * 2)))
        here = _node(shape, pool, memory=dice.randint(4, 10), scope=scope)
        state = KubeletState.empty(here)
        for number in range(dice.randint(0, 7)):
            state = admit(state, str(number), _some_pod(dice)).state
        asked, coming = _some_pod(dice), [_some_pod(dice) for _ in range(dice.choice([0, 1, 2]))]
        if not has_room_anywhere(asked, Hypothesis(state), coming):
            continue
        for share in (0.0, 0.3, 0.8):
            after = _without_some(dice, state, share)
            for number, each in enumerate(coming):
                after = _without_some(dice, admit(after, f"coming {number}", each).state, share)
            assert admits(after, asked)


def _filling(dice: Random) -> PodRequest:
    """CPUs, often of several NUMA nodes, with little memory."""
    return pod(app(dice.choice([1, 1, 2, 3, 4]), memory=dice.choice([1, 1, 2, 3]) * GI))


def _some_together(dice: Random) -> PodRequest:
    """Few CPUs, and much memory in several containers."""
    kinds = [dice.choice((init, app)) for _ in range(dice.choice([0, 1, 1, 2]))]
    parts = [
        kind(0.5, f"c{place}", memory=dice.choice([1, 2, 3]) * GI)
        for place, kind in enumerate(sorted(kinds, key=lambda kind: kind is app))
    ]
    return pod(*parts, app(dice.choice([0.5, 1, 1, 2]), "last", memory=dice.choice([1, 2, 3]) * GI))


@pytest.mark.parametrize("seed", range(60))
def test_a_pod_that_is_aligned_as_one_is_admitted_wherever_others_are(seed: int) -> None:
    dice = Random(seed)
    for _ in range(15):
        shape = dice.choice(["2x1x3x1", "4x1x2x1", "3x1x3x1"])
        here = _node(shape, scope=KubeletScope.POD)
        here = replace(here, memory={numa: {"memory": dice.choice([2, 3, 4, 7, 8]) * GI} for numa in here.memory})
        state = KubeletState.empty(here)
        for number in range(dice.randint(2, 8)):
            state = admit(state, str(number), _filling(dice)).state
        for _ in range(12):
            coming = [_filling(dice) for _ in range(dice.choice([0, 0, 1, 2]))]
            if not has_room_anywhere(asked := _some_together(dice), Hypothesis(state), coming):
                continue
            for share in (0.0, 0.2, 0.3, 0.6):
                after = _without_some(dice, state, share)
                for number, each in enumerate(coming):
                    after = _without_some(dice, admit(after, f"coming {number}", each).state, share)
                assert admits(after, asked), (asked, coming)


def test_cpus_may_be_elsewhere_than_memory() -> None:
    """NUMA node 0 has no CPU left, and the others not two; one alone has the memory."""
    state = KubeletState.empty(_node("3x1x2x1"))
    for number, (cpus, memory) in enumerate([(2, 1), (1, 6), (1, 6)]):
        state = admit(state, str(number), pod(app(cpus, memory=memory * GI))).state
    asked = pod(app(2, memory=6 * GI))
    assert has_room_anywhere(asked, Hypothesis(state))
    assert admits(state, asked)
    # Were this one of 2 GiB to come to NUMA node 0, no NUMA node would have the memory.
    assert not has_room_anywhere(asked, Hypothesis(state), [pod(app(0.5, memory=2 * GI))])


def test_a_device_that_is_near_one_numa_node_has_no_room_anywhere() -> None:
    """Its hint has no NUMA node in common with that of memory, and stands for all of them, of which some are in use alone."""
    state = KubeletState.empty(_node("4x1x2x1", gpus(1)))
    state = admit(state, "old", pod(app(1, memory=6 * GI))).state
    asked = pod(app(1, memory=4 * GI, gpu=1))
    assert not admits(state, asked)
    assert not has_room_anywhere(asked, Hypothesis(state))


def test_a_group_of_three_numa_nodes_may_be_cut_through() -> None:
    state = admit(KubeletState.empty(_node()), "wide", pod(app(1, memory=20 * GI))).state
    asked = pod(app(1, memory=GI))
    assert not has_room_anywhere(asked, Hypothesis(state))
    assert has_room_anywhere(asked, Hypothesis(state.without("wide")))
    assert not has_room_anywhere(asked, Hypothesis(state.without("wide")), [pod(app(1, memory=20 * GI))])


def _on_shared_gpus(free: int) -> Hypothesis:
    """Eight NUMA nodes with eight GPUs near two of them each, of which no exporter says which ones; so many are free."""
    masks = [1 << numa | 1 << (numa + 1) % 8 for numa in range(8)]
    here = _node("8x1x4x1", gpus(*masks))
    state = KubeletState.empty(here)
    for number in range(8 - free):
        state = admit(state, str(number), pod(app(0.5, memory=GI, gpu=1))).state
    return Hypothesis(state, sharing={"vendor.com/gpu": SharedPool(dict.fromkeys(range(8), 2), 8)})


def test_devices_of_an_init_container_are_taken_over_in_any_way() -> None:
    asked = pod(init(0.5, "i", memory=GI, gpu=1), app(1, "a", memory=GI, gpu=1))
    one = _on_shared_gpus(free=1)
    assert admits(one.state, asked)
    assert has_room_anywhere(asked, one)
    assert not has_room_anywhere(pod(app(1, "a", memory=GI, gpu=1), app(1, "b", memory=GI, gpu=1)), one)


def test_more_ways_than_can_be_asked_refuse_no_pod_that_has_room_anywhere() -> None:
    asked = pod(init(0.5, "i", memory=GI, gpu=2), app(1, "a", memory=GI, gpu=2))
    one = _on_shared_gpus(free=6)
    view = KubeletView("n", (one,), rooms=(one,), followed=True)
    assert unclear(one, pod_demand(asked))
    answer = would_admit(asked, view)
    assert isinstance(answer, KubeletAdmission)
    assert answer.charge is Charge.EVERYWHERE
    # With three devices its containers may need three NUMA nodes, and group their memory.
    wide = pod(init(0.5, "i", memory=GI, gpu=3), app(1, "a", memory=GI, gpu=3))
    assert isinstance(would_admit(wide, view), Rejection)
