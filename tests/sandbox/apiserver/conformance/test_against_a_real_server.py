"""Requests whose answers were compared with a kube-apiserver 1.36: the embedded server gives the same codes and texts."""

import pytest

from koord_numa.sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import CONFIGMAPS, LEASES, MERGE, NODES, PODS, Answer, Api, pod

MISSPELLED = {**pod("p"), "spec": {**pod("p")["spec"], "nodeSelectr": {"a": "b"}}}


async def created(api: Api, path: str, name: str, **more: object) -> Answer:
    found = await api.post(path, {"metadata": {"name": name, **more}})
    assert found.status == 201
    return found


async def test_strict_validation_rejects_unknown_fields(api: Api) -> None:
    answer = await api.post(f"{PODS}?fieldValidation=Strict", MISSPELLED)
    assert answer.reason == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.nodeSelectr"' in answer.body["message"]


async def test_unknown_fields_are_warned_of_where_the_client_asks(api: Api) -> None:
    warned = await api.post(f"{PODS}?fieldValidation=Warn", MISSPELLED)
    assert (warned.status, warned.headers["Warning"]) == (201, '299 - "unknown field \\"spec.nodeSelectr\\""')
    ignored = await api.post(f"{PODS}?fieldValidation=Ignore", {**MISSPELLED, "metadata": {"name": "other"}})
    assert (ignored.status, "Warning" in ignored.headers) == (201, False)


@pytest.mark.parametrize(
    ("path", "body", "unknown"),
    [
        (NODES, {"spec": {"taint": []}}, "spec.taint"),
        (NODES, {"status": {"capacity": {"cpu": "1"}, "allocatable": {"x": "1"}}}, ""),
        (CONFIGMAPS, {"dat": {}}, "dat"),
        (LEASES, {"spec": {"holderIdentity": "a", "holder": "b"}}, "spec.holder"),
        (PODS, {"spec": {"containers": [{"name": "c", "image": "i", "resource": {}}]}}, "spec.containers[0].resource"),
        (PODS, {"metadata": {"annotation": {}}}, "metadata.annotation"),
        ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", {"spec": {"minAvailabl": 1}}, "spec.minAvailabl"),
        ("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", {"spec": {"device": {}}}, "spec.device"),
        ("/apis/events.k8s.io/v1/namespaces/default/events", {"reasn": "x"}, "reasn"),
    ],
)
async def test_strict_validation_of_many_kinds(api: Api, path: str, body: dict[str, object], unknown: str) -> None:
    document = pod("x") if path == PODS else {"metadata": {"name": "x"}}
    metadata = {**document["metadata"], **body.get("metadata", {})}  # type: ignore[dict-item]  # both are dicts
    answer = await api.post(f"{path}?fieldValidation=Strict&dryRun=All", {**document, **body, "metadata": metadata})
    if unknown:
        assert answer.status == 400
        assert f'unknown field "{unknown}"' in answer.body["message"]
    else:
        assert answer.status == 201


async def test_strict_validation_of_patches(api: Api) -> None:
    await created(api, CONFIGMAPS, "c")
    answer = await api.patch(f"{CONFIGMAPS}/c?fieldValidation=Strict", {"dat": {"a": "b"}}, MERGE)
    assert answer.status == 400


async def test_lists_of_odd_versions(api: Api, server: ApiServer) -> None:
    future = server.revision + 1000
    late = await api.get(f"{PODS}?resourceVersion={future}&resourceVersionMatch=NotOlderThan")
    assert late.reason == (504, "Timeout")
    assert late.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert late.body["message"] == f"Timeout: Too large resource version: {future}, current: {server.revision}"
    assert (await api.get(f"{PODS}?resourceVersion=abc")).reason == (400, "BadRequest")
    assert (await api.get(f"{PODS}?watch=1&resourceVersion=abc")).reason == (500, "InternalError")
    assert (await api.get(f"{PODS}?resourceVersion=0")).status == 200


async def test_a_continued_list_takes_no_version(api: Api) -> None:
    for name in "abc":
        await created(api, CONFIGMAPS, name, labels={"a": "b"})
    first = await api.get(f"{CONFIGMAPS}?limit=1")
    token = first.body["metadata"]["continue"]
    assert first.body["metadata"]["remainingItemCount"] == 2
    refused = await api.get(f"{CONFIGMAPS}?limit=1&continue={token}&resourceVersion=5")
    assert refused.reason == (400, "BadRequest")
    assert "not allowed when using continue" in refused.body["message"]


async def test_what_remains_is_not_counted_with_a_selector(api: Api) -> None:
    for name in "abc":
        await created(api, CONFIGMAPS, name, labels={"a": "b"})
    page = await api.get(f"{CONFIGMAPS}?limit=1&labelSelector=a%3Db")
    assert "remainingItemCount" not in page.body["metadata"]
    following = await api.get(f"{CONFIGMAPS}?limit=1&continue={page.body['metadata']['continue']}")
    assert "remainingItemCount" not in following.body["metadata"]
    assert following.body["items"][0]["metadata"]["name"] == "b"


async def test_no_finalizer_is_added_while_an_object_is_deleted(api: Api) -> None:
    await created(api, CONFIGMAPS, "c", finalizers=["example.com/a"])
    await api.delete(f"{CONFIGMAPS}/c")
    more = {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}
    refused = await api.patch(f"{CONFIGMAPS}/c", more, MERGE)
    assert refused.reason == (422, "Invalid")
    assert 'found new finalizers []string{"example.com/b"}' in refused.body["message"]
    removed = await api.patch(f"{CONFIGMAPS}/c", {"metadata": {"finalizers": []}}, MERGE)
    assert removed.status == 200


async def test_a_binding_without_a_target(api: Api) -> None:
    await api.post(PODS, pod("p"))
    answer = await api.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {}})
    assert (answer.status, answer.body["message"]) == (500, "target.name: Required value")


async def test_leases_with_bad_times_and_other_uids(api: Api) -> None:
    await created(api, LEASES, "l")
    bad_time = {"metadata": {"name": "l"}, "spec": {"renewTime": "yesterday"}}
    assert (await api.put(f"{LEASES}/l", bad_time)).status == 400
    other = {"metadata": {"name": "l", "uid": "00000000-0000-0000-0000-000000000000"}, "spec": {}}
    assert (await api.put(f"{LEASES}/l", other)).reason == (409, "Conflict")


@pytest.mark.parametrize("path", ["/apis/nowhere.example.com/v1/things", "/apis/nowhere.example.com/v1", "/nothing"])
async def test_unknown_paths_are_answered_as_plain_text(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.body.strip()) == (404, "404 page not found")
