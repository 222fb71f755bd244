"""Read a node's hardware from `/sys`: CPUs, cores, sockets, caches, NUMA nodes, memory and PCI devices."""

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet

LONGEST: Final = 1 << 16
"""Maximum bytes read of a file. The largest files of interest are meminfo and distances with a few KiB."""

PAGE: Final = 4096
"""Bytes of one read. Most files have a few."""

# At most 2,048 digits: 8,192 CPUs, the largest NR_CPUS of kernels.
_MASK: Final = re.compile(r"[0-9a-f]{1,2048}(?:,[0-9a-f]{1,8})*", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# ENODEV and ENXIO: the attribute exists without its device. Some drivers return them instead of hiding the file.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class SysfsError(Exception):
    """A file or directory makes the description of the machine unusable. The text has its name and the reason."""


def _content(path: str) -> bytes:
    """Return at most ``LONGEST`` bytes of a file. Of tens of thousands of files, ``open`` takes three times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        # A read of a long attribute of sysfs returns one page.
        while len(content) < LONGEST and (page := os.read(descriptor, PAGE)):
            content += page
        return content[:LONGEST]
    finally:
        os.close(descriptor)


class Sysfs:
    """
    The tree below a root, usually ``/sys``.

    ``present`` is set as soon as it is known: a set with other CPUs is then an error. The kernel ends every attribute
    with a newline. If some files of a tree end with a newline and others do not, the latter are truncated, and
    ``check_complete`` raises an error. A tree without any newlines was written by another program and is accepted.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.present: CpuSet | None = None
        self._ended = False
        self._open_end = ""
        self._start = str(root)

    def text(self, *parts: str) -> str | None:
        """Return the contents without surrounding white space, ``None`` if the file does not exist."""
        path = "/".join((self._start, *parts))
        try:
            # Bytes, not text: some attributes of sysfs have invalid bytes. The encoding is checked below, with the path
            # in the message.
            raw = _content(path)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None
        content = raw.replace(b"\0", b"")  # some kernels terminate short attributes with NUL
        # Empty files show nothing about line endings.
        if content.strip():
            if content.endswith(b"\n"):
                self._ended = True
            elif not self._open_end:
                self._open_end = path
        try:
            return content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise SysfsError(f"{path} is not text") from None

    def check_complete(self) -> None:
        """Raise ``SysfsError`` if a file ends in the middle of a line while others do not."""
        if self._ended and self._open_end:
            raise SysfsError(f"{self._open_end} ends in the middle of a line")

    def number(self, *parts: str) -> int | None:
        """Return a decimal number, ``None`` if the file does not exist."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a number", *parts)
        return int(text)

    def cpu_list(self, *parts: str) -> CpuSet | None:
        """Return a list such as ``0-3,8``, ``None`` if the file does not exist."""
        text = self.text(*parts)
        if text is None:
            return None
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise self.error(str(error), *parts) from None

    def cpu_mask(self, *parts: str) -> CpuSet | None:
        """Return a mask such as ``00000000,0000000f``, ``None`` if the file does not exist."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _MASK.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a mask of CPUs", *parts)
        # Words have leading zeros, so joining them gives the whole number.
        bits = int(text.replace(",", ""), 16)
        if bits.bit_length() > MAX_CPU + 1:
            raise self.error(f"a CPU above {MAX_CPU} is set", *parts)
        return CpuSet(bits)

    def cpus(self, folder: tuple[str, ...], list_name: str, mask_name: str, among: CpuSet) -> CpuSet | None:
        """
        Return the CPUs of ``among`` in a set. Newer kernels have list and mask, older kernels only a mask. ``None`` without both.

        Raises ``SysfsError`` if list and mask differ on a CPU of ``among``. They may differ on offline CPUs.
        """
        listed, masked = self.cpu_list(*folder, list_name), self.cpu_mask(*folder, mask_name)
        if listed is not None and masked is not None and listed & among != masked & among:
            raise self.error(f"says {listed}, and {mask_name} says {masked}", *folder, list_name)
        found = masked if listed is None else listed
        if found is not None and self.present is not None and not found <= self.present:
            raise self.error(f"names CPUs {found - self.present}, which the machine does not have", *folder)
        return None if found is None else found & among

    def numbered(self, prefix: str, *parts: str) -> list[int]:
        """Return the numbers of the entries ``prefix<number>`` of a directory, ascending. Empty if the directory does not exist."""
        return sorted(
            int(name.removeprefix(prefix))
            # `isdecimal` alone accepts digits of other scripts.
            for name in self.names(*parts)
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal() and name.isascii()
        )

    def names(self, *parts: str) -> list[str]:
        """Return the names in a directory, ascending. Empty if the directory does not exist."""
        path = "/".join((self._start, *parts))
        try:
            return sorted(os.listdir(path))  # noqa: PTH208  (as above)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None

    def error(self, what: str, *parts: str) -> SysfsError:
        """Return an error about a file."""
        return SysfsError(f"{self.root.joinpath(*parts)}: {what}")


