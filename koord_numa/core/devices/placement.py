"""The devices of one node as a hint provider for one pod, and the grants of an allocation."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import members
from koord_numa.core.devices.allocation import (
    NUMA_SCOPED,
    Chosen,
    Shortage,
    allocate,
    lowest_function,
    partition_points,
    places_of,
)
from koord_numa.core.devices.machine import (
    NOT_OBSERVED,
    UNUSED,
    DeviceDemand,
    DeviceMachine,
    DeviceUse,
    Observed,
    device_demand,
    device_machine,
    device_use,
    double_holds,
    filled,
    free_devices,
    held_devices,
)
from koord_numa.core.numa import numa_ids
from koord_numa.core.objects.devices import DeviceGrant, DeviceGrants, DeviceInventory, DeviceKey
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace

ELSEWHERE: Final = 1 << MAX_NUMA_ID + 1
"""Placeholder for all NUMA nodes without devices."""

NO_OBJECT: Final = "node(s) had no Device object"
UNUSABLE: Final = "node(s) had unknown devices"


class DeviceOffer(ValueObject, gc=False):
    """
    The devices of a node for decisions. ``problem`` states why it is not known which of them are free.

    ``injected``: an agent gives containers the chosen devices. ``observed`` are the devices that pods hold by their
    kubelet.
    """

    machine: DeviceMachine
    ids: Mapping[DeviceKey, str]
    problem: str = ""
    injected: bool = True
    observed: Observed = NOT_OBSERVED

    def use(self, ledger: Ledger) -> DeviceUse:
        """Return the holdings of the devices by pods."""
        return device_use(ledger, self.machine, self.observed)

    def holders(self, ledger: Ledger, key: DeviceKey) -> list[str]:
        """Return the pods that hold a part of a device, sorted."""
        return held_devices(ledger, self.machine, self.observed).holders(key)

    def conflict(self, ledger: Ledger) -> str:
        """Return a sentence about a device that is held twice, empty if there is none or a device plugin chooses."""
        return double_holds(ledger, self.machine) if self.injected else ""


def device_offer(
    inventory: DeviceInventory | None,
    unknown: str,
    *,
    held: bool,
    model: str = "",
    honors_partitions: bool = False,
) -> DeviceOffer | None:
    """
    Return the devices of a node, ``None`` for a node without a Device object.

    ``unknown`` states which pods hold unknown devices. ``held``: pods hold devices of the node. Without its Device
    object they are then not known. ``model`` and ``honors_partitions`` are labels of the Node.
    """
    if inventory is None:
        if not held and not unknown:
            return None
        return DeviceOffer(NO_DEVICES, {}, unknown or "pods hold devices, and the Device object of the node is gone")
    machine = NO_DEVICES if inventory.problem else device_machine(inventory, model, honors_partitions=honors_partitions)
    observed = dict(inventory.held) if inventory.held else NOT_OBSERVED
    return DeviceOffer(machine, inventory.ids, inventory.problem or unknown, inventory.injected, observed)


NO_DEVICES: Final = device_machine(DeviceInventory(""))


class NodeDeviceHints(ValueObject):
    """
    Possible allocations of the devices of one pod on one node (``DeviceHints``).

    ``places`` are the NUMA nodes of the demanded types.
    """

    demand: DeviceDemand
    offer: DeviceOffer
    use: DeviceUse
    places: int

    def at(self, mask: int, preferred: int = 0) -> Chosen | Shortage:
        """Return the devices on a set of NUMA nodes (0: any), or the shortage."""
        return allocate(self.offer.machine, self.use, self.demand, self._near(mask), preferred & self.places)

    def fits(self, mask: int) -> bool:
        """Return whether the devices can be allocated on the NUMA nodes (``DeviceHints``)."""
        return isinstance(self.at(mask), Chosen)

    def fits_if_empty(self, mask: int) -> bool:
        """Return whether the devices could be allocated on the NUMA nodes if no pod held any (``DeviceHints``)."""
        return self.fits(mask) or isinstance(
            allocate(self.offer.machine, UNUSED, self.demand, self._near(mask)), Chosen
        )

    def numa_of(self, chosen: Chosen) -> int:
        """Return the NUMA nodes of chosen devices."""
        return self.offer.machine.numa_of(chosen.devices)

    def best_shortage(self) -> Shortage:
        """Return the shortage on the NUMA node that comes closest, for a pod that no single NUMA node takes."""
        found = (self.at(1 << numa) for numa in numa_ids(self.places))
        short = [shortage for shortage in found if isinstance(shortage, Shortage)]
        closest = max(short, key=lambda shortage: sum(room for _, room in shortage.room))
        return replace(closest, message=NUMA_SCOPED)

    def points(self) -> int:
        """Return how much of the free partitions remains, 0 to 100."""
        return max(0, partition_points(self.offer.machine, self.use, self.demand))

    def grants(self, chosen: Chosen) -> DeviceGrants:
        """Return the entries of ``device-allocated`` for the chosen devices."""
        machine, free = self.offer.machine, free_devices(self.offer.machine, self.use)
        found = []
        for wanted, bits in chosen.types:
            wanted_amounts = dict(wanted.amounts)
            for position in members(bits):
                key = machine.devices[position].key
                functions = lowest_function(wanted, machine, position, free.functions[position]) or ()
                amounts = filled(wanted_amounts, machine, key)
                found.append(DeviceGrant(*key, amounts, functions, self.offer.ids.get(key, "")))
        return tuple(found)

    def _near(self, mask: int) -> int:
        # Sets with the same NUMA nodes among the places offer the same devices.
        return mask and (mask & self.places or ELSEWHERE)


def node_devices(request: PodRequest, offer: DeviceOffer | None, ledger: Ledger) -> NodeDeviceHints | Rejection | None:
    """Return the hint provider for a pod with device requests, ``None`` without, or the rejection by the node."""
    demand = device_demand(request)
    if demand is None or isinstance(demand, str):
        return None  # invalid requests are rejected for all nodes
    if offer is None:
        # Without a Device object the requests are amounts of the node, and nothing can satisfy conditions on devices.
        if not demand.spec_matters:
            return None
        return Rejection(Reason.DEVICES, NO_OBJECT, "the pod has conditions on its devices", resolvable=False)
    if offer.problem:
        return Rejection(Reason.DEVICES, UNUSABLE, offer.problem, resolvable=False)
    return NodeDeviceHints(demand, offer, offer.use(ledger), places_of(offer.machine, demand))


def rejection(shortage: Shortage) -> Rejection:
    """Return the rejection of a node for a shortage."""
    needed = dict(shortage.needed)
    lack = max((1 - there / needed[kind] for kind, there in shortage.room), default=1.0)
    return Rejection(Reason.DEVICES, shortage.message, shortage.detail, shortage.resolvable, lack=max(0.0, lack))
