"""A small fleet and a few pods for the tests of commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from koord_numa.cli import main
from koord_numa.cli.demo.sandbox_cluster import SandboxCluster, sandbox_cluster
from koord_numa.sandbox.machines import read_descriptions
from tests.cluster.objects import pod_document

SHAPE: Final = {"sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}
RACK: Final = {
    "machines": [
        {"name": "own", **SHAPE, "labels": {"kind": "own"}},
        {"name": "theirs", "style": "kubelet", **SHAPE},
    ]
}
"""One node of either owner: NUMA node 0 has CPUs 0-3,8-11, NUMA node 1 has 4-7,12-15."""


def pod(name: str, cpu: int, *, node: str = "", cpus: str = "", numa: str = "", **selector: str) -> dict[str, Any]:
    """A pod that wants CPUs of its own; with ``node`` it is bound already, with ``cpus`` it holds them on their NUMA node."""
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    annotations = {"scheduling.koordinator.sh/numa-topology-spec": f'{{"numaTopologyPolicy":"{numa}"}}'} if numa else {}
    if cpus:
        first = int(cpus.partition("-")[0])
        held = f'[{{"node":{first // 4},"resources":{{"cpu":"{cpu}","memory":"1Gi"}}}}]'
        annotations["scheduling.koordinator.sh/resource-status"] = f'{{"cpuset":"{cpus}","numaNodeResources":{held}}}'
    spec = {
        **({"nodeName": node} if node else {}),
        **({"nodeSelector": selector} if selector else {}),
        "containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}],
    }
    return pod_document(name, spec, labels={"koordinator.sh/qosClass": "LSR"}, annotations=annotations)


@asynccontextmanager
async def small_cluster(folder: Path, *pods: dict[str, Any]) -> AsyncIterator[SandboxCluster]:
    """The small fleet with these pods, and no scheduler."""
    async with sandbox_cluster(read_descriptions(RACK, folder), folder / "kubeconfig") as cluster:
        for obj in pods:
            cluster.server.store.create(obj)
        cluster.fleet.publish()
        yield cluster


async def ask(cluster: SandboxCluster, *arguments: str, text: str = "") -> Result:
    """Run a command against this cluster, as from a shell."""
    command = [*arguments, "--kubeconfig", str(cluster.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, command, input=text)
