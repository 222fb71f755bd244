"""What init containers hold by how many threads a core has, against kubelets that know: is the true state always followed?"""

from collections.abc import Mapping
from random import Random

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.inference.belief import Belief
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.inference.replay import Effort, arrived
from koord_numa.core.kubelet.spreading.core_packing import by_threads
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod, sidecar

SHAPES = ("3x1x4x2", "2x1x8x1", "1x2x4x2", "4x1x2x2", "2x1x3x2", "1x1x8x1")
LIVES = 12
"""So many for one seed."""


def _unknown(real: KubeletNode) -> KubeletNode:
    """What is known of the node where options and architecture are published, and CPU ids are not."""
    return replace(real, ids_are_real=False, packs=True)


def _some_pod(dice: Random) -> PodRequest:
    first = [init(dice.choice((1, 1, 2, 3)), f"i{place}") for place in range(dice.choice((0, 1, 1, 1, 2)))]
    beside = [sidecar(dice.choice((0.5, 1, 2)))] if dice.random() < 0.2 else []
    return pod(*first, *beside, app(dice.choice((0.5, 1, 1, 2, 3))))


def _is_true(one: Hypothesis, truth: KubeletState) -> bool:
    """Has the hypothesis the same pods, and may as many CPUs be free, on each NUMA node or, where none is refused for its place, in all?"""
    on = truth.node
    loose = 0
    for bits in one.loose.values():
        loose |= bits
    states = (one.state.managers.cpus, truth.managers.cpus, one.state.managers.cpus | loose)
    least, free, most = (cpus_by_numa(bits, on) for bits in states)
    if on.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        least, free, most = ((sum(counts),) for counts in (least, free, most))
    return one.state.pods.keys() == truth.pods.keys() and all(
        few <= count <= many for few, count, many in zip(least, free, most, strict=True)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_true_state_is_followed(seed: int) -> None:
    dice = Random(seed)
    for _ in range(LIVES):
        policy, scope = dice.choice((*KubeletPolicy,)), dice.choice((*KubeletScope,))
        real = node(dice.choice(SHAPES), policy, scope, reserved=dice.choice(("", "", "0", "0-1", "0,2")))
        truth = KubeletState.empty(real)
        belief = Belief([Hypothesis(KubeletState.empty(_unknown(real)))])
        for number in range(dice.randint(3, 9)):
            uid, request, when = f"p{number}", _some_pod(dice), 100.0 * number
            belief.arrive(uid, request, when)
            answer = admit(truth, uid, request)
            truth = answer.state
            if isinstance(answer, Admitted):
                belief.started(uid, when + 1)
            else:
                belief.rejected(uid, when + 1, tells=True)
            # Of CPUs of several NUMA nodes cores tell nothing.
            if belief.overflow or belief.shortened or any(one.spread for one in belief.hypotheses):
                break
            assert any(_is_true(one, truth) for one in belief.hypotheses), (policy, scope, request)
            if truth.pods and dice.random() < 0.15:
                gone = dice.choice(sorted(truth.pods))
                truth = truth.without(gone)
                belief.depart(gone, when + 90)


def _after(one: Hypothesis, requests: Mapping[str, PodRequest]) -> Hypothesis:
    """After these pods, by uid, each of which is treated in one way."""
    for uid, request in requests.items():
        ((_, one),) = arrived(one, uid, request, Effort(100))
    return one


def test_what_one_pod_tells_of_cores_holds_for_all_that_come_after_it() -> None:
    """
    On NUMA node 0 one core is partly used when ``init 2, app 1`` comes: on cores of two threads the app has its other CPU and both of the
    init container stay held, on cores of one thread one. So the last CPU there is free or not.
    """
    filling = {"four": pod(app(4)), "one": pod(app(1)), "tied": pod(init(2), app(1))}
    before = _after(Hypothesis(KubeletState.empty(_unknown(node("2x1x4x2")))), filling)
    assert before.loose.keys() == {"tied"}
    free = set()
    for _, after in arrived(before, "next", pod(app(1)), Effort(100)):
        assert not after.loose
        again = _after(after, {f"{uid} again": request for uid, request in filling.items()})
        assert not again.loose
        free.add(cpus_by_numa(again.state.managers.cpus, again.state.node))
    # With one thread a core it came to NUMA node 0, and to NUMA node 1 as the first CPU of a core with two.
    assert free == {(0, 8 - 4 - 1 - 2), (0, 8 - 1 - 4 - 1 - 2)}


def test_numbers_of_threads_that_make_no_difference_are_one_state() -> None:
    """On an unused NUMA node the app has a CPU of its init container's in any case."""
    after = _after(Hypothesis(KubeletState.empty(_unknown(node("1x1x4x2")))), {"tied": pod(init(2), app(1))})
    assert list(by_threads(after)) == [after]
