"""Recorded and generated sysfs trees for the tests of the node agent."""

import bz2
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
UNREAD = re.compile(
    r"/cache/index\d+/(coherency_line_size|number_of_sets|physical_line_partition|size|type|ways_of_associativity)$"
    r"|/topology/core_siblings(_list)?$|/numastat$"
)
"""Files that are not unpacked: most describe nothing that the agent reads."""

BLOCK = 512
"""Bytes. A tar archive has a block with the header of each member, and the content in whole blocks."""


def members(content: bytes) -> Iterator[tuple[str, bytes, str, bytes]]:
    """Name, type, target of a link and content of each member of a GNU tar archive. ``tarfile`` takes ten times as long."""
    at, long_name = 0, ""
    while header := content[at : at + BLOCK].rstrip(b"\0"):
        size = int(header[124:135], 8)
        body = content[at + BLOCK : at + BLOCK + size]
        at += BLOCK + -(-size // BLOCK) * BLOCK
        kind = header[156:157]
        if kind == b"L":
            long_name = body.rstrip(b"\0").decode()
            continue
        name = long_name or header[:100].rstrip(b"\0").decode()
        long_name = ""
        yield name.rstrip("/"), kind, header[157:257].rstrip(b"\0").decode(), body


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a recorded tree; returns the path of its ``sys``."""
    made: set[str] = set()
    for name, kind, target, body in members(bz2.decompress(archive.read_bytes())):
        if not WANTED.search(name) or UNREAD.search(name):
            continue
        path = f"{folder}/{name}"
        parent = path if kind == b"5" else os.path.dirname(path)  # noqa: PTH120 - of thousands, Path takes ten times as long
        if parent not in made:
            os.makedirs(parent, exist_ok=True)  # noqa: PTH103 - as above
            made.add(parent)
        if kind == b"2":
            os.symlink(target, path)  # noqa: PTH211 - as above
        elif kind == b"0":
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, body)
            os.close(descriptor)
        else:
            assert kind == b"5", name
    return next(path for path in folder.glob("*/sys"))


@dataclass(frozen=True)
class Described:
    """Description of a machine, in the order in which the agent publishes it."""

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
