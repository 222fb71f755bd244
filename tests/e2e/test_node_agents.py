"""The scheduler beside real node agents on simulated nodes: what exporters leave out is published, and what is decided is applied."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.cli.demo.sandbox_cluster import NodeAgents, node_agents
from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines import NodeServices
from koord_numa.sandbox.machines.simulated_node import container_id
from koord_numa.wire import parse_pod, parse_topology
from tests.cluster.objects import PATIENCE
from tests.e2e.world import BIN, CRDS, World, pinned, world
from tests.sandbox.machines.pods import bind, create, place

pytestmark = pytest.mark.e2e

GPU: Final = "nvidia.com/gpu"
TOPOLOGIES: Final = "noderesourcetopologies.topology.node.k8s.io"

KUBELETS: Final = {
    "machines": [
        {
            "name": f"{policy}-{scope}-{threads}",
            "style": "kubelet",
            "agent": True,
            "sockets": 2,
            "numa": 1,
            "cores": 16 // threads,
            "threads": threads,
            "memory": "64Gi",
            "reservedCPUs": "0",
            "kubelet": {"topologyPolicy": policy, "topologyScope": scope, "memoryPolicy": memory},
        }
        for policy, scope, threads, memory in (
            ("single-numa-node", "container", 2, "Static"),
            ("single-numa-node", "pod", 1, "Static"),
            ("restricted", "container", 2, "None"),
            ("best-effort", "pod", 1, "None"),
            ("none", "container", 2, "None"),
        )
    ]
}
"""Kubelets without full-pcpus-only: they admit any number of CPUs."""

PLAIN: Final = {
    "machines": [
        {
            "name": "plain",
            "count": 2,
            "agent": True,
            "sockets": 2,
            "numa": 1,
            "cores": 8,
            "threads": 2,
            "memory": "64Gi",
        }
    ]
}

ODD: Final = (1, 3, 5, 7, 3, 1, 5, 9, 7, 3)


async def settled(cluster: World, agents: NodeAgents) -> None:
    """Agents do their rounds until every pod runs and the last round changed nothing."""
    async with asyncio.timeout(PATIENCE):
        while cluster.unbound() or await agents.round():
            cluster.rack.publish()
            await agents.round()
            await asyncio.sleep(0.5)  # rounds take CPU time from the scheduler


async def test_odd_counts_are_placed_at_once_with_published_options(tmp_path: Path) -> None:
    async with world(tmp_path, KUBELETS) as cluster, node_agents(cluster.server, cluster.rack, tmp_path) as agents:
        for name in cluster.rack.nodes:
            topology = parse_topology(cluster.server.store.get(TOPOLOGIES, name))
            assert not topology.problem
            assert topology.kubelet == cluster.rack.nodes[name].description.kubelet
        await cluster.schedule()
        cluster.create([pinned(f"odd-{number}", count) for number, count in enumerate(ODD * 2)])
        await settled(cluster, agents)
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
        assert not events(cluster, "FailedScheduling")


WHOLE_CORES: Final = {
    "machines": [
        {
            "name": name,
            "style": "kubelet",
            "agent": True,
            "sockets": sockets,
            "numa": 1,
            "cores": 16,
            "threads": threads,
            "memory": "64Gi",
            "reservedCPUs": reserved,
            "kubelet": {"topologyPolicy": policy, "cpuOptions": {option: True}, "memoryPolicy": "None"},
        }
        for name, sockets, threads, reserved, policy, option in (
            ("two-threads", 1, 2, "0,16", "none", "full-pcpus-only"),
            ("one-thread", 2, 1, "", "single-numa-node", "full-pcpus-only"),
            ("sockets", 2, 2, "", "restricted", "align-by-socket"),
        )
    ]
}
"""Kubelets whose options depend on hardware that only the agent reads: threads per core, siblings and sockets."""


async def test_hardware_read_by_agents_decides_on_cpu_options(tmp_path: Path) -> None:
    async with world(tmp_path, WHOLE_CORES) as cluster, node_agents(cluster.server, cluster.rack, tmp_path) as agents:
        await cluster.schedule()
        pods = [("two-threads", 30), ("one-thread", 7), ("sockets", 20)]
        cluster.create([on_node(node, cpus) for node, cpus in pods])
        await settled(cluster, agents)
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
        assert not events(cluster, "FailedScheduling")


def on_node(node: str, cpus: int) -> dict[str, Any]:
    """A pod of ``cpus`` CPUs that only ``node`` may take, without Koordinator's labels."""
    pod = pinned(f"{node}-pod", cpus)
    pod["metadata"]["labels"] = {}
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


