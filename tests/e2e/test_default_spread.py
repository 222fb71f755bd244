"""Pods of one workload are spread although they name no constraint: from Services and ReplicaSets on the API server to the binding."""

from collections import Counter
from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import ApiServer
from tests.cluster.objects import JsonObject, node, pod, until
from tests.operator.operating import operating, placed

HOST = "kubernetes.io/hostname"
SERVICE: JsonObject = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": {"app": "web"}},
}
REPLICA_SET: JsonObject = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {"name": "web-1", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}},
}


def replica(name: str, owner: str) -> JsonObject:
    """A pod of the workload."""
    made = pod(name)
    made["metadata"]["labels"] = {"app": "web"}
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": owner, "controller": True}
    made["metadata"]["ownerReferences"] = [reference]
    return made


@pytest.mark.parametrize("workload", [SERVICE, REPLICA_SET], ids=lambda each: str(each["kind"]))
async def test_replicas_are_spread(workload: JsonObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"web-{number}" for number in range(6)]
    async with ApiServer(bookmark_interval=0.5) as server:
        for name in "abc":
            server.store.create(node(name, labels={HOST: name}))
        owner = server.store.create(workload)["metadata"]["uid"]
        async with operating(server, tmp_path, monkeypatch) as runtime:
            await until(lambda: all(informer.synced for informer in runtime.informers.all))
            for name in names:
                server.store.create(replica(name, owner))
            await until(lambda: all(placed(server, name) for name in names))
            assert Counter(placed(server, name) for name in names) == {"a": 2, "b": 2, "c": 2}
