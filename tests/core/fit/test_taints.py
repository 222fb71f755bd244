"""Taints, tolerations and cordoned nodes."""

import pytest

from koord_numa.core.fit.node_filters import fits_taints, fits_unschedulable, soft_taints
from koord_numa.core.objects.constraints import Constraints, Operator, TaintEffect, Toleration
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.value_objects import replace
from tests.core.fit.builders import asks
from tests.tables import each_row

DEDICATED = Taint("dedicated", TaintEffect.NO_SCHEDULE, "gpu")
SOFT = Taint("flaky", TaintEffect.PREFER_NO_SCHEDULE)


@each_row(
    ("toleration", "fits"),
    [
        pytest.param(None, False, id="none"),
        pytest.param(Toleration("dedicated", value="gpu"), True, id="equal"),
        pytest.param(Toleration("dedicated", value="cpu"), False, id="other-value"),
        pytest.param(Toleration("dedicated", exists=True), True, id="exists"),
        pytest.param(Toleration(exists=True), True, id="everything"),
        pytest.param(Toleration(), False, id="empty-equal-tolerates-nothing"),
        pytest.param(Toleration("dedicated", exists=True, effect="NoExecute"), False, id="other-effect"),
    ],
)
def test_hard_taints(toleration: Toleration | None, *, fits: bool) -> None:
    request = asks(Constraints(tolerations=(toleration,) if toleration else ()))
    refusal = fits_taints(request, Node("worker", taints=(SOFT, DEDICATED)))
    assert (refusal is None) == fits
    if refusal:
        assert refusal.message == "node(s) had untolerated taint {dedicated: gpu}"
        assert not refusal.resolvable


def test_soft_taints_are_counted_and_never_refuse() -> None:
    node = Node("worker", taints=(SOFT,))
    assert fits_taints(asks(Constraints()), node) is None
    assert soft_taints(asks(Constraints()), node) == 1
    assert soft_taints(asks(Constraints(tolerations=(Toleration("flaky", exists=True),))), node) == 0


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = replace(Node("worker"), unschedulable=True)
    refusal = fits_unschedulable(asks(Constraints()), cordoned)
    assert refusal is not None
    assert refusal.message == "node(s) were unschedulable"
    daemon = Constraints(tolerations=(Toleration("node.kubernetes.io/unschedulable", exists=True),))
    assert fits_unschedulable(asks(daemon), cordoned) is None


@each_row(
    ("operator", "value", "fits"),
    [
        (Operator.GT, "950", True),
        (Operator.GT, "990", False),
        (Operator.LT, "999", True),
        (Operator.LT, "990", False),
        (Operator.GT, "many", False),
    ],
)
def test_numbers_are_compared(operator: Operator, value: str, fits: bool) -> None:
    reliable = Taint("sla", TaintEffect.NO_SCHEDULE, "990")
    request = asks(Constraints(tolerations=(Toleration("sla", value=value, compares=operator),)))
    assert (fits_taints(request, Node("worker", taints=(reliable,))) is None) is fits
