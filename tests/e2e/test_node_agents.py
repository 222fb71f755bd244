"""The scheduler beside real node agents on simulated nodes: what exporters leave out is published, and what is decided is applied."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.cli.demo.node_agents import NodeAgents, node_agents
from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines.pod_status import container_id
from koord_numa.wire import parse_pod, parse_topology
from tests.e2e.world import World, pinned, world

pytestmark = pytest.mark.e2e

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
    async with asyncio.timeout(90):
        while cluster.unbound() or await agents.round():
            cluster.rack.publish()
            await agents.round()
            await asyncio.sleep(0.1)


async def test_odd_counts_are_placed_at_once_where_options_are_published(tmp_path: Path) -> None:
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


def events(cluster: World, reason: str) -> list[dict[str, Any]]:
    """Events of one reason."""
    return [event for event in cluster.server.store.list("events.events.k8s.io") if event["reason"] == reason]
