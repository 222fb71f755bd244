"""Changing objects: PUT, subresources, generations, optimistic locks, and what may not be changed."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import (
    CONFIGMAPS,
    CRDS,
    LEASES,
    PODS,
    RACKS,
    STRATEGIC,
    Api,
    configmap,
    crd,
    lease,
    pod,
    rack,
)
from tests.sandbox.apiserver.conformance.objects import CM, POD, version


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
