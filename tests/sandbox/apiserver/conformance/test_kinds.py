"""Namespaces, nodes, and questions about permissions."""

import aiohttp
import pytest

from koord_numa.sandbox.apiserver import ApiServer, Fault
from tests.sandbox.apiserver.client import (
    CONFIGMAPS,
    NODES,
    PODS,
    Api,
    binding,
    configmap,
    eventually,
    node,
    pod,
)

NAMESPACES = "/api/v1/namespaces"


async def test_the_usual_namespaces_exist(api: Api) -> None:
    items = (await api.get(NAMESPACES)).body["items"]
    assert [item["metadata"]["name"] for item in items] == ["default", "kube-node-lease", "kube-public", "kube-system"]


async def test_a_namespace_lives_and_dies_with_its_content(api: Api) -> None:
    created = await api.create(NAMESPACES, {"metadata": {"name": "team"}})
    assert (created["status"], created["spec"]) == ({"phase": "Active"}, {"finalizers": ["kubernetes"]})
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    await api.create(f"{NAMESPACES}/team/configmaps", configmap())
    assert (await api.delete(f"{NAMESPACES}/team")).status == 200
    assert (await api.get(f"{NAMESPACES}/team")).status == 404
    assert (await api.get(f"{NAMESPACES}/team/configmaps/c")).status == 404


async def test_a_namespace_waits_for_its_pods(api: Api) -> None:
    pods = f"{NAMESPACES}/team/pods"
    await api.create(NAMESPACES, {"metadata": {"name": "team"}})
    await api.create(pods, pod())
    await api.post(f"{pods}/p/binding", binding("p", "n1"))
    assert (await api.delete(f"{NAMESPACES}/team")).body["status"]["phase"] == "Terminating"
    refused = await api.post(pods, pod("q"))
    assert (refused.reason, refused.body["details"]["causes"][0]["reason"]) == (
        (403, "Forbidden"),
        "NamespaceTerminating",
    )
    await api.delete(f"{pods}/p", gracePeriodSeconds="0")
    assert (await api.get(f"{NAMESPACES}/team")).status == 404


@pytest.mark.parametrize("delay", [0.001, 3600.0], ids=["passes", "does-not-pass"])
async def test_a_namespace_is_emptied_after_a_delay(delay: float) -> None:
    """``kubectl delete -f`` deletes a namespace first and then its content by name."""
    async with ApiServer(namespace_delay=delay) as server, aiohttp.ClientSession(server.url) as session:
        api = Api(session)
        await api.create(NAMESPACES, {"metadata": {"name": "team"}})
        await api.create(f"{NAMESPACES}/team/configmaps", configmap())
        server.store.delete("namespaces", "team")
        assert server.store.get("configmaps", "c", "team")
        assert server.store.get("namespaces", "team")["status"] == {"phase": "Terminating"}
        if delay > 1:
            assert (await api.delete(f"{NAMESPACES}/team/configmaps/c")).status == 200
        await eventually(lambda: server.store.find("namespaces", "team") is None)


async def test_the_usual_namespaces_stay(api: Api) -> None:
    assert (await api.delete(f"{NAMESPACES}/default")).reason == (403, "Forbidden")


async def test_node_status_is_a_subresource(api: Api) -> None:
    await api.create(NODES, node(capacity={"cpu": "8"}))
    await api.patch(f"{NODES}/n1/status", {"status": {"allocatable": {"cpu": "6"}}})
    changed = (
        await api.patch(f"{NODES}/n1", {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "1"}}})
    ).body
    assert (changed["spec"]["unschedulable"], changed["status"]["allocatable"]) == (True, {"cpu": "6"})


@pytest.mark.parametrize(
    "taint", [{"key": "a b", "effect": "NoSchedule"}, {"key": "a", "effect": "Never"}], ids=["key", "effect"]
)
async def test_taints_are_checked(api: Api, taint: dict[str, str]) -> None:
    assert (await api.post(NODES, {**node(), "spec": {"taints": [taint]}})).reason == (422, "Invalid")


async def test_permissions_are_granted_unless_a_fault_denies_them(api: Api, server: ApiServer) -> None:
    server.faults.add(Fault(status=403, verb="create", resource="pods"))
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = [{"spec": {"resourceAttributes": {"verb": verb, "resource": "pods"}}} for verb in ("create", "get")]
    assert [(await api.post(reviews, body)).body["status"]["allowed"] for body in asked] == [False, True]
    assert (await api.post(PODS, pod())).reason == (403, "Forbidden")
    assert (await api.post(CONFIGMAPS, configmap())).status == 201