CPU: Final = ("devices", "system", "cpu")
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """The place of a CPU. Ids are the firmware's, -1 if unknown. ``siblings`` are online CPUs, including the CPU itself."""

    core_id: int
    socket: int
    die: int
    siblings: CpuSet


def online_cpus(sysfs: Sysfs) -> CpuSet:
    """
    Return the online CPUs: those present in the tree that ``online`` lists.

    Raises ``SysfsError`` if there is none, or a CPU's own ``online`` file contradicts the list.
    """
    present = sysfs.numbered("cpu", *CPU)
    if not present:
        raise sysfs.error("describes no CPU", *CPU)
    # Ids become bits of an integer: a huge id in a malformed tree would need a huge amount of memory.
    if present[-1] > MAX_CPU:
        raise sysfs.error(f"CPU {present[-1]} is above {MAX_CPU}", *CPU)
    # Any set with other CPUs is an error from here on (Sysfs.cpus).
    sysfs.present = CpuSet.of(present)
    listed = sysfs.cpu_list(*CPU, "online")
    online = []
    for cpu in present:
        # The file is empty in dumps taken without permission to read it.
        own = sysfs.number(*CPU, f"cpu{cpu}", "online") if sysfs.text(*CPU, f"cpu{cpu}", "online") else None
        if listed is not None and own is not None and (cpu in listed) is not (own != 0):
            raise sysfs.error(f"{own} contradicts the list of online CPUs {listed}", *CPU, f"cpu{cpu}", "online")
        # Without the list, a CPU that has no file of its own (cpu0 on x86) cannot be taken offline.
        if cpu in listed if listed is not None else own != 0:
            online.append(cpu)
    if listed is not None and (missing := listed - sysfs.present):
        raise sysfs.error(f"CPUs {missing} are online and have no directory", *CPU, "online")
    if not online:
        raise sysfs.error("no CPU is online", *CPU, "online")
    return CpuSet.of(online)


def isolated_cpus(sysfs: Sysfs) -> CpuSet:
    """Return the CPUs that the kernel command line isolates from its scheduler (``isolcpus``)."""
    return sysfs.cpu_list(*CPU, "isolated") or EMPTY


def read_places(sysfs: Sysfs, cpus: Iterable[int]) -> dict[int, CpuPlace]:
    """
    Return the places of these CPUs.

    Raises ``SysfsError`` if some of them have a topology and others have not, or if siblings are inconsistent.
    """
    wanted = sorted(cpus)
    ids = {cpu: _ids(sysfs, cpu) for cpu in wanted}
    # All or none: virtual machines and old kernels have no die_id, but a gap among CPUs is a broken reading.
    for position, name in enumerate(("physical_package_id", "core_id", "die_id")):
        missing = [cpu for cpu in wanted if ids[cpu][position] is None]
        if missing and len(missing) != len(wanted):
            raise sysfs.error("is missing, and other CPUs have it", *CPU, f"cpu{missing[0]}", "topology", name)
    siblings = _siblings(sysfs, wanted, CpuSet.of(wanted))
    places = {}
    for cpu in wanted:
        socket, core, die = ids[cpu]
        places[cpu] = CpuPlace(
            # Without core ids, the set of siblings identifies the core: it is equal for all of them.
            core_id=siblings[cpu].bits if core is None else core,
            socket=UNKNOWN if socket is None else socket,
            die=UNKNOWN if die is None else die,
            siblings=siblings[cpu],
        )
    return places


def _ids(sysfs: Sysfs, cpu: int) -> tuple[int | None, int | None, int | None]:
    folder = (*CPU, f"cpu{cpu}", "topology")
    found = []
    for name in ("physical_package_id", "core_id", "die_id"):
        number = sysfs.number(*folder, name)
        # -1 if the architecture does not define it (include/linux/topology.h).
        if number is not None and not UNKNOWN <= number < 2**31:
            raise sysfs.error(f"{number} is not an id", *folder, name)
        found.append(number)
    return found[0], found[1], found[2]


