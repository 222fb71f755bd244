"""Nodes without a scheduler have the figures that the scheduler has."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from koord_numa.cli.cluster.accounts import counted
from koord_numa.cli.cluster.objects import ClusterObjects
from koord_numa.cli.cluster.snapshot import snapshot_of
from koord_numa.cli.cluster.views import node_entries
from koord_numa.cli.demo.sandbox_cluster import SandboxCluster, sandbox_cluster
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.sandbox.machines import read_descriptions
from koord_numa.settings import Settings
from koord_numa.view.documents import node_entry
from tests.cli.small import SHAPE, pod

GPU: Final = "nvidia.com/gpu"
RACK: Final = {
    "machines": [
        {"name": "own", **SHAPE, "reservedCPUs": "0-1"},
        {"name": "amplified", **SHAPE, "amplification": {"cpu": 1.5}, "bindPolicy": "FullPCPUsOnly"},
        {"name": "by-id", **SHAPE, "devicesById": {"gpu": ["0a", "0a", "1b", "1b"]}},
        {"name": "claimed", **SHAPE, "claimedDevices": {"example.com/gpu": [0, 1]}, "cpuDriver": "layout"},
        {"name": "theirs", "style": "kubelet", **SHAPE, "devices": {GPU: [0, 1]}},
        {"name": "exact", "style": "kubelet", **SHAPE, "agent": "koord-numa"},
        {
            "name": "pods",
            "style": "kubelet",
            **SHAPE,
            "kubelet": {"topologyScope": "pod", "topologyPolicy": "restricted"},
        },
        {"name": "hidden", "style": "kubelet", **SHAPE, "hidden": True},
    ]
}
KINDS: Final = (
    "nodes",
    "noderesourcetopologies.topology.node.k8s.io",
    "pods",
    "devices.scheduling.koordinator.sh",
    "resourceslices.resource.k8s.io",
)


def objects_of(cluster: SandboxCluster) -> ClusterObjects:
    found = ClusterObjects()
    for obj in (obj for kind in KINDS for obj in cluster.server.store.list(kind)):
        found.add(obj)
    return found


def assert_equal_to_the_scheduler(objects: ClusterObjects) -> None:
    cache = counted(objects)
    assert cache is not None
    snapshot = snapshot_of(Settings(), objects)
    entries = [node_entry(info) for _, info in sorted(cache.nodes.items())]
    assert [entry for entry in entries if entry is not None] == node_entries(snapshot)
    assert {name: state(info) for name, info in cache.nodes.items()} == {
        name: state(info) for name, info in snapshot.scheduler.cache.nodes.items()
    }


def state(info: NodeInfo) -> list[object]:
    """Return the node's state that decisions depend on."""
    there = info.candidate()
    found = None if there is None else (there.ledger.holdings, repr(there.offer))
    unordered = sorted(uid for uid, known in info.history.pods.items() if known.unordered)
    return [info.cpus_by_claim, info.device_inventory, info.unpublished, unordered, found]


def pods(dice: Random) -> Iterator[dict[str, Any]]:
    """Bound pods in all states, more than fit, and pods without a node."""
    nodes = [str(machine["name"]) for machine in RACK["machines"]] + [""]
    for number in range(60):
        node = dice.choice(nodes)
        cpus = dice.choice(("", "", "0-1,8-9", "4-5", "x")) if node in ("own", "amplified", "by-id") else ""
        obj = pod(f"p{number}", dice.randint(1, 5), node=node, cpus="" if cpus == "x" else cpus)
        if cpus == "x":
            obj["metadata"].setdefault("annotations", {})["scheduling.koordinator.sh/resource-status"] = "{"
        if dice.random() < 0.2:
            amounts = obj["spec"]["containers"][0]["resources"]
            amounts["requests"] = {**amounts["requests"], GPU: "1"}
            amounts["limits"] = {**amounts["limits"], GPU: "1"}
        if node and dice.random() < 0.7:
            obj["status"] = {"phase": dice.choice(("Running", "Running", "Succeeded", "Failed", "Pending"))}
        yield obj


@pytest.mark.parametrize("seed", range(2))
async def test_figures_are_those_of_the_scheduler(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    async with sandbox_cluster(read_descriptions(RACK, tmp_path), tmp_path / "kubeconfig") as cluster:
        assert_equal_to_the_scheduler(objects_of(cluster))
        for number, obj in enumerate(pods(dice)):
            cluster.server.store.create(obj)
            if number % 20 == 10:  # topologies lag behind
                cluster.fleet.publish()
        assert_equal_to_the_scheduler(found := objects_of(cluster))
        cluster.fleet.publish()
        assert_equal_to_the_scheduler(objects_of(cluster))
    for objects in (found.nodes, found.topologies, found.pods, found.devices):
        dice.shuffle(objects)
    found.pods[:] = [replace(it, started=False) if dice.random() < 0.5 else it for it in found.pods]
    assert_equal_to_the_scheduler(found)


async def test_the_scheduler_counts_what_is_unusual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sandbox_cluster(read_descriptions(RACK, tmp_path), tmp_path / "kubeconfig") as cluster:
        cluster.server.store.create(pod("waits", 2))
        objects = objects_of(cluster)
    assert counted(objects) is not None
    (waiting,) = objects.pods
    objects.pods[:] = [replace(waiting, nominated="own")]
    assert counted(objects) is None
    objects.pods[:] = [replace(waiting, node="own")]

    def broken(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Cache, "observe_pod", broken)
    assert counted(objects) is None
