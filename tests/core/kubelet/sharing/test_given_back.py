"""What is known of devices that pods have given back, against which devices are free in truth and what they are near."""

from random import Random

import pytest

from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.sharing.bounds import Bounds
from koord_numa.core.kubelet.sharing.given_back import may_be_one, surely_free
from koord_numa.core.kubelet.sharing.reach import Place, Reach, SharedPool
from koord_numa.core.kubelet.state import Grant, KubeletState
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, gpus, node, pod

GPU = "vendor.com/gpu"


def _partly_known(mask: int, numas: int, dice: Random) -> Reach:
    """Something true of a device near these NUMA nodes."""
    every = (1 << numas) - 1
    must = mask & dice.choice((dice.randint(0, every), mask, mask & -mask))
    may = (mask | dice.choice((dice.randint(0, every), every, mask))) & ~must
    return Reach(must, may, mask.bit_count() if dice.random() < 0.4 else 0)


def _life(dice: Random) -> tuple[Hypothesis, dict[str, dict[Place, int]]]:
    """A node with pods that came and left, of whose devices something is known, and by pod which devices these were."""
    numas = dice.choice((2, 3, 4))
    masks = [dice.randint(1, (1 << numas) - 1) for _ in range(dice.randint(3, 7))]
    here = node(f"{numas}x1x4x1", KubeletPolicy.NONE, devices={GPU: gpus(*masks)})
    state, gone, reach = KubeletState.empty(here), dict[str, Grant | None](), dict[str, dict[Place, Reach]]()
    held: dict[str, dict[Place, int]] = {}
    for number in range(dice.randint(3, 10)):
        uid, asked = str(number), pod(app(0.5, gpu=dice.choice((1, 1, 2, 3))))
        state = admit(state, uid, asked).state
        if uid in state.pods:
            ids = [int(each[3:]) for one in state.pods[uid].grant.containers for each in one.devices[GPU]]
            # Places are made up by a hypothesis: which device is which nothing tells.
            held[uid] = {(GPU, place): device for place, device in enumerate(dice.sample(ids, len(ids)))}
            reach[uid] = {place: _partly_known(masks[device], numas, dice) for place, device in held[uid].items()}
        if state.pods and dice.random() < 0.6:
            left = dice.choice(sorted(state.pods))
            gone[left] = state.pods[left].grant
            state = state.without(left)
    counts = {numa: sum(mask >> numa & 1 for mask in masks) for numa in range(numas)}
    return Hypothesis(state, gone=gone, reach=reach, sharing={GPU: SharedPool(counts, len(masks))}), held


@pytest.mark.parametrize("seed", range(20))
def test_devices_that_are_surely_free_are_free_and_no_two_are_one(seed: int) -> None:
    dice, found = Random(seed), 0
    for _ in range(60):
        one, held = _life(dice)
        in_use = {device for uid in one.state.pods for device in held[uid].values()}
        free = [held[uid][place] for uid, place in one.surely_free]
        assert len(free) == len(set(free))
        assert in_use.isdisjoint(free)
        found += len(free)
    assert found


@pytest.mark.parametrize("seed", range(20))
def test_of_devices_in_use_as_many_are_near_each_numa_node_as_the_bounds_allow(seed: int) -> None:
    dice = Random(seed)
    for _ in range(60):
        one, held = _life(dice)
        devices, bounds = one.state.node.devices[GPU].devices, Bounds.of(one, GPU)
        total = 0
        for numa in one.sharing[GPU].counts:
            beside = sum(
                devices[device].near >> numa & 1 and not one.reach[uid][place].must >> numa & 1
                for uid in one.state.pods
                for place, device in held[uid].items()
            )
            assert bounds.low[numa] <= beside <= bounds.high[numa]
            total += beside
        assert bounds.fewest <= total <= bounds.most


def test_a_free_device_that_is_near_others_bounds_how_many_are_near_a_numa_node() -> None:
    """Eight devices in a ring, near two NUMA nodes each. Two each near 2, 4 and 6 are in use; one of the others is near 0 and 1."""
    ring = [1 << numa | 1 << (numa + 1) % 8 for numa in range(8)]
    state = KubeletState.empty(node("8x1x4x1", KubeletPolicy.NONE, devices={GPU: gpus(*ring)}))
    for uid, count in (("first", 1), ("others", 6)):
        state = admit(state, uid, pod(app(0.5, gpu=count))).state
    others = {(GPU, place): Reach(1 << (2, 2, 4, 4, 6, 6)[place], 0b10101011) for place in range(6)}
    one = Hypothesis(
        state.without("first"),
        gone={"first": state.pods["first"].grant},
        reach={"first": {(GPU, 6): Reach(0b11, 0, 2)}, "others": others},
        sharing={GPU: SharedPool(dict.fromkeys(range(8), 2), 8)},
    )
    assert [*one.surely_free] == [("first", (GPU, 6))]
    # Of two free devices one at most is near 3, 5 or 7.
    assert Bounds.of(one, GPU).low == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
    assert Bounds.of(replace(one, gone={}), GPU).low == dict.fromkeys(range(8), 0)


def test_a_device_that_another_pod_may_have_now_is_not_known_to_be_free() -> None:
    old, new = {("gpu", 0): Reach(0b01, 0b10)}, {("gpu", 1): Reach(0b10, 0b01)}
    assert not surely_free({"old": old, "new": new}, ["new"], ["old"])
    assert surely_free({"old": old, "new": {("nic", 1): Reach(0b10, 0b01)}}, ["new"], ["old"])
    assert not may_be_one(Reach(0b01, 0b10, width=1), Reach(0b01, 0b10, width=2))
