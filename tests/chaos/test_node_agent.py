"""
The node agent as a process of its own that is killed and frozen at any time, while runtime and API server fail as well.

No container starts on other CPUs while NRI is up, and in the end no container, interrupt or sibling thread is left with
stale values. Only in ``make chaos``: an agent takes a second to start. ``tests/node/test_nri.py`` has the short version.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.apiserver import Effect, Fault
from koord_numa.sandbox.machines.simulated_node import container_id
from koord_numa.wire import names
from tests.node.descriptions import PLAIN
from tests.node.fake_nri import FakeNri, nri_runtime
from tests.node.nodes import NODE, World, world
from tests.node.test_interrupts import FakeProc
from tests.sandbox.machines.pods import bind, create

pytestmark = pytest.mark.chaos

EVERY: Final = CpuSet.parse("0-15")
PODS_PER_STEP: Final = 30
"""A run of 1,500 pods of the other chaos tests has 50 steps here, of about a second."""
FEWEST: Final = 10
PATIENCE: Final = 40.0
"""Seconds until everything must be right again: a round of the agent is due every 10 seconds."""
MOST_PODS: Final = 40
"""The kubelet of the node would reject more of them for want of CPUs."""

AGENT: Final = """
import asyncio, logging, sys
from pathlib import Path
from koord_numa.node.agent import Agent
from koord_numa.node.publisher import AgentConfig
from koord_numa.cluster.credentials import Credentials
from koord_numa.node.api_client import NodeApi
async def main(url, **paths):
    paths = {name: Path(path) for name, path in paths.items()}
    async with NodeApi(Credentials(url)) as api:
        await Agent(AgentConfig(node="n0", apply=True, configz=False, **paths), api).run(asyncio.Event())
logging.basicConfig(level=logging.INFO)
asyncio.run(main(sys.argv[1], **dict(one.split("=", 1) for one in sys.argv[2:])))
"""


@dataclass
class AgentProcess:
    """The agent of the node. A killed one is started again."""

    around: World
    runtime: FakeNri
    proc: FakeProc
    process: Any = None

    async def start(self) -> None:
        services = self.around.services
        paths = {
            "sysfs": services.sysfs,
            "cgroups": services.cgroups.root,
            "kubelet_config": services.kubelet_config,
            "podresources": services.podresources,
            "cri_socket": services.cri,
            "nri_socket": self.runtime.socket,
            "proc": self.proc.folder / "proc",
            "run": self.proc.folder / "run",
            "state": self.proc.folder / "state",
        }
        with (self.proc.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    AGENT,
                    self.around.server.url,
                    *(f"{key}={path}" for key, path in paths.items()),
                ),
                stdout=log,
                stderr=log,
            )

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        await self.process.wait()

    async def freeze(self, seconds: float) -> None:
        """The agent answers too late: the runtime drops it after its timeout."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)


