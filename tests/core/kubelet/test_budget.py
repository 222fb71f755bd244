"""The steps of a decision: they end it, and what cannot be decided waits."""

import pytest

from koord_numa.core.kubelet import admission, budget
from koord_numa.core.kubelet.admission import TOO_MANY, would_admit
from koord_numa.core.kubelet.budget import OverBudget, limited, spend
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.wire import parse_pod
from tests.kubelets.hardest import QUESTIONS, hardest


def test_steps_end_with_the_budget_that_they_are_taken_from() -> None:
    spend(1_000_000)  # nothing limits them
    with limited(3):
        with limited(2):
            spend(2)
            with pytest.raises(OverBudget):
                spend()
        spend(3)
        with pytest.raises(OverBudget):
            spend()


@pytest.mark.parametrize("spec", QUESTIONS, ids=["two apps", "init", "devices"])
def test_the_hardest_question_stays_within_its_budget(spec: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    life = hardest()
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    request = parse_pod(life.pod("question", spec)).request
    first, again = would_admit(request, seen.offer), would_admit(request, seen.offer)
    assert isinstance(first, Rejection) is isinstance(again, Rejection)
    monkeypatch.setattr(admission, "DECISION", 1)
    monkeypatch.setattr(admission, "fits_in_every_state", lambda *_: False)
    refused = would_admit(request, seen.offer)
    assert isinstance(refused, Rejection)
    assert refused.detail == TOO_MANY
    assert budget._CURRENT.get() is None
