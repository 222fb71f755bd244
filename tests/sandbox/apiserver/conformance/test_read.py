"""Reading: single objects, lists, pages, selectors, tables."""

from typing import Any

import pytest

from koord_numa.sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import (
    CONFIGMAPS,
    CRDS,
    NODES,
    PODS,
    RACKS,
    Api,
    binding,
    configmap,
    crd,
    node,
    pod,
    rack,
)

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def test_absent_objects_are_a_status(api: Api) -> None:
    answer = await api.get(f"{PODS}/absent")
    assert (answer.status, answer.body) == (
        404,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'pods "absent" not found',
            "reason": "NotFound",
            "details": {"name": "absent", "kind": "pods"},
            "code": 404,
        },
    )


async def test_lists_carry_kind_and_revision(api: Api) -> None:
    created = await api.create(PODS, pod())
    body = (await api.get(PODS)).body
    assert (body["kind"], body["apiVersion"]) == ("PodList", "v1")
    assert int(body["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    assert body["items"] == [created]


async def test_lists_are_ordered_by_namespace_and_name(api: Api) -> None:
    for namespace, name in (("kube-system", "a"), ("default", "b"), ("default", "a")):
        await api.create(f"/api/v1/namespaces/{namespace}/configmaps", configmap(name))
    items = (await api.get("/api/v1/configmaps")).body["items"]
    assert [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items] == [
        ("default", "a"),
        ("default", "b"),
        ("kube-system", "a"),
    ]


async def test_pages_show_one_state(api: Api) -> None:
    for name in "abcde":
        await api.create(CONFIGMAPS, configmap(name))
    first = (await api.get(CONFIGMAPS, limit="2")).body
    assert first["metadata"]["remainingItemCount"] == 3
    await api.delete(f"{CONFIGMAPS}/c")
    await api.create(CONFIGMAPS, configmap("f"))
    second = (await api.get(CONFIGMAPS, limit="2", **{"continue": first["metadata"]["continue"]})).body
    third = (await api.get(CONFIGMAPS, limit="2", **{"continue": second["metadata"]["continue"]})).body
    assert [[item["metadata"]["name"] for item in page["items"]] for page in (first, second, third)] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {
        first["metadata"]["resourceVersion"]
    }
    assert "continue" not in third["metadata"]


async def test_a_page_after_compaction_is_gone(api: Api, server: ApiServer) -> None:
    for name in "ab":
        await api.create(CONFIGMAPS, configmap(name))
    token = (await api.get(CONFIGMAPS, limit="1")).body["metadata"]["continue"]
    server.compact()
    assert (await api.get(CONFIGMAPS, limit="1", **{"continue": token})).reason == (410, "Expired")


@pytest.mark.parametrize(
    "query",
    [{"continue": "x"}, {"limit": "-1"}, {"limit": "many"}, {"labelSelector": "a in b"}, {"labelSelector": "a,"}],
)
async def test_malformed_queries(api: Api, query: dict[str, str]) -> None:
    assert (await api.get(CONFIGMAPS, **query)).reason == (400, "BadRequest")


@pytest.fixture
async def labelled(api: Api) -> Api:
    """Four pods: a (tier=web, size=1), b (tier=db, size=5), c (tier=web, gone empty), d without labels; b is bound."""
    for name, labels in {
        "a": {"tier": "web", "size": "1"},
        "b": {"tier": "db", "size": "5"},
        "c": {"tier": "web", "gone": ""},
        "d": {},
    }.items():
        await api.create(PODS, pod(name, labels=labels, schedulerName="numa" if name in "ab" else "other"))
    assert (await api.post(f"{PODS}/b/binding", binding("b", "n1"))).status == 201
    await api.patch(f"{PODS}/c/status", {"status": {"phase": "Running"}})
    return api


LABEL_SELECTORS = [
    ("tier=web", "ac"),
    ("tier==web", "ac"),
    ("tier!=web", "bd"),
    ("tier in (web, db)", "abc"),
    ("tier notin (web)", "bd"),
    ("tier", "abc"),
    ("!tier", "d"),
    ("gone=", "c"),
    ("size>2", "b"),
    ("size<2", "a"),
    ("tier=web,size", "a"),
    ("tier in (web),!size", "c"),
    ("", "abcd"),
]


@pytest.mark.parametrize(
    ("selector", "expected"), LABEL_SELECTORS, ids=[selector or "empty" for selector, _ in LABEL_SELECTORS]
)
async def test_label_selectors(labelled: Api, selector: str, expected: str) -> None:
    items = (await labelled.get(PODS, labelSelector=selector)).body["items"]
    assert "".join(item["metadata"]["name"] for item in items) == expected


FIELD_SELECTORS = [
    ("metadata.name=a", "a"),
    ("metadata.namespace=default,metadata.name!=a", "bcd"),
    ("metadata.namespace=kube-system", ""),
    ("spec.nodeName=", "acd"),
    ("spec.nodeName=n1", "b"),
    ("spec.nodeName!=", "b"),
    ("spec.schedulerName=numa", "ab"),
    ("status.phase=Running", "c"),
    ("status.phase!=Running,spec.nodeName==", "ad"),
    ("spec.nodeName=,spec.schedulerName=numa,status.phase!=Failed", "a"),
]


@pytest.mark.parametrize(("selector", "expected"), FIELD_SELECTORS, ids=[selector for selector, _ in FIELD_SELECTORS])
async def test_field_selectors(labelled: Api, selector: str, expected: str) -> None:
    items = (await labelled.get("/api/v1/pods", fieldSelector=selector)).body["items"]
    assert "".join(item["metadata"]["name"] for item in items) == expected


@pytest.mark.parametrize("path", [PODS, CONFIGMAPS])
async def test_unsupported_fields(api: Api, path: str) -> None:
    answer = await api.get(path, fieldSelector="spec.priority=1")
    assert answer.reason == (400, "BadRequest")
    assert "field label not supported: spec.priority" in answer.body["message"]


async def _table(api: Api, path: str, **query: str) -> tuple[list[str], list[list[Any]]]:
    body = (await api.get(path, accept=TABLE, **query)).body
    assert body["kind"] == "Table"
    return [column["name"] for column in body["columnDefinitions"]], [row["cells"] for row in body["rows"]]


async def test_pod_table(labelled: Api) -> None:
    names, rows = await _table(labelled, PODS)
    assert names == ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    assert [(row[0], row[1], row[2], row[6]) for row in rows] == [
        ("a", "0/1", "Pending", "<none>"),
        ("b", "0/1", "Pending", "n1"),
        ("c", "0/1", "Running", "<none>"),
        ("d", "0/1", "Pending", "<none>"),
    ]


async def test_node_table(api: Api) -> None:
    body = node(conditions=[{"type": "Ready", "status": "True"}], nodeInfo={"kubeletVersion": "v1.36.0"})
    body["metadata"]["labels"] = {"node-role.kubernetes.io/worker": ""}
    body["spec"] = {"unschedulable": True}
    await api.create(NODES, body)
    _, rows = await _table(api, NODES)
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        ("n1", "Ready,SchedulingDisabled", "worker", "v1.36.0")
    ]


async def test_custom_table(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack(size=4))
    names, rows = await _table(api, RACKS)
    assert (names, rows) == (["Name", "Size", "Phase"], [["r1", 4, None]])


@pytest.mark.parametrize(("include", "kind"), [("", "PartialObjectMetadata"), ("Object", "ConfigMap"), ("None", None)])
async def test_table_rows_carry_what_was_asked_for(api: Api, include: str, kind: str | None) -> None:
    await api.create(CONFIGMAPS, configmap())
    row = (await api.get(f"{CONFIGMAPS}/c", accept=TABLE, includeObject=include)).body["rows"][0]
    assert row.get("object", {}).get("kind") == kind


async def test_metadata_only(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    items = (await api.get(CONFIGMAPS, accept=accept)).body["items"]
    assert items == [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"]}]


async def test_methods_that_are_not_served(api: Api) -> None:
    assert (await api.put(PODS, pod())).status in (400, 404, 405)
    assert (await api.ask("OPTIONS", PODS)).reason == (405, "MethodNotAllowed")
    assert (await api.get("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")).reason == (405, "MethodNotAllowed")