async def test_what_is_decided_is_where_it_runs(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as cluster, node_agents(cluster.server, cluster.rack, tmp_path) as agents:
        await cluster.schedule()
        cluster.create([pinned(f"p-{number}", 4) for number in range(6)])
        await settled(cluster, agents)
        assert cluster.complaints() == []
        assert agents.differences() == []
        for obj in cluster.server.store.list("pods"):
            pod = parse_pod(obj)
            assert pod.assignment is not None
            runs_on = agents.services[pod.node].cgroups.effective(container_id(pod.key.uid, "main"))
            assert runs_on == pod.assignment.cpus
            assert len(runs_on) == 4
        everything = CpuSet.of(range(32))
        assert all(agents.services[name].cgroups.cpus == everything for name in cluster.rack.nodes)


GPUS: Final = {
    "machines": [
        {
            "name": "gpu",
            "count": 2,
            "style": "kubelet",
            "agent": True,
            "sockets": 2,
            "numa": 1,
            "cores": 16,
            "threads": 1,
            "memory": "64Gi",
            "devices": {GPU: [0, 0, 1, 1]},
        }
    ]
}


def pair_of_gpus(name: str) -> dict[str, Any]:
    """A pod that requires two GPUs of one NUMA node, by Koordinator's annotation."""
    pod = pinned(name, 1)
    for part in pod["spec"]["containers"][0]["resources"].values():
        part[GPU] = "2"
    hint = {"gpu": {"requiredTopologyScope": "NUMANode"}}
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocate-hint"] = json.dumps(hint)
    return pod


async def test_devices_that_kubelets_gave_away_are_not_free(tmp_path: Path) -> None:
    """On one machine, pods without any annotation hold a GPU of each NUMA node: two GPUs are free, and no two of one NUMA node."""
    crds = (*CRDS, CRDS[0].parent / "optional" / "devices-koordinator.yaml")
    async with (
        world(tmp_path, GPUS, crds=crds) as cluster,
        node_agents(cluster.server, cluster.rack, tmp_path, devices=True) as agents,
    ):
        store = cluster.server.store
        foreign = [create(store, name, {"cpu": "1", GPU: "1"}) for name in ("x", "y", "z")]
        for pod in foreign:
            bind(store, pod, "gpu-0")  # kubelets choose the lowest GPUs: 0, 1 and 2
        store.delete("pods", "x", "default")
        await agents.round()
        await cluster.schedule()
        cluster.create([pair_of_gpus(f"pair-{number}") for number in range(3)])
        async with asyncio.timeout(PATIENCE):
            while len(cluster.unbound()) > 1 or not events(cluster, "FailedScheduling"):
                await agents.round()
                await asyncio.sleep(0.5)
        assert "Insufficient Topology Scoped GPU Devices" in events(cluster, "FailedScheduling")[0]["note"]
        store.delete("pods", "y", "default")
        await settled(cluster, agents)
        assert cluster.complaints() == []
        nodes = sorted(pod["spec"]["nodeName"] for pod in store.list("pods") if pod["metadata"]["name"] != "z")
        assert nodes == ["gpu-0", "gpu-1", "gpu-1"]
        told = [event["note"] for event in events(cluster, "Scheduled")]
        assert len([note for note in told if "no agent injects the chosen devices" in note]) == 3


def events(cluster: World, reason: str) -> list[dict[str, Any]]:
    """Events of one reason."""
    return [event for event in cluster.server.store.list("events.events.k8s.io") if event["reason"] == reason]


async def test_an_agent_that_is_killed_again_and_again_converges(tmp_path: Path) -> None:
    """``kill -9`` after ever more of its work: containers run on, and the next process completes what the last one began."""
    async with world(tmp_path, PLAIN) as cluster:
        node = cluster.rack.nodes["plain-0"]
        async with NodeServices(tmp_path / "plain-0", node) as services:
            command = [
                *(str(BIN / "koord-numa"), "node-agent", "--apply", "--kubeconfig", str(cluster.kubeconfig)),
                *("--node-name", "plain-0", "--sysfs", str(services.sysfs), "--cgroups", str(services.cgroups.root)),
                *("--kubelet-config", str(services.kubelet_config), "--cri-socket", str(services.cri)),
                *("--podresources-socket", str(services.podresources)),
            ]
            pods = [place(cluster.server.store, "plain-0", f"p{core}", f"{core},{core + 16}") for core in range(8)]
            for survived in (0, 1, 3, 8):
                process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
                before = len(services.updates)
                async with asyncio.timeout(PATIENCE):
                    while len(services.updates) - before < survived:
                        assert process.returncode is None
                        await asyncio.sleep(0.001)
                process.kill()
                await process.wait()
                assert len(services.cgroups.containers) == len(pods)
                for pod in pods:  # systemd's daemon-reload while no agent runs
                    if survived < 8:
                        services.cgroups.set(container_id(pod.uid, "c"), services.cgroups.cpus)
            found = [str(services.cgroups.effective(container_id(pod.uid, "c"))) for pod in pods]
            assert found == [f"{core},{core + 16}" for core in range(8)]
