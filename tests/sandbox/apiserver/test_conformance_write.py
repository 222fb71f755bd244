"""Changing objects: PUT, the four patches, subresources, generations, optimistic locks."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import (
    APPLY,
    CONFIGMAPS,
    CRDS,
    JSON_PATCH,
    LEASES,
    MERGE,
    NODES,
    PODS,
    RACKS,
    STRATEGIC,
    Api,
    configmap,
    crd,
    lease,
    node,
    pod,
    rack,
)

CM = f"{CONFIGMAPS}/c"
POD = f"{PODS}/p"


def version(body: dict[str, Any]) -> int:
    """The resourceVersion as a number."""
    return int(body["metadata"]["resourceVersion"])


async def test_put_replaces(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1", b="2"))
    answer = await api.put(CM, {**created, "data": {"a": "3"}})
    assert (answer.status, answer.body["data"]) == (200, {"a": "3"})
    assert version(answer.body) > version(created)


async def test_put_with_a_stale_version(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    await api.patch(CM, {"data": {"a": "2"}})
    answer = await api.put(CM, created)
    assert answer.reason == (409, "Conflict")
    assert "the object has been modified" in answer.body["message"]


async def test_put_without_a_version_overwrites(api: Api) -> None:
    await api.create(CONFIGMAPS, configmap(a="1"))
    assert (await api.put(CM, configmap(a="2"))).body["data"] == {"a": "2"}


async def test_put_of_another_incarnation(api: Api) -> None:
    body = configmap(a="1")
    await api.create(CONFIGMAPS, body)
    answer = await api.put(CM, {**body, "metadata": {"name": "c", "uid": "00000000-0000-0000-0000-000000000000"}})
    assert answer.reason == (409, "Conflict")


async def test_put_of_absent_objects(api: Api) -> None:
    assert (await api.put(CM, configmap())).reason == (404, "NotFound")
    assert (await api.put(f"{LEASES}/leader", lease(holderIdentity="a"))).status == 201


async def test_the_system_owns_identity(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    tampered = {
        "creationTimestamp": "2000-01-01T00:00:00Z",
        "deletionTimestamp": "2000-01-01T00:00:00Z",
        "labels": {"x": "y"},
    }
    changed = (await api.patch(CM, {"metadata": tampered})).body
    expected = {**created["metadata"], "labels": {"x": "y"}, "resourceVersion": changed["metadata"]["resourceVersion"]}
    assert changed["metadata"] == expected


@pytest.mark.parametrize(
    "body", [{"metadata": {"name": "other"}}, {"kind": "Secret"}, {"apiVersion": "v2"}], ids=["name", "kind", "version"]
)
async def test_another_identity_than_the_path(api: Api, body: dict[str, Any]) -> None:
    await api.create(CONFIGMAPS, configmap())
    assert (await api.patch(CM, body)).reason == (400, "BadRequest")


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


async def test_status_and_spec_are_written_apart(api: Api) -> None:
    await api.create(PODS, pod())
    status = await api.patch(f"{POD}/status", {"status": {"phase": "Running"}, "spec": {"priority": 9}})
    main = await api.patch(POD, {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}})
    assert (status.body["status"]["phase"], status.body["spec"]["priority"]) == ("Running", 0)
    assert (main.body["status"]["phase"], main.body["metadata"]["labels"]) == ("Running", {"a": "b"})
    assert (await api.get(f"{POD}/status")).body == main.body


async def test_custom_status_and_generation(api: Api) -> None:
    await api.create(CRDS, crd())
    created = await api.create(RACKS, {**rack(), "status": {"phase": "Early"}})
    status = (
        await api.patch(
            f"{RACKS}/r1/status",
            {"status": {"phase": "Ready"}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}},
        )
    ).body
    main = (await api.patch(f"{RACKS}/r1", {"status": {"phase": "Late"}, "spec": {"size": 2}})).body
    labelled = (await api.patch(f"{RACKS}/r1", {"metadata": {"labels": {"a": "b"}}})).body
    assert "status" not in created
    assert (status["status"], status["spec"]["size"], "labels" in status["metadata"]) == ({"phase": "Ready"}, 1, False)
    assert (main["status"], main["spec"]["size"]) == ({"phase": "Ready"}, 2)
    assert [one["metadata"]["generation"] for one in (created, status, main, labelled)] == [1, 1, 2, 2]


async def test_custom_put_needs_a_version(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack())
    answer = await api.put(f"{RACKS}/r1", rack(size=2))
    assert answer.reason == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


FORBIDDEN_CHANGES = [
    pytest.param({"spec": {"nodeName": "n1"}}, "spec", id="node"),
    pytest.param(
        {"spec": {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}},
        "spec",
        id="resources",
    ),
    pytest.param({"spec": {"schedulingGates": [{"name": "late"}]}}, "spec.schedulingGates", id="new-gate"),
    pytest.param({"spec": {"tolerations": []}}, "spec.tolerations", id="lost-toleration"),
    pytest.param({"metadata": {"annotations": {"bad key": ""}}}, "metadata.annotations", id="annotation-key"),
]


@pytest.mark.parametrize(("patch", "field"), FORBIDDEN_CHANGES)
async def test_what_a_pod_may_not_change(api: Api, patch: dict[str, Any], field: str) -> None:
    await api.create(PODS, pod(tolerations=[{"key": "mine", "operator": "Exists"}]))
    answer = await api.patch(POD, patch)
    assert answer.reason == (422, "Invalid")
    assert field in {cause["field"] for cause in answer.body["details"]["causes"]}


async def test_what_a_pod_may_change(api: Api) -> None:
    await api.create(PODS, pod(schedulingGates=[{"name": "g"}]))
    assert (await api.patch(POD, {"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": None}})).status == 200
    toleration = {"key": "x", "operator": "Exists"}
    tolerations = (await api.get(POD)).body["spec"]["tolerations"]
    assert (await api.patch(POD, {"spec": {"tolerations": [*tolerations, toleration]}})).status == 200
    assert (await api.patch(POD, {"spec": {"nodeSelector": None}})).status == 422


async def test_resize(api: Api) -> None:
    await api.create(PODS, pod())
    patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}], "nodeName": "sneaky"}}
    resized = (await api.patch(f"{POD}/resize", patch, STRATEGIC)).body
    assert (resized["spec"]["containers"][0]["resources"], "nodeName" in resized["spec"]) == (
        {"requests": {"cpu": "2"}},
        False,
    )


async def test_dry_run_changes_nothing(api: Api) -> None:
    created = await api.create(CONFIGMAPS, configmap(a="1"))
    answer = await api.patch(CM, {"data": {"a": "2"}}, dryRun="All")
    assert (answer.status, answer.body["data"], (await api.get(CM)).body) == (200, {"a": "2"}, created)
    assert (await api.patch(CM, {}, dryRun="Some")).status == 422


async def test_leases_are_locked(api: Api) -> None:
    created = await api.create(LEASES, lease(holderIdentity="a", leaseDurationSeconds=15))
    taken = await api.put(f"{LEASES}/leader", {**created, "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15}})
    late = await api.put(f"{LEASES}/leader", {**created, "spec": {"holderIdentity": "c", "leaseDurationSeconds": 15}})
    blind = await api.put(f"{LEASES}/leader", lease(holderIdentity="d"))
    zero = await api.patch(f"{LEASES}/leader", {"spec": {"leaseDurationSeconds": 0}})
    assert (taken.status, late.status, blind.status, zero.status) == (200, 409, 422, 422)


async def test_immutable_config(api: Api) -> None:
    await api.create(CONFIGMAPS, {**configmap(a="1"), "immutable": True})
    assert (await api.patch(CM, {"data": {"a": "2"}})).reason == (422, "Invalid")
