"""The annotation ``numa-spread``: what it says, and clear texts for what it must not say."""

import json
from typing import Any

from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.request import NumaSpread
from koord_numa.core.objects.vocabulary import NumaSpreadMode, NumaSpreadScope
from koord_numa.wire import names, parse_pod
from tests.tables import each_row
from tests.wire.objects import POD, annotated

PICKS = {"matchLabels": {"app": "web"}}
SELECTOR = LabelSelector((Requirement("app", Operator.IN, ("web",)),))


def parsed(value: Any) -> Any:
    return parse_pod(annotated(POD, names.NUMA_SPREAD, value if isinstance(value, str) else json.dumps(value)))


def test_defaults_and_every_member() -> None:
    assert parsed({"labelSelector": PICKS}).request.numa_spread == NumaSpread(SELECTOR, "shop")
    found = parsed({"labelSelector": PICKS, "scope": "socket", "mode": "Pack", "whenUnsatisfiable": "DoNotSchedule"})
    assert not found.problem
    assert found.request.numa_spread == NumaSpread(
        SELECTOR, "shop", NumaSpreadScope.SOCKET, NumaSpreadMode.PACK, required=True
    )
    assert parse_pod(POD).request.numa_spread is None


def test_pods_that_differ_in_the_wish_are_of_different_classes() -> None:
    keys = {
        parsed(value).request.class_key
        for value in ({"labelSelector": PICKS}, {"labelSelector": PICKS, "mode": "Pack"})
    }
    assert len({*keys, parse_pod(POD).request.class_key}) == 3


@each_row(
    ("value", "text"),
    [
        ({}, "labelSelector: is required and must not be empty"),
        ({"labelSelector": {}}, "labelSelector: is required and must not be empty"),
        ({"labelSelector": None}, "labelSelector: is required and must not be empty"),
        ({"labelSelector": PICKS, "scope": "rack"}, 'scope: "rack" is none of numa, pcie, socket'),
        ({"labelSelector": PICKS, "mode": "Stack"}, 'mode: "Stack" is none of Pack, Spread'),
        ({"labelSelector": PICKS, "whenUnsatisfiable": "Wait"}, '"Wait" is none of DoNotSchedule, ScheduleAnyway'),
        ({"labelSelector": PICKS, "maxSkew": 2}, "maxSkew: is unknown"),
        ({"labelSelector": {"matchLabel": {"app": "web"}}}, "labelSelector.matchLabel: is unknown (accepted"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "operator In with 0 values"),
        (
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            "operator Exists with 1 values",
        ),
        (
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
            "Gt is not an operator of a label selector",
        ),
        ({"labelSelector": "app=web"}, "labelSelector"),
        ("{", names.NUMA_SPREAD),
        ("3", names.NUMA_SPREAD),
        ("", names.NUMA_SPREAD),
        ("null", "labelSelector: is required"),
    ],
)
def test_bad_input_is_rejected_with_a_clear_text(value: Any, text: str) -> None:
    found = parsed(value)
    assert names.NUMA_SPREAD in found.problem
    assert text in found.problem
