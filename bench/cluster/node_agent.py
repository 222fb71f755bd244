"""Memory and CPU time of the node agent on a full node."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figure import Figure, NotMeasurableError
from koord_numa.cluster.credentials import Credentials
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.node.api_client import NodeApi
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines import Fleet, NodeDescription, NodeServices, Shape, Style
from koord_numa.wire import names
from tests.node.fake_nri import nri_runtime
from tests.node.nodes import World
from tests.node.test_interrupts import FakeProc

PODS: Final = 250
INTERRUPTS: Final = 1000
WARM_UP: Final = 15.0
MEASURED: Final = 30.0
HARDWARE: Final = Shape(sockets=2, cores=64, threads=2).build()
STATIC: Final = KubeletConfig(
    topology_policy=KubeletPolicy.BEST_EFFORT, cpu_policy="static", memory_policy="Static", reserved_cpus=CpuSet.of([0])
)
KUBELETS: Final = NodeDescription(
    "n0", HARDWARE, style=Style.KUBELET, kubelet=STATIC, reserved=CpuSet.of([0]), pods=300, agent=True
)
SCHEDULERS: Final = NodeDescription("n0", HARDWARE, pods=300, agent=True)

# As inside a cluster: no kubeconfig, which would be read with another library.
_AGENT: Final = """
import asyncio, sys
from pathlib import Path
from koord_numa.node.agent import Agent
from koord_numa.node.publisher import AgentConfig
from koord_numa.cluster.credentials import Credentials
from koord_numa.node.api_client import NodeApi
async def main(url, sysfs, cgroups, config, podresources, cri, nri, root, proc, state, apply):
    config = AgentConfig(node="n0", sysfs=Path(sysfs), cgroups=Path(cgroups), kubelet_config=Path(config),
                         podresources=Path(podresources), cri_socket=Path(cri), nri_socket=Path(nri), root_dir=Path(root),
                         proc=Path(proc), state=Path(state), apply=apply == "apply")
    async with NodeApi(Credentials(url)) as api:
        await Agent(config, api).run(asyncio.Event())
asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Megabytes resident, percent of one core."""

    memory: float
    cpu: float


def figures() -> Iterator[Figure]:
    """One agent beside a static kubelet, and one that applies cpusets itself."""
    if not Path("/proc/self/stat").exists():
        raise NotMeasurableError("there is no /proc")
    for name, description in (("publishing", KUBELETS), ("applying", SCHEDULERS)):
        cost = asyncio.run(_measure(description))
        note = (
            f"{PODS} pods, 256 CPUs, static kubelet"
            if description is KUBELETS
            else f"{PODS} pods, 60 of them pinned, NRI, {INTERRUPTS} interrupts kept off"
        )
        yield Figure(f"node-agent {name} memory", cost.memory, "MB", 60, note=note)
        yield Figure(f"node-agent {name} cpu", cost.cpu, "%", 0.5, note="of one core")


async def _measure(description: NodeDescription) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        async with ApiServer(crds=definitions()) as server:
            fleet = Fleet(server.store, [description])
            fleet.start()
            for number in range(PODS):
                _start(server, number, description.style)
            interrupts = FakeProc(Path(folder, "host"))
            interrupts.set(dict.fromkeys(range(INTERRUPTS), "0-255"), "ffffffff" + ",ffffffff" * 7)
            async with NodeServices(Path(folder), fleet.nodes["n0"]) as services, _nri(server, fleet, services) as nri:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", _AGENT, server.url, services.sysfs, services.cgroups.root),
                    *(services.kubelet_config, services.podresources, services.cri, nri, services.root_dir),
                    *(interrupts.folder / "proc", interrupts.folder / "state"),
                    "apply" if description.style is Style.KOORDINATOR else "publish",
                )
                try:
                    # Imports and the first full readings are no running cost.
                    await asyncio.sleep(WARM_UP)
                    before, begun = _cpu(process.pid), time.monotonic()
                    await asyncio.sleep(MEASURED)
                    share = (_cpu(process.pid) - before) / (time.monotonic() - begun)
                    return Cost(_memory(process.pid), share * 100)
                finally:
                    process.kill()
                    await process.wait()


@asynccontextmanager
async def _nri(server: ApiServer, fleet: Fleet, services: NodeServices) -> AsyncIterator[Path]:
    """The runtime's NRI socket."""
    async with (
        NodeApi(Credentials(server.url)) as api,
        nri_runtime(World(server, fleet, services, api, Path())) as runtime,
    ):
        yield runtime.socket


def _start(server: ApiServer, number: int, style: Style) -> None:
    pinned = style is Style.KOORDINATOR and number < 60
    cpus = f"{2 * number},{2 * number + 1}"
    amounts = {
        # A third of the pods gets a CPU of its own from the static kubelet; the others share.
        "cpu": "2" if pinned else "1" if number % 3 == 0 and style is Style.KUBELET else "100m",
        "memory": "16Mi",
    }
    isolation = {names.CPU_ISOLATION: "interrupts,siblings"} if pinned else {}
    metadata: dict[str, Any] = {"name": f"p{number}", "namespace": "default", "annotations": isolation}
    spec = {"containers": [{"name": "c", "image": "i", "resources": {"limits": amounts}}]}
    pod = server.store.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    status = {names.RESOURCE_STATUS: f'{{"cpuset":"{cpus}"}}'} if pinned else {}
    binding = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": status}, "target": {"name": "n0"}}
    server.store.bind("default", metadata["name"], binding)


def _cpu(pid: int) -> float:
    # After the last parenthesis: the command's name, the second field, may contain spaces. utime and stime are 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def _memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # # the most that was ever resident, as a limit would count it
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
