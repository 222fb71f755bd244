"""Making room on simulated nodes through the running operator: victims are evicted, leave, and the pod starts where they were."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.objects import until
from tests.e2e.world import World, pinned, publishing, world
from tests.engine.preemption.kubelet_life import MACHINE

pytestmark = pytest.mark.e2e

STATUS = "scheduling.koordinator.sh/resource-status"
OWNED = {"machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]}
KUBELET = {"machines": [MACHINE]}


def ranked(name: str, cpus: int, rank: str, policy: str = "") -> dict[str, Any]:
    """A pod with CPUs of its own and a named priority."""
    pod = pinned(name, cpus, policy=policy)
    pod["spec"]["priorityClassName"] = rank
    return pod


def create_ranks(cluster: World) -> None:
    """Two PriorityClasses."""
    for name, value in (("low", 9100), ("high", 9900)):
        cluster.server.store.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )


def pods(cluster: World) -> Mapping[str, Any]:
    """All pods by name."""
    return {pod["metadata"]["name"]: pod for pod in cluster.server.store.list("pods")}


def preempted(cluster: World) -> set[str]:
    """Pods that were told that they were preempted."""
    events = cluster.server.store.list("events.events.k8s.io")
    return {event["regarding"]["name"] for event in events if event["reason"] == "Preempted"}


async def test_a_whole_numa_node_is_freed_and_protected_pods_spared(tmp_path: Path) -> None:
    async with world(tmp_path, OWNED) as cluster:
        create_ranks(cluster)
        cluster.create([ranked(f"low-{number}", 4, "low") for number in range(4)])
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        held = {
            name: json.loads(pod["metadata"]["annotations"][STATUS])["numaNodeResources"][0]["node"]
            for name, pod in pods(cluster).items()
        }
        spared = {name for name, numa in held.items() if numa == 0}
        for name in spared:
            cluster.server.store.patch("pods", name, {"metadata": {"labels": {"spare": "me"}}}, namespace="default")
        cluster.server.store.create(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "spare", "namespace": "default"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"spare": "me"}}},
            }
        )
        cluster.create([ranked("high", 8, "high", "SingleNUMANode")])
        await until(lambda: pods(cluster)["high"]["spec"].get("nodeName"))
        assert set(pods(cluster)) == {*spared, "high"}
        assert json.loads(pods(cluster)["high"]["metadata"]["annotations"][STATUS])["numaNodeResources"][0]["node"] == 1
        await until(lambda: preempted(cluster) == set(held) - spared)
        assert cluster.complaints() == []


async def test_a_kubelet_admits_the_pod_for_which_room_was_made(tmp_path: Path) -> None:
    async with world(tmp_path, KUBELET) as cluster, publishing(cluster.rack, 0.1):
        create_ranks(cluster)
        cluster.create([ranked(f"low-{number}", 4, "low") for number in range(4)])
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        cluster.create([ranked("high", 8, "high")])
        await until(lambda: pods(cluster)["high"]["spec"].get("nodeName"))
        await until(lambda: pods(cluster)["high"]["status"]["phase"] == "Running")
        assert len(pods(cluster)) == 3
        assert cluster.complaints() == []
