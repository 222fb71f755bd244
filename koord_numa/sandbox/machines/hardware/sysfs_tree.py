"""The ``/sys`` and ``/proc`` files of a simulated machine in the format of Linux 6, for programs that read them.

Only files about topology and memory are written. The formats follow Documentation/ABI/stable/sysfs-devices-node and
Documentation/admin-guide/cputopology.rst.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines.hardware.description import PAGE_BYTES, Hardware, SimulatedDevice

PCI_CLASSES: Final[Mapping[str, str]] = {
    "nvidia.com/gpu": "0x030200",
    "vendor.example/nic": "0x020000",
    "vendor.example/infiniband": "0x020700",
    "vendor.example/accelerator": "0x120000",
}
_WORD: Final = 32
_KIB: Final = 1024


def write_sysfs(folder: Path, hardware: Hardware) -> Path:
    """Write ``sys`` and ``proc`` of a machine into an empty folder and return the path of ``sys``."""
    system = folder / "sys" / "devices" / "system"
    topology = hardware.machine
    _write_cpus(system / "cpu", topology)
    _write_nodes(system / "node", hardware)
    for slot, device in enumerate((*hardware.devices, *hardware.claimed_devices)):
        _write_device(folder / "sys", slot, device)
    _put(folder / "proc" / "meminfo", f"MemTotal:       {sum(hardware.memory.values()) // _KIB} kB")
    return folder / "sys"


def cpu_mask(cpus: CpuSet, width: int) -> str:
    """Return a mask of ``width`` CPUs in the kernel's format: words of 32 bits, the highest first."""
    words = [(cpus.bits >> shift) & 0xFFFFFFFF for shift in range(0, max(width, 1), _WORD)]
    return ",".join(f"{word:08x}" for word in reversed(words))


def _write_cpus(folder: Path, topology: CpuTopology) -> None:
    every = str(topology.all)
    for name, text in {"online": every, "present": every, "possible": every, "isolated": "", "offline": ""}.items():
        _put(folder / name, text)
    width = max(topology.by_id, default=0) + 1
    uncores: dict[tuple[int, int], int] = {}
    for cpu in topology.cpus:
        key = cpu.socket, cpu.uncore
        uncores[key] = uncores.get(key, 0) | 1 << cpu.id
    for cpu in topology.cpus:
        here = folder / f"cpu{cpu.id}"
        siblings, package = CpuSet(topology.core_bits[cpu.id]), CpuSet(topology.socket_bits[cpu.socket])
        _write_topology(here / "topology", cpu, siblings, package, width)
        shared = CpuSet(uncores[cpu.socket, cpu.uncore])
        for name, text in {
            "level": "3",
            "type": "Unified",
            "id": str(cpu.uncore),
            "shared_cpu_list": str(shared),
        }.items():
            _put(here / "cache" / "index3" / name, text)
        (here / f"node{cpu.numa}").symlink_to(f"../../node/node{cpu.numa}")


def _write_topology(folder: Path, cpu: Cpu, siblings: CpuSet, package: CpuSet, width: int) -> None:
    for name, text in {"core_id": str(cpu.core), "physical_package_id": str(cpu.socket), "die_id": "0"}.items():
        _put(folder / name, text)
    for names, cpus in ((("core_cpus", "thread_siblings"), siblings), (("package_cpus", "core_siblings"), package)):
        for name in names:
            _put(folder / name, cpu_mask(cpus, width))
            _put(folder / f"{name}_list", str(cpus))


def _write_nodes(folder: Path, hardware: Hardware) -> None:
    topology = hardware.machine
    ids = topology.numa_ids
    for name, nodes in {
        "online": ids,
        "possible": ids,
        "has_cpu": [numa for numa in ids if topology.numa_bits[numa]],
        "has_memory": [numa for numa in ids if hardware.memory.get(numa)],
    }.items():
        _put(folder / name, str(CpuSet.of(nodes)))
    width = max(topology.by_id, default=0) + 1
    for numa in ids:
        here, cpus = folder / f"node{numa}", CpuSet(topology.numa_bits[numa])
        _put(here / "cpulist", str(cpus))
        _put(here / "cpumap", cpu_mask(cpus, width))
        _put(here / "distance", " ".join(str(topology.distance(numa, other)) for other in ids))
        total = hardware.memory.get(numa, 0) // _KIB
        _put(
            here / "meminfo", _lines([f"Node {numa} MemTotal:  {total:14} kB", f"Node {numa} MemFree:   {total:14} kB"])
        )
        for size, count in hardware.pages.get(numa, {}).items():
            _put(here / "hugepages" / f"hugepages-{PAGE_BYTES[size] // _KIB}kB" / "nr_hugepages", str(count))
        for cpu in cpus:
            (here / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")


def _write_device(sys: Path, slot: int, device: SimulatedDevice) -> None:
    domain = 0 if device.numa is None else device.numa
    address = f"{domain:04x}:{slot % 31 + 1:02x}:00.0"
    real = sys / "devices" / f"pci{domain:04x}:00" / address
    _put(real / "class", PCI_CLASSES.get(device.resource, "0x120000"))
    _put(real / "numa_node", str(-1 if device.numa is None else device.numa))
    if device.resource == "nvidia.com/gpu":
        # The NVIDIA driver's names of a GPU, one of which its device plugin uses.
        lines = ["Model: \t\t NVIDIA A100-SXM4-80GB", f"GPU UUID: \t {device.id}", f"Device Minor: \t {slot}"]
        _put(sys.parent / "proc" / "driver" / "nvidia" / "gpus" / address / "information", _lines(lines))
    links = sys / "bus" / "pci" / "devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / address).symlink_to(f"../../../devices/pci{domain:04x}:00/{address}")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(f"{text}\n", encoding="ascii")
    except FileNotFoundError:
        # First file of its folder. A large machine has tens of thousands of files, so folders are not checked in
        # advance.
        path.parent.mkdir(parents=True)
        path.write_text(f"{text}\n", encoding="ascii")
