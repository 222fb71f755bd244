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
"""Bytes read of one file. The largest files of interest are meminfo and distances, a few KiB."""

# At most 2,048 digits: 8,192 CPUs, the largest NR_CPUS that kernels are built with.
_MASK: Final = re.compile(r"[0-9a-f]{1,2048}(?:,[0-9a-f]{1,8})*", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# ENODEV and ENXIO: the attribute exists and its device does not, which some drivers answer instead of hiding the file.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class SysfsError(Exception):
    """A file or a directory that makes the description of the machine unusable; the text names it and what is wrong."""


class Sysfs:
    """
    The tree under one root, usually ``/sys``.

    ``present`` is set as soon as it is known; a set of CPUs that has others is an error then.
    The kernel ends every attribute with a newline. Where some files of a tree end so and others do not, those have been cut short;
    ``check_complete`` says so. A tree whose files all lack it was written by something else, and is taken as it is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.present: CpuSet | None = None
        self._ended = False
        self._open_end: Path | None = None

    def text(self, *parts: str) -> str | None:
        """The contents without surrounding white space, ``None`` when there is no such file."""
        path = self.root.joinpath(*parts)
        try:
            # Bytes, not text: sysfs has attributes with stray bytes, and the encoding is checked below with the path in the
            # message.
            with path.open("rb") as file:
                raw = file.read(LONGEST)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None
        content = raw.replace(b"\0", b"")  # some kernels end short attributes with a NUL
        # Empty files say nothing about how this tree ends its lines.
        if content.strip():
            if content.endswith(b"\n"):
                self._ended = True
            elif self._open_end is None:
                self._open_end = path
        try:
            return content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise SysfsError(f"{path} is no text") from None

    def check_complete(self) -> None:
        """Raises ``SysfsError`` when a file that was read ends in the middle of a line while others do not."""
        if self._ended and self._open_end is not None:
            raise SysfsError(f"{self._open_end} ends in the middle of a line")

    def number(self, *parts: str) -> int | None:
        """A decimal number, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a number", *parts)
        return int(text)

    def cpu_list(self, *parts: str) -> CpuSet | None:
        """A list such as ``0-3,8``, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise self.error(str(error), *parts) from None

    def cpu_mask(self, *parts: str) -> CpuSet | None:
        """A mask such as ``00000000,0000000f``, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _MASK.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a mask of CPUs", *parts)
        # Words are printed with leading zeros, so that joining them gives the whole number.
        bits = int(text.replace(",", ""), 16)
        if bits.bit_length() > MAX_CPU + 1:
            raise self.error(f"a CPU above {MAX_CPU} is set", *parts)
        return CpuSet(bits)

    def cpus(self, folder: tuple[str, ...], list_name: str, mask_name: str, among: CpuSet) -> CpuSet | None:
        """
        Those of ``among`` in a set that newer kernels show as list and mask, older ones as mask only; ``None`` without either.

        Raises ``SysfsError`` when the two differ on a CPU of ``among``: on offline ones they may.
        """
        listed, masked = self.cpu_list(*folder, list_name), self.cpu_mask(*folder, mask_name)
        if listed is not None and masked is not None and listed & among != masked & among:
            raise self.error(f"says {listed}, and {mask_name} says {masked}", *folder, list_name)
        found = masked if listed is None else listed
        if found is not None and self.present is not None and not found <= self.present:
            raise self.error(f"names CPUs {found - self.present}, which the machine does not have", *folder)
        return None if found is None else found & among

    def numbered(self, prefix: str, *parts: str) -> list[int]:
        """The numbers of the entries ``prefix<number>`` of a directory, ascending; none when there is no such directory."""
        return sorted(
            int(name.removeprefix(prefix))
            # isdecimal and isascii: `isdecimal` alone accepts digits of other scripts, which int() would take too.
            for name in self.names(*parts)
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal() and name.isascii()
        )

    def names(self, *parts: str) -> list[str]:
        """The names in a directory, ascending; none when there is no such directory."""
        path = self.root.joinpath(*parts)
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None

    def error(self, what: str, *parts: str) -> SysfsError:
        """A complaint about one file."""
        return SysfsError(f"{self.root.joinpath(*parts)}: {what}")


CPU: Final = ("devices", "system", "cpu")
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where one CPU sits. Ids are the firmware's, -1 where the kernel does not tell; ``siblings`` are online CPUs, itself among them."""

    core_id: int
    socket: int
    die: int
    siblings: CpuSet


def online_cpus(sysfs: Sysfs) -> CpuSet:
    """
    The CPUs that run: those present in the tree that ``online`` lists.

    Raises ``SysfsError`` without any, or when a CPU's own ``online`` file contradicts the list.
    """
    present = sysfs.numbered("cpu", *CPU)
    if not present:
        raise sysfs.error("describes no CPU", *CPU)
    # Ids become bits of one integer: an absurd id from a broken tree would be an absurd amount of memory.
    if present[-1] > MAX_CPU:
        raise sysfs.error(f"CPU {present[-1]} is above {MAX_CPU}", *CPU)
    # From here on, a set that names other CPUs is an error (Sysfs.cpus).
    sysfs.present = CpuSet.of(present)
    listed = sysfs.cpu_list(*CPU, "online")
    online = []
    for cpu in present:
        # A dump taken without the right to read it has the file empty.
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
    """CPUs that the kernel's command line keeps away from its scheduler (``isolcpus``)."""
    return sysfs.cpu_list(*CPU, "isolated") or EMPTY


def read_places(sysfs: Sysfs, cpus: Iterable[int]) -> dict[int, CpuPlace]:
    """
    Where these CPUs sit.

    Raises ``SysfsError`` when some of them have a topology and others have not, or siblings do not agree who they are.
    """
    wanted = sorted(cpus)
    ids = {cpu: _ids(sysfs, cpu) for cpu in wanted}
    # All or none: virtual machines and old kernels have no die_id at all, but a gap among CPUs is a broken reading.
    for position, name in enumerate(("physical_package_id", "core_id", "die_id")):
        missing = [cpu for cpu in wanted if ids[cpu][position] is None]
        if missing and len(missing) != len(wanted):
            raise sysfs.error("is missing, and other CPUs have it", *CPU, f"cpu{missing[0]}", "topology", name)
    siblings = _siblings(sysfs, wanted, CpuSet.of(wanted))
    places = {}
    for cpu in wanted:
        socket, core, die = ids[cpu]
        places[cpu] = CpuPlace(
            # Without core ids, the set of siblings names the core: unlike a running number it is the same for each of them.
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
        # -1 where the architecture does not know it (include/linux/topology.h).
        if number is not None and not UNKNOWN <= number < 2**31:
            raise sysfs.error(f"{number} is no id", *folder, name)
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
    # No sibling files: every CPU is a core of its own, as the kubelet counts on such machines.
    if not known:
        return {cpu: CpuSet.of([cpu]) for cpu in cpus}
    if untold := [cpu for cpu in cpus if cpu not in known]:
        raise sysfs.error("names no siblings, and other CPUs do", *CPU, f"cpu{untold[0]}", "topology")
    if (odd := disagreeing(known)) is not None:
        raise sysfs.error(f"siblings {known[odd]} do not agree who they are", *CPU, f"cpu{odd}", "topology")
    return known


def disagreeing(groups: Mapping[int, CpuSet]) -> int | None:
    """The first CPU that is not in its own group, or of whose group a member names another one."""
    for cpu, members in groups.items():
        if cpu not in members or any(groups.get(other) != members for other in members):
            return cpu
    return None


LAST_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Caches:
    """The id of each CPU's L3; empty with a warning where the kernel contradicts itself, empty without one where there is none."""

    of_cpu: Mapping[int, int] = field(default_factory=dict)
    warning: str = ""


def read_caches(sysfs: Sysfs, cpus: Iterable[int]) -> Caches:
    """The L3 caches of these CPUs, by the kernel's ids where it names each cache once, else counted by their first CPU."""
    wanted = sorted(cpus)
    among = CpuSet.of(wanted)
    sharing: dict[int, CpuSet] = {}
    names: dict[int, int | None] = {}
    try:
        # Every CPU is asked, not one of a group: that is how a contradiction shows.
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
    # The kernel's ids are taken only if each stands for one group and each group has one: they may be absent, or repeat.
    if len({name for name, _ in pairs if name is not None}) == len(pairs) == len({bits for _, bits in pairs}):
        return {cpu: name for cpu, name in names.items() if name is not None}
    order: dict[int, int] = {}
    return {cpu: order.setdefault(sharing[cpu].bits, len(order)) for cpu in sorted(sharing)}


def _last_level(sysfs: Sysfs, cpu: int, among: CpuSet) -> tuple[CpuSet | None, int | None]:
    cache = (*CPU, f"cpu{cpu}", "cache")
    # The index is the kernel's order of discovery and differs by architecture; the level is what counts.
    for index in sysfs.numbered("index", *cache):
        folder = (*cache, f"index{index}")
        if sysfs.number(*folder, "level") == LAST_LEVEL:
            return sysfs.cpus(folder, "shared_cpu_list", "shared_cpu_map", among), sysfs.number(*folder, "id")
    return None, None


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


MOST_NUMA_NODES: Final = 1024
"""NUMA ids end here, as in the kernel (``MAX_NUMNODES``)."""


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """``memory`` has one entry a NUMA node, ascending; ``of_cpu`` leaves out CPUs that belong to none."""

    memory: tuple[MemoryNode, ...]
    of_cpu: Mapping[int, int]
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_numa_nodes(sysfs: Sysfs, online: CpuSet) -> NumaNodes:
    """
    The NUMA nodes of the machine; one, of number 0, where the kernel knows none, as the kubelet counts.

    Raises ``SysfsError`` when a NUMA node lacks a file that others have, or distances do not fit together.
    """
    ids = sysfs.numbered("node", *NODE)
    if not ids:
        return NumaNodes((whole_memory(sysfs),), dict.fromkeys(online, 0))
    if ids[-1] >= MOST_NUMA_NODES:
        raise sysfs.error(f"NUMA node {ids[-1]} is not below {MOST_NUMA_NODES}", *NODE)
    warnings: list[str] = []
    of_cpu = _numa_of_cpus(sysfs, ids, online, warnings)
    # A NUMA node with CPUs and no memory may have no directory; it is a node of its own nevertheless, since CPUs link to it.
    everything = sorted({*ids, *of_cpu.values()})
    warnings += [
        f"NUMA node {numa} has CPUs and no directory: its memory is not online"
        for numa in everything
        if numa not in ids
    ]
    memory = {numa: read_memory(sysfs, numa) for numa in ids}
    # All or none, as for the CPUs' topology: one missing meminfo is a reading that was interrupted.
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
            # The lowest as the last resort, so that the answer does not depend on the order of reading.
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
    """The NUMA nodes that list a CPU, by CPU."""
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
    """Costs by NUMA node. The kernel prints one column for every NUMA node that is online."""
    rows: dict[int, list[int]] = {}
    for numa in ids:
        text = sysfs.text(*NODE, f"node{numa}", "distance")
        if text is None:
            continue
        words = text.split()
        if not words or not all(word.isdecimal() and len(word) <= 9 for word in words):
            raise sysfs.error(f"{text[:40]!r} is no list of distances", *NODE, f"node{numa}", "distance")
        rows[numa] = [int(word) for word in words]
    if not rows:
        return {}
    if len(rows) != len(ids):
        missing = next(numa for numa in ids if numa not in rows)
        raise sysfs.error("is missing, and other NUMA nodes have it", *NODE, f"node{missing}", "distance")
    widths = sorted({len(row) for row in rows.values()})
    if len(widths) > 1:
        raise sysfs.error(f"NUMA nodes list between {widths[0]} and {widths[-1]} distances", *NODE)
    # Only the width tells whether NUMA nodes without a directory have a column.
    columns = next((known for known in (everything, ids) if len(known) == widths[0]), None)
    if columns is None:
        warnings.append(f"distances to {widths[0]} NUMA nodes are listed and there are {len(everything)}: none is used")
        return {}
    return {numa: dict(zip(columns, row, strict=True)) for numa, row in rows.items()}


DEVICES: Final = ("bus", "pci", "devices")

CLASSES: Final = ("0108", "02", "03", "0b40", "12")
"""PCI classes of interest: NVMe, network, display and 3D, co-processor, processing accelerator. Bridges and the like are left out."""

_CLASS: Final = re.compile(r"0x([0-9a-f]{6})", re.ASCII | re.IGNORECASE)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """
    One device. ``kind`` is the PCI class and subclass (``0302``), ``numa`` is ``None`` where the firmware does not tell, ``root``
    is the host bridge (``pci0000:00``), the value of Kubernetes' ``resource.kubernetes.io/pcieRoot``, or empty.
    """

    address: str
    kind: str
    numa: int | None
    root: str


def read_pci(sysfs: Sysfs) -> tuple[PciDevice, ...]:
    """The devices of the classes of interest, by address."""
    found = []
    for address in sysfs.names(*DEVICES):
        text = sysfs.text(*DEVICES, address, "class")
        if text is None:  # unplugged between listing and reading
            continue
        match = _CLASS.fullmatch(text)
        if match is None:
            raise sysfs.error(f"{text[:40]!r} is no PCI class", *DEVICES, address, "class")
        kind = match.group(1)[:4].lower()
        if kind.startswith(CLASSES):
            # -1: the firmware has no proximity domain for the device (ACPI _PXM).
            numa = sysfs.number(*DEVICES, address, "numa_node")
            found.append(PciDevice(address, kind, None if numa is None or numa < 0 else numa, _root(sysfs, address)))
    return tuple(found)


def _root(sysfs: Sysfs, address: str) -> str:
    """The host bridge, from the path that the device's link leads to."""
    try:
        # realpath, not readlink: links of dumps and containers may be relative or go through further links.
        target = Path(os.path.realpath(sysfs.root.joinpath(*DEVICES, address)))
    except OSError:
        return ""
    return next((part for part in target.parts if _ROOT.fullmatch(part)), "")


@dataclass(frozen=True, slots=True)
class HostCpu:
    """
    One online logical CPU. ``core`` counts the cores of the machine in the order of their first CPU, as ``lscpu`` does; ``socket``
    is the firmware's id; ``l3`` is ``None`` where the kernel names no last-level cache.
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
    One NUMA node, with or without CPUs. ``memory`` is bytes and ``None`` where the kernel does not tell; ``pages`` counts huge
    pages by their size in bytes; ``distances`` are ACPI SLIT costs by NUMA node.
    """

    id: int
    memory: int | None
    pages: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. ``cpus`` and ``numa`` ascend by id; ``warnings`` are oddities that do not make it unusable."""

    cpus: tuple[HostCpu, ...]
    numa: tuple[HostNuma, ...]
    isolated: CpuSet = EMPTY
    pci: tuple[PciDevice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def cpu_set(self) -> CpuSet:
        """All online CPUs that belong to a NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus)

    def cpus_of(self, numa: int) -> CpuSet:
        """The online CPUs of one NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus if cpu.numa == numa)


def read_host(root: Path) -> Host:
    """
    The machine described by the sysfs mounted at ``root`` (procfs is looked for beside it, for machines without NUMA nodes).

    Raises ``SysfsError`` when a file contradicts another one or cannot be understood, so that no half-read machine is published.
    """
    sysfs = Sysfs(root)
    online = online_cpus(sysfs)
    numa = read_numa_nodes(sysfs, online)
    places = read_places(sysfs, [cpu for cpu in online if cpu in numa.of_cpu])
    caches = read_caches(sysfs, places)
    pci = read_pci(sysfs)
    isolated = isolated_cpus(sysfs)
    # Last: whether a file was cut short shows only when all that matter were read.
    sysfs.check_complete()
    return Host(
        cpus=_cpus(places, numa, caches),
        # CPU-less NUMA nodes (CXL, HBM) are zones as well: their memory can be asked for.
        numa=tuple(_numa(node, numa) for node in numa.memory),
        isolated=isolated & online,  # the kernel lists isolated CPUs also while they are offline
        pci=pci,
        warnings=(*numa.warnings, *filter(None, [caches.warning])),
    )


def _numa(node: MemoryNode, numa: NumaNodes) -> HostNuma:
    return HostNuma(node.id, node.memory, node.pages, numa.distances.get(node.id, {}))


def _cpus(places: Mapping[int, CpuPlace], numa: NumaNodes, caches: Caches) -> tuple[HostCpu, ...]:
    _check_siblings(places, numa)
    cores: dict[object, int] = {}
    found = []
    for cpu, place in sorted(places.items()):
        # NUMA nodes of one socket may count their cores from 0 each, and the dies of one NUMA node too.
        core = numa.of_cpu[cpu], place.socket, place.die, place.core_id, place.siblings.bits
        found.append(
            HostCpu(
                id=cpu,
                core=cores.setdefault(core, len(cores)),
                socket=max(0, place.socket),  # -1 is the kernel's word for unknown; there is one socket then
                die=max(0, place.die),
                numa=numa.of_cpu[cpu],
                l3=caches.of_cpu.get(cpu),
            )
        )
    if not found:
        raise SysfsError("no online CPU belongs to a NUMA node")
    return tuple(found)


def _check_siblings(places: Mapping[int, CpuPlace], numa: NumaNodes) -> None:
    """Threads of one core share everything. A file that was read while the kernel changed it shows up here."""
    for cpu, place in places.items():
        for other in place.siblings:
            there = places[other]
            if (place.socket, place.die, numa.of_cpu[cpu]) != (there.socket, there.die, numa.of_cpu[other]):
                raise SysfsError(f"CPUs {cpu} and {other} are threads of one core in two sockets, dies or NUMA nodes")
    # Siblings with core ids of their own are compute units; where some have and some have not, an id is wrong.
    threads = [(place, places[other]) for cpu, place in places.items() for other in place.siblings if other > cpu]
    if len({place.core_id == there.core_id for place, there in threads}) > 1:
        raise SysfsError("some siblings share their core id and others do not")


__all__ = ["Host", "HostCpu", "HostNuma", "PciDevice", "SysfsError", "read_host"]
