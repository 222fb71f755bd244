"""Containers aligned one by one, each on one NUMA node: the proof that none is refused, against every departure there may be."""

from collections.abc import Iterator
from itertools import chain, combinations
from random import Random

import pytest

from koord_numa.core.kubelet.admit import Admitted, DryRunAdmitted, Trust, admit, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.departures.single_places import SinglePlaces
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar

POLICIES = (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)


def _node(dice: Random) -> KubeletNode:
    numas = dice.choice((2, 3, 4))
    memory = {numa: {"memory": dice.choice((6, 8)) * GI} for numa in range(numas)} if dice.random() < 0.6 else None
    devices = {"vendor.com/gpu": gpus(*(1 << dice.randrange(numas) for _ in range(5)))} if dice.random() < 0.6 else {}
    shape = f"{numas}x1x{dice.choice((4, 6))}x1"
    here = node(shape, dice.choice(POLICIES), memory=memory, devices=devices, reserved=dice.choice(("", "0", "1")))
    return replace(here, ids_are_real=False, packs=dice.random() < 0.5)


def _pod(dice: Random, most: int) -> PodRequest:
    parts = []
    for place in range(dice.randint(1, most)):
        kind = dice.choice((init, app, app, sidecar))
        gpu = {"gpu": dice.choice((1, 2))} if dice.random() < 0.3 else {}
        parts.append(kind(dice.choice((0.5, 1, 2, 3, 4)), f"c{place}", memory=dice.choice((1, 2, 3, 4)) * GI, **gpu))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts, app(dice.choice((0.5, 1, 2, 3)), "last", memory=dice.choice((1, 2, 4)) * GI))


def _departures(state: KubeletState) -> Iterator[KubeletState]:
    uids = list(state.pods)
    for away in chain.from_iterable(combinations(uids, count) for count in range(len(uids) + 1)):
        after = state
        for uid in away:
            after = after.without(uid)
        yield after


def _masks(state: KubeletState, request: PodRequest) -> Iterator[int]:
    """The NUMA nodes of the hints of containers with CPUs or memory; an assertion fails where the managers refuse the pod."""
    for order in (CpuReuse.LEAST, CpuReuse.MOST):
        answer = dry_run(state, request, Trust.EXACT, order)
        assert isinstance(answer, DryRunAdmitted), answer.refusal
        for given in answer.grant.containers:
            if given.cpus or given.memory or given.devices:
                assert given.hint is not None
                assert given.hint.mask is not None
                yield given.hint.mask


@pytest.mark.parametrize("seed", range(20))
def test_none_of_the_departures_has_a_pod_refused_that_was_found_to_be_admitted(seed: int) -> None:
    dice = Random(seed)
    told = 0
    while told < 3:
        here = _node(dice)
        state = KubeletState.empty(here)
        for number in range(dice.randint(1, 6)):
            answer = admit(state, str(number), _pod(dice, 1))
            state = answer.state if isinstance(answer, Admitted) else state
        asked = _pod(dice, 3)
        places = SinglePlaces(asked)
        if not (state.pods and places.admit(Hypothesis(state))):
            continue
        told += 1
        for after in _departures(state):
            assert not any(mask & ~places.reached for mask in _masks(after, asked))


def _with_one(*free: int) -> Hypothesis:
    """So many CPUs are free on each NUMA node of four; a pod holds the rest."""
    state = KubeletState.empty(replace(node(f"{len(free)}x1x4x1"), ids_are_real=False))
    for numa, left in enumerate(free):
        if left < 4:
            answer = admit(state, str(numa), pod(app(4 - left)))
            assert isinstance(answer, Admitted)
            state = answer.state
    return Hypothesis(state)


def test_an_app_that_takes_over_all_of_an_init_container_needs_no_more_room() -> None:
    assert SinglePlaces(pod(init(2), app(2))).admit(_with_one(0, 4))


def test_an_init_container_may_go_where_the_app_has_no_room() -> None:
    """With 2 CPUs free on NUMA node 0 the init container goes there, and the app of 3 has to as well."""
    assert not SinglePlaces(pod(init(2), app(3))).admit(_with_one(2, 4))
    # Nothing there, or all: the app has room wherever the init container goes.
    assert SinglePlaces(pod(init(2), app(3))).admit(_with_one(0, 4))


def test_departures_from_two_numa_nodes_together_may_have_a_pod_refused() -> None:
    """The sidecar goes to NUMA node 0 if 2 CPUs have come free there, the init container to node 1 then, where the app has no room."""
    asked = pod(sidecar(3), init(2), app(3))
    assert SinglePlaces(asked).admit(_with_one(0, 4, 4))
    assert not SinglePlaces(asked).admit(_with_one(0, 2, 4))


def test_nothing_is_told_of_containers_that_need_several_numa_nodes() -> None:
    here = replace(node("2x1x4x1", KubeletPolicy.RESTRICTED), ids_are_real=False)
    assert not SinglePlaces(pod(app(6))).admit(Hypothesis(KubeletState.empty(here)))
