"""The command line sees the labels of namespaces, as the scheduler does."""

from pathlib import Path

import pytest

from tests.cli.small import ask, pod, small_cluster


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"team": "a"}, "would go to theirs", id="selected"),
        pytest.param({}, "0/2 nodes are available", id="not selected"),
    ],
)
async def test_affinity_to_pods_of_labelled_namespaces(tmp_path: Path, labels: dict[str, str], expected: str) -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {},
        "namespaceSelector": {"matchLabels": {"team": "a"}},
    }
    follower = pod("follower", 2)
    follower["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    friend = pod("friend", 2, node="theirs")
    friend["metadata"]["namespace"] = "friends"
    async with small_cluster(tmp_path, follower) as cluster:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "friends", "labels": labels}}
        cluster.server.store.create(namespace)
        cluster.server.store.create(friend)
        answer = await ask(cluster, "explain", "follower")
    assert expected in answer.output
