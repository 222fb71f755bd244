"""States that a pod cannot tell apart are asked once: the kubelet decides the same in all of them, whatever its policy."""

from random import Random

import pytest

from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.departures.asked import Asked
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.replay import Effort, foreseen
from koord_numa.core.kubelet.options import CLOSEST_NUMA, OVER_NUMA
from koord_numa.core.kubelet.state import ContainerAffinity, Grant, KubeletNode, KubeletState, WholeCoreRule
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, ROOMY, app, gpus, init, node, pod, sidecar


def _some_node(dice: Random) -> KubeletNode:
    numas, each = dice.choice((2, 3, 4)), dice.choice((2, 4, 6))
    near = [1 << numa for numa in range(numas) for _ in range(dice.choice((1, 2)))]
    if dice.random() < 0.3:
        near = [mask | 1 << dice.randrange(numas) for mask in near]
    here = node(
        f"{numas}x1x{each}x1",
        dice.choice([*KubeletPolicy]),
        dice.choice([*KubeletScope]),
        memory={numa: {"memory": dice.randint(3, 9) * GI} for numa in range(numas)} if dice.random() < 0.6 else None,
        devices={"vendor.com/gpu": gpus(*near)} if dice.random() < 0.6 else {},
        topology_options={CLOSEST_NUMA: dice.random() < 0.2},
        options=[OVER_NUMA] if dice.random() < 0.2 else [],
        allocatable={**ROOMY, "vendor.com/gpu": 1000, "pods": dice.choice((5, 110))},
    )
    rule = WholeCoreRule(2, unlocated=dice.choice((0, 1))) if dice.random() < 0.2 else None
    return replace(
        here,
        ids_are_real=False,
        packs=dice.random() < 0.5,
        takes_whole_cores=rule is not None and dice.random() < 0.5,
        whole_cores=rule,
    )


def _some_pod(dice: Random, widest: int) -> PodRequest:
    parts = []
    for place in range(dice.choice([1, 1, 2, 3])):
        gpu = {"gpu": dice.choice((1, 1, 2, 3))} if dice.random() < 0.3 else {}
        kind, cpus = dice.choice((init, sidecar, app)), dice.choice([0.5, 1, 1, 2, 2, 3, 4, widest])
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2, 4, 10]) * GI, **gpu))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts, app(dice.choice([0.5, 1, 2]), "last", memory=GI))


def _states(dice: Random, here: KubeletNode) -> list[Hypothesis]:
    """Each moment of a node's life, and each with one of its pods away."""
    widest = max(bits.bit_count() for bits in here.machine.numa_bits.values()) + 1
    found, state = [], KubeletState.empty(here)
    for number in range(dice.randint(3, 9)):
        state = admit(state, str(number), _some_pod(dice, widest)).state
        found += [state, *(state.without(uid) for uid in state.pods)]
        if state.pods and dice.random() < 0.4:
            state = state.without(dice.choice([*state.pods]))
    return [Hypothesis(each) for each in found]


def _hints(grant: Grant | None) -> list[ContainerAffinity | None] | None:
    return None if grant is None else [one.hint for one in grant.containers]


def _check(seed: int) -> int:
    """How many states were recognised."""
    dice = Random(seed)
    recognised = 0
    for _ in range(12):
        here = _some_node(dice)
        states = _states(dice, here)
        widest = max(bits.bit_count() for bits in here.machine.numa_bits.values()) + 1
        for _ in range(4):
            request = _some_pod(dice, widest)
            asked, effort = Asked(request), Effort(0)
            for one in states:
                outcome, grant = asked.foreseen(one, effort)
                expected, given = foreseen(one, request)
                assert outcome == expected
                assert _hints(grant) == _hints(given)
            assert -effort.left <= len(states)
            recognised += len(states) + effort.left
    return recognised


@pytest.mark.parametrize("seed", range(12))
def test_equal_sights_make_equal_decisions(seed: int) -> None:
    assert _check(seed)


def _with_pods(here: KubeletNode, *requests: PodRequest) -> Hypothesis:
    state = KubeletState.empty(here)
    for number, request in enumerate(requests):
        state = admit(state, str(number), request).state
    return Hypothesis(state)


def test_states_that_a_pod_cannot_tell_apart_cost_less() -> None:
    """NUMA node 0 is full, and of node 1 more is free than the pod asks for, in five amounts."""
    here = replace(node("2x1x16x1", KubeletPolicy.RESTRICTED), ids_are_real=False)
    states = [_with_pods(here, pod(app(15)), pod(app(1)), *[pod(app(1))] * more) for more in range(1, 6)]
    asked, effort = Asked(pod(app(2))), Effort(10)
    assert len({asked.foreseen(one, effort)[0] for one in states}) == 1
    assert effort.left == 8  # one is asked, four are recognised


def test_a_node_that_is_too_full_is_told_apart() -> None:
    here = replace(node(allocatable={**ROOMY, "pods": 2}), ids_are_real=False)
    full = _with_pods(here, pod(app(0.5)), pod(app(0.5)))
    asked, effort = Asked(pod(app(1))), Effort(10)
    assert asked.foreseen(full, effort)[0] is None
    assert asked.foreseen(Hypothesis(full.state.without("0")), effort)[0] is not None


def test_cpus_with_ids_of_their_own_are_asked_about_each_time() -> None:
    one = _with_pods(node("2x1x4x2"), pod(app(1)))
    asked, effort = Asked(pod(app(2))), Effort(10)
    assert asked.foreseen(one, effort) == asked.foreseen(one, effort)
    assert effort.left == 8
