"""NUMA hint provider for the claims of one pod on one node: devices, and CPUs by claim."""

from collections.abc import Iterable, Sequence
from typing import Final

from koord_numa.core.claims.allocator import ALTERNATIVES, MAX_STEPS, Allocated, allocate
from koord_numa.core.claims.cpus import (
    CPU_DRIVER,
    CpuClaimError,
    CpuSite,
    assign_cpus,
    cpus_of,
    is_cpu_device,
    numas_of_cpus,
    takes_cpusets,
)
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.node_resources import claim_amounts
from koord_numa.core.claims.pools import NodeDevices
from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpus import CpuPolicies
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.numa import mask_of, numa_ids
from koord_numa.core.objects.claims import Allocation, ClaimAmounts, Classes, DeviceId, DeviceUsage, PodClaims
from koord_numa.core.objects.request import Container
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field

MOST_STEPS: Final = 3 * MAX_STEPS
"""Maximum steps of all searches for one pod on one node. There is one search for each evaluated set of NUMA nodes."""

ELSEWHERE: Final = 1 << MAX_NUMA_ID + 1
"""Placeholder for all NUMA nodes without devices."""


Places = tuple[int, ...]
"""Masks of NUMA nodes. A set of NUMA nodes is near a device when it intersects every mask."""


class ClaimAllocations(ValueObject):
    """
    Allocations of all claims, and the raw score of the chosen alternatives.

    ``numa`` is the mask of the physical NUMA nodes of the devices and CPUs. ``places`` are their masks of near NUMA
    nodes.
    """

    allocations: tuple[Allocation, ...]
    numa: int
    places: Places
    score: int

    def is_near(self, mask: int) -> bool:
        """Return whether every device and CPU is on or near a NUMA node of the set."""
        return all(place & mask for place in self.places)

    @property
    def on_one(self) -> bool:
        """True if a single NUMA node is near all devices and CPUs."""
        common = -1
        for place in self.places:
            common &= place
        return common != 0


