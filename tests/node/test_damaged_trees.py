"""A tree that was read while it changed, or half of one, is an error or costs what only refines; never another machine."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from koord_numa.node.sysfs import Host, SysfsError, read_host
from koord_numa.sandbox.machines.description import Numbering, Shape
from koord_numa.sandbox.machines.node_services import write_sysfs
from tests.node.trees import ARCHIVES, name_of, unpack

SMALL = {
    "16amd64-8n2c-cpusets",
    "16em64t-4s2c2t",
    "20em64t-hybrid-1p6c2t+2ca4co1t",
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "8em64t-2s2ca2c-buggynuma",
    "fakememinitiators-1np2c+1npp+gi",
    "offline-cpu0-node0",
}
GENERATED = (
    Shape(sockets=2, numa=2, cores=2, threads=2),
    Shape(sockets=1, numa=2, cores=2, threads=4, numbering=Numbering.ADJACENT, pages={"2Mi": 4}),
)

Damage = Callable[[Path, random.Random], None]


def cut(path: Path, dice: random.Random) -> None:
    """Only the first bytes were read."""
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content.rstrip()) or 1)])


def garble(path: Path, dice: random.Random) -> None:
    """Something that is no such attribute."""
    path.write_bytes(
        dice.choice([b"\xff\xfe\n", b"nonsense\n", b"-\n", b"99999999999999999999\n", b"0-\n", b"\0\0\0", b"5-2\n"])
    )


def remove(path: Path, _: random.Random) -> None:
    """The kernel took it away."""
    path.unlink()


def replace_by_directory(path: Path, _: random.Random) -> None:
    """Reading fails with EISDIR, as it may with EIO."""
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Damage, ...] = (cut, garble, remove, replace_by_directory)


def refined(host: Host) -> tuple[object, ...]:
    """All of a machine that must be right when anything is published: what caches, devices and isolation add may be missing."""
    cpus = tuple((cpu.id, cpu.core, cpu.socket, cpu.die, cpu.numa) for cpu in host.cpus)
    return cpus, tuple(numa.id for numa in host.numa)


def attributes_of(sysfs: Path) -> list[Path]:
    """The files that describe CPUs and NUMA nodes."""
    system = sysfs / "devices" / "system"
    found = [*system.glob("cpu/*"), *system.glob("cpu/cpu*/online"), *system.glob("cpu/cpu*/topology/*")]
    found += [*system.glob("cpu/cpu*/cache/index3/*"), *system.glob("node/node*/*")]
    wanted = {"cpulist", "cpumap", "distance", "meminfo"}
    return sorted(p for p in found if p.is_file() and ("/node/" not in str(p) or p.name in wanted))


def hurt(sysfs: Path, dice: random.Random, rounds: int) -> tuple[int, int]:
    """Damage one file at a time; returns how often the tree was refused and how often it was still read."""
    whole = read_host(sysfs)
    files = attributes_of(sysfs)
    refused = read = 0
    for _ in range(rounds):
        path, damage = dice.choice(files), dice.choice(DAMAGES)
        content = path.read_bytes()
        damage(path, dice)
        try:
            host = read_host(sysfs)
        except SysfsError:
            refused += 1
        else:
            read += 1
            known = {numa.id: numa for numa in whole.numa}
            assert refined(host) == refined(whole), f"{damage.__name__} {path}: {content!r}"
            for numa in host.numa:
                assert numa.distances in ({}, known[numa.id].distances), f"{damage.__name__} {path}"
                assert numa.memory in (None, known[numa.id].memory), f"{damage.__name__} {path}"
        finally:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)
    assert read_host(sysfs) == whole
    return refused, read


@pytest.mark.parametrize("shape", GENERATED, ids=["8-cpus", "16-cpus"])
def test_generated_trees(shape: Shape, tmp_path: Path, fuzz_rounds: int) -> None:
    refused, _ = hurt(write_sysfs(tmp_path, shape.build()), random.Random(17), fuzz_rounds)
    assert refused


@pytest.mark.skipif(not ARCHIVES, reason="no recorded sysfs trees here")
@pytest.mark.parametrize("archive", [path for path in ARCHIVES if name_of(path) in SMALL], ids=name_of)
def test_recorded_trees(archive: Path, tmp_path: Path, fuzz_rounds: int) -> None:
    refused, read = hurt(unpack(archive, tmp_path), random.Random(18), fuzz_rounds)
    assert refused
    assert refused + read == fuzz_rounds


def test_a_cpu_directory_that_is_gone(tmp_path: Path) -> None:
    sysfs = write_sysfs(tmp_path, GENERATED[0].build())
    shutil.rmtree(sysfs / "devices/system/cpu/cpu3")
    with pytest.raises(SysfsError, match="CPUs 3 are online and have no directory"):
        read_host(sysfs)
