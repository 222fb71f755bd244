"""The definitions at work in the embedded API server: accepted, defaulted, validated, nothing lost between versions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord_numa.core.rebind.plan import NodeFigures, RebindAnswer, RebindMove, RebindPhase, RebindRequest
from koord_numa.sandbox.apiserver import ApiError, ApiServer
from koord_numa.wire import parse_rebind, parse_topology, rebind_status
from tests.wire.objects import KOORDINATOR_NRT, KUBELET_NRT, REBIND, changed

CRDS = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))
REBINDS = "rebindresources.scheduling.koordinator.sh"
GROUP = "topology.node.k8s.io"
VERSIONS = ("v1alpha1", "v1alpha2")


@pytest.fixture
def store() -> ApiServer:
    """A server with both kinds that is not listening."""
    return ApiServer(crds=CRDS)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running server with both kinds."""
    async with ApiServer(crds=CRDS) as server, aiohttp.ClientSession(server.url) as session:
        yield session


def content(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's content of an object, without the version and the server's fields."""
    kept = ("name", "annotations", "labels", "ownerReferences")
    metadata = {key: value for key, value in obj["metadata"].items() if key in kept}
    return {**{key: value for key, value in obj.items() if key != "apiVersion"}, "metadata": metadata}


@pytest.mark.parametrize("obj", [KOORDINATOR_NRT, KUBELET_NRT], ids=["koordinator", "kubelet"])
@pytest.mark.parametrize("written", VERSIONS)
@pytest.mark.parametrize("asked", VERSIONS)
async def test_topologies_lose_nothing_in_any_version(
    http: aiohttp.ClientSession, obj: dict[str, Any], written: str, asked: str
) -> None:
    sent = content(obj) | {"apiVersion": f"{GROUP}/{written}"}
    async with http.post(f"/apis/{GROUP}/{written}/noderesourcetopologies", json=sent) as answer:
        assert answer.status == 201, await answer.text()
    name = obj["metadata"]["name"]
    async with http.get(f"/apis/{GROUP}/{asked}/noderesourcetopologies/{name}") as answer:
        found = await answer.json()
    assert found["apiVersion"] == f"{GROUP}/{asked}"
    assert content(found) == content(obj)
    assert parse_topology(found).zones == parse_topology(obj).zones


async def test_an_update_of_the_other_version_keeps_attributes(http: aiohttp.ClientSession) -> None:
    path = "noderesourcetopologies/worker-3"
    async with http.post(f"/apis/{GROUP}/v1alpha2/noderesourcetopologies", json=KUBELET_NRT) as answer:
        assert answer.status == 201
    patch = {"metadata": {"labels": {"seen": "yes"}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    async with http.patch(f"/apis/{GROUP}/v1alpha1/{path}", json=patch, headers=merge) as answer:
        assert answer.status == 200
    async with http.get(f"/apis/{GROUP}/v1alpha2/{path}") as answer:
        found = await answer.json()
    assert (found["attributes"], found["topologyPolicies"]) == (
        KUBELET_NRT["attributes"],
        KUBELET_NRT["topologyPolicies"],
    )


COLUMNS = {
    "koordinator": (KOORDINATOR_NRT, ["worker-2", "SingleNUMANodePodLevel", None, None, "4", "4", "Koordinator"]),
    "kubelet": (
        KUBELET_NRT,
        ["worker-3", "RestrictedContainerLevel", "single-numa-node", "pod", "1500m", "1500m", None],
    ),
}


@pytest.mark.parametrize(("obj", "cells"), COLUMNS.values(), ids=COLUMNS.keys())
async def test_columns_tell_something(
    http: aiohttp.ClientSession, obj: dict[str, Any], cells: list[str | None]
) -> None:
    sent = content(obj) | {"apiVersion": f"{GROUP}/v1alpha2"}
    async with http.post(f"/apis/{GROUP}/v1alpha2/noderesourcetopologies", json=sent) as answer:
        assert answer.status == 201
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with http.get(f"/apis/{GROUP}/v1alpha2/noderesourcetopologies", headers=table) as answer:
        found = await answer.json()
    shown = [index for index, column in enumerate(found["columnDefinitions"]) if not column.get("priority")]
    names = [found["columnDefinitions"][index]["name"] for index in shown]
    assert names == ["Name", "Policy", "Kubelet-Policy", "Scope", "CPU-0", "CPU-1", "Managed-By", "Age"]
    assert [found["rows"][0]["cells"][index] for index in shown][:-1] == cells


def test_a_rebind_gets_its_defaults(store: ApiServer) -> None:
    created = store.store.create(
        {
            "apiVersion": REBIND["apiVersion"],
            "kind": "RebindResource",
            "metadata": {"name": "r"},
            "spec": {"nodeName": "n"},
        }
    )
    assert created["spec"] == {
        "nodeName": "n",
        "rebindAction": "RebindCPU",
        "deadlineInSeconds": 600,
        "moveMemory": False,
        "dryRun": False,
    }
    request = parse_rebind(created)
    assert request == RebindRequest(
        name="r",
        uid=created["metadata"]["uid"],
        node="n",
        generation=1,
        created=request.created,
        resource_version=created["metadata"]["resourceVersion"],
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no node": (changed(REBIND, "spec", {}), "spec.nodeName"),
    "empty node": (changed(REBIND, "spec nodeName", ""), "spec.nodeName"),
    "other action": (changed(REBIND, "spec rebindAction", "Shuffle"), "spec.rebindAction"),
    "no time": (changed(REBIND, "spec deadlineInSeconds", 0), "spec.deadlineInSeconds"),
    "no boolean": (changed(REBIND, "spec dryRun", "yes"), "spec.dryRun"),
}


@pytest.mark.parametrize(("obj", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_malformed_rebinds_are_refused(store: ApiServer, obj: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match=field) as refusal:
        store.store.create(obj)
    assert refusal.value.code == 422


def test_malformed_topologies_are_refused(store: ApiServer) -> None:
    for path, value in (("zones 0 resources 0 capacity", "four"), ("zones 0 costs 0 value", "x"), ("zones", None)):
        with pytest.raises(ApiError) as refusal:
            store.store.create(changed(KUBELET_NRT, path, value))
        assert refusal.value.code == 422


def test_an_answer_is_stored_whole(store: ApiServer) -> None:
    store.store.create(REBIND)
    now, move, figures = "2026-01-01T00:01:00Z", RebindMove("a", "b", "0-1", "2-3"), NodeFigures(1, 2, 3, 4, {0: 8})
    answer = RebindAnswer(
        RebindPhase.SUCCEED, "done", now, 1, (move,), (move,), 1, ("a/c",), figures, figures, started=now
    )
    status = rebind_status(answer)
    assert None not in status.values()
    status["plan"][0]["why"] = "more CPUs in one NUMA node"
    stored = store.store.patch(REBINDS, "tidy", {"status": status}, subresource="status")
    assert stored["status"] == status
    assert parse_rebind(stored).phase is RebindPhase.SUCCEED
    waiting = rebind_status(RebindAnswer(RebindPhase.PENDING, "waits", now, 2))
    stored = store.store.patch(REBINDS, "tidy", {"status": waiting}, subresource="status")
    assert stored["status"] == {key: value for key, value in waiting.items() if value is not None}
