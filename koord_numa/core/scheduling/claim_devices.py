"""
Devices and CPUs of resource claims in a placement: on the NUMA nodes that the pod gets, as its policy demands or prefers.

Theory. Where the scheduler chooses NUMA nodes, devices are a hint provider of the same merge as CPUs, memory and huge pages
(``core/allocation``): a set of NUMA nodes holds the pod when all of these are there. SingleNUMANode and Restricted refuse the node
otherwise; BestEffort, and no policy, take devices as near as there are some, and the node scores less. A kubelet does not know devices of
claims. On its nodes devices are looked for where the kubelet is expected to put the pod, so that a node where both meet scores best; a
policy that the pod itself demands refuses all others. Devices that do not say where they are fit everywhere.

Example. NUMA node 0 has 4 free CPUs and no free GPU, NUMA node 1 has 8 free CPUs and a free GPU. A pod of 4 CPUs with a claim for a GPU
gets NUMA node 1 under any policy, though without the claim it would have been NUMA node 0.
"""

from collections.abc import Callable, Iterator
from math import comb
from typing import Final

from koord_numa.core.allocate import policy_in_force
from koord_numa.core.allocation.node_rules import NO_CPUS_WITHOUT_CLAIM, own_cpus_by_claim
from koord_numa.core.claims.container_cpus import unequal_cpus
from koord_numa.core.claims.device_hints import ClaimDevices, Found, ids_text
from koord_numa.core.claims.search.allocator import NO_SOLUTION
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.numa.hints import masks_of_size, numa_ids
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaPolicy
from koord_numa.core.resources import MEMORY
from koord_numa.core.scheduling.placement import place
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.score.node_resources import MAX_SCORE
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.value_objects import replace

HARD: Final = frozenset({NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED})
"""Policies under which devices must be on the NUMA nodes of the pod."""

NOT_TOGETHER: Final = "cannot allocate all claims on the NUMA nodes of the pod"
NO_CPUS_BY_CLAIM: Final = "node(s) NUMA Topology policy not match"

LISTED: Final = 256
"""Sets of NUMA nodes that are tried for devices alone."""


def place_devices(
    ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, devices: ClaimDevices
) -> Placement | Rejection:
    """
    The placement with an allocation for each claim, on other NUMA nodes than before where only those hold everything.

    Of a refusal the message is the allocator's where devices run out, else it says that they are not where the pod has to be.
    """
    # 0 is "anywhere": without a solution there, no set of NUMA nodes has one.
    anywhere = devices.at(0)
    if isinstance(anywhere, str):
        return Rejection(Reason.RESOURCE_CLAIMS, anywhere)
    policy = policy_of_devices(ask, seen)
    cpus_by_claim = devices.holds_cpus(anywhere)
    if not cpus_by_claim and (refusal := _refuse_without_cpus(ask, seen)):
        return refusal
    # Devices that are nowhere in particular fit every set, so that nothing is left to align.
    if not devices.places:
        if policy in HARD and cpus_by_claim:
            return _refused("on which NUMA nodes its CPUs are is not published")
        return _complete(ask, placement, anywhere, devices, seen)
    if policy not in HARD and _is_near(anywhere, placement):
        return _complete(ask, placement, anywhere, devices, seen)  # nothing can be nearer
    # The merge is done again with devices as a provider, as they may strike the set that was elected without them.
    joint = _joint(ask, seen, placement, devices)
    if joint.mask is not None and isinstance(found := devices.at(joint.mask), Found):
        return _complete(ask, joint, found, devices, seen)
    # A set was elected and the devices are not on it: a policy that must hold refuses the node.
    if policy in HARD and joint.mask is not None:
        return _refused(devices.at(joint.mask))
    why: Found | str = ""
    for mask in _own_sets(policy, devices, _room(ask, seen, policy)):
        why = devices.at(mask)
        if isinstance(why, Found):
            return _complete(ask, joint, why, devices, seen)
    # Preferred only: devices anywhere are better than no placement.
    return _refused(why) if policy in HARD else _complete(ask, joint, anywhere, devices, seen)


def _is_near(found: Found, placement: Placement) -> bool:
    """Is everything on the pod's NUMA nodes, or on one where it has none?"""
    if placement.mask is not None:
        return found.is_near(placement.mask)
    return bool(found.places) and found.on_one


def aligned_by_claims_only(ask: SchedulingRequest, seen: NodeSnapshot) -> bool:
    """Does the pod demand NUMA nodes where only its claims could align it?"""
    if ask.request.numa.policy not in HARD:
        return False
    offer = seen.offer
    if isinstance(offer, KubeletView):
        return _policy_of_kubelet_is_none(offer)
    return isinstance(offer, Inventory) and not offer.zones


