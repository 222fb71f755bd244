"""A node that is followed: several pods may have left before any news of it, and init containers go to the lowest NUMA node with room."""

from random import Random

import pytest

from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.core.kubelet.unseen import chained, initialised, refused_without


def _lived(state: KubeletState, *requests: PodRequest) -> KubeletState:
    for number, request in enumerate(requests):
        state = admit(state, str(number), request).state
    return state


def _view(state: KubeletState, *, unlocated: bool = False) -> KubeletView:
    """Followed without CPU ids; ``unlocated``: of the pods only their sums are known."""
    one = Hypothesis(replace(state, node=replace(state.node, ids_are_real=False)))
    if unlocated:
        requests = {uid: PodRequest(containers=_containers(state, uid)) for uid in state.pods}
        one = replace(one, state=replace(one.state, pods={}), unlocated=requests)
    return KubeletView("n", (one,), followed=True)


def _containers(state: KubeletState, uid: str) -> tuple[Container, ...]:
    return tuple(app(len(given.cpus), given.name) for given in state.pods[uid].grant.containers)


SMALL = (pod(app(6)), pod(app(1)), pod(app(1)))
"""They fill NUMA node 0."""


@pytest.mark.parametrize("unlocated", [False, True])
def test_small_pods_that_leave_together_may_take_an_init_container_lower(unlocated: bool) -> None:
    """Neither pod of 1 CPU makes room for it alone. Without both it is on NUMA node 0, with no third CPU for the container after it."""
    state = _lived(KubeletState.empty(node("2x1x4x2")), *SMALL)
    asked = pod(init(2), app(3))
    assert isinstance(admit(state, "asked", asked), Admitted)
    assert not isinstance(admit(state.without("1").without("2"), "asked", asked), Admitted)
    answer = would_admit(asked, _view(state, unlocated=unlocated))
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.KUBELET_ALIGNMENT


@pytest.mark.parametrize("unlocated", [False, True])
def test_what_fits_whatever_they_leave_is_admitted(unlocated: bool) -> None:
    view = _view(_lived(KubeletState.empty(node("2x1x4x2")), *SMALL), unlocated=unlocated)
    assert isinstance(would_admit(pod(init(2), app(2)), view), KubeletAdmission)
    assert isinstance(would_admit(pod(init(3), app(5)), view), KubeletAdmission)


CHAIN = pod(init(2, "a"), sidecar(2, "b"), init(2, "c"), app(3))
"""The sidecar takes the first init container's CPUs, so that the second one is free to go anywhere."""


def test_pods_that_leave_several_numa_nodes_move_one_container_after_the_other() -> None:
    """Without both small pods the sidecar is on NUMA node 0 and the init container after it on NUMA node 1, with no third CPU."""
    there = [pod(app(cpus)) for cpus in (6, 2, 6, 2)]
    state = _lived(KubeletState.empty(node("3x1x4x2")), *there)
    for gone in ("1", "3"):
        assert isinstance(admit(state.without(gone), "asked", CHAIN), Admitted)
    assert refused_without(state, CHAIN) == ("1", "3")
    assert isinstance(would_admit(CHAIN, _view(state)), Rejection)
    # Where the small pod of one of them stays for certain, as it is larger, the pod is admitted.
    state = _lived(KubeletState.empty(node("3x1x4x2")), *there[:2], pod(app(8)))
    assert isinstance(would_admit(CHAIN, _view(state)), KubeletAdmission)


def test_an_init_container_of_several_numa_nodes_may_go_to_others_together_with_pods_that_leave() -> None:
    """``init 6, app 5`` on NUMA nodes of 4: it is on 2 and 3, and on 0 and 1 once both have 3 CPUs more, where 6 are too few for ``7``."""
    asked = pod(init(6), app(7))
    there = [pod(app(cpus)) for cpus in (3, 1, 3, 1)]
    state = _lived(KubeletState.empty(node("4x1x2x2", KubeletPolicy.RESTRICTED)), *there)
    assert isinstance(admit(state, "asked", asked), Admitted)
    assert refused_without(state, asked) == ("0", "2")
    assert isinstance(would_admit(asked, _view(state)), Rejection)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@pytest.mark.parametrize("seed", [*range(8), 13])
def test_a_yes_to_a_chain_of_containers_holds_whichever_pods_have_left(
    seed: int, policy: KubeletPolicy, number: int
) -> None:
    """With devices and without, of one NUMA node and of several."""
    dice = Random(seed)
    shape, count, most = dice.choice((("3x1x4x2", 3, 4), ("2x1x4x2", 2, 4), ("4x1x2x2", 4, 6), ("4x1x4x1", 4, 6)))
    pool = gpus(*(1 << dice.randrange(count) for _ in range(number)))
    state = KubeletState.empty(node(shape, policy, devices={"vendor.com/gpu": pool} if number else {}))
    there = [pod(app(dice.randint(1, 3), gpu=dice.randrange(2)) if number else app(dice.randint(1, 3)))] * 2
    there += [pod(app(dice.randint(1, 3))) for _ in range(dice.randint(1, 5))]
    state = _lived(state, *there)
    view = _view(state)
    for asked in [chained(dice, most, number) for _ in range(12)]:
        if isinstance(would_admit(asked, view), KubeletAdmission):
            assert refused_without(state, asked) is None, asked


def test_memory_of_which_the_hint_of_the_pod_knows_nothing_keeps_it_from_going_lower() -> None:
    """Under scope pod only app containers' kinds are looked for: without the first pod it goes to NUMA node 0, where no pages are."""
    pages = {numa: {"memory": 16 * GI, "hugepages-2Mi": 4 << 20} for numa in range(2)}
    empty = KubeletState.empty(node("2x1x4x2", scope=KubeletScope.POD, memory=pages))
    state = _lived(empty, pod(app(6)), pod(app(2, pages=2)))
    asked = pod(init(4, pages=2), app(3))
    assert refused_without(state, asked) == ("0",)
    assert isinstance(would_admit(asked, _view(state)), Rejection)
    assert isinstance(would_admit(pod(init(4), app(3)), _view(state)), KubeletAdmission)


def test_best_effort_admits_it_anywhere() -> None:
    state = _lived(KubeletState.empty(node("2x1x4x2", KubeletPolicy.BEST_EFFORT)), *SMALL)
    assert isinstance(would_admit(pod(init(2), app(3)), _view(state)), KubeletAdmission)


FOUND = (34, 56)
"""Lives in which a yes held with any one pod away, and not with two."""


@pytest.mark.parametrize("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@pytest.mark.parametrize("seed", [*range(30), *FOUND])
def test_a_yes_holds_whichever_pods_have_left(seed: int, policy: KubeletPolicy) -> None:
    """With CPU ids, so that the kubelet's own order of CPUs decides what later containers get again."""
    dice = Random(seed)
    memory = {numa: {"memory": 16 * GI} for numa in range(3)} if dice.random() < 0.3 else None
    state = KubeletState.empty(node("3x1x4x2", policy, memory=memory))
    there = [pod(app(dice.randint(1, 6), memory=dice.randint(1, 9) * GI)) for _ in range(dice.randint(2, 7))]
    state = _lived(state, *there)
    view = _view(state)
    for asked in [initialised(dice, 0) for _ in range(16)]:
        if isinstance(would_admit(asked, view), KubeletAdmission):
            assert refused_without(state, asked) is None, asked
