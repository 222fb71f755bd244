"""Resource claims on one node: their devices, CPUs and NUMA nodes, and the requests of claims of waiting pods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.claim import AllocationMode, DeviceRequirements
from koord_numa.core.claims.cpus import CAPACITY, NANO, cpu_count, is_cpu_device
from koord_numa.core.claims.extended_resources import IN_MEMORY, Served, extended_requests
from koord_numa.core.claims.inventory import Device, DeviceId
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import NodeTerm, Operator
from koord_numa.core.objects.request import Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import ClaimKey, ClaimLister
from koord_numa.view.documents import Document


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """
    A claim with devices on a node, and the pods on the node that use it.

    ``assumed`` marks an allocation that is not written yet.
    """

    claim: ResourceClaim
    allocation: Allocation
    assumed: bool
    pods: tuple[Pod, ...]
    cpus: CpuSet = EMPTY  # of dra.cpu, if known by id


def node_claims(lister: ClaimLister, info: NodeInfo) -> list[HeldClaim]:
    """Return the claims that pods of the node use or whose devices are on the node only, sorted by name."""
    users: dict[ClaimKey, list[Pod]] = {}
    for pod in info.pods.values():
        for name in (*(entry.claim for entry in pod.resource_claims), pod.extended_claim):
            users.setdefault((pod.key.namespace, name), []).append(pod)
    return [*_held(lister, info.name, users)]


def _held(lister: ClaimLister, node: str, users: Mapping[ClaimKey, Sequence[Pod]]) -> Iterator[HeldClaim]:
    for key, claim in sorted(lister.claims.items()):
        assumed = lister.assumed.get(claim.uid)
        allocation = claim.allocation if assumed is None else assumed.allocation
        if allocation is not None and (key in users or _is_tied_to(allocation.nodes, node)):
            pods = tuple(users.get(key, ()))
            yield HeldClaim(claim, allocation, assumed is not None, pods, lister.cpus_of(allocation))


def _is_tied_to(terms: tuple[NodeTerm, ...] | None, node: str) -> bool:
    """Return whether the allocation is tied to the node, as for devices of a single node."""
    fields = [field for term in terms or () for field in term.fields]
    return any((field.operator, tuple(field.values)) == (Operator.IN, (node,)) for field in fields)


def cpus_by_pod(claims: Iterable[HeldClaim]) -> dict[str, CpuSet]:
    """Return the CPUs that pods have by claim, by pod uid."""
    found: dict[str, CpuSet] = {}
    for held in claims:
        for pod in held.pods if held.cpus else ():
            found[pod.key.uid] = found.get(pod.key.uid, EMPTY) | held.cpus
    return found


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device that a driver publishes for a node, and its physical NUMA node, or None if it is unknown."""

    device: Device
    numa: int | None


PublishedDevices = Mapping[DeviceId, PublishedDevice]


def published_devices(lister: ClaimLister, info: NodeInfo) -> PublishedDevices:
    """Return the devices that drivers publish for the node, in the order of the slices."""
    if info.node is None:
        return {}
    roots = {} if info.topology is None else info.topology.numa_by_root
    found: Iterator[Device] = (it.device for pool in lister.pools_of(info.node) for it in pool.candidates())
    return {device.id: PublishedDevice(device, device.numa(roots)) for device in found}


def claim_entries(
    claims: Iterable[HeldClaim], devices: PublishedDevices, machine: CpuTopology | None
) -> list[Document]:
    """
    Return an entry for each claim: its devices with their NUMA nodes (null if unknown), its CPUs and their NUMA nodes.
    """
    return [_entry(held, devices, machine) for held in claims]


def _entry(held: HeldClaim, devices: PublishedDevices, machine: CpuTopology | None) -> Document:
    # If CPU ids are known, they are shown instead of the devices.
    results = [it for it in held.allocation.results if not held.cpus or not is_cpu_device(it.device)]
    places = {it.device: devices[it.device].numa for it in results if it.device in devices}
    numa = set(places.values()) - {None}
    numa.update(CpuSet(machine.numa_of(held.cpus)) if machine is not None and held.cpus <= machine.all else ())
    return {
        "claim": str(held.claim),
        "state": "assumed" if held.assumed else "allocated",
        "pods": sorted(str(pod.key) for pod in held.pods),
        "devices": [
            {
                "request": result.request,
                "driver": result.device.driver,
                "pool": result.device.pool,
                "device": result.device.device,
                "numa": places.get(result.device),
                "adminAccess": result.admin_access,
                **({"cpus": cpu_count(result)} if is_cpu_device(result.device) else {}),
            }
            for result in results
        ],
        "cpus": str(held.cpus),
        "numa": sorted(one for one in numa if one is not None),
    }


def device_entries(claims: Iterable[HeldClaim], devices: PublishedDevices) -> list[Document]:
    """
    Return an entry for each device except CPUs, with its taints and the claims that hold it.

    Admin access holds nothing.
    """
    holders: dict[DeviceId, list[str]] = {}
    for held in claims:
        for result in held.allocation.results:
            if not result.admin_access:
                holders.setdefault(result.device, []).append(str(held.claim))
    return [
        {
            "driver": key.driver,
            "pool": key.pool,
            "device": key.device,
            "numa": it.numa,
            "claims": holders.get(key, []),
            "taints": [str(taint) for taint in it.device.taints],
        }
        for key, it in devices.items()
        if not is_cpu_device(key)
    ]


def wanted_claims(lister: ClaimLister, pod: Pod) -> list[Document]:
    """Return the claims of a pod without a node: their requests, and whether they have devices."""
    found = [_wanted(lister, pod, entry.name, entry.claim) for entry in pod.resource_claims if entry.needed]
    resources = extended_requests(pod.request)
    served = lister.extended.served(resources) if lister.serves_extended else ()
    if served:
        found.append(_extended(lister, pod, served))
    return found


def _extended(lister: ClaimLister, pod: Pod, served: Served) -> Document:
    """Return the claim for extended resources, used on nodes that do not advertise them."""
    made, amounts = lister.extended.of(pod.key.uid), effective_requests(pod.request)
    asks = [f"{resource}: {amounts[resource]} of {name}" for resource, name in served]
    if made is not None:
        state = "allocated" if made.allocation is not None else "not allocated"
        return {"entry": IN_MEMORY, "claim": str(made), "state": state, "asks": asks}
    return {"entry": IN_MEMORY, "claim": "", "state": "made for nodes that do not advertise it", "asks": asks}


def _wanted(lister: ClaimLister, pod: Pod, entry: str, name: str) -> Document:
    claim = lister.claim((pod.key.namespace, name)) if name else None
    if claim is None:
        return {"entry": entry, "claim": "", "state": "not created yet", "asks": []}
    asks = [
        f"{request.result_name(index)}: {_asked(demand)}"
        for request in claim.spec.requests
        for index, demand in enumerate(request.alternatives)
    ]
    state = "allocated" if claim.allocation is not None else "not allocated"
    return {"entry": entry, "claim": str(claim), "state": state, "asks": asks}


def _asked(demand: DeviceRequirements) -> str:
    capacity = dict(demand.capacity or ())
    cpus = capacity.get(CAPACITY, 0)
    if cpus:
        return f"{cpus / NANO:g} CPU of {demand.device_class}"
    count = "all" if demand.mode == AllocationMode.ALL else str(demand.count)
    return f"{count} of {demand.device_class}"
