"""
dra-driver-cpu with an external allocator: the recorded slices and claims, which the API server has validated.

The cpusets in the recorded allocations are choices; what must agree is everything else, and that ours are as many CPUs of the slice.
"""

from dataclasses import dataclass

from koord_numa.core.claims.allocator import Allocated, allocate
from koord_numa.core.claims.cpus import CPU_IDS, CpuSite, assign_cpus, cpus_of
from koord_numa.core.claims.inventory import ResourceSlice
from koord_numa.core.claims.pools import NodeDevices, gather_pools
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.claims import Allocation, DeviceClass, DeviceUsage, ResourceClaim
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.value_objects import replace
from koord_numa.wire.resource_claims import allocation_json, parse_device_class, parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.conformance.vectors import Case


@dataclass(frozen=True)
class Example:
    """A slice, its class, and a claim as it was allocated."""

    slice: ResourceSlice
    device_class: DeviceClass
    claim: ResourceClaim


def load(case: Case) -> Example:
    """Objects as the API server returns them."""
    parts = parse_resource_slice(case["resourceSlice"]).parts
    assert parts is not None
    return Example(parts, parse_device_class(case["deviceClass"]), parse_resource_claim(case["allocatedClaim"]))


def answer(given: Example) -> Allocation | None:
    """Allocate the claim again on an empty node."""
    name = given.slice.nodes.name
    node = NodeDevices(name, {}, gather_pools([given.slice], name, {}, {given.slice.pool: [given.slice]}))
    found = allocate([given.claim.to_allocate()], {given.device_class.name: given.device_class}, node, DeviceUsage())
    if not isinstance(found, Allocated):
        return None
    policies = CpuPolicies(CpuRequest(0, CpuBindPolicy.FULL_PCPUS), required=True)
    return assign_cpus(found.allocations, {it.id: it for it in given.slice.devices}, CpuSite(), policies)[0]


def agrees(case: Case, ours: Allocation | None) -> str | None:
    """Results, node selector, number of CPUs and their place in the slice; reading and writing again changes nothing."""
    example = load(case)
    recorded = example.claim.allocation
    if ours is None or recorded is None:
        return f"{ours}, recorded {recorded}"
    results = tuple(replace(it, share_id="") for it in ours.results)
    if results != tuple(replace(it, share_id="") for it in recorded.results) or ours.nodes != recorded.nodes:
        return f"{ours}, recorded {recorded}"
    again = parse_resource_claim({**case["allocatedClaim"], "status": {"allocation": allocation_json(recorded)}})
    text = example.slice.devices[0].attributes[CPU_IDS].scalar
    allowed, mine, theirs = CpuSet.parse(str(text)), cpus_of(ours), cpus_of(recorded)
    if (
        again.allocation != recorded
        or len(mine) != len(theirs)
        or not mine <= allowed
        or len(ours.configs) != len(recorded.configs)
    ):
        return f"CPUs {mine} of {allowed}, recorded {theirs}"
    return None
