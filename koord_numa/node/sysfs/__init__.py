"""A node's hardware as the kernel describes it under ``/sys``: CPUs, cores, sockets, NUMA nodes, caches, memory, PCI devices."""

from koord_numa.node.sysfs.files import SysfsError
from koord_numa.node.sysfs.host import Host, HostCpu, HostNuma, read_host
from koord_numa.node.sysfs.pci import PciDevice

__all__ = ["Host", "HostCpu", "HostNuma", "PciDevice", "SysfsError", "read_host"]
