"""CustomResourceDefinitions: established, enforced, changed, and gone with what they define."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import (
    CRDS,
    RACKS,
    Api,
    crd,
    rack,
)


async def test_a_definition_is_established_and_served(api: Api) -> None:
    created = await api.create(CRDS, crd())
    conditions = {one["type"]: one["status"] for one in created["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert created["status"]["storedVersions"] == ["v1"]
    assert (await api.get(RACKS)).body["kind"] == "RackList"


async def test_custom_defaults_and_pruning(api: Api) -> None:
    await api.create(CRDS, crd())
    answer = await api.post(
        RACKS, rack(unknown=1, free={"any": {"thing": 1}}, port="http", slots=[{"name": "a", "odd": 1}])
    )
    assert answer.body["spec"] == {
        "size": 1,
        "free": {"any": {"thing": 1}},
        "port": "http",
        "slots": [{"name": "a"}],
        "mode": "Fast",
    }
    assert answer.headers["Warning"] == '299 - "unknown field \\"spec.unknown\\""'


async def test_strict_validation_refuses_unknown_fields(api: Api) -> None:
    await api.create(CRDS, crd())
    strict = await api.post(RACKS, rack(unknown=1), fieldValidation="Strict")
    ignored = await api.post(RACKS, rack(unknown=1), fieldValidation="Ignore")
    odd = await api.post(RACKS, rack("r2"), fieldValidation="Perhaps")
    assert (strict.reason, ignored.status, "Warning" in ignored.headers, odd.status) == (
        (400, "BadRequest"),
        201,
        False,
        422,
    )
    assert 'unknown field "spec.unknown"' in strict.body["message"]


INVALID_RACKS = [
    pytest.param({"spec": {}}, "spec.size", "Required value", id="missing"),
    pytest.param(rack(size="1"), "spec.size", "must be of type integer", id="type"),
    pytest.param(rack(size=0), "spec.size", "should be greater than or equal to 1", id="minimum"),
    pytest.param(rack(mode="Medium"), "spec.mode", 'supported values: "Fast", "Slow"', id="enum"),
    pytest.param(rack(port=True), "spec.port", "must be of type integer,string", id="int-or-string"),
    pytest.param(rack(slots=[{"free": True}]), "spec.slots[0].name", "Required value", id="inside-a-list"),
    pytest.param(rack(slots=[{"name": "a"}, {"name": "a"}]), "spec.slots[1]", "Duplicate value", id="duplicate-key"),
    pytest.param(rack(slots={}), "spec.slots", "must be of type array", id="no-list"),
]


@pytest.mark.parametrize(("body", "field", "words"), INVALID_RACKS)
async def test_schemas_are_enforced(api: Api, body: dict[str, Any], field: str, words: str) -> None:
    await api.create(CRDS, crd())
    answer = await api.post(RACKS, {**rack(), **body})
    assert answer.reason == (422, "Invalid"), answer.body
    causes = {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}
    assert words in causes[field]
    assert answer.body["message"].startswith('Rack.example.com "r1" is invalid: ')


async def test_schemas_are_enforced_on_patches(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack())
    assert (await api.patch(f"{RACKS}/r1", {"spec": {"size": None}})).reason == (422, "Invalid")


async def test_a_kind_in_several_versions(api: Api) -> None:
    await api.create(CRDS, crd())
    alpha = RACKS.replace("/v1/", "/v1alpha1/")
    created = (await api.post(alpha, {**rack(), "apiVersion": "example.com/v1alpha1"})).body
    assert created["apiVersion"] == "example.com/v1alpha1"
    assert (await api.get(f"{RACKS}/r1")).body["apiVersion"] == "example.com/v1"
    assert [item["apiVersion"] for item in (await api.get(alpha)).body["items"]] == ["example.com/v1alpha1"]
    assert (await api.get(RACKS.replace("/v1/", "/v2/"))).status == 404


async def test_cluster_scope(api: Api) -> None:
    await api.create(CRDS, crd(scope="Cluster"))
    created = await api.create("/apis/example.com/v1/racks", rack())
    assert "namespace" not in created["metadata"]
    assert (await api.post(RACKS, rack("r2"))).status == 404


async def test_custom_resources_go_with_their_definition(api: Api) -> None:
    await api.create(CRDS, crd())
    await api.create(RACKS, rack())
    assert (await api.delete(f"{CRDS}/racks.example.com")).status == 200
    assert (await api.get(RACKS)).status == 404
    await api.create(CRDS, crd())
    assert (await api.get(RACKS)).body["items"] == []


async def test_a_changed_definition_counts_at_once(api: Api) -> None:
    created = await api.create(CRDS, crd())
    created["spec"]["versions"][1]["served"] = False
    assert (await api.put(f"{CRDS}/racks.example.com", created)).status == 200
    assert (await api.get("/apis/example.com/v1alpha1")).status == 404


def _broken(**changes: Any) -> dict[str, Any]:
    body = crd()
    body["spec"].update(changes)
    return body


def _with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return _broken(versions=[version])


INVALID_CRDS = [
    pytest.param(_broken(group="other.example"), "metadata.name", id="name"),
    pytest.param(_broken(scope="Galaxy"), "spec.scope", id="scope"),
    pytest.param(_broken(versions=[]), "spec.versions", id="no-storage-version"),
    pytest.param(
        _with_schema({"type": "array", "items": {"type": "string"}}),
        "spec.versions[0].schema.openAPIV3Schema.type",
        id="root-type",
    ),
    pytest.param(
        _with_schema({"type": "object", "properties": {"a": {}}}),
        "spec.versions[0].schema.openAPIV3Schema.properties[a].type",
        id="untyped",
    ),
    pytest.param(
        _with_schema({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
        "spec.versions[0].schema.openAPIV3Schema.properties[a].pattern",
        id="pattern",
    ),
    pytest.param(
        _with_schema({"type": "object", "required": "a"}),
        "spec.versions[0].schema.openAPIV3Schema.required",
        id="malformed-schema",
    ),
    pytest.param(
        _with_schema({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        "spec.versions[0].schema.openAPIV3Schema.properties[a].default",
        id="default",
    ),
]


@pytest.mark.parametrize(("body", "field"), INVALID_CRDS)
async def test_definitions_are_checked(api: Api, body: dict[str, Any], field: str) -> None:
    answer = await api.post(CRDS, body)
    assert answer.reason == (422, "Invalid"), answer.body
    assert field in {cause["field"] for cause in answer.body["details"]["causes"]}


async def test_a_moved_storage_version_is_remembered(api: Api) -> None:
    created = await api.create(CRDS, crd())
    for version in created["spec"]["versions"]:
        version["storage"] = version["name"] == "v1alpha1"
    moved = (await api.put(f"{CRDS}/racks.example.com", created)).body
    assert moved["status"]["storedVersions"] == ["v1", "v1alpha1"]
    assert moved["status"]["conditions"] == created["status"]["conditions"]
    assert (await api.post(RACKS, rack())).body["apiVersion"] == "example.com/v1"
