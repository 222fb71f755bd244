"""The four patches: merge, JSON, strategic merge, and server-side apply."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import (
    APPLY,
    CONFIGMAPS,
    CRDS,
    JSON_PATCH,
    MERGE,
    NODES,
    PODS,
    RACKS,
    STRATEGIC,
    Api,
    configmap,
    crd,
    node,
    pod,
    rack,
)
from tests.sandbox.apiserver.conformance.objects import CM, POD, version


async def test_merge_patch(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1", b="2"))
    answer = await api.patch(CM, {"data": {"a": None, "c": "3"}, "metadata": {"annotations": {"x": "y"}}})
    assert (answer.body["data"], answer.body["metadata"]["annotations"]) == ({"b": "2", "c": "3"}, {"x": "y"})
    assert version(answer.body) > version(created)


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        (MERGE, {"data": {"a": "1"}}),
        (JSON_PATCH, [{"op": "replace", "path": "/data/a", "value": "1"}]),
        (STRATEGIC, {}),
        (MERGE, {}),
    ],
)
async def test_a_patch_that_changes_nothing_keeps_the_version(api: Api, content_type: str, patch: Any) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    assert (await api.patch(CM, patch, content_type)).body == created


async def test_locks_in_merge_patches(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    fresh = await api.patch(
        CM, {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"a": "2"}}
    )
    stale = await api.patch(
        CM, {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    )
    other = await api.patch(CM, {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    assert (fresh.status, stale.reason, other.reason) == (200, (409, "Conflict"), (422, "Invalid"))


async def test_json_patch(api: Api) -> None:
    await api.create(CONFIGMAPS, configmap(a="1"))
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/b~1c", "value": "2"},
        {"op": "remove", "path": "/data/a"},
    ]
    assert (await api.patch(CM, operations, JSON_PATCH)).body["data"] == {"b/c": "2"}


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ([{"op": "test", "path": "/data/a", "value": "2"}], 422),
        ([{"op": "remove", "path": "/data/absent"}], 422),
        ([{"op": "add", "path": "/no/such/parent", "value": 1}], 422),
        ([{"op": "explode", "path": "/data"}], 400),
        ({"data": {}}, 400),
        ([1], 400),
    ],
)
async def test_json_patches_that_do_not_fit(api: Api, patch: Any, status: int) -> None:
    await api.create(CONFIGMAPS, configmap(a="1"))
    assert (await api.patch(CM, patch, JSON_PATCH)).status == status


async def test_a_body_that_is_no_patch(api: Api) -> None:
    await api.create(CONFIGMAPS, configmap())
    assert (await api.patch(CM, b"{", MERGE)).status == 400
    assert (await api.patch(CM, [], MERGE)).status == 400
    assert (await api.patch(CM, {}, "text/plain")).reason == (415, "UnsupportedMediaType")


def condition(kind: str, status: str) -> dict[str, str]:
    """A condition."""
    return {"type": kind, "status": status}


async def test_strategic_merge_by_condition_type(api: Api) -> None:
    await api.create(NODES, node(conditions=[condition("Ready", "False"), condition("DiskPressure", "False")]))
    patch = {"status": {"conditions": [condition("Ready", "True"), condition("PIDPressure", "False")]}}
    answer = await api.patch(f"{NODES}/n1/status", patch, STRATEGIC)
    assert answer.body["status"]["conditions"] == [
        condition("Ready", "True"),
        condition("DiskPressure", "False"),
        condition("PIDPressure", "False"),
    ]


async def test_strategic_directives(api: Api) -> None:
    await api.create(
        NODES,
        node(
            conditions=[condition("Ready", "True"), condition("DiskPressure", "False")],
            capacity={"cpu": "8", "memory": "1Gi"},
        ),
    )
    patch = {
        "status": {"conditions": [{"$patch": "delete", "type": "Ready"}], "capacity": {"$patch": "replace", "cpu": "4"}}
    }
    status = (await api.patch(f"{NODES}/n1/status", patch, STRATEGIC)).body["status"]
    assert (status["conditions"], status["capacity"]) == ([condition("DiskPressure", "False")], {"cpu": "4"})


async def test_strategic_merge_of_containers_and_finalizers(api: Api) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["example.com/a"]
    await api.create(PODS, body)
    patch = {
        "metadata": {"finalizers": ["example.com/b"]},
        "spec": {"containers": [{"name": "main", "image": "registry.example/app:2"}]},
    }
    changed = (await api.patch(POD, patch, STRATEGIC)).body
    assert changed["metadata"]["finalizers"] == ["example.com/a", "example.com/b"]
    assert [(one["name"], one["image"], one["imagePullPolicy"]) for one in changed["spec"]["containers"]] == [
        ("main", "registry.example/app:2", "IfNotPresent")
    ]
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    assert (await api.patch(POD, patch, STRATEGIC)).body["metadata"]["finalizers"] == ["example.com/b"]


async def test_strategic_order(api: Api) -> None:
    await api.create(NODES, node(conditions=[condition("A", "True"), condition("B", "True")]))
    patch = {
        "status": {
            "$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}],
            "conditions": [condition("C", "True")],
        }
    }
    conditions = (await api.patch(f"{NODES}/n1/status", patch, STRATEGIC)).body["status"]["conditions"]
    assert [one["type"] for one in conditions] == ["C", "B", "A"]


async def test_strategic_merge_needs_the_key(api: Api) -> None:
    await api.create(NODES, node())
    assert (
        await api.patch(f"{NODES}/n1/status", {"status": {"conditions": [{"status": "True"}]}}, STRATEGIC)
    ).status == 400


async def test_custom_kinds_take_no_strategic_patch(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack())
    assert (await api.patch(f"{RACKS}/r1", {}, STRATEGIC)).reason == (415, "UnsupportedMediaType")


async def test_apply_creates_and_updates(api: Api) -> None:
    first = await api.patch(CM, configmap(a="1", b="2"), APPLY, fieldManager="one")
    second = await api.patch(CM, configmap(a="1"), APPLY, fieldManager="one")
    assert (first.status, second.status) == (201, 200)
    assert (first.body["data"], second.body["data"]) == ({"a": "1", "b": "2"}, {"a": "1"})


async def test_appliers_own_their_fields(api: Api) -> None:
    await api.patch(CM, configmap(a="1"), APPLY, fieldManager="one")
    both = await api.patch(CM, configmap(b="2"), APPLY, fieldManager="two")
    refused = await api.patch(CM, configmap(a="9"), APPLY, fieldManager="two")
    forced = await api.patch(CM, configmap(a="9"), APPLY, fieldManager="two", force="true")
    after = await api.patch(CM, configmap(), APPLY, fieldManager="one")
    assert (both.body["data"], refused.reason, forced.body["data"], after.body["data"]) == (
        {"a": "1", "b": "2"},
        (409, "Conflict"),
        {"a": "9"},
        {"a": "9"},
    )
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.a'


async def test_apply_needs_a_manager(api: Api) -> None:
    assert (await api.patch(CM, configmap(), APPLY)).status == 422


async def test_apply_merges_keyed_lists(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.patch(f"{RACKS}/r1", rack(slots=[{"name": "x", "free": True}]), APPLY, fieldManager="one")
    merged = await api.patch(f"{RACKS}/r1", rack(slots=[{"name": "y"}]), APPLY, fieldManager="two")
    assert merged.body["spec"]["slots"] == [{"name": "x", "free": True}, {"name": "y"}]
    left = await api.patch(f"{RACKS}/r1", rack(slots=[]), APPLY, fieldManager="one")
    assert left.body["spec"]["slots"] == [{"name": "y"}]
