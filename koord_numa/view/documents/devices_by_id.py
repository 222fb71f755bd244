"""Devices by id of a node by PCIe switch, with their holders, and the free groups of GPUs, for the page and the command line."""

from collections.abc import Iterator

from koord_numa.core.cpuset import members
from koord_numa.core.devices import DeviceOffer, free_devices, free_partitions
from koord_numa.core.objects.devices import GPU
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.view.documents import Document

SHARES = {GPU: "koordinator.sh/gpu-core", "rdma": "koordinator.sh/rdma", "fpga": "koordinator.sh/fpga"}
"""Resource whose free percentage represents a device, by type."""


def devices_by_id(info: NodeInfo) -> Document | None:
    """
    Return the devices of the node's Device object, or None without one.

    ``switches`` are in the order of NUMA nodes; devices without a known switch are last, with an empty ``pcie``.
    ``freeGroups`` has the number of free groups of GPUs by size: partitions, or PCIe switches, NUMA nodes and the node.
    """
    offer = info.devices
    if offer is None:
        return None
    machine = offer.machine
    use = offer.use(info.ledger)
    known = 0
    switches = []
    for (numa, pcie), bits in machine.by_root.items():
        known |= bits
        switches.append(
            {"numa": None if numa < 0 else numa, "pcie": pcie, "devices": list(_devices(info, offer, bits))}
        )
    if rest := (1 << len(machine.devices)) - 1 & ~known:
        switches.append({"numa": None, "pcie": "", "devices": list(_devices(info, offer, rest))})
    groups = {str(size): count for size, count in free_partitions(machine, use).items()}
    return {"problem": offer.problem, "switches": switches, "freeGroups": groups}


def _devices(info: NodeInfo, offer: DeviceOffer, bits: int) -> Iterator[Document]:
    machine = offer.machine
    free = free_devices(machine, offer.use(info.ledger))
    for position in members(bits):
        device = machine.devices[position]
        share = SHARES.get(device.type, "")
        total = machine.totals[position].get(share, 0)
        yield {
            "type": device.type,
            "minor": device.minor,
            "id": offer.ids.get(device.key, ""),
            "healthy": device.healthy,
            "freePercent": 100 * free.amounts[position].get(share, 0) // total if total else 0,
            "pods": offer.holders(info.ledger, device.key),
        }


def switch_rows(found: Document) -> Iterator[list[str]]:
    """Yield a row for each PCIe switch: NUMA node, switch, and its devices with their free percentage or pods."""
    for switch in found["switches"]:
        numa = "-" if switch["numa"] is None else str(switch["numa"])
        yield [numa, switch["pcie"] or "-", ", ".join(map(_device_text, switch["devices"]))]


def _device_text(device: Document) -> str:
    name = f"{device['type']} {device['minor']}"
    if not device["healthy"]:
        return f"{name} unhealthy"
    if not device["pods"]:
        return f"{name} free"
    free = f" {device['freePercent']}% free" if device["freePercent"] else ""
    return f"{name}{free} ({', '.join(device['pods'])})"


def groups_text(found: Document) -> str:
    """Return the free groups of GPUs as text: ``free groups of GPUs: 0 of 4, 2 of 2, 5 of 1; largest: 2``; empty without GPUs."""
    groups: list[tuple[str, int]] = sorted(found["freeGroups"].items(), key=lambda item: -int(item[0]))
    text = ", ".join(f"{count} of {size}" for size, count in groups)
    largest = max((int(size) for size, count in groups if count), default=0)
    return f"free groups of GPUs: {text}; largest: {largest}" if text else ""
