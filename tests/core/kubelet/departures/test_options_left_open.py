"""Too many states to ask: with options that are not known the pod explores them, without any it waits."""

import pytest

from koord_numa.core.kubelet.admission import TOO_MANY, would_admit
from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.inference import probes
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod

OPTION = "align-by-socket"


def _hypothesis(*options: str) -> Hypothesis:
    """NUMA node 0 of two has 1 CPU free; by socket nothing is told of containers that are wider than a NUMA node."""
    here = replace(node("1x2x4x1", KubeletPolicy.RESTRICTED), ids_are_real=False, aligns_by_socket=bool(options))
    answer = admit(KubeletState.empty(here), "there", pod(app(3)))
    assert isinstance(answer, Admitted)
    return Hypothesis(answer.state, options=options)


def _ask(*hypotheses: Hypothesis, cpus: int = 5) -> KubeletAdmission | Rejection:
    return would_admit(pod(init(2), app(cpus)), KubeletView("n", hypotheses, followed=True))


@pytest.fixture(autouse=True)
def _without_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "EFFORT", 0)


def test_a_pod_explores_an_option_under_which_there_are_too_many_states() -> None:
    answer = _ask(_hypothesis(), _hypothesis(OPTION))
    assert not isinstance(answer, Rejection)
    assert answer.explores == (OPTION,)


def test_a_pod_waits_where_there_are_too_many_states_without_such_an_option() -> None:
    known = replace(_hypothesis(OPTION), options=())
    answer = _ask(known)
    assert isinstance(answer, Rejection)
    assert answer.detail == TOO_MANY


def test_a_pod_needs_no_effort_where_amounts_tell() -> None:
    for cpus in (3, 5):
        answer = _ask(_hypothesis(), cpus=cpus)
        assert not isinstance(answer, Rejection)
        assert not answer.explores
