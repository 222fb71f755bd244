"""
Last-level (L3) caches: which CPUs share one.

They only refine a choice among CPUs. So a description that contradicts itself, which real firmware has, costs the caches and not
the machine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.sysfs.cpus import CPU, disagreeing
from koord_numa.node.sysfs.files import Sysfs, SysfsError

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
    return Caches(_ids(sharing, names))


def _ids(sharing: Mapping[int, CpuSet], names: Mapping[int, int | None]) -> dict[int, int]:
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
