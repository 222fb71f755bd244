"""NUMA nodes that come into no group: a pod that they promise memory is admitted wherever those before it are, with others gone."""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from random import Random
from typing import Final

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.departures.anywhere import has_room_anywhere
from koord_numa.core.kubelet.departures.kept_alone import STAYING, has_room_kept_alone
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.departures.test_anywhere import best_effort_node, groups, has_lived
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.core.kubelet.test_enough_room import admits

MOMENTS: Final = 25
"""In so many ways pods leave before others come."""


def _some_pod(dice: Random, wide: float) -> PodRequest:
    """Mostly small; so often with devices, CPUs or memory of several NUMA nodes."""
    parts = []
    for place in range(dice.choice([0, 0, 0, 1, 2])):
        kind, cpus = dice.choice((init, init, sidecar, app)), dice.choice([0.5, 1, 1, 2])
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2]) * GI))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": dice.choice((2, 3, 4))} if dice.random() < wide else {"gpu": 1} if dice.random() < 0.1 else {}
    memory = dice.randint(6, 20) if dice.random() < wide / 3 else dice.choice([1, 1, 1, 2])
    cpus = dice.choice([3, 4, 5]) if dice.random() < wide / 3 else dice.choice([0.5, 0.5, 1, 1, 2])
    return pod(*parts, app(cpus, "last", memory=memory * GI, **gpu))


def _came(
    dice: Random, state: KubeletState, coming: list[PodRequest], ends: Mapping[str, int], *, some: float
) -> KubeletState:
    """After these came, others gone before the one of the index that ``ends`` has, and now and then one that was refused."""
    for number in range(len(coming) + 1):
        for uid in (uid for uid, end in ends.items() if end == number):
            state = state.without(uid)
        if number < len(coming):
            state = admit(state, f"coming {number}", coming[number]).state
            if dice.random() < some:
                state = state.without(f"coming {dice.randint(0, number)}")
            refused = admit(state, "refused", _some_pod(dice, 0.8))
            state = state if isinstance(refused, Admitted) else refused.state
    return state


def _moments(dice: Random, uids: list[str], left: set[str], last: int) -> Iterator[Mapping[str, int]]:
    """When pods leave: all of ``left``, and as many more as a yes has to hold without."""
    for _ in range(MOMENTS):
        chosen = dice.sample(uids, min(len(uids), STAYING - 1))
        # Often before the first one comes, when a group may come to be.
        yield {uid: dice.choice((0, dice.randint(0, last))) for uid in (*chosen, *left)}


@pytest.mark.parametrize("seed", range(24))
def test_a_pod_with_memory_that_is_kept_alone_is_admitted_beside_any_groups(seed: int) -> None:
    dice = Random(seed)
    for _ in range(30):
        shape = dice.choice(["3x1x4x1", "4x1x4x1", "5x1x2x1", "4x1x2x1", "6x1x2x1"])
        memory = [dice.randint(5, 12) for _ in range(int(shape[0]))]
        here = best_effort_node(shape, *memory, each=dice.choice((1, 1, 2)), closest=dice.random() < 0.2)
        state = has_lived(here, *(_some_pod(dice, 0.25) for _ in range(dice.randint(3, 12))))
        uids = list(state.pods)
        left = {uid for uid in uids if dice.random() < dice.choice((0.0, 0.2))}
        for _ in range(3):
            asked, coming = _some_pod(dice, 0.1), [_some_pod(dice, 0.5) for _ in range(dice.randint(0, 4))]
            if not has_room_kept_alone(asked, Hypothesis(state), coming, left):
                continue
            stay = [uid for uid in uids if uid not in left]
            for ends in _moments(dice, stay, left, len(coming)):
                after = _came(dice, state, coming, ends, some=dice.choice((0.0, 0.0, 0.3)))
                assert admits(after, asked), asked


