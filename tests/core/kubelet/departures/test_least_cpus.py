"""CPUs that may lie otherwise: how many are free wherever they are."""

from random import Random

import pytest

from koord_numa.core.bit_sets import members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.departures.least_cpus import least_free, with_least_free
from koord_numa.core.kubelet.enough_room import has_room_whoever_leaves
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.variants import with_grant
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, ManagerState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, gpus, init, node, pod, sidecar

SHAPES = ("2x1x4x1", "2x2x3x1", "4x1x4x1", "2x2x2x2", "3x1x5x1", "1x4x3x1")


def restricted(shape: str, *, by_socket: bool = False, policy: KubeletPolicy = KubeletPolicy.RESTRICTED) -> KubeletNode:
    here = node(shape, policy, devices={"vendor.com/gpu": gpus(1, 2)}, reserved="0")
    return replace(here, ids_are_real=False, aligns_by_socket=by_socket)


def some_pod(dice: Random) -> PodRequest:
    kinds = [dice.choice((init, init, sidecar)) for _ in range(dice.choice((0, 0, 1, 1, 2)))]
    parts = [kind(dice.choice((0.5, 1, 1, 2, 3)), f"i{place}") for place, kind in enumerate(kinds)]
    apps = [app(dice.choice((0.5, 1, 2, 3, 4, 5, 6, 8)), f"a{place}") for place in range(dice.choice((1, 1, 1, 2)))]
    return pod(*parts, *apps)


def lived(dice: Random, here: KubeletNode) -> KubeletState:
    state = KubeletState.empty(here)
    for number in range(dice.randint(0, 6)):
        state = admit(state, str(number), some_pod(dice)).state
    return without_some(dice, state, 0.3)


def without_some(dice: Random, state: KubeletState, share: float) -> KubeletState:
    for uid in list(state.pods):
        state = state.without(uid) if dice.random() < share else state
    return state


@pytest.mark.parametrize("by_socket", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_no_fewer_cpus_are_free_wherever_those_are_that_may_lie_otherwise(seed: int, by_socket: bool) -> None:
    dice = Random(seed)
    for _ in range(10):
        policy = dice.choice((KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.BEST_EFFORT))
        true = lived(dice, restricted(dice.choice(SHAPES), by_socket=by_socket, policy=policy))
        supposed = _dealt_otherwise(dice, true)
        free = with_least_free(supposed).cpus
        for here in (*true.node.machine.numa_bits.values(), *true.node.machine.socket_bits.values()):
            assert least_free(supposed, here) <= (true.managers.cpus & here).bit_count()
        for here in true.node.machine.numa_bits.values():
            assert (free & here).bit_count() == least_free(supposed, here)


def _dealt_otherwise(dice: Random, true: KubeletState) -> Hypothesis:
    """What may be supposed of this state: with CPUs of such pods on other NUMA nodes of their hints or sockets."""
    here = true.node
    spread = {
        uid for uid, pod in true.pods.items() if any(may_lie_otherwise(one, here) for one in pod.grant.containers)
    }
    one = Hypothesis(true, spread=frozenset(spread))
    for uid in spread:
        for _ in range(4):
            grant, free = one.state.pods[uid].grant, one.state.managers.cpus
            given = dice.choice([each for each in grant.containers if may_lie_otherwise(each, here)])
            assert given.hint is not None
            near = sum(here.machine.numa_bits[numa] for numa in members(given.hint.mask or 0))
            if here.static_options.align_by_socket:
                near = sum(bits for bits in here.machine.socket_bits.values() if bits & near)
            if not free & near:
                continue
            old, new = dice.choice(members(given.cpus.bits)), dice.choice(members(free & near))
            containers = tuple(
                replace(each, cpus=CpuSet(each.cpus.bits & ~(1 << old) | 1 << new))
                if 1 << old & each.cpus.bits
                else each
                for each in grant.containers
            )
            managers = ManagerState(
                free & ~(1 << new) | 1 << old, one.state.managers.devices, one.state.managers.memory
            )
            one = with_grant(replace(one, state=replace(one.state, managers=managers)), uid, containers)
    return one


def used(state: KubeletState, *cpus: int) -> KubeletState:
    for number, count in enumerate(cpus):
        state = admit(state, f"old {number}", pod(app(count))).state
    return state


def test_cpus_that_may_lie_otherwise_do_so_in_their_socket() -> None:
    """The other socket is free, whichever NUMA nodes of the first one the pods there have taken."""
    state = used(KubeletState.empty(restricted("2x2x3x1", by_socket=True)), 3)
    one = Hypothesis(state, spread=frozenset(state.pods))
    free = [least_free(one, here) for here in state.node.machine.numa_bits.values()]
    assert free == [0, 0, 3, 3]
    # In all they are as many as a NUMA node has.
    assert has_room_whoever_leaves(pod(app(3)), one)