def _refuse_without_cpus(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    """Of a pod whose claims hold no CPUs: does it depend here on claims that do?"""
    if aligned_by_claims_only(ask, seen):
        # Neither a topology nor the claims say where CPUs are: a policy that must hold cannot be checked.
        detail = (
            f"the pod wants {policy_of_devices(ask, seen)}, nothing on the node aligns its CPUs, and it claims none"
        )
        return Rejection(Reason.NUMA_POLICY, NO_CPUS_BY_CLAIM, detail, resolvable=False)
    if isinstance(ask.demand, Rejection) or not isinstance(seen.offer, Inventory):
        return None
    return NO_CPUS_WITHOUT_CLAIM if own_cpus_by_claim(ask.demand, seen.offer.traits) else None


def _policy_of_kubelet_is_none(view: KubeletView) -> bool:
    return view.state.node.config.topology_policy in (None, KubeletPolicy.NONE)


def _refused(why: Found | str) -> Rejection:
    detail = why if isinstance(why, str) and why != NO_SOLUTION else ""
    return Rejection(Reason.CLAIM_ALIGNMENT, NOT_TOGETHER, detail)


def policy_of_devices(ask: SchedulingRequest, seen: NodeSnapshot) -> NumaPolicy:
    """The policy that devices are placed by: a kubelet's own does not concern them, the pod's does."""
    if isinstance(seen.offer, Inventory) and seen.offer.zones and not isinstance(ask.demand, Rejection):
        return policy_in_force(ask.demand, seen.offer)
    return ask.request.numa.policy


def _joint(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, devices: ClaimDevices) -> Placement:
    """The placement by the merge of all resources with the devices, where ours alone is none for these; the former one if none is found."""
    # The former set holds the devices too: nothing to change.
    if placement.mask is None or not isinstance(seen.offer, Inventory) or devices.fits(placement.mask):
        return placement
    again = place(ask, seen, devices)
    return placement if isinstance(again, Rejection) else again


def _own_sets(policy: NumaPolicy, devices: ClaimDevices, room: Callable[[int], bool]) -> Iterator[int]:
    """
    Sets for devices that have no set of the pod to follow, the narrowest first.

    Under Restricted they are of the size that an empty node would need.
    """
    places = devices.places
    if policy is not NumaPolicy.RESTRICTED:
        singles = [1 << numa for numa in numa_ids(places) if room(1 << numa)]
        yield from sorted(singles, key=devices.crowding)
        return
    for size in range(1, places.bit_count() + 1):
        # comb(n, size) sets: wider ones are not listed, and a kubelet's policy would refuse them on such machines.
        if comb(places.bit_count(), size) > LISTED:
            return
        masks = masks_of_size(places, size)
        if any(devices.fits_if_empty(mask) for mask in masks):
            yield from filter(room, masks)
            return


def _room(ask: SchedulingRequest, seen: NodeSnapshot, policy: NumaPolicy) -> Callable[[int], bool]:
    """
    Have the zones of a set the memory and huge pages that the pod asks for?

    Asked where a kubelet places nothing and the pod's policy demands NUMA nodes: only its claims align it there.
    """
    offer = seen.offer
    topology = offer.topology if isinstance(offer, KubeletView) and policy in HARD else None
    if topology is None:
        return lambda _: True
    wanted = {name: amount for name, amount in ask.amounts.items() if name == MEMORY or name.startswith("hugepages-")}
    zones = {zone.numa: zone.available for zone in topology.zones}
    listed = {name for available in zones.values() for name in available}

    def room(mask: int) -> bool:
        there = [zones.get(numa, {}) for numa in numa_ids(mask)]
        return all(
            sum(zone.get(name, 0) for zone in there) >= amount for name, amount in wanted.items() if name in listed
        )

    return room


def _complete(
    ask: SchedulingRequest, placement: Placement, found: Found, devices: ClaimDevices, seen: NodeSnapshot
) -> Placement:
    # Half for the place, half for the chosen alternatives.
    points = (_alignment_points(placement, found, seen) + _preference_points(found, devices)) // 2
    note = _kubelet_note(placement, found) if isinstance(seen.offer, KubeletView) else ""
    if placement.mask is None and isinstance(seen.offer, Inventory) and devices.holds_cpus(found):
        where = f", on NUMA {ids_text(found.numa)}" if found.numa else ""
        placement = replace(placement, note=f"neither pod nor node names a NUMA policy; its CPUs come by claim{where}")
    by_entry = {claim.name: it for claim, it in zip(devices.claims.to_allocate, found.allocations, strict=True)}
    return replace(
        placement,
        allocations=found.allocations,
        claim_points=points,
        note="; ".join(filter(None, (placement.note, note, *unequal_cpus(ask.request.containers, by_entry)))),
    )


def _alignment_points(placement: Placement, found: Found, seen: NodeSnapshot) -> int:
    """100 where devices are on the pod's NUMA nodes, or on one where it has none; 50 on one that is not known to be the pod's; else 0."""
    if placement.mask is None:
        pinned = isinstance(seen.offer, KubeletView) and seen.offer.state.node.config.cpu_policy == "static"
        return (MAX_SCORE // 2 if pinned and found.numa else MAX_SCORE) if found.on_one else 0
    if found.is_near(placement.mask):
        return MAX_SCORE
    return MAX_SCORE // 2 if found.on_one else 0


def _preference_points(found: Found, devices: ClaimDevices) -> int:
    """
    What chosen alternatives of ``firstAvailable`` are worth: 100 when all are the first ones (dynamicresources Score, ``8 - index``).
    """
    best = devices.best_score()
    return MAX_SCORE if not best else min(MAX_SCORE, MAX_SCORE * found.score // best)


def _kubelet_note(placement: Placement, found: Found) -> str:
    """A kubelet's topology manager knows nothing of claims: what that means for this pod."""
    if not found.numa:
        return ""
    where = f"devices of claims are on NUMA {ids_text(found.numa)}"
    if placement.mask is None:
        return f"{where}; its kubelet does not align the pod with them"
    if not found.is_near(placement.mask):
        return f"{where}, apart from NUMA {ids_text(placement.mask)}, where its kubelet is expected to put the pod"
    return f"{where}, where its kubelet, which does not align devices of claims, is expected to put the pod"
