"""DeviceTaintRules: which devices a rule taints, and that a slice is changed once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.claims.inventory import DeviceTaintRule, TaintRules
from koord_numa.core.objects.claims import DeviceTaint
from koord_numa.wire.errors import WireError
from koord_numa.wire.resource_slices import parse_taint_rule
from tests.core.claims.worlds import device, published
from tests.tables import each_row

OWN = {"key": "own", "effect": "NoSchedule"}
GPUS = published("gpu", [device("a", taints=[OWN]), device("b")], pool="p")


def rule(selector: Any, name: str = "r", effect: str = "NoExecute") -> Any:
    """A DeviceTaintRule as the API server returns it."""
    spec: dict[str, Any] = {"taint": {"key": "broken", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


@each_row(
    ("selector", "tainted"),
    [
        (None, []),
        ({}, ["a", "b"]),
        ({"driver": None}, ["a", "b"]),
        ({"driver": "gpu"}, ["a", "b"]),
        ({"driver": "nic"}, []),
        ({"pool": "p"}, ["a", "b"]),
        ({"pool": "q"}, []),
        ({"device": "b"}, ["b"]),
        ({"driver": "gpu", "pool": "p", "device": "a"}, ["a"]),
        ({"driver": "gpu", "pool": "q", "device": "a"}, []),
        ({"driver": "gpu", "pool": "p", "device": "c"}, []),
    ],
)
def test_which_devices_a_rule_taints(selector: Any, tainted: list[str]) -> None:
    rules = TaintRules()
    rules.put(parse_taint_rule(rule(selector)))
    found = rules.tainted(GPUS)
    assert [it.id.device for it in found.devices if any(taint.rule == "r" for taint in it.taints)] == tainted
    # The taints of the driver stay, and come first.
    assert found.devices[0].taints[0] == DeviceTaint("own", "", "NoSchedule")
    assert (found is GPUS) == (not tainted)
    assert rules.tainted(GPUS) is found


def test_a_selector_that_is_not_known_taints_nothing() -> None:
    with pytest.raises(WireError, match=r"spec\.deviceSelector\.deviceClassName: the selector type"):
        parse_taint_rule(rule({"driver": "gpu", "deviceClassName": "gpu"}))


def test_a_taint_says_which_rule_sets_it() -> None:
    taint = parse_taint_rule(rule({})).taint
    assert str(taint) == "broken:NoExecute by DeviceTaintRule r"
    assert str(DeviceTaint("a", "b", "NoSchedule")) == "a=b:NoSchedule"


NAMES = st.sampled_from(["p", "q"])
RULES = st.builds(
    DeviceTaintRule,
    st.sampled_from(["r1", "r2", "r3"]),
    st.builds(DeviceTaint, st.sampled_from("xy"), st.just(""), st.sampled_from(["None", "NoSchedule", "NoExecute"])),
    st.none() | st.sampled_from(["gpu", "nic"]),
    st.none() | NAMES,
    st.none() | st.sampled_from("ab"),
    st.booleans(),
)


@given(st.lists(st.tuples(st.booleans(), RULES), max_size=8))
def test_changing_rules_have_the_result_of_all_rules_at_once(changes: list[tuple[bool, DeviceTaintRule]]) -> None:
    slices = [published(driver, [device("a"), device("b")], pool=pool) for driver in ("gpu", "nic") for pool in "pq"]
    rules, known = TaintRules(), dict[str, DeviceTaintRule]()
    for added, changed in changes:
        if added:
            rules.put(changed)
            known[changed.name] = changed
        else:
            rules.remove(changed.name)
            known.pop(changed.name, None)
        for each in map(rules.tainted, slices):
            for found in each.devices:
                expected = [
                    it.taint
                    for _, it in sorted(known.items())
                    if it.selects
                    and it.driver in (None, found.id.driver)
                    and it.pool in (None, found.id.pool)
                    and it.device in (None, found.id.device)
                ]
                assert list(found.taints) == expected