@dataclass
class Life:
    """One node under faults. ``pinned`` has the CPUs of pods, ``shared`` the pods without, ``isolated`` those with quiet cores."""

    around: World
    runtime: FakeNri
    agent: AgentProcess
    dice: Random
    pinned: dict[str, tuple[PodKey, CpuSet]] = field(default_factory=dict)
    shared: dict[str, PodKey] = field(default_factory=dict)
    isolated: set[str] = field(default_factory=set)
    number: int = 0
    started: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def free(self) -> list[int]:
        """CPUs of nobody. A core belongs to one pod, so that siblings can be empty. One core is always left."""
        used = {cpu % 8 for _, cpus in self.pinned.values() for cpu in cpus}
        return [cpu for cpu in range(1, 8) if cpu not in used]

    def place(self) -> None:
        if len(self.pods) >= MOST_PODS:
            self.delete()
            return
        self.number += 1
        store, name = self.around.server.store, f"p{self.number}"
        if not self.free or self.dice.random() < 0.3:
            self.shared[name] = create(store, name, {"cpu": "100m"})
            bind(store, self.shared[name], NODE)
            return
        cpus = CpuSet.of([self.dice.choice(self.free)])
        quiet = self.dice.random() < 0.5
        annotations = {names.CPU_ISOLATION: "interrupts,siblings"} if quiet else {}
        pod = create(store, name, {"cpu": "1"}, annotations=annotations)
        bind(store, pod, NODE, {"cpuset": str(cpus)})
        self.pinned[name] = pod, cpus
        if quiet:
            self.isolated.add(name)

    def delete(self) -> None:
        if known := sorted([*self.pinned, *self.shared]):
            name = self.dice.choice(known)
            self.around.server.store.delete("pods", name, "default")
            self.pinned.pop(name, None)
            self.shared.pop(name, None)
            self.isolated.discard(name)

    def restart_container(self) -> None:
        if self.pinned:
            pod, _ = self.pinned[self.dice.choice(sorted(self.pinned))]
            if container_id(pod.uid, "c") in self.around.services.cgroups.containers:
                self.around.services.restart_container(pod.uid, "c")

    async def kill(self) -> None:
        await self.agent.kill()
        await self.agent.start()

    async def restart_runtime(self) -> None:
        """The runtime ends with its NRI and CRI sockets, and comes back."""
        await self.runtime.stop()
        await self.around.services.stop_runtime()
        await asyncio.sleep(self.dice.uniform(0, 0.3))
        await self.around.services.start_runtime()
        await self.runtime.start()

    async def restart_kubelet(self) -> None:
        await self.around.services.restart_kubelet()

    async def slow_api(self) -> None:
        effect = self.dice.choice((Effect.SLOW_ANSWER, Effect.SLOW_WATCH, Effect.OUTAGE, Effect.DROP))
        held = self.around.server.faults.add(Fault(effect=effect, seconds=0.3))
        await asyncio.sleep(self.dice.uniform(0, 1))
        self.around.server.faults.remove(held)

    async def step(self) -> None:
        """Change pods at any time around one fault."""
        faults = (
            *(self.kill, self.kill, self.restart_runtime, self.restart_kubelet),
            *(self.slow_api, self.freeze, self.quiet),
        )
        fault = self.dice.choice(faults)
        disturbed = asyncio.create_task(fault())
        for change in self.dice.choices((self.place, self.place, self.delete, self.restart_container), k=4):
            await asyncio.sleep(self.dice.choice((0.0, 0.01, 0.1, 0.5)))
            change()
            self.check()
        await disturbed
        await until(lambda: all(self.has_started(pod) for pod in self.pods))
        self.check()

    async def freeze(self) -> None:
        await self.agent.freeze(self.dice.uniform(0.1, 1.0))

    async def quiet(self) -> None:
        await asyncio.sleep(0.5)

    @property
    def pods(self) -> list[PodKey]:
        return [*self.shared.values(), *(pod for pod, _ in self.pinned.values())]

    def has_started(self, pod: PodKey) -> bool:
        return container_id(pod.uid, "c") in self.around.services.cgroups.containers

    def check(self) -> None:
        """A container that the agent has been asked about has started on its CPUs."""
        services = self.around.services
        for name, (pod, cpus) in self.pinned.items():
            container = container_id(pod.uid, "c")
            if container in self.runtime.answered and container in services.cgroups.containers:
                self.started += 1
                assert services.started_on[container] == cpus, name

    def stale(self) -> list[str]:
        """Return the differences from the expected final state."""
        held = CpuSet.of(cpu for _, cpus in self.pinned.values() for cpu in cpus)
        isolated = CpuSet.of(cpu for name in self.isolated for cpu in self.pinned[name][1])
        siblings = CpuSet.of((cpu + 8) % 16 for cpu in isolated) - held
        wanted = dict(self.pinned.values()) | dict.fromkeys(self.shared.values(), EVERY - held - siblings)
        cgroups = self.around.services.cgroups
        wrong = [
            f"{pod.name} on {effective}, not {cpus}"
            for pod, cpus in wanted.items()
            if (effective := cgroups.effective(container_id(pod.uid, "c"))) != cpus
        ]
        quiet = isolated | siblings
        irqs = self.agent.proc.affinities()
        return wrong + [f"IRQ {irq} on {cpus}" for irq, cpus in irqs.items() if CpuSet.parse(cpus) & quiet]

    async def settled(self, wrong: Callable[[], list[Any]]) -> None:
        """Wait until nothing is wrong; fail with what is, and with the end of the agent's log."""
        try:
            await until(lambda: not wrong())
        except TimeoutError:
            log = (self.agent.proc.folder / "log").read_text()[-3000:]
            pytest.fail(f"{wrong()}\n{log}")


async def until(true: Callable[[], object], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not true():  # noqa: ASYNC110  (many conditions without events)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def life(folder: Path, dice: Random) -> AsyncIterator[Life]:
    async with world(folder, PLAIN) as around, nri_runtime(around, timeout=0.4) as runtime:
        proc = FakeProc(folder / "host")
        proc.set({24: "0-15", 25: "3", 26: "8-15"})

        async def slow_update(running: Any, cpus: str, mems: str) -> tuple[str, str]:
            await asyncio.sleep(dice.choice((0, 0, 0.05, 0.3)))
            return await runtime.update(running, cpus, mems)

        around.services.on_update = slow_update
        agent = AgentProcess(around, runtime, proc)
        await agent.start()
        try:
            yield Life(around, runtime, agent, dice)
        finally:
            await agent.kill()


async def test_kills_restarts_and_slow_answers(tmp_path: Path, chaos_seed: int, chaos_pods: int) -> None:
    steps = chaos_pods // PODS_PER_STEP
    if steps <= FEWEST:
        pytest.skip("agents take a second to start: in make chaos only")
    async with life(tmp_path, Random(chaos_seed)) as node:
        original = node.agent.proc.affinities()
        await until(node.runtime.synchronized.is_set)
        for _ in range(steps):
            await node.step()
        node.around.server.faults.clear()
        assert node.started > steps, "NRI was up most of the time"
        await node.settled(node.stale)
        while node.pinned:
            node.delete()
        await node.settled(lambda: [*node.stale(), *(node.agent.proc.affinities().items() - original.items())])
        assert node.agent.proc.default == "ffff"
