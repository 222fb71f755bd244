"""Containers that get CPUs of several NUMA nodes: those after them are promised only what every way to share them out leaves."""

from random import Random

import pytest

from koord_numa.core.kubelet import replay
from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.prediction import TOO_MANY, would_admit
from koord_numa.core.kubelet.replay import admitted
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletNode, KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, node, pod, sidecar
from tests.tables import each_row

OVER_NUMA = "distribute-cpus-across-numa"
SOCKETS = "align-by-socket"


def _unknown_ids(on: KubeletNode, *, published: bool = True) -> KubeletNode:
    """As a scheduler sees the node, which knows how many CPUs there are."""
    config = on.config if published else replace(on.config, cpu_options={})
    sockets = SOCKETS in config.cpu_options
    return replace(on, config=config, ids_are_real=False, aligns_by_socket=sockets, is_published=published)


def _followed(on: KubeletNode, *pods: PodRequest) -> KubeletView:
    """After these pods arrived, of which no topology tells yet."""
    belief = Belief([Hypothesis(KubeletState.empty(on))])
    for at, each in enumerate(pods):
        belief.arrive(str(at), each, at)
    return KubeletView("n", tuple(belief.hypotheses), followed=True)


def _at_the_kubelet(on: KubeletNode, *pods: PodRequest) -> KubeletState:
    state = KubeletState.empty(on)
    for at, each in enumerate(pods):
        state = admit_pod(state, str(at), each).state
    return state


@each_row("options", [(OVER_NUMA,), (OVER_NUMA, SOCKETS)])
@each_row("scope", list(KubeletScope))
def test_a_pod_needs_room_beside_even_shares(scope: KubeletScope, options: tuple[str, ...]) -> None:
    """Of 10 CPUs each NUMA node gives 5, and 3 are left on both."""
    on = node("2x1x8x1", policy=KubeletPolicy.RESTRICTED, scope=scope, options=options)
    assert isinstance(admit_pod(_at_the_kubelet(on, pod(app(10))), "q", pod(app(4))), NotAdmitted)
    view = _followed(_unknown_ids(on), pod(app(10)))
    assert isinstance(would_admit(pod(app(4)), view), Rejection)
    assert isinstance(would_admit(pod(app(3)), view), KubeletAdmission)


@pytest.mark.parametrize("published", [True, False])
def test_a_container_needs_room_beside_shares_of_an_earlier_one(published: bool) -> None:
    on = node("2x1x8x1", policy=KubeletPolicy.RESTRICTED, options=(OVER_NUMA,))
    too_much, enough = pod(sidecar(10), app(4)), pod(sidecar(10), app(3))
    assert isinstance(admit_pod(KubeletState.empty(on), "q", too_much), NotAdmitted)
    view = _followed(_unknown_ids(on, published=published))
    assert isinstance(would_admit(too_much, view), Rejection)
    assert isinstance(would_admit(enough, view), KubeletAdmission)


def test_whole_cores_elsewhere_precede_the_last_cpu_of_a_node() -> None:
    """
    The kubelet takes 6 CPUs of a socket whose NUMA node 0 has 3 free: one core there and two of NUMA node 1.

    A container that is bound to NUMA node 1 by its memory finds 4 CPUs there and not 5.
    """
    memory = {0: {"memory": 2 * GI}, 1: {"memory": 16 * GI}}
    on = node("1x2x4x2", policy=KubeletPolicy.RESTRICTED, options=(SOCKETS,), memory=memory)
    low = pod(app(5, memory=2 * GI))
    both = pod(app(6, "a", memory=4 * GI), app(5, "b", memory=4 * GI))
    assert isinstance(admit_pod(_at_the_kubelet(on, low), "q", both), NotAdmitted)
    # A topology has told where the first pod's CPUs are, and nothing of cores.
    without_cores = node("1x2x8x1", policy=KubeletPolicy.RESTRICTED, options=(SOCKETS,), memory=memory)
    view = KubeletView("n", (Hypothesis(_at_the_kubelet(_unknown_ids(without_cores), low)),), followed=True)
    assert isinstance(would_admit(both, view), Rejection)


def _asked(d: Random) -> PodRequest:
    first = sidecar(d.randint(1, 12)) if d.random() < 0.5 else app(d.randint(1, 12), "first")
    return pod(first, *[app(d.randint(1, 6), f"a{n}") for n in range(d.randrange(3))])


@each_row("seed", range(30))
def test_the_kubelet_admits_what_it_is_asked_for_after_others(seed: int) -> None:
    """Pods of random size on NUMA nodes of 8 CPUs, dealt out evenly: each that is promised is admitted."""
    d = Random(seed)
    scope, threads = d.choice(list(KubeletScope)), d.choice((1, 2))
    on = node(f"2x1x{8 // threads}x{threads}", policy=KubeletPolicy.RESTRICTED, scope=scope, options=(OVER_NUMA,))
    belief = Belief([Hypothesis(KubeletState.empty(_unknown_ids(on)))])
    state = KubeletState.empty(on)
    for at in range(8):
        asked = _asked(d)
        if isinstance(would_admit(asked, KubeletView("n", tuple(belief.hypotheses), followed=True)), KubeletAdmission):
            answer = admit_pod(state, str(at), asked)
            assert isinstance(answer, Admitted)
            state = answer.state
            belief.arrive(str(at), asked, at)


def test_a_pod_waits_where_there_are_more_shares_than_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing tells what its app finds then, nor what a pod on its way holds."""
    on = _unknown_ids(node("2x1x8x1", policy=KubeletPolicy.RESTRICTED, options=(OVER_NUMA,)))
    wide = pod(sidecar(9), app(3))
    empty = Hypothesis(KubeletState.empty(on))
    assert isinstance(would_admit(wide, _followed(on)), KubeletAdmission)
    monkeypatch.setattr(replay, "MOST_SHARES", 1)
    answer = would_admit(wide, _followed(on))
    assert isinstance(answer, Rejection)
    assert answer.detail == TOO_MANY
    belief = Belief([empty])
    belief.arrive("uid", wide, 0.0)
    assert "uid" in belief.lost
    assert [one.unplaced for one in admitted([empty], "uid", wide)] == [{"uid"}]