def _siblings(sysfs: Sysfs, cpus: list[int], among: CpuSet) -> dict[int, CpuSet]:
    known: dict[int, CpuSet] = {}
    for cpu in cpus:
        folder = (*CPU, f"cpu{cpu}", "topology")
        core = sysfs.cpus(folder, "core_cpus_list", "core_cpus", among)  # the name since Linux 5.2
        threads = sysfs.cpus(folder, "thread_siblings_list", "thread_siblings", among)
        if core is not None and threads is not None and core != threads:
            raise sysfs.error(f"says {core}, and thread_siblings_list says {threads}", *folder, "core_cpus_list")
        members = threads if core is None else core
        if members is not None:
            known[cpu] = members
    # Without sibling files, every CPU is a core of its own, as in the kubelet.
    if not known:
        return {cpu: CpuSet.of([cpu]) for cpu in cpus}
    if untold := [cpu for cpu in cpus if cpu not in known]:
        raise sysfs.error("names no siblings, and other CPUs do", *CPU, f"cpu{untold[0]}", "topology")
    if (odd := disagreeing(known)) is not None:
        raise sysfs.error(f"siblings {known[odd]} list different siblings", *CPU, f"cpu{odd}", "topology")
    return known


def disagreeing(groups: Mapping[int, CpuSet]) -> int | None:
    """Return the first CPU that is not in its own group, or with a member of another group. ``None`` if groups are consistent."""
    for cpu, members in groups.items():
        if cpu not in members or any(groups.get(other) != members for other in members):
            return cpu
    return None


LAST_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Caches:
    """The id of each CPU's L3 cache. Empty with a warning if the kernel is inconsistent, and without if there is none."""

    of_cpu: Mapping[int, int] = field(default_factory=dict)
    warning: str = ""


def read_caches(sysfs: Sysfs, cpus: Iterable[int]) -> Caches:
    """Return the L3 caches of these CPUs, by the kernel's ids if they are unique, else numbered by first CPU."""
    wanted = sorted(cpus)
    among = CpuSet.of(wanted)
    sharing: dict[int, CpuSet] = {}
    names: dict[int, int | None] = {}
    try:
        # Reads every CPU, not one per group, to detect inconsistencies.
        for cpu in wanted:
            members, name = _last_level(sysfs, cpu, among)
            if members:
                sharing[cpu], names[cpu] = members, name
    except SysfsError as error:
        return Caches(warning=f"L3 caches are left out: {error}")
    if (odd := disagreeing(sharing)) is not None:
        return Caches(warning=f"L3 caches are left out: CPUs {sharing[odd]} do not agree that they share one")
    return Caches(_cache_ids(sharing, names))


def _cache_ids(sharing: Mapping[int, CpuSet], names: Mapping[int, int | None]) -> dict[int, int]:
    pairs = {(names[cpu], members.bits) for cpu, members in sharing.items()}
    # The kernel's ids are used only if ids and groups correspond one to one: ids may be absent or repeated.
    if len({name for name, _ in pairs if name is not None}) == len(pairs) == len({bits for _, bits in pairs}):
        return {cpu: name for cpu, name in names.items() if name is not None}
    order: dict[int, int] = {}
    return {cpu: order.setdefault(sharing[cpu].bits, len(order)) for cpu in sorted(sharing)}


def _last_level(sysfs: Sysfs, cpu: int, among: CpuSet) -> tuple[CpuSet | None, int | None]:
    cache = (*CPU, f"cpu{cpu}", "cache")
    # The index is the kernel's order of discovery and depends on the architecture. Only the level matters.
    for index in sysfs.numbered("index", *cache):
        folder = (*cache, f"index{index}")
        if sysfs.number(*folder, "level") == LAST_LEVEL:
            return sysfs.cpus(folder, "shared_cpu_list", "shared_cpu_map", among), sysfs.number(*folder, "id")
    return None, None


