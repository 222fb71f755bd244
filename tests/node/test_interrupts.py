"""Interrupts are kept off exclusive CPUs, and every affinity is restored, also after a crash at any step."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node import interrupts
from koord_numa.node.interrupts import Interrupts, Steering

ONLINE = CpuSet.parse("0-15")


@dataclass
class FakeProc:
    """The files of ``/proc/irq``, and where the state is kept."""

    folder: Path

    @property
    def irq(self) -> Path:
        return self.folder / "proc" / "irq"

    def set(self, affinities: Mapping[int, str], default: str = "ffff") -> None:
        for number, cpus in affinities.items():
            (self.irq / str(number)).mkdir(parents=True, exist_ok=True)
            (self.irq / str(number) / "smp_affinity_list").write_text(f"{cpus}\n")
        (self.irq / "default_smp_affinity").write_text(f"{default}\n")
        (self.folder / "state").mkdir(exist_ok=True)

    def affinities(self) -> dict[int, str]:
        return {
            int(path.parent.name): path.read_text().strip() for path in sorted(self.irq.glob("*/smp_affinity_list"))
        }

    @property
    def default(self) -> str:
        return (self.irq / "default_smp_affinity").read_text().strip()

    def agent(self) -> Interrupts:
        """A newly started agent."""
        return Interrupts(self.folder / "proc", self.folder / "run", self.folder / "state")


async def keep_off(agent: Interrupts, quiet: str) -> Steering:
    return await agent.keep_off(CpuSet.parse(quiet), ONLINE)


@pytest.fixture
def proc(tmp_path_factory: pytest.TempPathFactory) -> FakeProc:
    return FakeProc(tmp_path_factory.mktemp("irq"))  # the path of a socket has at most 107 characters


async def test_affinities_and_default_are_changed_and_restored(proc: FakeProc) -> None:
    original = {0: "0-15", 24: "0-15", 25: "2", 26: "0-1", 27: "2-3,8"}
    proc.set(original)
    agent = proc.agent()
    assert await keep_off(agent, "2-3") == Steering(kept_off=4)
    # An interrupt that had no other CPU may use all others.
    assert proc.affinities() == {0: "0-1,4-15", 24: "0-1,4-15", 25: "0-1,4-15", 26: "0-1", 27: "8"}
    assert proc.default == "fff3"
    assert await keep_off(agent, "2") == Steering(kept_off=4)
    assert proc.affinities() == {0: "0-1,3-15", 24: "0-1,3-15", 25: "0-1,3-15", 26: "0-1", 27: "3,8"}
    assert await keep_off(agent, "") == Steering()
    assert (proc.affinities(), proc.default) == (original, "ffff")
    assert not proc.agent().changed


async def test_an_affinity_of_another_writer_is_the_new_original(proc: FakeProc) -> None:
    proc.set({24: "0-15", 25: "0-15"})
    agent = proc.agent()
    await keep_off(agent, "2-3")
    proc.set({24: "4-5", 25: "2-5"}, "fff3")
    assert await keep_off(agent, "2-3") == Steering(kept_off=1, returned=1)
    assert proc.affinities() == {24: "4-5", 25: "4-5"}
    await keep_off(agent, "")
    assert (proc.affinities(), proc.default) == ({24: "4-5", 25: "2-5"}, "ffff")


async def test_interrupts_come_and_go(proc: FakeProc) -> None:
    proc.set({24: "0-15", 25: "0-15"})
    agent = proc.agent()
    await keep_off(agent, "2-3")
    (proc.irq / "24" / "smp_affinity_list").unlink()
    proc.set({30: "0-15"}, proc.default)
    await keep_off(agent, "2-3")
    assert proc.affinities() == {25: "0-1,4-15", 30: "0-1,4-15"}
    await keep_off(agent, "")
    assert proc.affinities() == {25: "0-15", 30: "0-15"}


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM])
async def test_what_the_kernel_does_not_move(number: int, proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a timer, or a queue that its driver manages: EIO, and EPERM in newer kernels."""
    proc.set({0: "0-15", 24: "0-15"})

    class Managed(StringIO):
        def write(self, _: str) -> int:
            raise OSError(number, "refused")

    def managed(path: str, mode: str = "r", **options: Any) -> Any:
        return Managed() if "/0/" in path and mode == "w" else open(path, mode, **options)  # noqa: PTH123  (as the kernel interface is opened)

    monkeypatch.setattr(interrupts, "open", managed, raising=False)
    agent = proc.agent()
    assert await keep_off(agent, "2-3") == Steering(kept_off=1, unmovable=1)
    assert proc.affinities() == {0: "0-15", 24: "0-1,4-15"}
    # All CPUs are exclusive: interrupts stay where they are.
    assert await keep_off(agent, "0-15") == Steering(unmovable=2)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