class ClaimDevices(MutableObject):
    """
    Possible allocations for the claims of one pod on one node.

    Results are cached by set of NUMA nodes. The object lives as long as one decision.
    """

    claims: PodClaims
    classes: Classes
    node: NodeDevices
    usage: DeviceUsage
    site: CpuSite
    cpus: CpuPolicies
    places: int = 0  # the NUMA nodes near devices and CPUs of the node
    fixed: Places = ()  # the places of devices and CPUs that the pod's claims already hold
    _devices: dict[DeviceId, Device] = value_field(default_factory=dict)
    _places: dict[DeviceId, Places] = value_field(default_factory=dict)
    _found: dict[tuple[int, bool], ClaimAllocations | str] = value_field(default_factory=dict)
    _left: int = MOST_STEPS

    @property
    def steps(self) -> int:
        """Number of steps of all searches so far."""
        return MOST_STEPS - self._left

    def __post_init__(self) -> None:
        self._devices = {it.device.id: it.device for pool in self.node.pools for it in pool.candidates()}
        roots, found = self.node.numa_by_root, self._places
        for (
            key,
            device,
        ) in self._devices.items():  # devices of other drivers in one line each: every decision visits all
            if key.driver != CPU_DRIVER:
                if near := device.own_mask or mask_of(device.numas(roots)):
                    found[key] = (near,)
            elif places := self._places_of_cpus(device):
                found[key] = places
        self.node = replace(self.node, places=self._places)
        for place in {place for places in self._places.values() for place in places}:
            self.places |= place
        if self.site.machine is not None and any(takes_cpusets(device) for device in self._devices.values()):
            # The cpuset determines the place of CPUs by claim. The topology of the node contains the possible places.
            self.places |= mask_of(self.site.machine.numa_ids)
        self.fixed = self._places_of(self.claims.devices, self.claims.cpus)

    def _places_of_cpus(self, device: Device) -> Places:
        """
        Return the places of a device of dra-driver-cpu.

        The result is empty when the places are unknown, or when the cpuset determines them. The driver may choose any
        CPUs of a device without a cpuset, so such a device is on all of its NUMA nodes.
        """
        if device.own_numa:
            return (1 << device.own_numa[0],)
        return () if takes_cpusets(device) else tuple(1 << numa for numa in numas_of_cpus(device, self.site))

    def at(self, mask: int) -> ClaimAllocations | str:
        """Return allocations on a set of NUMA nodes (0 means any), or the reason why there are none."""
        return self._at(mask, empty=False)

    def fits(self, mask: int) -> bool:
        """Return whether all claims can be allocated on the NUMA nodes (``DeviceHints``)."""
        return not isinstance(self._at(mask, empty=False), str)

    def fits_if_empty(self, mask: int) -> bool:
        """Return whether all claims could be allocated on the NUMA nodes if nothing were in use (``DeviceHints``)."""
        return self.fits(mask) or not isinstance(self._at(mask, empty=True), str)

    def _at(self, mask: int, *, empty: bool) -> ClaimAllocations | str:
        # Masks with the same NUMA nodes among the devices' places offer the same devices and CPUs.
        key = (mask and (mask & self.places or ELSEWHERE), empty)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._allocate(key[0], empty=empty)
        return found

    def _allocate(self, mask: int, *, empty: bool) -> ClaimAllocations | str:
        # Allocated devices cannot move, so a set that is not near them cannot hold the pod.
        if mask and not all(place & mask for place in self.fixed):
            held = self._numa_of(self.claims.devices, self.claims.cpus)
            return f"claims that are allocated already hold devices on NUMA {ids_text(held)}"
        node = replace(self.node, numa_mask=mask) if mask else self.node
        # "If empty" ignores all usage: KEP-693 determines preferred hints on an empty machine.
        usage = DeviceUsage() if empty else self.usage
        answer = allocate(self.claims.to_allocate, self.classes, node, usage, min(MAX_STEPS, self._left))
        self._left -= answer.steps
        if not isinstance(answer, Allocated):
            return answer.message
        site = replace(self.site, mask=mask, taken=EMPTY if empty else self.site.taken)
        try:
            allocations = assign_cpus(answer.allocations, self._devices, site, self.cpus)
        except CpuClaimError as error:
            return f"cannot allocate CPUs by claim: {error}"
        devices = [result.device for allocation in allocations for result in allocation.results]
        if mask and self.site.strict and (unknown := next(filter(self._is_cpus_anywhere, devices), None)):
            return f"device {unknown.device} does not say on which NUMA nodes its CPUs are, and no NodeResourceTopology does"
        devices += self.claims.devices
        cpus = self.claims.cpus | cpus_of_all(allocations)
        return ClaimAllocations(allocations, self._numa_of(devices, cpus), self._places_of(devices, cpus), answer.score)

    def _is_cpus_anywhere(self, device: DeviceId) -> bool:
        """Return whether the driver chooses the CPUs of the device on unknown NUMA nodes."""
        return is_cpu_device(device) and not takes_cpusets(self._devices[device]) and device not in self._places

    def _numa_of(self, devices: Iterable[DeviceId], cpus: CpuSet) -> int:
        """Return the mask of the known physical NUMA nodes of devices and CPUs. Vanished devices are ignored."""
        mask = 0 if self.site.machine is None else self.site.machine.numa_of(cpus)
        for device in devices:
            if is_cpu_device(device):
                for place in self._places.get(device, ()):
                    mask |= place
            elif device in self._devices:
                numa = self._devices[device].numa(self.node.numa_by_root)
                mask |= 0 if numa is None else 1 << numa
        return mask

    def _places_of(self, devices: Iterable[DeviceId], cpus: CpuSet) -> Places:
        """Return the distinct places of devices and CPUs."""
        places = {place for device in devices for place in self._places.get(device, ())}
        if self.site.machine is not None:
            places.update(1 << numa for numa in numa_ids(self.site.machine.numa_of(cpus)))
        return tuple(sorted(places))

    def amounts(self, allocations: Sequence[Allocation], containers: Sequence[Container]) -> tuple[ClaimAmounts, ...]:
        """Return the node allocatable amounts that the claims of the pod consume. Raises ``AllocatableError``."""
        wanted = [(claim.name, it.results) for claim, it in zip(self.claims.to_allocate, allocations, strict=True)]
        found = (
            claim_amounts(entry, results, self._devices, containers) for entry, results in (*self.claims.held, *wanted)
        )
        return tuple(each for each in found if each is not None)

    def holds_cpus(self, found: ClaimAllocations) -> bool:
        """Return whether the claims of the pod hold CPUs, in any grouping."""
        results = (result.device for allocation in found.allocations for result in allocation.results)
        return any(map(is_cpu_device, self.claims.devices)) or any(map(is_cpu_device, results))

    def crowding(self, mask: int) -> int:
        """
        Return the number of CPUs that other claims hold on the NUMA nodes, for a pod with NUMA-level exclusivity,
        otherwise 0.
        """
        machine = self.site.machine
        if machine is None or self.cpus.request.exclusive is not CpuExclusivePolicy.NUMA_NODE_LEVEL:
            return 0
        return sum(machine.numa_of(CpuSet.of((cpu,))) & mask != 0 for cpu in self.site.taken)

    def best_score(self) -> int:
        """Return the raw score for the first alternative of every prioritized list."""
        lists = sum(request.prioritized for claim in self.claims.to_allocate for request in claim.spec.requests)
        return ALTERNATIVES * lists


def cpus_of_all(allocations: Iterable[Allocation]) -> CpuSet:
    """Return the CPUs of all allocations."""
    return CpuSet.of(cpu for allocation in allocations for cpu in cpus_of(allocation))


def ids_text(mask: int) -> str:
    """Return a set of NUMA nodes as text: ``0,1``."""
    return ",".join(map(str, numa_ids(mask)))
