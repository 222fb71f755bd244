"""The usable pools: the newest complete and consistent generation of drivers that the request can use."""

from typing import Any

import pytest

from koord_numa.core.claims.allocator import NotAllocated
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import cel, claim_object, decide, device, devices_of, published, request

GPUS = published("gpu", [device("a"), device("b")])
ALL = request("r", "gpu", allocationMode="All")


def test_pools_that_cannot_serve_the_request_do_not_matter() -> None:
    other_driver = published("nic", [device("n")], count=2)
    other_node = published("gpu", pool="elsewhere", count=2, counters={"m": "1"}, nodeName="node-2")
    assert devices_of(decide([GPUS, other_driver, other_node], [claim_object(ALL)])) == ["a", "b"]
    three = decide([GPUS, published("nic", [device("n"), device("n")])], [claim_object(request("r", "gpu", count=3))])
    assert three == NotAllocated("cannot allocate all claims", steps=three.steps)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"count": 2}, "is currently being updated"),
        ({"devices": [device("x"), device("x")]}, "is currently invalid"),
        ({"devices": [device("x", consumes={"m": "1"})]}, "is currently invalid"),
    ],
    ids=["incomplete", "twice", "unknown counter"],
)
def test_pools_that_could_serve_it_do(broken: dict[str, Any], text: str) -> None:
    devices = broken.pop("devices", [device("x")])
    answer = decide([GPUS, published("gpu", devices, pool="more", **broken)], [claim_object(ALL)])
    assert isinstance(answer, NotAllocated)
    assert answer.error
    assert answer.message.endswith(text)


def test_only_the_newest_generation_counts() -> None:
    old = published("gpu", [device("old")], name="s-old")
    new = published("gpu", [device("new")], name="s-new", generation=2)
    assert devices_of(decide([old, new], [claim_object(ALL)])) == ["new"]


def test_a_pool_with_a_newer_generation_elsewhere_is_ignored() -> None:
    old = published("gpu", [device("old")], count=2)
    new = published("gpu", [device("new")], name="s-new", generation=2, nodeName="node-2")
    assert devices_of(decide([old, new], [claim_object(request("r", "gpu"))])) == ["cannot allocate all claims"]


def test_a_malformed_slice_affects_only_its_pool() -> None:
    spec = {
        "driver": "gpu",
        "pool": {"name": "bad", "resourceSliceCount": 1},
        "nodeName": "node-1",
        "devices": [{"name": 7}],
    }
    facts = parse_resource_slice({"metadata": {"name": "bad"}, "spec": spec})
    assert facts.parts is not None
    assert "devices[0].name" in facts.problem
    assert devices_of(decide([GPUS, facts.parts], [claim_object(request("r", "gpu", count=2))])) == ["a", "b"]
    assert devices_of(decide([GPUS, facts.parts], [claim_object(request("r", "gpu", count=3))])) == [
        "invalid resource pools were encountered"
    ]


def test_an_unreadable_attribute_affects_only_its_readers() -> None:
    broken = published("gpu", [device("x", attributes={"v": {"version": "x"}, "later": {"y": 1}})])
    assert devices_of(decide([broken], [claim_object(request("r", "gpu"))])) == ["x"]
    reads = claim_object(request("r", "gpu", selectors=[cel('device.attributes["gpu"].v.major() > 0')]))
    own = decide([broken], [reads])
    assert isinstance(own, NotAllocated)
    assert own.error
    # A device of another driver is not read at all.
    guarded = claim_object(request("r", "gpu", selectors=[cel('device.driver != "gpu" || true')]))
    assert devices_of(decide([broken], [guarded])) == ["x"]
