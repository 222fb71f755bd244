"""
One kubelet-owned node in full: its CPUs, memory and devices per NUMA node, and how its kubelet's managers are configured.

Facts only; nothing here changes when pods come and go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.static_options import StaticOptions
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import ResourceList

STATIC_CPUS: Final = "static"
STATIC_MEMORY: Final = "Static"

FULL_CORES: Final = "full-pcpus-only"
OVER_NUMA: Final = "distribute-cpus-across-numa"
BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"
CLOSEST_NUMA: Final = "prefer-closest-numa-nodes"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a plugin. ``near`` is the mask of NUMA nodes it is attached to, 0 when the plugin reports none."""

    id: str
    near: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class DevicePool:
    """All devices of one resource, numbered by their place in ``devices``: sets of devices are bits of an integer."""

    devices: tuple[Device, ...]  # in the plugin's order of preference
    assumed: bool = False  # is it assumed which of them are near several NUMA nodes?
    healthy: int = field(init=False)  # bits of the devices that may be handed out
    on: Mapping[int, int] = field(init=False)  # NUMA node -> bits of all devices near it, healthy or not
    hosts: int = field(init=False)  # mask of the NUMA nodes that have any
    masks: tuple[int, ...] = field(init=False, repr=False)  # of each device, what it is near
    places: Mapping[str, int] = field(init=False, repr=False)  # of each device by its id

    def __post_init__(self) -> None:
        # Derived once: pools are asked for masks in every hint, and are never changed.
        on: dict[int, int] = {}
        healthy = hosts = 0
        for place, device in enumerate(self.devices):
            bit = 1 << place
            healthy |= bit if device.healthy else 0
            hosts |= device.near
            for numa in members(device.near):
                on[numa] = on.get(numa, 0) | bit
        object.__setattr__(self, "healthy", healthy)
        object.__setattr__(self, "on", dict(sorted(on.items())))
        object.__setattr__(self, "hosts", hosts)
        object.__setattr__(self, "masks", tuple([device.near for device in self.devices]))
        object.__setattr__(self, "places", {device.id: place for place, device in enumerate(self.devices)})

    def near(self, mask: int) -> int:
        """Bits of the devices near any of these NUMA nodes: a device near two of them counts once."""
        bits = 0
        for numa in members(mask):
            bits |= self.on.get(numa, 0)
        return bits

    def ids(self, bits: int) -> tuple[str, ...]:
        """The ids of these devices, in the plugin's order."""
        return tuple(self.devices[place].id for place in members(bits))


@dataclass(frozen=True, slots=True)
class WholeCoreRule:
    """
    full-pcpus-only is on: exclusive CPUs come in multiples of ``threads``, and only from free CPUs outside the cores of reserved ones.

    ``spoiled`` are the CPU bits of those cores where ids are known, ``unlocated`` their number where they are not.
    """

    threads: int
    spoiled: int = 0
    unlocated: int = 0


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """
    Everything a kubelet's resource managers know before the first pod.

    ``memory`` is per NUMA node what the memory manager can hand out: all memory minus huge pages and reservation, and the
    bytes of every huge page size the machine knows. ``allocatable`` is the Node object's, for the last admission check.
    """

    machine: CpuTopology
    config: KubeletConfig
    allocatable: ResourceList
    memory: Mapping[int, ResourceList] = field(default_factory=dict)
    devices: Mapping[str, DevicePool] = field(default_factory=dict)
    ids_are_real: bool = True  # else CPU ids are made up, and the options that look at cores and sockets say nothing
    aligns_by_socket: bool = False  # the option, where ids are made up and sockets are assumed
    packs: bool = False  # are cores of two threads at most, and CPUs packed into them, where ids are made up?
    may_pack: bool = False  # the same, unless an option says otherwise that is not published?
    core_threads: tuple[int, ...] = ()  # those a core may have, where align-by-socket packs CPUs in made-up ids
    is_published: bool = True  # are the CPU manager's options known?
    takes_whole_cores: bool = False  # does full-pcpus-only let CPUs be packed core by core, where ids are made up?
    whole_cores: WholeCoreRule | None = None  # from the options where ids are real
    reserved: int = field(init=False, repr=False)  # CPU bits that are never exclusive
    static_options: StaticOptions = field(init=False, repr=False)
    prefers_closest: bool = field(init=False, repr=False)
    pins_cpus: bool = field(init=False, repr=False)  # does the CPU manager hand out exclusive CPUs?
    pins_memory: bool = field(init=False, repr=False)  # does the memory manager bind memory to NUMA nodes?
    deals_over_numa: bool = field(init=False, repr=False)  # is an even share taken of each of several NUMA nodes?
    aligns: bool = field(init=False, repr=False)  # does the topology manager ask for hints at all?

    def __post_init__(self) -> None:
        reserved = self.config.reserved_cpus.bits if self.config.reserved_cpus is not None else 0
        object.__setattr__(self, "reserved", reserved)
        options = StaticOptions.of(self.config.cpu_options)
        # Made-up CPU ids have no cores, so that options about cores and sockets would act on fiction.
        if not self.ids_are_real:
            # How many CPUs each of several NUMA nodes gives follows from how many are free there.
            over_numa = options.distribute_across_numa
            options = StaticOptions(align_by_socket=self.aligns_by_socket, distribute_across_numa=over_numa)
        object.__setattr__(self, "static_options", options)
        object.__setattr__(self, "prefers_closest", self.config.topology_options.get(CLOSEST_NUMA, False))
        # Asked many times in every admission.
        object.__setattr__(self, "pins_cpus", self.config.cpu_policy == STATIC_CPUS)
        object.__setattr__(self, "pins_memory", self.config.memory_policy == STATIC_MEMORY)
        object.__setattr__(self, "deals_over_numa", self.config.cpu_options.get(OVER_NUMA, False))
        object.__setattr__(self, "aligns", self.config.topology_policy not in (None, KubeletPolicy.NONE))
        # A reserved CPU leaves the rest of its core to no container under full-pcpus-only.
        if self.whole_cores is None and options.full_pcpus_only:
            cores = sum(core.bits for core in self.machine.cores if core.bits & reserved)
            object.__setattr__(self, "whole_cores", WholeCoreRule(self.machine.threads_per_core, spoiled=cores))
