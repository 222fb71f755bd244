"""Whole racks: more pods than fit, and machines that exist. Every node is asked whether it agrees with what it was given."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

import pytest

from koord_numa.cli.cluster.objects import ClusterObjects
from koord_numa.cli.cluster.snapshot import Snapshot, snapshot_of
from koord_numa.core.objects.verdicts import Placement
from koord_numa.sandbox.machines import NodeDescription, Style, load_descriptions
from koord_numa.settings import Settings
from koord_numa.wire.names import RESOURCE_STATUS, TOPOLOGY_GROUP, TOPOLOGY_PLURAL
from tests.cluster.objects import until
from tests.e2e.world import BIN, PROGRAM, ROOT, World, ended, pinned, shared, world

pytestmark = pytest.mark.e2e

REAL_MACHINES: Final = Path(os.environ.get("KOORD_NUMA_SHARED", ROOT.parent / "shared")) / "topologies"
GI: Final = 2**30
MOST_NUMA: Final = 8
"""A kubelet looks after no more NUMA nodes unless it is told to."""


def more_than_fits(count: int) -> list[dict[str, Any]]:
    """Large pods of all kinds: some 1,000 CPUs for the 632 that the rack has."""
    kinds = (
        lambda name: pinned(name, 6, policy="SingleNUMANode"),
        lambda name: pinned(name, 4),
        lambda name: shared(name, "3"),
        lambda name: pinned(name, 10, policy="Restricted"),
        lambda name: pinned(name, 2, qos="LSE"),
    )
    return [kinds[number % len(kinds)](f"pod-{number:03}") for number in range(count)]


def look(cluster: World) -> Snapshot:
    """The cluster as a scheduler that has just started would see it."""
    store = cluster.server.store
    kinds = ("nodes", f"{TOPOLOGY_PLURAL}.{TOPOLOGY_GROUP}", "pods")
    facts = ClusterObjects()
    for obj in (obj for kind in kinds for obj in store.list(kind)):
        facts.add(obj)
    return snapshot_of(Settings(), facts)


def could_be_placed(cluster: World) -> list[str]:
    """Pods that wait although some node would take them."""
    snapshot = look(cluster)
    waiting = [pod for pod in snapshot.pods if not pod.node]
    return [pod.key.name for pod in waiting if isinstance(snapshot.decide(pod), Placement)]


def answered(cluster: World) -> bool:
    """Return true if every pod has a node or a reason why it waits."""
    return all(obj["spec"].get("nodeName") or reason(obj) for obj in cluster.server.store.list("pods"))


def reason(obj: dict[str, Any]) -> str:
    """The message of PodScheduled=False."""
    for condition in obj["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition["message"])
    return ""


def placements(cluster: World) -> dict[str, tuple[str, str]]:
    """Every pod's node and what it holds there."""
    return {
        obj["metadata"]["name"]: (
            obj["spec"].get("nodeName", ""),
            obj["metadata"].get("annotations", {}).get(RESOURCE_STATUS, ""),
        )
        for obj in cluster.server.store.list("pods")
    }


async def test_an_overfull_rack_is_filled_twice_in_the_same_way(tmp_path: Path) -> None:
    """All pods that fit are placed, and the others have a reason."""
    found = []
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        await asyncio.to_thread(folder.mkdir)
        async with world(folder) as cluster:
            cluster.create(more_than_fits(200))
            await cluster.schedule(*PROGRAM)  # not forked from one: with another order of sets
            await until(lambda: answered(cluster))
            found.append(placements(cluster))
            cluster.rack.publish()  # kubelets have told by now what they gave to whom
            await until(lambda: answered(cluster) and not could_be_placed(cluster))
            waiting = [obj for obj in cluster.server.store.list("pods") if not obj["spec"].get("nodeName")]
            assert 0 < len(waiting) < 150
            assert {reason(obj).partition(":")[0] for obj in waiting} == {"0/20 nodes are available"}
            assert cluster.complaints() == []
            assert set(cluster.binds().values()) == {1}
    first, second = found
    assert {name: node for name, (node, _) in first.items()} == {name: node for name, (node, _) in second.items()}
    # Where a kubelet chooses, the status says only what is known, which depends on when its verdicts on other pods come.
    assert all(status == second[name][1] for name, (node, status) in first.items() if not node.startswith("kubelet-"))
    assert any(status for node, status in first.values() if not node.startswith("kubelet-"))


def real_nodes() -> Iterator[tuple[NodeDescription, dict[str, Any]]]:
    """Every machine on file once as a node of either owner, where its kubelet could run it: what it is, and its entry in a rack."""
    for path in sorted(REAL_MACHINES.glob("*.json")):
        [node] = load_descriptions(path)
        roomy = any(memory >= 4 * GI for memory in node.hardware.memory.values())
        yield node, {"name": f"{node.name}-own", "file": str(path)}
        if roomy and len(node.hardware.machine.numa_ids) <= MOST_NUMA:
            yield node, {"name": f"{node.name}-kubelet", "file": str(path), "style": Style.KUBELET.value}


def pods_for(node: NodeDescription, name: str) -> list[dict[str, Any]]:
    """A pod with two cores on one NUMA node, one with a core anywhere, and one that shares; memory only where there is any."""
    threads = max(len(node.hardware.machine.cpus) // len(node.hardware.machine.cores), 1)
    pods = [
        pinned(f"{name}-aligned", 2 * threads, policy="SingleNUMANode"),
        pinned(f"{name}-pinned", threads),
        shared(f"{name}-shared"),
    ]
    for pod in pods:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        [container] = pod["spec"]["containers"]
        for amounts in container["resources"].values():
            amounts["memory"] = "64Mi"
            if not any(node.hardware.memory.values()):
                del amounts["memory"]
    return pods


async def test_every_real_machine_publishes_itself_and_takes_pods(tmp_path: Path) -> None:
    nodes = list(real_nodes())
    if not nodes:
        pytest.skip(f"no machines in {REAL_MACHINES}")
    async with world(tmp_path, {"machines": [entry for _, entry in nodes]}) as cluster:
        pods = [pod for node, entry in nodes for pod in pods_for(node, entry["name"])]
        cluster.create(pods)
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert {seen.node.name for seen in look(cluster).candidates()} == {entry["name"] for _, entry in nodes}


async def test_kopf_run_needs_only_a_kubeconfig(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.create(more_than_fits(20))
        process = await asyncio.create_subprocess_exec(
            *(str(BIN / "kopf"), "run", "--all-namespaces", "--quiet", "-m", "koord_numa.operator"),
            # The port is for tests that run side by side.
            env={"KUBECONFIG": str(cluster.kubeconfig), "KOORD_NUMA_METRICS_PORT": "0"},
            cwd=tmp_path,
        )
        cluster.schedulers.append(process)
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
        assert await ended(process, SIGTERM) == 0
        assert cluster.holder() == ""
