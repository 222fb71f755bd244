"""
CPUs of init containers that a pod needed in part: a hypothesis stands for the true number of free CPUs.

Where nothing is aligned only the sum over all NUMA nodes counts.
"""

from random import Random

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa, held_by_init, released
from koord_numa.core.kubelet.replay import arrive
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.kubelet.variants import distinct
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, gpus, init, node, pod, sidecar
from tests.tables import each_row

SHAPES = ("4x1x2x2", "4x1x4x1", "2x2x4x1")
"""Of four NUMA nodes with four CPUs each."""


def _empty() -> Hypothesis:
    """Four NUMA nodes of four CPUs whose numbers alone are known, without alignment."""
    return Hypothesis(KubeletState.empty(replace(node("4x1x4x1", KubeletPolicy.NONE), ids_are_real=False)))


def _free(one: Hypothesis) -> tuple[int, int]:
    """Return the minimum and maximum number of free CPUs."""
    loose = 0
    for bits in one.loose.values():
        loose |= bits
    least = one.state.managers.cpus.bit_count()
    return least, least + loose.bit_count()


def _request(dice: Random) -> PodRequest:
    inits = [init(dice.randint(1, 4), f"i{place}") for place in range(dice.choice((0, 1, 1, 2, 2)))]
    return pod(*inits, app(dice.choice((0.5, 1, 1, 2, 3))))


def _lived(
    dice: Random, truth: KubeletState, states: list[Hypothesis], uid: str, request: PodRequest
) -> tuple[KubeletState, list[Hypothesis]]:
    """The pod comes, and perhaps another one leaves: the kubelet's state, and the hypotheses that foresee its verdict."""
    verdict = admit_pod(truth, uid, request)
    truth = verdict.state
    admitted = isinstance(verdict, Admitted)
    after = [after for one in states for after in arrive(one, uid, request).values() if after.has(uid) is admitted]
    assert after, f"{uid}: the verdict was not foreseen"
    states = distinct(after)
    if truth.pods and dice.random() < 0.2:
        gone = dice.choice(sorted(truth.pods))
        truth, states = truth.without(gone), distinct(released(one, gone) for one in states)
    return truth, states


@each_row("seed", [*range(50), 1748, 1765, 1768, 1850])
def test_no_more_is_surely_free_than_there_is(seed: int) -> None:
    """Pods come to a kubelet that knows its cores, and leave it; of the hypotheses those stay that foresee its verdicts."""
    dice = Random(seed)
    options = dice.choice(((), (), ("distribute-cpus-across-cores",), ("prefer-align-cpus-by-uncorecache",)))
    truth = KubeletState.empty(node(dice.choice(SHAPES), KubeletPolicy.NONE, options=options))
    states = [_empty()]
    for uid in map(str, range(24)):
        truth, states = _lived(dice, truth, states, uid, _request(dice))
        free = truth.managers.cpus.bit_count()
        assert any(least <= free <= most for least, most in map(_free, states)), (
            f"{uid}: {free}, {[*map(_free, states)]}"
        )


def _several(dice: Random) -> PodRequest:
    inits = [init(dice.randint(1, 3), f"i{place}") for place in range(dice.choice((0, 1, 1, 2)))]
    if dice.random() < 0.4:
        inits.insert(dice.randint(0, len(inits)), sidecar(1))
    return pod(*inits, *(app(dice.randint(1, 2), f"a{place}") for place in range(dice.choice((1, 1, 2)))))


def _covers(one: Hypothesis, free: tuple[int, ...]) -> bool:
    loose = 0
    for bits in one.loose.values():
        loose |= bits
    least = cpus_by_numa(one.state.managers.cpus, one.state.node)
    most = cpus_by_numa(one.state.managers.cpus | loose, one.state.node)
    return all(low <= there <= high for low, there, high in zip(least, free, most, strict=True))


BESIDE_DEVICES = (4, 9, 12, 16, 20, 21, 22, 27, 29, 31, 35, 37, 39, 40, 43, 48, 50, 53, 54, 55)
"""In each of these the true state was not among the hypotheses once."""


@each_row("seed", BESIDE_DEVICES)
def test_what_init_containers_hold_beyond_their_hint_is_foreseen(seed: int) -> None:
    """Best-effort keeps containers beside devices of NUMA node 0 and gives them CPUs of others once those there are taken."""
    dice = Random(seed)
    shape, devices = dice.choice(SHAPES), {"vendor.com/gpu": gpus(*[1] * 40)}
    options = dice.choice(((), (), ("distribute-cpus-across-cores",), ("prefer-align-cpus-by-uncorecache",)))
    truth = KubeletState.empty(node(shape, KubeletPolicy.BEST_EFFORT, options=options, devices=devices))
    on = node("4x1x4x1", KubeletPolicy.BEST_EFFORT, options=options, devices=devices)
    states = [Hypothesis(KubeletState.empty(replace(on, ids_are_real=False)))]
    for uid in map(str, range(12)):
        truth, states = _lived(dice, truth, states, uid, _beside_a_device(dice))
        assert any(_holds_as(one, truth) for one in states), uid


def _beside_a_device(dice: Random) -> PodRequest:
    devices = 1 if dice.random() < 0.7 else 0
    inits = [init(dice.randint(1, 3), f"i{place}", gpu=devices) for place in range(dice.choice((0, 1, 1, 1, 2)))]
    return pod(*inits, app(dice.choice((1, 1, 2)), gpu=devices))


def _holds_as(one: Hypothesis, truth: KubeletState) -> bool:
    """Return true if each pod's init containers may hold the true number of CPUs, of any NUMA nodes."""
    for uid, known in truth.pods.items():
        true, held = held_by_init(known.grant).bit_count(), held_by_init(one.state.pods[uid].grant)
        loose = one.loose.get(uid, 0)
        if not (held & ~loose).bit_count() <= true <= (held | loose).bit_count():
            return False
    return True


def test_what_was_loose_on_another_numa_node_may_be_held() -> None:
    """As in the theory."""
    one = _empty()
    for uid, request in (("a", pod(init(1), init(2, "i1"), app(1))), ("b", pod(app(11)))):
        one = next(iter(arrive(one, uid, request).values()))
    least, most = _free(one)
    assert least < most, "a's init containers may hold CPUs beside those of its app"
    after = next(each for each in arrive(one, "c", pod(app(least + 1))).values() if each.has("c"))
    assert cpus_by_numa(after.state.managers.cpus, one.state.node) == (0, 0, 0, 0)
    assert _free(after) == (0, most - least - 1)
