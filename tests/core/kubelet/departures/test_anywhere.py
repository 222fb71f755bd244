"""Memory groups of best-effort nodes: a pod that amounts promise a place is admitted wherever others are, and whichever have left."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.departures.anywhere import has_room_anywhere
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.options import CLOSEST_NUMA
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.core.kubelet.test_enough_room import admits


def best_effort_node(shape: str, *memory: int, each: int = 0, closest: bool = False) -> KubeletNode:
    """So many GiB on every NUMA node, and ``each`` GPUs near it."""
    near = [1 << numa for numa in range(len(memory)) for _ in range(each)]
    here = node(
        shape,
        KubeletPolicy.BEST_EFFORT,
        memory={numa: {"memory": amount * GI} for numa, amount in enumerate(memory)},
        devices={"vendor.com/gpu": gpus(*near)} if near else {},
        topology_options={CLOSEST_NUMA: closest},
    )
    return replace(here, ids_are_real=False)


def has_lived(here: KubeletNode, *requests: PodRequest) -> KubeletState:
    """The node after these came, named by their numbers."""
    state = KubeletState.empty(here)
    for number, request in enumerate(requests):
        state = admit(state, str(number), request).state
    return state


def _some_pod(dice: Random, large: float) -> PodRequest:
    """Now and then with devices of several NUMA nodes, or, so often, with more memory than one has."""
    parts = []
    for place in range(dice.choice([0, 0, 0, 1, 2])):
        gpu = {"gpu": dice.choice((1, 1, 2, 3))} if dice.random() < 0.3 else {}
        kind, cpus = dice.choice((init, init, sidecar, app)), dice.choice([0.5, 0.5, 1, 1, 2, 3])
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2, 3]) * GI, **gpu))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": dice.choice((1, 2, 3, 4))} if dice.random() < 0.3 else {}
    memory = dice.randint(5, 24) if dice.random() < large else dice.choice([1, 1, 2, 4])
    return pod(*parts, app(dice.choice([0.5, 0.5, 1, 1, 2, 3, 4]), "last", memory=memory * GI, **gpu))


def _without_some(dice: Random, state: KubeletState, share: float) -> KubeletState:
    for uid in list(state.pods):
        state = state.without(uid) if dice.random() < share else state
    return state


def _after_some(dice: Random, state: KubeletState, coming: list[PodRequest], share: float) -> KubeletState:
    """With these on the node, pods gone in between, and others refused."""
    state = _without_some(dice, state, share)
    for number, each in enumerate(coming):
        state = admit(state, f"coming {number}", each).state
        refused = admit(state, "refused", _some_pod(dice, 0.6))
        state = state if isinstance(refused, Admitted) else refused.state
        state = _without_some(dice, state, dice.choice((0.0, share, 0.3)))
    return state


@pytest.mark.parametrize("seed", [*range(20), 25, 30, 33])
def test_a_pod_with_room_anywhere_is_admitted_beside_any_groups(seed: int) -> None:
    dice = Random(seed)
    for _ in range(12):
        shape = dice.choice(["3x1x4x1", "4x1x4x1", "5x1x2x1", "4x1x2x1", "6x1x2x1", "2x1x4x1"])
        most = dice.randint(6, 16)
        memory = [most + dice.choice((0, 0, 0, 1, -2)) for _ in range(int(shape[0]))]
        here = best_effort_node(shape, *memory, each=dice.choice((1, 1, 2)), closest=dice.random() < 0.2)
        state = KubeletState.empty(here)
        for number in range(dice.randint(0, 9)):
            state = admit(state, str(number), _some_pod(dice, 0.3)).state
            state = _without_some(dice, state, dice.choice((0.0, 0.0, 0.3)))
        for _ in range(3):
            asked, coming = _some_pod(dice, 0.05), [_some_pod(dice, 0.03) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
            if has_room_anywhere(asked, Hypothesis(state), coming):
                for share in (0.0, 0.0, 0.3, 0.5, 0.8):
                    assert admits(_after_some(dice, state, coming, share), asked), asked


WIDE = pod(app(1, memory=GI, gpu=3))
"""Three GPUs are on three NUMA nodes, and so is the memory."""


def groups(state: KubeletState) -> list[int]:
    """The masks of the groups that its NUMA nodes are in."""
    assert state.managers.memory is not None
    return [*state.managers.memory.groups.values()]


def test_a_pod_of_one_cpu_cuts_through_no_group() -> None:
    state = has_lived(best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1), WIDE, pod(app(1)))
    assert groups(state) == [7, 7, 7, 8]
    single = pod(app(1, memory=GI))
    assert has_room_anywhere(single, Hypothesis(state), [single, single])
    # Beside those, two CPUs may be on two NUMA nodes that are a part of the group; six, of which two are on one for certain.
    assert has_room_anywhere(pod(app(2, memory=GI)), Hypothesis(state))
    assert not has_room_anywhere(pod(app(2, memory=GI)), Hypothesis(state), [single, single])
    # One on its way that may bind several NUMA nodes.
    assert not has_room_anywhere(single, Hypothesis(state), [pod(app(3, memory=GI))])


def test_a_group_that_was_broken_is_not_cut_through() -> None:
    """Another pod has forced its memory onto NUMA node 0 alone, where the CPUs were: nothing is bound to the group any more."""
    state = has_lived(best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1), WIDE, pod(app(1)), pod(app(2)))
    assert groups(state) == [1, 7, 7, 8]
    asked = pod(app(2, memory=GI))
    assert has_room_anywhere(asked, Hypothesis(state))
    assert all(admits(each, asked) for each in (state, *map(state.without, state.pods)))


def test_so_many_free_cpus_are_on_few_numa_nodes_however_they_lie() -> None:
    """Of 24 CPUs on four NUMA nodes six are on one of them; of 20 perhaps only five."""
    here = best_effort_node("4x1x8x1", 16, 16, 16, 16)
    asked, small = pod(app(6, memory=GI)), pod(app(1, memory=GI))
    assert has_room_anywhere(asked, Hypothesis(has_lived(here, *[small] * 7)), [small])
    tight = has_lived(here, *[small] * 15)
    assert has_room_anywhere(asked, Hypothesis(tight))  # on two of them
    assert not has_room_anywhere(pod(app(12, "wide", memory=GI), app(1, memory=GI)), Hypothesis(tight), [small])
    assert not has_room_anywhere(asked, Hypothesis(tight), [pod(app(8, memory=GI))])


def test_the_last_container_may_be_on_any_number_of_numa_nodes() -> None:
    state = has_lived(best_effort_node("4x1x4x1", 8, 8, 8, 8), *[pod(app(1, memory=GI))] * 2)
    asked = pod(init(1, "first", memory=GI), app(12, memory=GI))
    assert has_room_anywhere(asked, Hypothesis(state))
    answer = admit(state, "asked", asked)
    assert isinstance(answer, Admitted)
    assert groups(answer.state) == [1, 14, 14, 14]
    assert not has_room_anywhere(pod(app(12, "wide", memory=GI), app(0.5, memory=GI)), Hypothesis(state))


def test_the_last_container_of_a_pod_on_its_way_comes_before_others() -> None:
    """It binds three NUMA nodes together; the next pod's CPUs are on two of them."""
    state = KubeletState.empty(best_effort_node("4x1x4x1", 8, 8, 8, 8))
    coming, asked = pod(app(9, memory=GI)), pod(app(6, memory=GI))
    assert has_room_anywhere(asked, Hypothesis(state))
    assert not has_room_anywhere(asked, Hypothesis(state), [coming])
    assert not admits(admit(state, "coming", coming).state, asked)


