"""The binder against a server that behaves as a real one does."""

from pathlib import Path

import pytest

from koord_numa.app.runtime import AGENT
from koord_numa.cluster.client import Api
from koord_numa.cluster.writers import ApiBinder, valid_key
from koord_numa.core.objects.request import PodKey
from koord_numa.core.value_objects import replace
from koord_numa.ports import Conflict, Forbidden, Gone, Invalid, Unavailable, UnknownOutcome
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from tests.cluster.objects import JsonObject, node, pod
from tests.tables import each_row

STATUS = "scheduling.koordinator.sh/resource-status"


@pytest.fixture
def binder(api: Api) -> ApiBinder:
    return ApiBinder(api)


def created(server: ApiServer, document: JsonObject) -> PodKey:
    about = server.store.create(document)["metadata"]
    return PodKey(about["namespace"], about["name"], about["uid"])


async def test_one_call_binds_and_annotates(server: ApiServer, binder: ApiBinder) -> None:
    server.store.create(node("n"))
    key = created(server, pod("a"))
    await binder.bind(key, "n", {STATUS: '{"cpuset":"0-1"}'})
    bound = server.store.get("pods", "a", "default")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n", {STATUS: '{"cpuset":"0-1"}'})
    assert server.requests.rules() == {("create", "", "pods/binding")}


async def test_another_uid_is_never_bound(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    server.store.delete("pods", "a", "default", DeleteOptions(grace=0))
    server.store.create(pod("a"))
    with pytest.raises(Conflict):
        await binder.bind(key, "n", {})
    assert "nodeName" not in server.store.get("pods", "a", "default")["spec"]


async def test_bound_is_bound(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    await binder.bind(key, "n", {})
    with pytest.raises(Conflict):
        await binder.bind(key, "n", {})


async def test_a_gated_pod_is_a_conflict(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a", schedulingGates=[{"name": "wait"}]))
    with pytest.raises(Conflict):
        await binder.bind(key, "n", {})


async def test_no_such_pod(binder: ApiBinder) -> None:
    with pytest.raises(Gone):
        await binder.bind(PodKey("default", "a", "u"), "n", {})


async def test_a_key_that_would_poison_the_pod_is_never_sent(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    with pytest.raises(Invalid, match="'not a key' is not an annotation key"):
        await binder.bind(key, "n", {"not a key": "x"})
    assert not list(server.requests)


async def test_a_lost_response_is_settled_by_a_read(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, subresource="binding", count=1))
    with pytest.raises(UnknownOutcome):
        await binder.bind(key, "n", {})
    assert (await binder.read_pod(key)).node == "n"


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (429, Unavailable), (503, Unavailable)])
async def test_a_refused_bind(server: ApiServer, binder: ApiBinder, status: int, error: type[Exception]) -> None:
    key = created(server, pod("a"))
    server.faults.add(Fault(status=status, subresource="binding"))
    with pytest.raises(error):
        await binder.bind(key, "n", {})


async def test_reading_a_pod_of_that_name_but_another_uid(server: ApiServer, binder: ApiBinder) -> None:
    created(server, pod("a"))
    with pytest.raises(Gone):
        await binder.read_pod(PodKey("default", "a", "another"))


async def test_unschedulable_is_a_condition_with_one_transition(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    await binder.set_unschedulable(key, "0/1 nodes are available: 1 Insufficient cpu.")
    first = server.store.get("pods", "a", "default")["status"]["conditions"]
    await binder.set_unschedulable(key, "0/2 nodes are available: 2 Insufficient cpu.")
    second = server.store.get("pods", "a", "default")["status"]["conditions"]
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    transition = first[0].pop("lastTransitionTime")
    assert first == [told | {"message": "0/1 nodes are available: 1 Insufficient cpu."}]
    assert second == [
        told | {"message": "0/2 nodes are available: 2 Insufficient cpu.", "lastTransitionTime": transition}
    ]
    assert server.requests.rules() == {("patch", "", "pods/status")}


async def test_no_condition_on_a_pod_created_anew(server: ApiServer, binder: ApiBinder) -> None:
    created(server, pod("a"))
    with pytest.raises(Gone):
        await binder.set_unschedulable(PodKey("default", "a", "another"), "x")
    assert "conditions" not in server.store.get("pods", "a", "default")["status"]


async def test_nomination_comes_and_goes(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    await binder.nominate(key, "n")
    assert server.store.get("pods", "a", "default")["status"]["nominatedNodeName"] == "n"
    await binder.nominate(key, "")
    assert "nominatedNodeName" not in server.store.get("pods", "a", "default")["status"]


async def test_a_nomination_and_its_reason_are_one_request(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    await binder.set_unschedulable(key, "0/1 nodes are available: 1 Insufficient cpu.")
    transition = server.store.get("pods", "a", "default")["status"]["conditions"][0]["lastTransitionTime"]
    before = len(server.requests)
    seen = await binder.nominate(key, "n", "preemption: node n is being freed.")
    status = server.store.get("pods", "a", "default")["status"]
    assert len(server.requests) == before + 1
    assert (seen.key, seen.nominated, seen.node, status["nominatedNodeName"]) == (key, "n", "", "n")
    assert [(it["message"], it["lastTransitionTime"]) for it in status["conditions"]] == [
        ("preemption: node n is being freed.", transition)
    ]


async def test_a_nomination_that_is_refused_as_the_pod_is_bound(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    await binder.bind(key, "n", {})
    server.faults.add(Fault(status=422, subresource="status"))
    with pytest.raises(Gone):
        await binder.nominate(key, "other")


async def test_a_nomination_that_is_refused_for_another_reason(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    server.faults.add(Fault(status=422, subresource="status"))
    with pytest.raises(Invalid):
        await binder.nominate(key, "other")


async def test_eviction(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a", terminationGracePeriodSeconds=0))
    await binder.evict(key, "makes room")
    assert server.store.find("pods", "a", "default") is None


async def test_an_eviction_that_a_budget_forbids_is_for_later(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a"))
    server.faults.add(Fault(status=429, subresource="eviction", retry_after=10))
    with pytest.raises(Unavailable) as refused:
        await binder.evict(key, "makes room")
    assert refused.value.retry_after == 10


@pytest.mark.rights
async def test_a_deletion_skips_budgets_and_spares_a_later_pod(server: ApiServer, tmp_path: Path) -> None:
    async with await Api.connect(server.write_kubeconfig(tmp_path / "kubeconfig"), AGENT) as api:
        await _deletes_only_the_pod_that_was_meant(server, ApiBinder(api))


async def _deletes_only_the_pod_that_was_meant(server: ApiServer, binder: ApiBinder) -> None:
    key = created(server, pod("a", terminationGracePeriodSeconds=0))
    with pytest.raises(Gone):
        await binder.delete(replace(key, uid="of a former pod"))
    assert server.store.find("pods", "a", "default") is not None
    await binder.delete(key)
    assert server.store.find("pods", "a", "default") is None


@each_row(
    ("key", "valid"),
    [
        (STATUS, True),
        ("name", True),
        ("a.b/c_d-e.F", True),
        ("", False),
        ("/name", False),
        ("prefix/", False),
        ("a/b/c", False),
        ("UPPER/x", False),
        ("-x", False),
        ("x" * 63, True),
        ("x" * 64, False),
        ("x" * 253 + "/y", True),
        ("x" * 254 + "/y", False),
    ],
)
def test_annotation_keys(key: str, valid: bool) -> None:
    assert valid_key(key) is valid
