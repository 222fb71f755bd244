"""Pods that more room never harms where CPUs come of a whole socket, against real CPU ids and every set of pods that may have left."""

from itertools import chain, combinations
from random import Random

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.departures.all_at_first import never_needs_less_room
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar

BY_SOCKET = "align-by-socket"


def by_socket(dice: Random) -> KubeletNode:
    """A machine whose sockets have several NUMA nodes, with its CPU ids."""
    shape = dice.choice(["1x3x3x2", "2x2x2x2", "2x2x4x1", "2x3x2x2", "1x4x4x1"])
    sockets, per_socket, *_ = map(int, shape.split("x"))
    numas = range(sockets * per_socket)
    return node(
        shape,
        KubeletPolicy.RESTRICTED,
        memory=dice.choice([None, {numa: {"memory": dice.randint(4, 8) * GI} for numa in numas}]),
        devices={"vendor.com/gpu": _devices(dice, len(numas))} if dice.random() < 0.5 else {},
        options=(BY_SOCKET,),
    )


def _devices(dice: Random, numas: int) -> DevicePool:
    alone = [1 << dice.randrange(numas) for _ in range(dice.randint(2, 6))]
    return gpus(*(mask | (dice.random() < 0.3) << dice.randrange(numas) for mask in alone))


def some_pod(dice: Random) -> PodRequest:
    """Of up to four containers of any kind, most of which begin with the largest one."""
    first = init(dice.choice([1, 2, 3, 4]), "first", memory=dice.randint(1, 3) * GI, **_some_gpus(dice))
    kinds = [dice.choice((init, sidecar, app)) for _ in range(dice.randint(0, 2))]
    parts = [
        kind(dice.choice([0.5, 1, 2, 3]), f"c{place}", memory=dice.randint(1, 3) * GI, **_some_gpus(dice))
        for place, kind in enumerate(sorted(kinds, key=lambda kind: kind is app))
    ]
    return pod(*[first] * (dice.random() < 0.7), *parts, app(dice.choice([0.5, 1, 2]), "last", memory=GI))


def _some_gpus(dice: Random) -> dict[str, int]:
    return {"gpu": dice.randint(1, 2)} if dice.random() < 0.3 else {}


def _assert_admitted_whoever_leaves(state: KubeletState, asked: PodRequest) -> None:
    for away in chain.from_iterable(combinations(state.pods, count) for count in range(1, 7)):
        left = state
        for uid in away:
            left = left.without(uid)
        assert isinstance(admit(left, "q", asked), Admitted), (asked, away)


@pytest.mark.parametrize("seed", range(40))
def test_a_pod_is_admitted_whoever_has_left(seed: int) -> None:
    dice = Random(seed)
    here = by_socket(dice)
    supposed = replace(here, ids_are_real=False, aligns_by_socket=True)
    state = KubeletState.empty(here)
    for number in range(dice.randint(3, 6)):
        state = admit(state, str(number), some_pod(dice)).state
    for asked in [some_pod(dice) for _ in range(20)]:
        if never_needs_less_room(asked, supposed) and isinstance(admit(state, "q", asked), Admitted):
            _assert_admitted_whoever_leaves(state, asked)


def _same_again(dice: Random) -> PodRequest:
    """Init containers before a container of as many CPUs, mostly, and often one or two more."""
    cpus, memory = dice.choice([1, 2, 2, 3, 5, 6]), dice.choice([1, 2, 3])
    some = [init(cpus, f"i{place}", memory=dice.randint(1, memory) * GI) for place in range(dice.choice([0, 0, 1]))]
    more = dice.choice([0, 0, 0, 1, -1 if cpus > 1 else 0])
    keeps = dice.choice((sidecar, app))(cpus + more, "keeps", memory=dice.choice([1, memory, memory, 4]) * GI)
    last = [
        app(dice.choice([0.5, 1, 2, 3]), f"last{place}", memory=dice.choice([1, memory, 5]) * GI)
        for place in range(dice.choice([0, 1, 1, 2]))
    ]
    return pod(
        init(cpus, "first", memory=memory * GI),
        *some,
        keeps,
        *(last or [app(0.5, memory=GI)][: keeps.kind is not ContainerKind.APP]),
    )


@pytest.mark.parametrize("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@pytest.mark.parametrize("seed", range(30))
def test_who_takes_the_same_again_is_admitted_whoever_has_left(seed: int, policy: KubeletPolicy) -> None:
    dice = Random(seed)
    shape = dice.choice(["3x1x4x1", "4x1x2x2", "2x1x5x1", "3x1x2x2"])
    memory = {numa: {"memory": dice.randint(4, 9) * GI} for numa in range(int(shape[0]))}
    chosen = (
        *dice.choice([(), ("full-pcpus-only",), ("distribute-cpus-across-numa",), ("distribute-cpus-across-cores",)]),
    )
    here = node(shape, policy, memory=memory if dice.random() < 0.5 else None, options=chosen)
    state = KubeletState.empty(here)
    for number in range(dice.randint(2, 6)):
        one = pod(app(dice.randint(1, 3), memory=dice.randint(1, 5) * GI))
        state = admit(state, str(number), one).state
    supposed = replace(here, ids_are_real=False, config=replace(here.config, cpu_options={}))
    for asked in [_same_again(dice) for _ in range(40)]:
        if never_needs_less_room(asked, supposed) and isinstance(admit(state, "q", asked), Admitted):
            _assert_admitted_whoever_leaves(state, asked)


def test_what_takes_the_same_again_may_be_wide() -> None:
    supposed = replace(node("3x1x4x1", KubeletPolicy.RESTRICTED), ids_are_real=False)
    assert never_needs_less_room(pod(init(5), init(5, "i1"), app(5)), supposed)
    assert not never_needs_less_room(pod(init(5), app(4)), supposed)
    assert not never_needs_less_room(pod(init(5), app(5), app(1, "last")), supposed)
    assert never_needs_less_room(pod(init(2), app(2), app(1, "last")), supposed)
    assert not never_needs_less_room(pod(init(2), app(2), app(3, "last")), supposed)


def test_an_app_finds_a_hint_of_all_numa_nodes_that_its_init_container_holds() -> None:
    """Both NUMA nodes of the socket have 2 CPUs free: no single NUMA node has room for the init container, and the socket has."""
    supposed = replace(node("1x2x4x1", KubeletPolicy.RESTRICTED), ids_are_real=False, aligns_by_socket=True)
    assert never_needs_less_room(pod(init(4), app(2)), supposed)
    assert not never_needs_less_room(pod(init(2), app(4)), supposed)
    strict = replace(supposed, config=replace(supposed.config, topology_policy=KubeletPolicy.SINGLE_NUMA_NODE))
    assert not never_needs_less_room(pod(init(4), app(2)), strict)
