"""A node that is not followed: pods may have left unseen, and init containers go to the lowest NUMA node with room."""

from random import Random

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod
from tests.core.kubelet.unseen import initialised, refused_without
from tests.tables import each_row


def _view(*there: PodRequest) -> KubeletView:
    """The room that these pods leave, of whom nothing else is known."""
    state = KubeletState.empty(replace(node("2x1x4x2"), ids_are_real=False))
    for number, request in enumerate(there):
        answer = admit_pod(state, str(number), request)
        assert isinstance(answer, Admitted)
        state = answer.state
    return KubeletView("n", (Hypothesis(replace(state, pods={})),), unfollowed=True)


def test_an_init_container_that_could_go_lower_is_refused() -> None:
    """Should one of the pods on NUMA node 0 have left, the init container goes there and ties the app to it."""
    answer = would_admit(pod(init(2), app(5)), _view(pod(app(4)), pod(app(4))))
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.KUBELET_ALIGNMENT
    assert "left there unseen" in answer.detail


def test_what_is_tied_to_nothing_or_goes_lowest_is_not() -> None:
    """More room on NUMA node 0 harms neither."""
    assert isinstance(would_admit(pod(app(5)), _view(pod(app(8)))), KubeletAdmission)
    assert isinstance(would_admit(pod(init(2), app(5)), _view(pod(app(2)))), KubeletAdmission)


def test_reused_init_cpus_fit_wherever_the_init_container_is() -> None:
    there = _view(pod(app(4)), pod(app(4)))
    assert isinstance(would_admit(pod(init(3), app(3)), there), KubeletAdmission)
    assert isinstance(would_admit(pod(init(5), init(2), app(3, "a"), app(2, "b")), there), KubeletAdmission)
    assert isinstance(would_admit(pod(init(5), app(3, "a"), app(3, "b")), there), Rejection)


@each_row("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@each_row("seed", range(60), every=6)
def test_a_yes_holds_whichever_pods_have_left(seed: int, policy: KubeletPolicy) -> None:
    """With CPU ids, so that the kubelet's own order of CPUs decides what later containers get again."""
    dice = Random(seed)
    memory = {numa: {"memory": 16 * GI} for numa in range(3)} if dice.random() < 0.3 else None
    state = KubeletState.empty(node("3x1x4x2", policy, memory=memory))
    for number in range(dice.randint(2, 7)):
        state = admit_pod(state, str(number), pod(app(dice.randint(1, 6), memory=dice.randint(1, 9) * GI))).state
    seen = replace(state, pods={}, node=replace(state.node, ids_are_real=False))
    view = KubeletView("n", (Hypothesis(seen),), unfollowed=True)
    for asked in [initialised(dice, 1) for _ in range(12)]:
        if isinstance(would_admit(asked, view), KubeletAdmission):
            assert refused_without(state, asked) is None, asked


@each_row("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@each_row("seed", range(15), every=3)
def test_an_admission_with_exact_state_holds_if_one_pod_has_left(seed: int, policy: KubeletPolicy) -> None:
    dice = Random(seed)
    state = KubeletState.empty(node("4x1x4x2", policy))
    for number in range(dice.randint(4, 9)):
        state = admit_pod(state, str(number), pod(app(dice.randint(1, 6)))).state
    view = KubeletView("n", (Hypothesis(state),), followed=True)
    for asked in [initialised(dice, 1) for _ in range(12)]:
        if isinstance(would_admit(asked, view), KubeletAdmission):
            gone = refused_without(state, asked)
            assert gone is None or len(gone) > 1, asked


def _with_gpus(*near: int) -> KubeletState:
    here = node("3x1x4x1", KubeletPolicy.SINGLE_NUMA_NODE, devices={"vendor.com/gpu": gpus(*near)})
    return KubeletState.empty(replace(here, ids_are_real=False))


def test_a_container_that_may_take_device_cpus_is_rejected() -> None:
    """Should the pod on NUMA node 0 have left, the first container takes all CPUs there, and the second finds none beside the device."""
    asked = pod(app(4, "a"), app(1, "b", gpu=1))
    busy = admit_pod(_with_gpus(0b1), "there", pod(app(2))).state
    view = KubeletView("n", (Hypothesis(replace(busy, pods={})),), unfollowed=True)
    assert isinstance(would_admit(asked, view), Rejection)
    assert isinstance(would_admit(asked, replace(view, unfollowed=False)), KubeletAdmission)


@each_row("seed", range(40))
def test_an_admission_with_devices_holds_for_all_departures(seed: int) -> None:
    dice = Random(seed)
    state = _with_gpus(*(1 << dice.randrange(3) for _ in range(3)))
    for number in range(dice.randint(2, 6)):
        has_gpu, cpus = dice.random() < 0.3, dice.randint(1, 3)
        answer = admit_pod(state, str(number), pod(app(cpus, gpu=1) if has_gpu else app(cpus)))
        state = answer.state if isinstance(answer, Admitted) else state
    view = KubeletView("n", (Hypothesis(replace(state, pods={})),), unfollowed=True)
    for _ in range(20):
        parts = (app(dice.randint(1, 4), f"c{at}", **({"gpu": 1} if dice.random() < 0.5 else {})) for at in range(3))
        asked = pod(*list(parts)[: dice.randint(2, 3)])
        if isinstance(would_admit(asked, view), KubeletAdmission):
            assert refused_without(state, asked) is None, asked


def _by_socket(scope: KubeletScope = KubeletScope.CONTAINER, *, followed: bool = False) -> KubeletView:
    """An empty node with align-by-socket, of whose sockets nothing is published."""
    there = node("1x2x4x2", KubeletPolicy.RESTRICTED, scope, options=("align-by-socket",))
    state = KubeletState.empty(replace(there, ids_are_real=False))
    return KubeletView("n", (Hypothesis(state),), unfollowed=not followed, followed=followed)


def test_one_of_two_containers_may_lose_cpus_by_socket() -> None:
    """getAlignedCPUs: with align-by-socket CPUs come from any NUMA node of the socket, and sockets are not published."""
    answer = would_admit(pod(app(2, "a"), app(2, "b")), _by_socket())
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.KUBELET_ALIGNMENT
    assert "container a may take CPUs of any NUMA node of its socket, of which b needs some" in answer.detail


def test_one_container_or_one_hint_loses_nothing_by_socket() -> None:
    """More CPUs to choose from harm no container that is alone, or that is looked for together with the others."""
    assert isinstance(would_admit(pod(app(2)), _by_socket()), KubeletAdmission)
    assert isinstance(would_admit(pod(app(2, "a"), app(2, "b")), _by_socket(KubeletScope.POD)), KubeletAdmission)
    assert isinstance(would_admit(pod(app(2, "a"), app(2, "b")), _by_socket(followed=True)), KubeletAdmission)
