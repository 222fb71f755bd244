"""CPU selection for claims of dra-driver-cpu, in addition to the CPU requests of containers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.claims.inventory import Device
from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus import UNOCCUPIED, CpuOccupancy, CpuPolicies, CpuRequest, NotEnoughCpus, pick_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.numa import numa_ids
from koord_numa.core.objects.claims import (
    AllocatedConfig,
    Allocation,
    ConfigSource,
    DeviceId,
    DeviceResult,
    OpaqueConfig,
)
from koord_numa.core.objects.request import Container
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import ValueObject, replace

CPU_DRIVER: Final = "dra.cpu"
CPU_CAPACITY: Final = "dra.cpu/cpu"
CPU_IDS: Final = "dra.cpu/cpuIDs"
SMT_LAYOUT: Final = "dra.cpu/smtLayout"
CPU_COUNT: Final = "dra.cpu/numCPUs"
CPU_ID: Final = "dra.cpu/cpuID"
SOCKET_ID: Final = "dra.cpu/socketID"
MACHINE_DEVICE: Final = "cpudevmachine"
CONFIG_VERSION: Final = "v1alpha1"
NANO: Final = 10**9


class CpuSite(ValueObject):
    """
    The CPUs of a node: its topology from a NodeResourceTopology, the CPUs in use by claims and pods, and the NUMA nodes
    to choose from.

    ``mask`` is a set of NUMA nodes, 0 for all CPUs. CPUs with an unknown NUMA node match every set unless ``strict``.
    """

    machine: CpuTopology | None = None
    reserved: CpuSet = EMPTY  # reserved for the system by the topology
    taken: CpuSet = EMPTY
    mask: int = 0
    strict: bool = False


class CpuClaimError(Exception):
    """No cpuset is available on this node. The message states the reason."""


def cpus_of(allocation: Allocation) -> CpuSet:
    """
    Return the CPUs in the configuration of an allocation.

    Malformed configuration holds no CPUs, because the driver rejects it.
    """
    # Other drivers may have configuration of any form under the same key.
    held = EMPTY
    if not any(result.device.driver == CPU_DRIVER for result in allocation.results):
        return held
    for config in allocation.configs:
        # The configuration of a class is the same for every claim and contains no CPUs.
        if config.source is ConfigSource.CLAIM and config.opaque is not None and config.opaque.driver == CPU_DRIVER:
            held |= _cpuset(config.opaque.parameters)
    return held


def _cpuset(parameters: str) -> CpuSet:
    try:
        text = json.loads(parameters)["cpuConfig"]["cpuset"]
        return CpuSet.parse(text) if isinstance(text, str) else EMPTY
    # Any client may write the text. The driver also rejects text that cannot be parsed, so it holds no CPUs.
    except (ValueError, KeyError, TypeError):
        return EMPTY


def assign_cpus(
    allocations: Sequence[Allocation], devices: Mapping[DeviceId, Device], site: CpuSite, policies: CpuPolicies
) -> tuple[Allocation, ...]:
    """Return the allocations with a cpuset for every request of CPUs. Raises ``CpuClaimError``."""
    made: list[Allocation] = []
    for allocation in allocations:
        configs = list(allocation.configs)
        for request, results in _cpu_requests(allocation, devices):
            _check_configs(request, configs)
            cpus = EMPTY
            for result in results:
                picked = _pick(devices[result.device], _count(request, result), site, policies)
                # The picked CPUs are excluded for the next device: allocations of one pod must not overlap.
                site = replace(site, taken=site.taken | picked)
                cpus |= picked
            parameters = json.dumps(
                {"apiVersion": CONFIG_VERSION, "cpuConfig": {"cpuset": str(cpus)}}, separators=(",", ":")
            )
            configs.append(AllocatedConfig(ConfigSource.CLAIM, (request,), OpaqueConfig(CPU_DRIVER, parameters)))
        made.append(replace(allocation, configs=tuple(configs)))
    return tuple(made)


def is_cpu_device(device: DeviceId) -> bool:
    """Return whether the device represents CPUs of dra-driver-cpu, in any grouping."""
    return device.driver == CPU_DRIVER


def cpu_count(result: DeviceResult) -> int:
    """
    Return the number of CPUs of a result.

    The number is the consumed capacity of a group of CPUs, 1 for an individual CPU, and 0 for other drivers.
    """
    if not is_cpu_device(result.device):
        return 0
    consumed = dict(result.consumed)
    return 1 if not consumed else consumed.get(CPU_CAPACITY, consumed.get("cpu", 0)) // NANO


def numas_of_cpus(device: Device, site: CpuSite) -> tuple[int, ...]:
    """
    Return the NUMA nodes of the CPUs of a device by the topology of the node: those of its socket, or of the machine.
    """
    if site.machine is None:
        return ()
    if device.id.device == MACHINE_DEVICE:
        return site.machine.numa_ids
    socket = device.attribute(SOCKET_ID)
    bits = site.machine.socket_bits.get(socket.scalar, 0) if socket is not None and socket.kind == "int" else 0  # type: ignore[arg-type]  # the kind says that it is an int
    return numa_ids(site.machine.numa_of(CpuSet(bits)))


def takes_cpusets(device: Device) -> bool:
    """
    Return whether the driver expects a cpuset for this device.

    It does so for devices with CPU ids. Older versions expect a cpuset for whole machines only.
    """
    return device.id.driver == CPU_DRIVER and (
        device.attribute(CPU_IDS) is not None or device.id.device == MACHINE_DEVICE
    )


def _cpu_requests(
    allocation: Allocation, devices: Mapping[DeviceId, Device]
) -> Iterator[tuple[str, list[DeviceResult]]]:
    grouped: dict[str, list[DeviceResult]] = {}
    for result in allocation.results:
        device = devices.get(result.device)
        if device is not None and takes_cpusets(device):
            grouped.setdefault(result.request, []).append(result)
    for request, results in grouped.items():
        if any(result.admin_access for result in results):
            raise CpuClaimError(f"request {request}: dra.cpu serves no request with admin access")
        if len(results) > 1 and any(result.device.device == MACHINE_DEVICE for result in results):
            raise CpuClaimError(
                f"request {request}: dra.cpu serves one device a request where CPUs are grouped by machine"
            )
        yield request, results


def _check_configs(request: str, configs: Iterable[AllocatedConfig]) -> None:
    """Check that no other configuration applies. The driver accepts exactly one configuration per request."""
    for config in configs:
        if (
            config.opaque is not None
            and config.opaque.driver == CPU_DRIVER
            and request in (config.requests or (request,))
        ):
            where = "the device class" if config.source is ConfigSource.CLASS else "the claim"
            raise CpuClaimError(
                f"request {request}: {where} configures dra.cpu already, which takes one configuration only"
            )


def _count(request: str, result: DeviceResult) -> int:
    # The qualified name has priority. A driver may publish its capacity without a domain.
    amount = dict(result.consumed).get(CPU_CAPACITY, dict(result.consumed).get("cpu", 0))
    if amount <= 0 or amount % NANO:
        raise CpuClaimError(
            f"request {request}: dra.cpu allocates whole CPUs, and the request consumes {amount / NANO:g}"
        )
    return amount // NANO


def _pick(device: Device, count: int, site: CpuSite, policies: CpuPolicies) -> CpuSet:
    machine, usable = _cpus(device, site)
    free = usable - site.taken
    # A device with its own NUMA node has already been filtered by NUMA node.
    if site.mask and not device.own_numa:
        if machine is site.machine:
            free &= _on(machine, site.mask)
        elif site.strict:
            raise CpuClaimError(
                f"device {device.id.device} does not say on which NUMA nodes its CPUs are, and no NodeResourceTopology does"
            )
    wish = replace(policies, request=replace(policies.request, count=count))
    found = pick_cpus(wish, machine, free, _occupancy(wish.request, site))
    if isinstance(found, NotEnoughCpus):
        raise CpuClaimError(f"device {device.id.device}: {found}")
    return found.cpus


def _occupancy(ask: CpuRequest, site: CpuSite) -> CpuOccupancy:
    """
    Return the CPUs that an exclusive policy avoids.

    The policies of other claims are not recorded, so the CPUs of all claims count.
    """
    if ask.exclusive is CpuExclusivePolicy.NONE:
        return UNOCCUPIED
    return CpuOccupancy(pcpu_level=site.taken, numa_level=site.taken)


def _on(machine: CpuTopology, mask: int) -> CpuSet:
    bits = 0
    for numa, cpus in machine.numa_bits.items():
        if mask >> numa & 1:
            bits |= cpus
    return CpuSet(bits)


def _cpus(device: Device, site: CpuSite) -> tuple[CpuTopology, CpuSet]:
    """Return the topology and the CPUs of the device. Raises ``CpuClaimError`` when they are unknown."""
    ids = _known_ids(device, site)
    # The topology of the node contains cores and NUMA nodes. The layout of the driver contains only siblings.
    if site.machine is not None and ids <= site.machine.all:
        return site.machine, ids
    layout = _text(device, SMT_LAYOUT)
    if not layout:
        raise CpuClaimError(
            f"device {device.id.device} does not say which CPUs are siblings ({SMT_LAYOUT}), and no NodeResourceTopology does"
        )
    try:
        return layout_topology(layout), ids
    except ValueError as error:
        raise CpuClaimError(f"device {device.id.device}: {SMT_LAYOUT} {layout!r}: {error}") from None


def _known_ids(device: Device, site: CpuSite) -> CpuSet:
    text = _text(device, CPU_IDS)
    if text:
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise CpuClaimError(f"device {device.id.device}: {CPU_IDS} {text!r}: {error}") from None
    count = device.attribute(CPU_COUNT)
    machine = site.machine
    # The driver publishes only a count. It identifies a CPU set exactly when the counts are equal.
    known = () if machine is None else (machine.all - site.reserved, machine.all)
    found = next((ids for ids in known if count is not None and count.scalar == len(ids)), None)
    if found is None:
        raise CpuClaimError(
            f"device {device.id.device} does not say which CPUs it has ({CPU_IDS}), and that cannot be told from elsewhere"
        )
    return found


def _text(device: Device, name: str) -> str:
    value = device.attribute(name)
    return value.scalar if value is not None and isinstance(value.scalar, str) else ""


@lru_cache(maxsize=256)
def layout_topology(layout: str) -> CpuTopology:
    """
    Return the cores in ``dra.cpu/smtLayout``.

    ``8-23>8;0-7`` means pairs with distance 8 among 8-23, and single CPUs 0-7. The layout contains no NUMA nodes: all
    CPUs are on NUMA node 0. Raises ``ValueError``.
    """
    rows: list[tuple[int, int, int, int]] = []
    for entry in layout.split(";"):
        text, arrow, stride = entry.partition(">")
        cpus = CpuSet.parse(text)
        if not arrow:
            rows.extend((cpu, cpu, 0, 0) for cpu in cpus)
            continue
        # Bounded, because the driver supplies the text and a large stride would build large CPU sets.
        if not stride.isdigit() or not 0 < int(stride) <= 4096:
            raise ValueError(f"{stride[:20]!r} is not a distance of siblings")
        left = cpus
        for cpu in cpus:
            if cpu in left:
                sibling = cpu + int(stride)
                if sibling not in left:
                    raise ValueError(f"CPU {cpu} has no sibling {sibling}")
                left -= CpuSet.of((cpu, sibling))
                rows += [(cpu, cpu, 0, 0), (sibling, cpu, 0, 0)]
    return cpu_topology_of(rows)


_TOLERATED: Final = 10
"""Tolerated difference between requested and claimed CPUs in milli-CPU (dra-driver-cpu, 0.01 CPUs)."""

_FEWEST_SHARES: Final = 2
"""
CPU shares of a container without a CPU request, which is not compared.

Requests up to this many milli-CPU have the same shares.
"""


def unequal_cpus(containers: Iterable[Container], allocations: Mapping[str, Allocation]) -> Iterator[str]:
    """
    Yield a sentence for each container that the driver would not start.

    ``allocations`` are keyed by entry of the pod's ``resourceClaims``. A container with other claims is not checked.
    """
    for container in containers:
        if not container.claims or any(entry not in allocations for entry, _ in container.claims):
            continue
        cpus = sum(_allocated_cpus(allocations[entry], request) for entry, request in container.claims)
        requested = container.requests.get(CPU, 0)
        differs = abs(requested - MILLI * cpus) > _TOLERATED
        if cpus and requested > _FEWEST_SHARES and differs:
            yield (
                f"container {container.name} requests {requested / MILLI:g} CPUs and claims {cpus}, "
                "so dra-driver-cpu does not start it"
            )


def _allocated_cpus(allocation: Allocation, request: str) -> int:
    """
    Return the number of CPUs of one request, or of all requests for an empty name.

    Alternatives count for their request.
    """
    return sum(
        cpu_count(result)
        for result in allocation.results
        if request in ("", result.request, result.request.partition("/")[0])
    )