NODE: Final = ("devices", "system", "node")
KIB: Final = 1024
# Node files have `Node 0 MemTotal:`, procfs `MemTotal:`. At most 15 digits: more KiB would exceed 2**60 bytes.
_TOTAL: Final = re.compile(r"^(?:Node\s+\d+\s+)?MemTotal:\s+(\d{1,15})\s*kB$", re.ASCII | re.MULTILINE)
_SIZE: Final = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A NUMA node's memory in bytes (``None`` if unknown), and its number of huge pages by size in bytes."""

    id: int
    memory: int | None
    pages: Mapping[int, int] = field(default_factory=dict)


def read_memory(sysfs: Sysfs, numa: int) -> MemoryNode:
    """Return the memory of a NUMA node. A node without a directory has no memory online."""
    folder = (*NODE, f"node{numa}")
    text = sysfs.text(*folder, "meminfo")
    memory = None if text is None else _total(text)
    if text is not None and memory is None:
        raise sysfs.error("has no MemTotal", *folder, "meminfo")
    # MemTotal contains the huge pages. The publisher subtracts them.
    return MemoryNode(numa, memory, _pages(sysfs, (*folder, "hugepages")))


def whole_memory(sysfs: Sysfs) -> MemoryNode:
    """Return all memory as NUMA node 0, from procfs next to sysfs, for kernels without NUMA nodes."""
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
            if count:  # omit sizes without pages
                found[int(match.group(1)) * KIB] = count
    return found


MOST_NUMA_NODES: Final = 1024
"""Upper bound of NUMA ids, as in the kernel (``MAX_NUMNODES``)."""


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """The NUMA nodes of a machine. ``memory`` is ascending by id. ``of_cpu`` omits CPUs without a NUMA node."""

    memory: tuple[MemoryNode, ...]
    of_cpu: Mapping[int, int]
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_numa_nodes(sysfs: Sysfs, online: CpuSet) -> NumaNodes:
    """
    Return the NUMA nodes of the machine. A kernel without NUMA nodes has one with id 0, as in the kubelet.

    Raises ``SysfsError`` if a NUMA node lacks a file that others have, or distances are inconsistent.
    """
    ids = sysfs.numbered("node", *NODE)
    if not ids:
        return NumaNodes((whole_memory(sysfs),), dict.fromkeys(online, 0))
    if ids[-1] >= MOST_NUMA_NODES:
        raise sysfs.error(f"NUMA node {ids[-1]} is not below {MOST_NUMA_NODES}", *NODE)
    warnings: list[str] = []
    of_cpu = _numa_of_cpus(sysfs, ids, online, warnings)
    # A NUMA node with CPUs but without memory may have no directory. It still counts, since CPUs link to it.
    everything = sorted({*ids, *of_cpu.values()})
    warnings += [
        f"NUMA node {numa} has CPUs and no directory: its memory is not online"
        for numa in everything
        if numa not in ids
    ]
    memory = {numa: read_memory(sysfs, numa) for numa in ids}
    # All or none, as for the CPU topology: a single missing meminfo is an interrupted reading.
    untold = [numa for numa in ids if memory[numa].memory is None]
    if untold and len(untold) != len(ids):
        raise sysfs.error("is missing, and other NUMA nodes have it", *NODE, f"node{untold[0]}", "meminfo")
    return NumaNodes(
        memory=tuple(memory.get(numa) or MemoryNode(numa, 0) for numa in everything),
        of_cpu=of_cpu,
        distances=_distances(sysfs, ids, everything, warnings),
        warnings=tuple(warnings),
    )


def _numa_of_cpus(sysfs: Sysfs, ids: list[int], online: CpuSet, warnings: list[str]) -> dict[int, int]:
    claims = _claims(sysfs, ids, online)
    found: dict[int, int] = {}
    several, none = [], []
    for cpu in online:
        claimed = claims.get(cpu, [])
        linked = [numa for numa in sysfs.numbered("node", *CPU, f"cpu{cpu}") if numa < MOST_NUMA_NODES]
        if len(claimed) == 1:
            found[cpu] = claimed[0]
        elif claimed:
            several.append(cpu)
            # The lowest as last resort: independent of the order of reading.
            found[cpu] = next((numa for numa in linked if numa in claimed), claimed[0])
        elif len(linked) == 1:
            found[cpu] = linked[0]
        else:
            none.append(cpu)
    if several:
        warnings.append(f"several NUMA nodes claim CPUs {CpuSet.of(several)}: their own links decide, else the lowest")
    if none:
        warnings.append(f"CPUs {CpuSet.of(none)} belong to no NUMA node and are left out")
    return found


