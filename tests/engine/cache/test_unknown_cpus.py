"""A running pod whose resource-status cannot be read: its CPUs are given to no other pod."""

import pytest

from koord_numa.view.documents import node_document, node_entry
from koord_numa.wire import names, parse_pod
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, node, pod

UNREADABLE = {
    "not-json": "0-3",
    "not-an-object": "[]",
    "no-cpu-list": '{"cpuset": "0-"}',
    "wrong-type": '{"cpuset": 3}',
    "wrong-numa-id": '{"cpuset": "0-3", "numaNodeResources": [{"node": 5000}]}',
    "wrong-amount": '{"cpuset": "0-3", "numaNodeResources": [{"node": 0, "resources": {"cpu": "many"}}]}',
}


def running(status: str, qos: str = "LSR") -> Json:
    made = pod("runs", guaranteed("4"), qos=qos)
    made["metadata"]["annotations"][names.RESOURCE_STATUS] = status
    made["spec"]["nodeName"] = "n"
    made["status"] = {"phase": "Running"}
    return made


def there_is(status: str, qos: str = "LSR") -> Cluster:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    there.world.engine.handlers.bound_pods.observe("ADDED", parse_pod(running(status, qos)))
    return there


@pytest.mark.parametrize("status", UNREADABLE.values(), ids=UNREADABLE)
async def test_no_pod_goes_where_cpus_are_not_known(status: str) -> None:
    there = there_is(status)
    await there.create(pod("new", guaranteed("8"), qos="LSR"))
    assert there.node_of("new") == ""
    assert "the CPUs of default/runs are not known" in there.why("new")
    assert there.world.diary.reasons("n") == ["CPUsUnknown"]
    info = there.world.engine.cache.nodes["n"]
    entry, document = node_entry(info), node_document(info, there.world.engine.claims, "")
    assert entry is not None
    assert document is not None
    assert entry["state"] == "conflict"
    assert document["pods"][0]["cpus"] == "not known"


async def test_a_repaired_annotation_reopens_the_node() -> None:
    there = there_is(UNREADABLE["not-json"])
    await there.create(pod("new", guaranteed("8"), qos="LSR"))
    there.world.engine.handlers.bound_pods.observe("MODIFIED", parse_pod(running('{"cpuset": "0-3"}')))
    there.world.clock.now += 5
    await there.world.settle()
    assert there.world.server.pods["uid-new"].node == "n"
    held = there.world.engine.cache.nodes["n"].ledger.holdings["uid-new"].cpus
    assert len(held) == 8
    assert not held.bits & 0b1111


@pytest.mark.parametrize("qos", ["LS", "BE"])
async def test_pods_on_shared_cpus_hold_none_whatever_they_say(qos: str) -> None:
    there = there_is(UNREADABLE["not-json"], qos)
    await there.create(pod("new", guaranteed("8"), qos="LSR"))
    assert there.node_of("new") == "n"