async def test_without_the_right_nothing_is_changed(
    number: int, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.set({24: "0-15"})

    def refused(path: str, mode: str = "r", **options: Any) -> Any:
        if mode == "w":
            raise OSError(number, "refused", path)
        return open(path, mode, **options)  # noqa: PTH123  (as the kernel interface is opened)

    monkeypatch.setattr(interrupts, "open", refused, raising=False)
    found = await keep_off(proc.agent(), "2-3")
    assert found == Steering(problem=f"interrupts are not moved: {proc.irq / 'default_smp_affinity'}: refused")


@pytest.mark.parametrize("missing", ["state", "directory", "irq"])
async def test_without_state_nothing_is_changed(missing: str, proc: FakeProc) -> None:
    proc.set({24: "0-15"})
    state = {"state": None, "directory": proc.folder / "none", "irq": proc.folder / "state"}[missing]
    source = proc.folder if missing == "irq" else proc.folder / "proc"
    found = await keep_off(Interrupts(source, proc.folder / "run", state), "2-3")
    texts = {"state": "without --state-dir", "directory": "No such file", "irq": "No such file"}
    assert texts[missing] in found.problem
    assert proc.affinities() == {24: "0-15"}


class Killed(BaseException):
    """SIGKILL."""


@pytest.mark.parametrize("seed", range(5))
async def test_kills_at_every_step(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Any number of file operations, then a kill, in any sequence of wishes and of changes by others.

    In the end everything has its original value, or the last one of another writer.
    """
    random = Random(seed)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps -= 1
        if steps == 0:
            raise Killed

    write, replace = interrupts._write, Path.replace

    def dying_write(path: str, cpus: CpuSet) -> bool:
        step()
        done = write(path, cpus)
        step()
        return done

    def dying_replace(path: Path, target: Path) -> Path:
        step()
        done = replace(path, target)
        step()
        return done

    monkeypatch.setattr(interrupts, "_write", dying_write)
    monkeypatch.setattr(Path, "replace", dying_replace)
    proc = FakeProc(tmp_path)

    def some_cpus() -> str:
        return str(CpuSet.of(random.sample(range(16), random.randrange(1, 16))))

    expected = {number: some_cpus() for number in range(24, 30)}
    proc.set(expected)
    agent = proc.agent()
    for _ in range(60):
        quiet = "" if random.random() < 0.3 else some_cpus()
        steps = random.randrange(1, 40)
        try:
            await keep_off(agent, quiet)
            kept_off = [cpus for cpus in proc.affinities().values() if CpuSet.parse(cpus) & CpuSet.parse(quiet)]
            assert not kept_off or CpuSet.parse(quiet) == ONLINE
        except Killed:
            agent = proc.agent()
        if random.random() < 0.3:
            # A value that this agent has never written: it cannot be told from a restored one otherwise.
            number, cpus = (
                random.randrange(24, 30),
                str(CpuSet.of([*CpuSet.parse(some_cpus()), 16 + random.randrange(9)])),
            )
            (proc.irq / str(number) / "smp_affinity_list").write_text(cpus)
            expected[number] = cpus
    steps = 0
    await keep_off(proc.agent(), "")
    assert (proc.affinities(), proc.default) == (expected, "ffff")
    assert not proc.agent().changed


@dataclass
class FakeIrqbalance:
    """An irqbalance. As the real one, it does not answer while it sleeps, and ends if it answers to a closed connection."""

    configured: CpuSet = EMPTY
    answer: str = "SLEEP 10 BANNED {mask}"
    banned: CpuSet = EMPTY
    commands: list[str] = field(default_factory=list)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.awake.wait()
        command = (await reader.read(500)).decode()
        self.commands.append(command)
        if command == "setup":
            self.ended |= reader.at_eof()
            writer.write(self.answer.format(mask=interrupts._mask(self.banned)).encode())
        else:
            cpus = command.removeprefix("settings cpus ")
            self.banned = self.configured if cpus == "NULL" else CpuSet.parse(cpus)
        writer.close()

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.commands) < count:  # noqa: ASYNC110  (commands need no answer)
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)


@asynccontextmanager
async def irqbalance(
    proc: FakeProc, pid: int, configured: str = "", answer: str = FakeIrqbalance.answer
) -> AsyncIterator[FakeIrqbalance]:
    """Run an irqbalance. Its socket remains, as after a kill."""
    path = proc.folder / "run" / "irqbalance" / f"irqbalance{pid}.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    daemon = FakeIrqbalance(CpuSet.parse(configured), answer, CpuSet.parse(configured))
    daemon.awake.set()
    server = await asyncio.start_unix_server(daemon.connected, str(path))
    try:
        yield daemon
    finally:
        server.close()


async def test_irqbalance_is_told(proc: FakeProc) -> None:
    """Its configured bans stay, its answers are never needed twice, and a new one is told again."""
    proc.set({24: "0-15"})
    async with irqbalance(proc, 7, "15") as daemon:
        for quiet in ("2-3", "2", "2", "4"):
            await keep_off(proc.agent(), quiet)
        await daemon.heard(4)
        assert daemon.commands == ["setup", "settings cpus 2-3,15", "settings cpus 2,15", "settings cpus 4,15"]
    async with irqbalance(proc, 8, "14") as daemon:
        await keep_off(proc.agent(), "4")
        await keep_off(proc.agent(), "")
        await daemon.heard(3)
        assert daemon.commands == ["setup", "settings cpus 4,14", "settings cpus NULL"]
        assert (str(daemon.banned), proc.affinities()) == ("14", {24: "0-15"})
        assert not proc.agent().changed
        await keep_off(proc.agent(), "5")
    # It was killed, and nothing needs to be restored.
    assert await keep_off(proc.agent(), "") == Steering()
    assert not proc.agent().changed


async def test_a_sleeping_irqbalance_is_told_later(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps for 10 seconds after each change of its bans. The connection that asks it stays open."""
    monkeypatch.setattr(interrupts, "TIMEOUT", 0.005)
    proc.set({24: "0-15"})
    agent = proc.agent()
    async with irqbalance(proc, 7, "15") as daemon:
        daemon.awake.clear()
        for _ in range(3):
            assert await keep_off(agent, "2-3") == Steering(kept_off=1, pending=True)
        daemon.awake.set()
        await daemon.heard(1)
        assert await keep_off(agent, "2-3") == Steering(kept_off=1)
        await daemon.heard(2)
        assert daemon.commands == ["setup", "settings cpus 2-3,15"]
        assert not daemon.ended


async def test_an_irqbalance_that_makes_no_sense_is_reported(proc: FakeProc) -> None:
    proc.set({24: "0-15"})
    async with irqbalance(proc, 7, answer="BANNED x"):
        found = await keep_off(proc.agent(), "2-3")
    assert found.kept_off == 1
    assert found.problem.startswith("irqbalance moves interrupts back")
