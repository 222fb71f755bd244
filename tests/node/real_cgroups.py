"""Containers of a simulated node as processes in cgroups of this machine. Needs root and a writable cpuset controller."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.agent import Agent
from koord_numa.node.observer import ROOT
from koord_numa.sandbox.machines.description import NodeDescription, Shape
from koord_numa.sandbox.machines.node_services import ContainerCgroups
from koord_numa.sandbox.machines.simulated_node import container_id
from tests.node.fake_nri import FakeNri, nri_runtime
from tests.node.nodes import NODE, World, world

ONE_NUMA_NODE = NodeDescription(name=NODE, hardware=Shape(sockets=1, cores=2, threads=1).build())
TWO_NUMA_NODES = NodeDescription(name=NODE, hardware=Shape(sockets=2, cores=1, threads=1).build())
V2 = (ROOT / "cgroup.controllers").exists()
MOUNT = ROOT if V2 else ROOT / "cpuset"


def unavailable() -> str:
    """Return why containers cannot be real processes here, empty if they can."""
    if os.geteuid() != 0:
        return "cgroups need root"
    if not {0, 1} <= os.sched_getaffinity(0):
        return "the test uses CPUs 0 and 1"
    folder = MOUNT / f"koord-numa-{os.getpid()}"
    try:
        folder.mkdir()
        folder.rmdir()
    except OSError as error:
        return f"{MOUNT} is not writable: {error.strerror}"
    if V2 and "cpuset" not in (MOUNT / "cgroup.subtree_control").read_text().split():
        return "the cpuset controller is not enabled for children"
    return ""


class RealCgroups(ContainerCgroups):
    """The cgroups of containers, made in the cpuset hierarchy of this machine."""

    def __init__(self, root: Path, cpus: CpuSet) -> None:
        self.root = root
        self.cpus, self.mems = cpus, CpuSet()
        self._folders: dict[str, Path] = {}
        self._make(root)

    def _make(self, folder: Path) -> None:
        """Create a cgroup that may use what its parent may."""
        folder.mkdir()
        if V2:
            with suppress(OSError):
                (folder / "cgroup.subtree_control").write_text("+cpuset")
            return
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text((folder.parent / name).read_text())

    def create(self, container: str, pod_uid: str) -> None:
        pods = self.root / "kubepods"
        folder = pods / f"pod{pod_uid}" / container
        for each in (pods, folder.parent, folder):
            if not each.exists():
                self._make(each)
        self._folders[container] = folder

    def set(self, container: str, cpus: CpuSet | None = None, mems: CpuSet | None = None) -> None:
        for name, wanted in (("cpus", cpus), ("mems", mems)):
            if wanted:
                (self._folders[container] / f"cpuset.{name}").write_text(str(wanted))

    def effective(self, container: str) -> CpuSet:
        name = "cpuset.cpus.effective" if V2 else "cpuset.effective_cpus"
        return CpuSet.parse((self._folders[container] / name).read_text().strip())

    def remove(self, container: str) -> None:
        self._folders.pop(container, None)

    def clean(self) -> None:
        """Remove all cgroups of the test. A cgroup is busy for a moment after its last process."""
        for folder, _, _ in os.walk(self.root, topdown=False):
            for _ in range(2000):
                with suppress(OSError):
                    Path(folder).rmdir()
                    break
                sleep(0.002)


class RealProcesses:
    """The process of each container, which first of all writes down its CPUs and the NUMA nodes of its memory."""

    def __init__(self, around: World, folder: Path) -> None:
        self._around = around
        self._folder = folder
        self.running: dict[str, Any] = {}
        self._announce, around.services._announce = around.services._announce, self._start  # type: ignore[method-assign]  # a real runtime starts it

    def _start(self, container: str) -> None:
        task = asyncio.get_running_loop().create_task(self._run(container))
        self.running[container] = task

    async def _run(self, container: str) -> Any:
        cgroup = self._around.services.cgroups._folders[container]
        # The second shell starts in the cgroup: its memory, too, is touched there first.
        inner = f"cat /proc/self/status /proc/self/numa_maps > {self._folder}/{container}.new;"
        inner += f" mv {self._folder}/{container}.new {self._folder}/{container}; exec sleep 100"
        outer = f'echo $$ > {cgroup}/cgroup.procs; exec sh -c "{inner}"'
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", outer)
        self._announce(container)
        return process

    async def first(self, uid: str) -> str:
        """Return what the process of a pod has written down."""
        path = self._folder / container_id(uid, "c")
        async with asyncio.timeout(20):
            while not path.exists():  # noqa: ASYNC110  (a process writes it)
                await asyncio.sleep(0.005)
        return path.read_text()

    async def pid(self, uid: str) -> int:
        process = await self.running[container_id(uid, "c")]
        return int(process.pid)

    async def end(self) -> None:
        for task in self.running.values():
            process = await task
            process.kill()
            await process.wait()


def first_cpus(text: str) -> str:
    """The CPUs that a process was allowed at its start."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def memory_nodes(text: str) -> set[int]:
    """The NUMA nodes of the memory that a process has touched itself, without pages of files."""
    lines = (line for line in text.splitlines() if " anon=" in line)
    return {int(node) for line in lines for node in re.findall(r" N(\d+)=", line)}


def with_memory() -> CpuSet:
    """The NUMA nodes of this machine that have memory."""
    try:
        return CpuSet.parse(Path("/sys/devices/system/node/has_memory").read_text().strip())
    except OSError:
        return CpuSet()


@asynccontextmanager
async def real_node(
    description: NodeDescription = ONE_NUMA_NODE, *, nri: bool, **config: Any
) -> AsyncIterator[tuple[World, Agent, RealProcesses]]:
    """A node of CPUs 0 and 1 with the whole agent, whose containers are processes of this machine."""
    with TemporaryDirectory(prefix="kn-") as name:
        folder = Path(name)
        async with world(folder, description) as around:
            cgroups = RealCgroups(MOUNT / f"koord-numa-{os.getpid()}", CpuSet.parse("0-1"))
            around.services.cgroups = cgroups
            processes = RealProcesses(around, folder)
            stop = asyncio.Event()
            try:
                async with _runtime(around, nri=nri) as runtime:
                    socket = None if runtime is None else runtime.socket
                    agent = around.new_agent(monotonic, apply=True, nri_socket=socket, **config)
                    running = asyncio.create_task(agent.run(stop))
                    await asyncio.wait_for(agent._may_apply.wait(), 20)
                    if runtime is not None:
                        await asyncio.wait_for(runtime.synchronized.wait(), 20)
                    yield around, agent, processes
                    stop.set()
                    await running
            finally:
                await processes.end()
                cgroups.clean()


@asynccontextmanager
async def _runtime(around: World, *, nri: bool) -> AsyncIterator[FakeNri | None]:
    if not nri:
        yield None
        return
    async with nri_runtime(around) as runtime:
        yield runtime
