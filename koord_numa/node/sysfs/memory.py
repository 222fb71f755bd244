"""Memory and huge pages of one NUMA node, and of machines whose kernel knows no NUMA nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koord_numa.node.sysfs.files import Sysfs, SysfsError

NODE: Final = ("devices", "system", "node")
KIB: Final = 1024
# Node files say `Node 0 MemTotal:`, procfs `MemTotal:`. At most 15 digits: more KiB would pass 2**60 bytes.
_TOTAL: Final = re.compile(r"^(?:Node\s+\d+\s+)?MemTotal:\s+(\d{1,15})\s*kB$", re.ASCII | re.MULTILINE)
_SIZE: Final = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A NUMA node's memory in bytes (``None``: the kernel does not tell), and huge pages by size in bytes."""

    id: int
    memory: int | None
    pages: Mapping[int, int] = field(default_factory=dict)


def read_memory(sysfs: Sysfs, numa: int) -> MemoryNode:
    """The memory of one NUMA node; a node that has no directory has no memory online."""
    folder = (*NODE, f"node{numa}")
    text = sysfs.text(*folder, "meminfo")
    memory = None if text is None else _total(text)
    if text is not None and memory is None:
        raise sysfs.error("has no MemTotal", *folder, "meminfo")
    # MemTotal contains the huge pages; the reader that offers memory subtracts them.
    return MemoryNode(numa, memory, _pages(sysfs, (*folder, "hugepages")))


def whole_memory(sysfs: Sysfs) -> MemoryNode:
    """All memory, as NUMA node 0: from procfs beside the sysfs, for kernels without NUMA nodes."""
    text = Sysfs(Path(sysfs.root).parent / "proc").text("meminfo")
    return MemoryNode(0, None if text is None else _total(text), _pages(sysfs, ("kernel", "mm", "hugepages")))


def _total(text: str) -> int | None:
    match = _TOTAL.search(text)
    return None if match is None else int(match.group(1)) * KIB


def _pages(sysfs: Sysfs, folder: tuple[str, ...]) -> dict[int, int]:
    found = {}
    for name in sysfs.names(*folder):
        if match := _SIZE.fullmatch(name):
            count = sysfs.number(*folder, name, "nr_hugepages")
            if count is None or count < 0:
                raise SysfsError(f"{sysfs.root.joinpath(*folder, name)} has no count of huge pages")
            if count:  # a size without pages is nothing to offer
                found[int(match.group(1)) * KIB] = count
    return found