def _one_of_many(dice: Random, numas: int) -> PodRequest:
    """Small containers, and now and then a last one with CPUs or devices of several NUMA nodes."""
    first = [
        dice.choice((init, app))(dice.choice([0.5, 1]), f"c{place}", memory=GI) for place in range(dice.randint(0, 2))
    ]
    first.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": dice.randint(1, numas)} if dice.random() < 0.5 else {}
    return pod(*first, app(dice.choice([0.5, 1, 4, 6, 9, 12]), "last", memory=dice.choice([1, 2, 4]) * GI, **gpu))


@pytest.mark.parametrize("seed", range(8))
def test_a_wide_last_container_is_admitted_beside_any_groups(seed: int) -> None:
    dice = Random(seed)
    for _ in range(12):
        numas = dice.choice((3, 4, 5))
        here = best_effort_node(
            f"{numas}x1x4x1", *[dice.randint(6, 12) for _ in range(numas)], each=dice.choice((1, 2))
        )
        state = KubeletState.empty(here)
        for number in range(dice.randint(0, 6)):
            state = admit(state, str(number), _some_pod(dice, 0.2)).state
            state = _without_some(dice, state, dice.choice((0.0, 0.0, 0.3)))
        for _ in range(3):
            asked, coming = (
                _one_of_many(dice, numas),
                [_one_of_many(dice, numas) for _ in range(dice.choice([0, 1, 2]))],
            )
            if has_room_anywhere(asked, Hypothesis(state), coming):
                for share in (0.0, 0.0, 0.3, 0.5, 0.8):
                    assert admits(_after_some(dice, state, coming, share), asked), asked


def test_a_numa_node_of_memory_only_shares_no_hint_with_cpus() -> None:
    """NUMA node 2 alone has the memory, and no CPUs: the hint stands for all NUMA nodes, of which two are in use alone."""
    here = best_effort_node("2x1x2x1", 8, 8, 16)
    here = replace(here, machine=CpuTopology(here.machine.cpus, numa_ids=(0, 1, 2)))
    state = has_lived(here, pod(app(1, memory=6 * GI)), pod(app(1, memory=6 * GI)))
    asked = pod(app(1, memory=4 * GI))
    assert not admits(state, asked)
    assert not has_room_anywhere(asked, Hypothesis(state))
    # A pod without CPUs of its own goes there.
    shared = pod(app(0.5, memory=4 * GI))
    assert admits(state, shared)
    assert has_room_anywhere(shared, Hypothesis(state))


def test_a_group_of_two_that_is_broken_again_has_no_room() -> None:
    """
    A pod of two CPUs binds NUMA nodes 0 and 1 together; the next one forces its memory onto NUMA node 1, where the GPU is. NUMA node 0 has
    the memory that is asked for, and nothing can be bound there any more.
    """
    here = best_effort_node("3x1x1x1", 9, 6, 6, each=1)
    full = (pod(app(0.5, memory=9 * GI)), pod(app(0.5, memory=6 * GI)))
    state = has_lived(here, *full, pod(app(1, memory=GI)), *[pod(app(0.5, memory=GI, gpu=1))] * 2)
    state = state.without("0").without("1")
    asked = pod(app(0.5, memory=6 * GI))
    coming = [pod(app(2, memory=GI)), pod(app(0.5, memory=GI, gpu=1))]
    assert has_room_anywhere(asked, Hypothesis(state))
    assert not has_room_anywhere(asked, Hypothesis(state), coming)
    for number, each in enumerate(coming):
        state = admit(state, f"coming {number}", each).state
    assert state.managers.memory is not None
    assert [*state.managers.memory.groups.values()] == [3, 2, 4]
    assert not admits(state, asked)
