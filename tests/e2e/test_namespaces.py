"""Affinity terms that select namespaces, from the API server to the binding."""

from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import ApiServer
from tests.cluster.objects import JsonObject, node, pod, until
from tests.operator.operating import operating, placed


def namespace(name: str, **labels: str) -> JsonObject:
    """A labelled namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


async def test_a_pod_follows_pods_of_the_namespaces_that_it_selects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with ApiServer(bookmark_interval=0.5) as server:
        for name in ("a", "b"):
            server.store.create(node(name, labels={"zone": name}))
        server.store.create(namespace("friends"))
        friend = pod("friend", node="b")
        friend["metadata"]["namespace"] = "friends"
        server.store.create(friend)
        server.store.create(pod("follower", affinity=affinity))
        async with operating(server, tmp_path, monkeypatch) as runtime:
            await until(lambda: runtime.scheduler.queue.numbers().unschedulable == 1)
            server.store.patch("namespaces", "friends", {"metadata": {"labels": {"team": "a"}}})
            await until(lambda: placed(server, "follower") == "b")
