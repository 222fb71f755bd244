"""
Online CPUs and what they share: core, die, socket.

Cores go by ``core_id`` within die, socket and NUMA node, as the kubelet counts them (cadvisor, ``utils/sysinfo``), and split
where the kernel's sibling masks say that CPUs are no siblings. CPUs that are siblings but have core ids of their own (AMD's
compute units) stay separate cores.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from koord_numa.node.sysfs.files import Sysfs

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
