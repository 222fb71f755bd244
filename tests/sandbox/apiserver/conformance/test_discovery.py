"""Discovery of a real API server: version, health, groups, resources, OpenAPI."""

import pytest

from tests.sandbox.apiserver.client import CRDS, Api, crd

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_version_names_a_release(api: Api) -> None:
    answer = await api.get("/version")
    assert (answer.status, answer.body["major"], answer.body["minor"]) == (200, "1", "36")


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz", "/readyz/ping"])
async def test_health(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.body) == (200, "ok")


async def test_core_resources(api: Api) -> None:
    answer = await api.get("/api/v1")
    names = {resource["name"]: resource for resource in answer.body["resources"]}
    assert answer.body["kind"] == "APIResourceList"
    assert {"pods", "pods/binding", "pods/status", "pods/eviction", "nodes", "nodes/status", "events"} <= names.keys()
    assert (names["pods"]["namespaced"], names["nodes"]["namespaced"]) == (True, False)
    assert names["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "verbs": ["create"],
        "group": "policy",
        "version": "v1",
    }


@pytest.mark.parametrize(
    ("group", "resource"),
    [
        ("coordination.k8s.io", "leases"),
        ("events.k8s.io", "events"),
        ("policy", "poddisruptionbudgets"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("storage.k8s.io", "storageclasses"),
        ("scheduling.k8s.io", "priorityclasses"),
    ],
)
async def test_groups_and_their_resources(api: Api, group: str, resource: str) -> None:
    groups = {entry["name"]: entry for entry in (await api.get("/apis")).body["groups"]}
    listed = (await api.get(f"/apis/{group}/v1")).body
    assert groups[group]["preferredVersion"] == {"groupVersion": f"{group}/v1", "version": "v1"}
    assert (await api.get(f"/apis/{group}")).body["name"] == group
    assert resource in {entry["name"] for entry in listed["resources"]}


async def test_a_definition_is_discoverable_in_all_its_versions(api: Api) -> None:
    assert (await api.get("/apis/example.com/v1")).status == 404
    await api.create(CRDS, crd())
    groups = {entry["name"]: entry for entry in (await api.get("/apis")).body["groups"]}
    assert [version["version"] for version in groups["example.com"]["versions"]] == ["v1", "v1alpha1"]
    resources = {entry["name"]: entry for entry in (await api.get("/apis/example.com/v1alpha1")).body["resources"]}
    assert resources.keys() == {"racks", "racks/status"}
    assert resources["racks"]["shortNames"] == ["rk"]


@pytest.mark.parametrize(("path", "kind"), [("/api", "APIVersions"), ("/apis", "APIGroupList")])
@pytest.mark.parametrize("accept", ["application/json", f"{AGGREGATED},application/json"])
async def test_plain_discovery_for_all_clients(api: Api, path: str, kind: str, accept: str) -> None:
    answer = await api.get(path, accept=accept)
    assert (answer.headers["Content-Type"], answer.body["kind"]) == ("application/json", kind)


async def test_openapi_v3_names_parameters_for_server_side_validation(api: Api) -> None:
    await api.create(CRDS, crd())
    index = (await api.get("/openapi/v3")).body["paths"]
    assert {"api/v1", "apis/policy/v1", "apis/example.com/v1"} <= index.keys()
    document = (await api.get(index["apis/example.com/v1"]["serverRelativeURL"])).body
    patch = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/racks/{name}"]["patch"]
    assert {"dryRun", "fieldManager", "fieldValidation", "force"} == {entry["name"] for entry in patch["parameters"]}
    schema = document["components"]["schemas"]["com.example.v1.Rack"]
    assert schema["properties"]["spec"]["properties"]["size"] == {"type": "integer", "minimum": 1}


@pytest.mark.parametrize("separator", ["@", "."])
async def test_openapi_v2_answers_in_both_encodings(api: Api, separator: str) -> None:
    assert (await api.get("/openapi/v2")).body["swagger"] == "2.0"
    media_type = "application/com.github.proto-openapi.spec.v2{}v1.0+protobuf"
    answer = await api.get("/openapi/v2", accept=media_type.format(separator))
    assert (answer.status, answer.body) == (200, "\n\x032.0")
    # "@" is not a token of a media type: kubectl 1.28 and older stop at it
    assert answer.headers["Content-Type"] == media_type.format(".")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v2",
        "/api/v1/unicorns",
        "/openapi/v3/apis/absent/v1",
        "/api/v1/pods/a/log",
    ],
)
async def test_unknown_paths(api: Api, path: str) -> None:
    assert (await api.get(path)).reason == (404, "NotFound")
