"""The simulated controllers of Jobs and of pods on nodes without a kubelet."""

from typing import Any

import pytest

from koord_numa.sandbox.apiserver import ApiServer, DirectStore
from koord_numa.sandbox.controllers import INDEX, JOBS, JobController, collect_pods

Json = dict[str, Any]


def job(**spec: Any) -> Json:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"parallelism": 2, "completions": 3, "completionMode": "Indexed", "template": template, **spec},
    }


def ends(store: DirectStore, name: str, phase: str) -> None:
    store.patch("pods", name, {"status": {"phase": phase}}, "default", "status")


def indexes(store: DirectStore) -> list[tuple[str, str]]:
    """Index and phase of every pod."""
    return sorted((pod["metadata"]["labels"][INDEX], pod["status"]["phase"]) for pod in store.list("pods"))


def names(store: DirectStore, index: int) -> list[str]:
    return [pod["metadata"]["name"] for pod in store.list("pods") if pod["metadata"]["labels"][INDEX] == str(index)]


@pytest.fixture
async def store(server: ApiServer) -> DirectStore:
    JobController(server.store).start()
    return server.store


@pytest.fixture
async def server() -> Any:
    async with ApiServer() as running:
        yield running


async def test_indexes_are_completed_in_order(store: DirectStore) -> None:
    store.create(job())
    assert indexes(store) == [("0", "Pending"), ("1", "Pending")]
    ends(store, names(store, 0)[0], "Succeeded")
    assert indexes(store) == [("0", "Succeeded"), ("1", "Pending"), ("2", "Pending")]
    for index in (1, 2):
        ends(store, names(store, index)[0], "Succeeded")
    status = store.find(JOBS, "train", "default")["status"]  # type: ignore[index]  # it exists
    assert (status["active"], status["succeeded"], status["conditions"][0]["type"]) == (0, 3, "Complete")


async def test_failed_and_deleted_pods_are_replaced(store: DirectStore) -> None:
    store.create(job(backoffLimit=1))
    ends(store, names(store, 0)[0], "Failed")
    assert indexes(store) == [("0", "Failed"), ("0", "Pending"), ("1", "Pending")]
    store.delete("pods", names(store, 1)[0], "default")
    assert indexes(store) == [("0", "Failed"), ("0", "Pending"), ("1", "Pending")]
    ends(store, names(store, 1)[0], "Failed")  # one failure too many
    assert indexes(store) == [("0", "Failed"), ("1", "Failed")]


async def test_a_suspended_job_has_no_pods(store: DirectStore) -> None:
    store.create(job(suspend=True))
    assert indexes(store) == []
    store.patch(JOBS, "train", {"spec": {"suspend": False}}, "default")
    assert len(indexes(store)) == 2
    store.patch(JOBS, "train", {"spec": {"suspend": True}}, "default")
    assert indexes(store) == []


async def test_pods_go_with_their_job(store: DirectStore) -> None:
    store.create(job())
    store.delete(JOBS, "train", "default")
    assert indexes(store) == []


async def test_deleted_pods_of_nodes_without_a_kubelet_are_removed(server: ApiServer) -> None:
    spec = {"containers": [{"name": "c", "image": "none"}]}
    for node in ("simulated", "loaded"):
        server.store.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node}, "spec": {**spec, "nodeName": node}}
        )
    server.store.delete("pods", "loaded")
    collect_pods(server.store, {"simulated"})
    assert [pod["metadata"]["name"] for pod in server.store.list("pods")] == ["simulated"]
    server.store.delete("pods", "simulated")
    assert server.store.get("pods", "simulated")["metadata"]["deletionTimestamp"]