def _claims(sysfs: Sysfs, ids: list[int], online: CpuSet) -> dict[int, list[int]]:
    """Return the NUMA nodes that list a CPU, by CPU."""
    claims: dict[int, list[int]] = {}
    untold = []
    for numa in ids:
        members = sysfs.cpus((*NODE, f"node{numa}"), "cpulist", "cpumap", online)
        if members is None:
            untold.append(numa)
        for cpu in members or ():
            claims.setdefault(cpu, []).append(numa)
    if untold and len(untold) != len(ids):
        raise sysfs.error("names no CPUs, and other NUMA nodes do", *NODE, f"node{untold[0]}")
    return claims


def _distances(sysfs: Sysfs, ids: list[int], everything: list[int], warnings: list[str]) -> dict[int, dict[int, int]]:
    """Return the distances by NUMA node. The kernel prints one column per online NUMA node."""
    rows: dict[int, list[int]] = {}
    for numa in ids:
        text = sysfs.text(*NODE, f"node{numa}", "distance")
        if text is None:
            continue
        words = text.split()
        if not words or not all(word.isdecimal() and len(word) <= 9 for word in words):
            raise sysfs.error(f"{text[:40]!r} is not a list of distances", *NODE, f"node{numa}", "distance")
        rows[numa] = [int(word) for word in words]
    if not rows:
        return {}
    if len(rows) != len(ids):
        missing = next(numa for numa in ids if numa not in rows)
        raise sysfs.error("is missing, and other NUMA nodes have it", *NODE, f"node{missing}", "distance")
    widths = sorted({len(row) for row in rows.values()})
    if len(widths) > 1:
        raise sysfs.error(f"NUMA nodes list between {widths[0]} and {widths[-1]} distances", *NODE)
    # Only the width shows whether NUMA nodes without a directory have a column.
    columns = next((known for known in (everything, ids) if len(known) == widths[0]), None)
    if columns is None:
        warnings.append(f"distances to {widths[0]} NUMA nodes are listed and there are {len(everything)}: none is used")
        return {}
    return {numa: dict(zip(columns, row, strict=True)) for numa, row in rows.items()}


DEVICES: Final = ("bus", "pci", "devices")

CLASSES: Final = ("0108", "02", "03", "0b40", "12")
"""Relevant PCI classes: NVMe, network, display and 3D, co-processor, processing accelerator. Excludes bridges and others."""

_CLASS: Final = re.compile(r"0x([0-9a-f]{6})", re.ASCII | re.IGNORECASE)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """
    A PCI device.

    ``kind`` is the PCI class and subclass (``0302``). ``numa`` is ``None`` if the firmware does not define it. ``root``
    is the host bridge (``pci0000:00``), the value of Kubernetes' ``resource.kubernetes.io/pcieRoot``, or empty.
    """

    address: str
    kind: str
    numa: int | None
    root: str


def read_pci(sysfs: Sysfs) -> tuple[PciDevice, ...]:
    """Return the devices of the relevant classes, by address."""
    found = []
    for address in sysfs.names(*DEVICES):
        text = sysfs.text(*DEVICES, address, "class")
        if text is None:  # unplugged after the list
            continue
        match = _CLASS.fullmatch(text)
        if match is None:
            raise sysfs.error(f"{text[:40]!r} is not a PCI class", *DEVICES, address, "class")
        kind = match.group(1)[:4].lower()
        if kind.startswith(CLASSES):
            # -1: the firmware has no proximity domain for the device (ACPI _PXM).
            numa = sysfs.number(*DEVICES, address, "numa_node")
            found.append(PciDevice(address, kind, None if numa is None or numa < 0 else numa, _root(sysfs, address)))
    return tuple(found)


def _root(sysfs: Sysfs, address: str) -> str:
    """Return the host bridge, from the target of the device's link."""
    try:
        # realpath, not readlink: links in dumps and containers may be relative or point to further links.
        target = Path(os.path.realpath(sysfs.root.joinpath(*DEVICES, address)))
    except OSError:
        return ""
    return next((part for part in target.parts if _ROOT.fullmatch(part)), "")


@dataclass(frozen=True, slots=True)
class HostCpu:
    """
    An online logical CPU.

    ``core`` numbers the cores of the machine in the order of their first CPU, as ``lscpu``. ``socket`` is the
    firmware's id. ``l3`` is ``None`` without a known last-level cache.
    """

    id: int
    core: int
    socket: int
    die: int
    numa: int
    l3: int | None