def _strict_pod(dice: Random, size: int) -> PodRequest:
    """Without regular init containers mostly, and often as large as a NUMA node."""
    parts = [
        dice.choice((app, app, sidecar, init))(dice.choice((0.5, 1, 1, 2)), f"c{place}")
        for place in range(dice.choice((0, 0, 0, 1)))
    ]
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": 1} if dice.random() < 0.2 else {}
    return pod(
        *parts, app(dice.choice((0.5, 1, size // 2, size - 1, size)), "last", memory=dice.randint(1, 8) * GI, **gpu)
    )


@pytest.mark.parametrize("policy", STRICT)
@pytest.mark.parametrize("scope", KubeletScope)
@pytest.mark.parametrize("seed", range(6))
def test_strict_policies_leave_a_place_where_there_are_more_than_containers_come(
    seed: int, scope: KubeletScope, policy: KubeletPolicy
) -> None:
    dice, told = Random(seed), 0
    for _ in range(60):
        shape, size = dice.choice((("3x1x4x1", 4), ("5x1x4x1", 4), ("2x2x3x1", 3), ("6x1x2x1", 2)))
        numas = [number for number in range(8) if number < (4 if shape[2] == "2" else int(shape[0]))]
        memory = {numa: {"memory": 8 * GI} for numa in numas}
        devices = {"vendor.com/gpu": gpus(*(1 << numa for numa in numas))}
        here = node(shape, policy, scope, memory=memory, devices=devices)
        state = KubeletState.empty(replace(here, ids_are_real=False))
        for number in range(dice.randint(0, 6)):
            state = admit(state, str(number), _strict_pod(dice, size)).state
        asked = _strict_pod(dice, size)
        coming = [_strict_pod(dice, size) for _ in range(dice.randint(0, 3))]
        if not has_room_kept_alone(asked, Hypothesis(state), coming, ()):
            continue
        told += bool(coming)
        uids = list(state.pods)
        for _ in range(8):
            ends = {uid: dice.randint(0, len(coming)) for uid in dice.sample(uids, dice.randint(0, len(uids)))}
            after = _came(dice, state, coming, ends, some=0.0)
            assert admits(after, asked), asked
    assert told


def test_pods_that_may_take_several_numa_nodes_leave_no_place_for_sure() -> None:
    memory = {numa: {"memory": 8 * GI} for numa in range(3)}
    here = replace(node("3x1x4x1", KubeletPolicy.RESTRICTED, memory=memory), ids_are_real=False)
    whole, one = pod(app(1, memory=8 * GI)), Hypothesis(KubeletState.empty(here))
    assert has_room_kept_alone(whole, one, [pod(app(1)), pod(app(1))], ())
    assert not has_room_kept_alone(whole, one, [pod(app(1)), pod(app(1)), pod(app(1))], ())
    assert not has_room_kept_alone(whole, one, [pod(app(5))], ())
    assert not has_room_kept_alone(pod(init(1), app(1, memory=8 * GI)), one, [], ())


WIDE = pod(app(1, memory=GI, gpu=3))
"""Three GPUs are on three NUMA nodes, and so is the memory."""

SHARED = pod(app(0.5, memory=GI))
"""Memory, and no CPUs of its own."""


def test_no_two_departures_let_a_group_of_all_numa_nodes_come_to_be() -> None:
    """Three pods have memory of NUMA node 0: of two of them any may leave, whenever. With all gone the wide pod binds it to others."""
    here = best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1)
    state = has_lived(here, *[SHARED] * 3)
    asked, coming = pod(app(1, memory=GI)), [WIDE, SHARED, pod(app(2, memory=GI))]
    one = Hypothesis(state)
    assert has_room_kept_alone(asked, one, coming, ())
    assert not has_room_anywhere(asked, one, coming)
    for two in combinations(state.pods, 2):
        for ends in product(range(len(coming) + 1), repeat=2):
            after = _came(Random(1), state, coming, dict(zip(two, ends, strict=True)), some=0.0)
            assert groups(after)[0] == 1
            assert admits(after, asked)
    gone = _came(Random(1), state, coming[:1], dict.fromkeys(state.pods, 0), some=0.0)
    assert groups(gone)[0] == 7
    # Of one that is known to be gone nothing tells that it was still there.
    assert not has_room_kept_alone(asked, one, coming, {"0"})


def test_memory_that_others_may_take_is_not_kept() -> None:
    """Five GiB are free on NUMA node 0: four for the pods that come, and one."""
    state = has_lived(best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1), *[SHARED] * 3)
    asked = pod(app(1, memory=GI))
    assert has_room_kept_alone(asked, Hypothesis(state), [WIDE, *[SHARED] * 3], ())
    assert not has_room_kept_alone(asked, Hypothesis(state), [WIDE, *[SHARED] * 4], ())


def test_cpus_of_a_pod_that_has_left_are_free_when_the_next_one_is_decided_on() -> None:
    """All CPUs are in use. One of the pods has left by now, perhaps after the one on its way was refused for want of CPUs."""
    here = best_effort_node("3x1x2x1", 8, 8, 8)
    state = has_lived(here, *[SHARED] * 3, *[pod(app(2, memory=GI))] * 3)
    asked, coming = pod(app(1, memory=GI)), [pod(app(1, memory=GI))]
    assert not admits(state, asked)
    assert not has_room_kept_alone(asked, Hypothesis(state), coming, ())
    assert has_room_kept_alone(asked, Hypothesis(state), coming, {"4"})
    for end in (0, 1):
        assert admits(_came(Random(1), state, coming, {"4": end}, some=0.0), asked)


def test_a_pod_whose_cpus_may_be_on_several_numa_nodes_may_cut_through_a_group() -> None:
    state = has_lived(best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1), *[SHARED] * 3, WIDE)
    single, double = pod(app(1, memory=GI)), pod(app(2, memory=GI))
    assert has_room_kept_alone(double, Hypothesis(state), (), ())
    assert not has_room_kept_alone(double, Hypothesis(state), [single] * 3, ())
    assert has_room_kept_alone(single, Hypothesis(state), [single] * 3, ())


def test_pods_whose_place_is_not_known_tell_nothing() -> None:
    state = has_lived(best_effort_node("4x1x2x1", 8, 8, 8, 8, each=1), *[SHARED] * 3)
    one = Hypothesis(state)
    assert has_room_kept_alone(SHARED, one, (), ())
    assert not has_room_kept_alone(SHARED, replace(one, unplaced=frozenset({"0"})), (), ())
    assert not has_room_kept_alone(SHARED, replace(one, leaving=frozenset({"0"})), (), ())
