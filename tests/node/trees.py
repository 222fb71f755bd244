"""Recorded and generated sysfs trees for the tests of the node agent."""

import bz2
import json
import os
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("KOORD_NUMA_SHARED", ROOT.parent / "shared"))
ARCHIVES = sorted((SHARED / "sysfs").glob("*.tar.bz2"))
DESCRIPTIONS = sorted((SHARED / "topologies").glob("*.json"))

WANTED = re.compile(
    r"/sys$|/sys/devices/system/(cpu|node)/(?!.*/(cpufreq|cpuidle|memory\d+)(/|$))|/sys/bus/pci/devices/"
    r"|/sys/devices/pci.*/(class|numa_node)$|/proc/meminfo$"
)
GEOMETRY = re.compile(
    r"/cache/index\d+/(coherency_line_size|number_of_sets|physical_line_partition|size|ways_of_associativity)$"
)
"""What of an archive is unpacked: most files in them describe nothing that the agent reads, of caches not what they look like inside."""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a recorded tree; returns the path of its ``sys``. ``TarFile.extractall`` takes three times as long."""
    content = bz2.decompress(archive.read_bytes())
    made: set[str] = set()
    with tarfile.open(fileobj=BytesIO(content)) as tar:
        for member in tar:
            if not WANTED.search(member.name) or GEOMETRY.search(member.name):
                continue
            path = f"{folder}/{member.name}"
            parent = path if member.isdir() else os.path.dirname(path)  # noqa: PTH120 - of thousands, Path takes ten times as long
            if parent not in made:
                Path(parent).mkdir(parents=True, exist_ok=True)
                made.add(parent)
            if member.issym():
                Path(path).symlink_to(member.linkname)
            elif member.isreg():
                Path(path).write_bytes(content[member.offset_data : member.offset_data + member.size])
            else:
                assert member.isdir(), member.name
    return next(path for path in folder.glob("*/sys"))


@dataclass(frozen=True)
class Described:
    """What a description says of a machine, in the order in which the agent publishes it."""

    cpus: list[tuple[int, int, int, int]]  # id, core, socket, NUMA node
    numa: list[int]
    memory: list[int | None]
    distances: list[list[int]]

    @classmethod
    def of(cls, text: bytes) -> "Described":
        """The description in a file of ``topologies``; an unknown socket (-1) is the only one."""
        found: dict[str, Any] = json.loads(text)
        return cls(
            cpus=[(cpu, core, max(0, socket), numa) for cpu, core, socket, numa in found["cpus"]],
            numa=found["numa_nodes"],
            memory=found["memory_bytes"],
            distances=found["distances"],
        )


def name_of(path: Path) -> str:
    """The name of a machine, the same for archive and description."""
    return path.name.removesuffix(".tar.bz2").removesuffix(".json")


def names_of(paths: Iterable[Path]) -> list[str]:
    """Ids of parametrized tests."""
    return [name_of(path) for path in paths]