@dataclass(frozen=True, slots=True)
class HostNuma:
    """
    A NUMA node, with or without CPUs.

    ``memory`` is in bytes, ``None`` if unknown. ``pages`` counts huge pages by size in bytes. ``distances`` are ACPI
    SLIT distances by NUMA node.
    """

    id: int
    memory: int | None
    pages: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. ``cpus`` and ``numa`` ascend by id. ``warnings`` are irregularities that do not make it unusable."""

    cpus: tuple[HostCpu, ...]
    numa: tuple[HostNuma, ...]
    isolated: CpuSet = EMPTY
    pci: tuple[PciDevice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def cpu_set(self) -> CpuSet:
        """Return all online CPUs with a NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus)

    def cpus_of(self, numa: int) -> CpuSet:
        """Return the online CPUs of a NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus if cpu.numa == numa)

    def cores(self) -> dict[int, CpuSet]:
        """Return the online threads of the core of each CPU."""
        threads: dict[int, CpuSet] = {}
        for cpu in self.cpus:
            threads[cpu.core] = threads.get(cpu.core, EMPTY) | CpuSet(1 << cpu.id)
        return {cpu.id: threads[cpu.core] for cpu in self.cpus}


def read_host(root: Path) -> Host:
    """
    Return the machine described by the sysfs at ``root``. Machines without NUMA nodes also need the procfs next to it.

    Raises ``SysfsError`` if a file contradicts another one or is malformed, so that no partial machine is published.
    """
    sysfs = Sysfs(root)
    online = online_cpus(sysfs)
    numa = read_numa_nodes(sysfs, online)
    places = read_places(sysfs, [cpu for cpu in online if cpu in numa.of_cpu])
    caches = read_caches(sysfs, places)
    pci = read_pci(sysfs)
    isolated = isolated_cpus(sysfs)
    # Last: all relevant files must have been read to detect truncated ones.
    sysfs.check_complete()
    return Host(
        cpus=_cpus(places, numa, caches),
        # NUMA nodes without CPUs (CXL, HBM) are zones, too: pods can request their memory.
        numa=tuple(HostNuma(node.id, node.memory, node.pages, numa.distances.get(node.id, {})) for node in numa.memory),
        isolated=isolated & online,  # the kernel also lists offline isolated CPUs
        pci=pci,
        warnings=(*numa.warnings, *filter(None, [caches.warning])),
    )


def _cpus(places: Mapping[int, CpuPlace], numa: NumaNodes, caches: Caches) -> tuple[HostCpu, ...]:
    _check_siblings(places, numa)
    cores: dict[object, int] = {}
    found = []
    for cpu, place in sorted(places.items()):
        # Core ids may start from 0 in each NUMA node of a socket, and in each die of a NUMA node.
        core = numa.of_cpu[cpu], place.socket, place.die, place.core_id, place.siblings.bits
        found.append(
            HostCpu(
                id=cpu,
                core=cores.setdefault(core, len(cores)),
                socket=max(0, place.socket),  # -1 means unknown: there is one socket
                die=max(0, place.die),
                numa=numa.of_cpu[cpu],
                l3=caches.of_cpu.get(cpu),
            )
        )
    if not found:
        raise SysfsError("no online CPU belongs to a NUMA node")
    return tuple(found)


def _check_siblings(places: Mapping[int, CpuPlace], numa: NumaNodes) -> None:
    """
    Check that threads of a core have the same socket, die and NUMA node. Detects files read during a change.

    Raises ``SysfsError``.
    """
    for cpu, place in places.items():
        for other in place.siblings:
            there = places[other]
            if (place.socket, place.die, numa.of_cpu[cpu]) != (there.socket, there.die, numa.of_cpu[other]):
                raise SysfsError(f"CPUs {cpu} and {other} are threads of one core in two sockets, dies or NUMA nodes")
    # Siblings with different core ids are compute units. If only some differ, an id is wrong.
    threads = [(place, places[other]) for cpu, place in places.items() for other in place.siblings if other > cpu]
    if len({place.core_id == there.core_id for place, there in threads}) > 1:
        raise SysfsError("some siblings share their core id and others do not")


__all__ = ["Host", "HostCpu", "HostNuma", "PciDevice", "SysfsError", "read_host"]
