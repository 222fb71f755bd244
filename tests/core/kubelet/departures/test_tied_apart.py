"""Pods in parts that share nothing but memory, against the kubelet's whole procedure with any pods gone."""

from random import Random

import pytest

from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.departures.tied_apart import has_room_apart
from koord_numa.core.kubelet.room import NOTHING, Bound, everything, has_room, has_room_between, together
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.core.kubelet.test_enough_room import admits

POLICIES = (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)


def _node(dice: Random) -> KubeletNode:
    shape = dice.choice(["3x1x4x1", "4x1x3x1", "2x2x4x1"])
    sockets, per_socket, *_ = map(int, shape.split("x"))
    numas = sockets * per_socket
    pools = {
        f"vendor.com/{name}": gpus(*(1 << dice.randrange(numas) for _ in range(dice.randint(2, 6))))
        for name in ("gpu", "nic")
    }
    memory = {numa: {"memory": dice.randint(4, 12) * GI} for numa in range(numas)}
    here = node(shape, dice.choice(POLICIES), memory=dice.choice([None, memory, memory]), devices=pools)
    return replace(here, ids_are_real=False)


def _some_pod(dice: Random) -> PodRequest:
    """Containers with CPUs or a device, seldom both."""
    parts = []
    kinds = [dice.choice((init, init, sidecar, app)) for _ in range(dice.randint(1, 3))]
    for place, kind in enumerate([*sorted(kinds, key=lambda kind: kind is app), app]):
        chosen = dice.choice([{}, {}, {"gpu": dice.choice((1, 1, 2))}, {"nic": 1}])
        cpus = dice.choice([1, 1, 2, 3]) if not chosen or dice.random() < 0.1 else 0.5
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2, 4]) * GI, **chosen))
    return pod(*parts)


@pytest.mark.parametrize("seed", range(80))
def test_a_pod_that_has_room_in_parts_keeps_it_whoever_leaves_and_comes(seed: int) -> None:
    dice = Random(seed)
    here = _node(dice)
    state = KubeletState.empty(here)
    for number in range(dice.randint(0, 6)):
        state = admit(state, str(number), _some_pod(dice)).state
    least, most = Bound(state.managers), Bound(KubeletState.empty(here).managers)
    for asked in [_some_pod(dice) for _ in range(60)]:
        coming = [
            one
            for one in [_some_pod(dice) for _ in range(dice.choice([0, 0, 1]))]
            if has_room(one, here, most.managers)
        ]
        kept = together(map(everything, coming)) if coming else NOTHING
        if has_room_between(asked, here, least, most, kept) or not has_room_apart(asked, here, least, most, kept):
            continue
        for _ in range(12):
            left = state
            for uid in dice.sample(sorted(state.pods), dice.randint(0, len(state.pods))):
                left = left.without(uid)
            for number, one in enumerate(coming):
                left = admit(left, f"coming-{number}", one).state
            assert admits(left, asked), asked


def test_an_init_container_needs_no_device_of_another_container() -> None:
    """Only NUMA node 1 has a GPU; the init containers go to NUMA node 0 if a pod has left there."""
    here = replace(node("2x1x4x1", devices={"vendor.com/gpu": gpus(2, 2)}), ids_are_real=False)
    state = admit(KubeletState.empty(here), "full", pod(app(3))).state
    least, most = Bound(state.managers), Bound(KubeletState.empty(here).managers)
    asked = pod(init(1, "a"), init(1, "b"), app(0.5, gpu=1))
    assert not has_room_between(asked, here, least, most)
    assert has_room_apart(asked, here, least, most, NOTHING)
    # An app that keeps two CPUs beside the init container's NUMA node may find none there.
    assert not has_room_apart(pod(init(1, "a"), app(2, "b"), app(0.5, gpu=1)), here, least, most, NOTHING)
    # One container asks for both: there is one part.
    assert not has_room_apart(pod(init(1, "a"), app(1, gpu=1)), here, least, most, NOTHING)


def test_memory_that_another_part_takes_between_is_not_overlooked() -> None:
    memory = {numa: {"memory": 8 * GI} for numa in range(2)}
    here = replace(node("2x1x4x1", memory=memory, devices={"vendor.com/gpu": gpus(1, 2)}), ids_are_real=False)
    empty = Bound(KubeletState.empty(here).managers)
    between = pod(init(1, "a"), sidecar(0.5, gpu=1), app(1))
    assert not has_room_apart(between, here, empty, empty, NOTHING)
    after = pod(init(1, "a"), init(1, "b"), app(0.5, gpu=1))
    assert has_room_apart(after, here, empty, empty, NOTHING)
