"""Pods: binding, eviction under budgets, deletion with grace, finalizers, preconditions, owners."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import CONFIGMAPS, PODS, STRATEGIC, Api, binding, configmap, pod

POD = f"{PODS}/p"
PDBS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


async def bind(api: Api, name: str = "p", target: str = "n1") -> None:
    """Bind a pod; must succeed."""
    assert (await api.post(f"{PODS}/{name}/binding", binding(name, target))).status == 201


async def test_binding_is_one_update(api: Api) -> None:
    body = pod()
    body["metadata"] |= {"annotations": {"old": "1", "kept": "2"}, "labels": {"a": "b"}}
    created = await api.create(PODS, body)
    answer = await api.post(
        f"{POD}/binding", binding("p", "n1", annotations={"old": "3", "new": "4"}, labels={"c": "d"})
    )
    bound = (await api.get(POD)).body
    assert (answer.status, answer.body) == (201, SUCCESS)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"old": "3", "kept": "2", "new": "4"}
    assert bound["metadata"]["labels"] == {"a": "b", "c": "d"}
    assert [(one["type"], one["status"]) for one in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    assert int(bound["metadata"]["resourceVersion"]) == int(created["metadata"]["resourceVersion"]) + 1


async def test_binding_with_the_right_preconditions(api: Api) -> None:
    created = await api.create(PODS, pod())
    metadata = {name: created["metadata"][name] for name in ("uid", "resourceVersion")}
    assert (await api.post(f"{POD}/binding", binding("p", "n1", **metadata))).status == 201


@pytest.mark.parametrize(
    "metadata", [{"uid": "00000000-0000-0000-0000-000000000000"}, {"resourceVersion": "1"}], ids=["uid", "version"]
)
async def test_binding_with_wrong_preconditions(api: Api, metadata: dict[str, Any]) -> None:
    await api.create(PODS, pod())
    answer = await api.post(f"{POD}/binding", binding("p", "n1", **metadata))
    assert answer.reason == (409, "Conflict")
    assert "StorageError: invalid object" in answer.body["message"]
    assert "nodeName" not in (await api.get(POD)).body["spec"]


async def test_binding_twice(api: Api) -> None:
    await api.create(PODS, pod())
    await bind(api)
    answer = await api.post(f"{POD}/binding", binding("p", "n1"))
    assert answer.reason == (409, "Conflict")
    assert 'pod p is already assigned to node "n1"' in answer.body["message"]


async def test_the_log_of_a_container(api: Api) -> None:
    assert (await api.get(f"{POD}/log")).reason == (404, "NotFound")
    await api.create(PODS, pod())
    waiting = await api.get(f"{POD}/log")
    assert (waiting.status, waiting.body["message"]) == (400, "pod p does not have a host assigned")
    await bind(api)
    assert "simulated" in (await api.get(f"{POD}/log")).body


async def test_binding_of_gated_and_deleting_pods(api: Api) -> None:
    await api.create(PODS, pod(schedulingGates=[{"name": "g"}]))
    gated = await api.post(f"{POD}/binding", binding("p", "n1"))
    body = pod("q")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(PODS, body)
    await api.delete(f"{PODS}/q")
    deleting = await api.post(f"{PODS}/q/binding", binding("q", "n1"))
    assert (gated.reason, deleting.reason) == ((409, "Conflict"), (409, "Conflict"))
    assert "being deleted" in deleting.body["message"]


async def test_binding_of_absent_pods(api: Api) -> None:
    assert (await api.post(f"{POD}/binding", binding("p", "n1"))).reason == (404, "NotFound")


async def test_binding_without_a_target(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.post(f"{POD}/binding", {"metadata": {"name": "p"}})).reason == (500, "")
    assert (await api.post(f"{POD}/binding", binding("other", "n1"))).reason == (400, "BadRequest")


async def test_binding_dry_run(api: Api) -> None:
    created = await api.create(PODS, pod())
    assert (await api.post(f"{POD}/binding", binding("p", "n1"), dryRun="All")).status == 201
    assert (await api.get(POD)).body == created


async def test_binding_does_not_check_nodes_or_annotation_keys(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.post(f"{POD}/binding", binding("p", "absent", annotations={"no key": ""}))).status == 201
    assert (await api.patch(POD, {"metadata": {"labels": {"a": "b"}}})).reason == (422, "Invalid")


async def test_the_bindings_collection(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.post("/api/v1/namespaces/default/bindings", binding("p", "n1"))).body == SUCCESS
    assert (await api.get(POD)).body["spec"]["nodeName"] == "n1"


async def test_an_unbound_pod_is_deleted_at_once(api: Api) -> None:
    created = await api.create(PODS, pod())
    answer = await api.delete(POD)
    assert (answer.status, answer.body["kind"], answer.body["metadata"]["uid"]) == (
        200,
        "Pod",
        created["metadata"]["uid"],
    )
    assert (await api.get(POD)).status == 404


async def test_a_bound_pod_gets_its_grace(api: Api) -> None:
    await api.create(PODS, pod())
    await bind(api)
    metadata = (await api.delete(POD)).body["metadata"]
    assert (metadata["deletionGracePeriodSeconds"], metadata["deletionTimestamp"][-1]) == (30, "Z")
    assert (await api.get(POD)).body["metadata"] == metadata
    shorter = (await api.delete(POD, gracePeriodSeconds="5")).body["metadata"]
    longer = (await api.delete(POD, gracePeriodSeconds="50")).body["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], longer["deletionGracePeriodSeconds"]) == (5, 5)
    assert (await api.delete(POD, {"gracePeriodSeconds": 0})).status == 200
    assert (await api.get(POD)).status == 404


async def test_a_finished_pod_needs_no_grace(api: Api) -> None:
    await api.create(PODS, pod())
    await bind(api)
    await api.patch(f"{POD}/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)
    await api.delete(POD)
    assert (await api.get(POD)).status == 404


async def test_finalizers_hold(api: Api) -> None:
    body = configmap()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(CONFIGMAPS, body)
    answer = await api.delete(f"{CONFIGMAPS}/c")
    assert (answer.status, answer.body["kind"], "deletionTimestamp" in answer.body["metadata"]) == (
        200,
        "ConfigMap",
        True,
    )
    assert (await api.get(f"{CONFIGMAPS}/c")).status == 200
    await api.patch(f"{CONFIGMAPS}/c", {"metadata": {"finalizers": None}})
    assert (await api.get(f"{CONFIGMAPS}/c")).status == 404


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_deletion_preconditions(api: Api, field: str) -> None:
    created = await api.create(CONFIGMAPS, configmap())
    wrong = await api.delete(f"{CONFIGMAPS}/c", {"preconditions": {field: "1"}})
    right = await api.delete(f"{CONFIGMAPS}/c", {"preconditions": {field: created["metadata"][field]}})
    assert (wrong.reason, right.status) == ((409, "Conflict"), 200)


async def test_deletion_of_absent_objects_and_malformed_options(api: Api) -> None:
    assert (await api.delete(POD)).reason == (404, "NotFound")
    await api.create(PODS, pod())
    assert (await api.delete(POD, {"gracePeriodSeconds": "soon"})).status == 400
    assert (await api.delete(POD, {"propagationPolicy": "Sideways"})).status == 400
    assert (await api.delete(POD, dryRun="All")).status == 200
    assert (await api.get(POD)).status == 200


async def test_deletion_answers_with_a_status_for_most_kinds(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap())
    body = (await api.delete(f"{CONFIGMAPS}/c")).body
    details = {"name": "c", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    assert body == {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


async def test_deletecollection(api: Api) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {"x": "1"})):
        await api.create(PODS, pod(name, labels=labels))
    answer = await api.delete(PODS, labelSelector="x=1")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "c"]
    assert [item["metadata"]["name"] for item in (await api.get(PODS)).body["items"]] == ["b"]


async def owned(api: Api, name: str, *owners: dict[str, Any]) -> None:
    """Create a config map that belongs to others."""
    body = configmap(name)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        for owner in owners
    ]
    await api.create(CONFIGMAPS, body)


async def names(api: Api) -> str:
    """All config maps."""
    return "".join(item["metadata"]["name"] for item in (await api.get(CONFIGMAPS)).body["items"])


async def test_dependents_go_with_their_last_owner(api: Api) -> None:
    first, second = await api.create(CONFIGMAPS, configmap("a")), await api.create(CONFIGMAPS, configmap("b"))
    await owned(api, "x", first)
    await owned(api, "y", first, second)
    await api.delete(f"{CONFIGMAPS}/a")
    assert await names(api) == "by"
    await api.delete(f"{CONFIGMAPS}/b")
    assert await names(api) == ""


async def test_orphans_stay(api: Api) -> None:
    await owned(api, "x", await api.create(CONFIGMAPS, configmap("a")))
    await api.delete(f"{CONFIGMAPS}/a", propagationPolicy="Orphan")
    assert (await api.get(f"{CONFIGMAPS}/x")).body["metadata"]["ownerReferences"] == []


async def test_foreground_waits_for_dependents(api: Api) -> None:
    owner = await api.create(CONFIGMAPS, configmap("a"))
    await owned(api, "x", owner)
    await api.patch(f"{CONFIGMAPS}/x", {"metadata": {"finalizers": ["example.com/hold"]}})
    await api.delete(f"{CONFIGMAPS}/a", {"propagationPolicy": "Foreground"})
    assert (await api.get(f"{CONFIGMAPS}/a")).body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.patch(f"{CONFIGMAPS}/x", {"metadata": {"finalizers": None}})
    assert await names(api) == ""


EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}


async def test_eviction_without_a_budget(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.post(f"{POD}/eviction", EVICTION)).body == SUCCESS
    assert (await api.get(POD)).status == 404
    assert (await api.post(f"{POD}/eviction", EVICTION)).reason == (404, "NotFound")


async def running(api: Api, name: str) -> None:
    """A pod of the protected application that is ready on a node."""
    await api.create(PODS, pod(name, labels={"app": "a"}))
    await bind(api, name)
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await api.patch(f"{PODS}/{name}/status", ready, STRATEGIC)


@pytest.mark.parametrize("rule", [{"minAvailable": 1}, {"maxUnavailable": 1}, {"minAvailable": "50%"}], ids=str)
async def test_budgets_limit_evictions(api: Api, rule: dict[str, Any]) -> None:
    await running(api, "p")
    await running(api, "q")
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, **rule}}
    await api.create(PDBS, budget)
    status = (await api.get(f"{PDBS}/b")).body["status"]
    expected = {
        "observedGeneration": 1,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "disruptionsAllowed": 1,
        "expectedPods": 2,
    }
    first = await api.post(f"{POD}/eviction", EVICTION)
    second = await api.post(f"{PODS}/q/eviction", {**EVICTION, "metadata": {"name": "q"}})
    assert (status, first.status, second.reason) == (expected, 201, (429, "TooManyRequests"))
    assert second.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" in (await api.get(POD)).body["metadata"]


async def test_pending_pods_are_evicted_regardless(api: Api) -> None:
    await api.create(PODS, pod("p", labels={"app": "a"}))
    await api.create(
        PDBS, {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}}
    )
    assert (await api.post(f"{POD}/eviction", EVICTION)).status == 201
