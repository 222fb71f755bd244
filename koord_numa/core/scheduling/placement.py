"""Placement of a pod on a node: CPUs, NUMA nodes and devices of claims, or the predicted admission by a kubelet."""

from collections.abc import Callable, Iterator
from math import comb
from typing import Final

from koord_numa.core.allocation.allocate import allocate_demand, policy_in_force
from koord_numa.core.allocation.demand import NO_CPUS_WITHOUT_CLAIM, own_cpus_by_claim
from koord_numa.core.allocation.numa_offers import DeviceHints
from koord_numa.core.claims import NO_SOLUTION, ClaimAllocations, ClaimDevices, ids_text, unequal_cpus
from koord_numa.core.devices import NUMA_SCOPED, Chosen, NodeDeviceHints, Shortage, node_devices, rejection
from koord_numa.core.kubelet import (
    NOT_SURELY_ALIGNED,
    KubeletView,
    pod_demand,
    refuse_exploration,
    refuse_promises,
    refuse_unpinned,
    refuse_unsure,
    would_admit,
)
from koord_numa.core.numa import masks_of_size, numa_ids
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Alignment, Exclusivity, Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NO_NUMA_POLICY,
    NOT_EXCLUSIVE,
    NUMA_PREFERRED,
    KubeletPolicy,
    KubeletScope,
    KubeQos,
    NumaPolicy,
)
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, total
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.score.node_scores import MAX_SCORE
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace

_NOT_BY_KUBELETS: Final = "its kubelet chooses the CPUs: no exclusive policy is honored"


def place(ask: SchedulingRequest, seen: NodeSnapshot, devices: DeviceHints | None = None) -> Placement | Rejection:
    """
    Return the placement of the pod on this node, or the rejection by a rule about CPUs and NUMA nodes.

    ``devices`` of its claims are placed on the same NUMA nodes where the scheduler chooses them; a kubelet ignores them. Devices by id
    (Device object) take part in the same way.
    """
    own = node_devices(ask.request, seen.devices, seen.ledger)
    if own is None or isinstance(own, Rejection):
        return own or _place(ask, seen, devices)
    return _place_with_devices(ask, seen, own, devices)


def _place(ask: SchedulingRequest, seen: NodeSnapshot, devices: DeviceHints | None) -> Placement | Rejection:
    """Return the placement without devices by id."""
    offer = seen.offer
    if isinstance(offer, Rejection):
        return offer
    if isinstance(offer, Inventory):
        return _chosen(ask, offer, seen.ledger, devices)
    # Configuration first: what no kubelet guarantees is rejected without replaying the admission.
    if refusal := refuse_by_kubelet_config(ask, offer.state.node.config):
        return refusal
    admission = would_admit(ask.request, offer)
    if isinstance(admission, Rejection):
        return admission
    if refusal := refuse_exploration(ask.request, offer, admission, ask.kubelet_options):
        return refusal
    any_of_mask = False
    if admission.mask is None:
        alignment = Alignment.NOT_ATTEMPTED
    else:
        any_of_mask = admission.mask.bit_count() > 1 and _takes_one(ask.request, offer)
        is_aligned = any_of_mask or admission.mask.bit_count() == 1
        alignment = Alignment.ALIGNED if is_aligned else Alignment.UNALIGNED
    # An exclusive policy that a kubelet does not support is reported as broken.
    ignored = ask.request.bind.exclusive is not NOT_EXCLUSIVE or ask.request.numa.exclusive is NUMA_PREFERRED
    return Placement(
        node=seen.node.name,
        numa=admission.numa if _is_certain(admission.numa, ask.amounts) else (),
        mask=admission.mask,
        any_of_mask=any_of_mask,
        alignment=alignment,
        exclusivity=Exclusivity.BROKEN if ignored else Exclusivity.HONOURED,
        note="; ".join(filter(None, (admission.note, _NOT_BY_KUBELETS if ignored else ""))),
        explores=admission.explores,
    )


class _Together(ValueObject):
    """
    Hint provider for devices by id, together with those of the pod's claims.

    ``best``: only sets of NUMA nodes with exactly these devices fit, if they are given.
    """

    own: NodeDeviceHints
    claims: DeviceHints | None
    best: Chosen | None = None

    def fits(self, mask: int) -> bool:
        """Return whether both have devices on the NUMA nodes."""
        chosen = self.own.at(mask)
        fits = isinstance(chosen, Chosen) if self.best is None else chosen == self.best
        return fits and (self.claims is None or self.claims.fits(mask))

    def fits_if_empty(self, mask: int) -> bool:
        """Return whether both would have devices on the NUMA nodes if none were in use."""
        return self.own.fits_if_empty(mask) and (self.claims is None or self.claims.fits_if_empty(mask))


def _place_with_devices(
    ask: SchedulingRequest, seen: NodeSnapshot, own: NodeDeviceHints, claims: DeviceHints | None
) -> Placement | Rejection:
    """
    Return the placement with devices by id, on the NUMA nodes of the pod if its policy requires or permits that.

    The devices that the node would choose without NUMA nodes come first, as in Koordinator's topology_hint.go: they determine the NUMA
    nodes of equally wide placements.
    """
    best = own.at(0)
    if isinstance(best, Shortage):
        return rejection(best)
    if isinstance(seen.offer, Inventory):
        first = _on_devices(ask, seen, (own, claims, best))
        if not isinstance(first, Placement) or first.devices:
            return first
        placement = first
    else:
        answer = _place(ask, seen, claims)
        if isinstance(answer, Rejection):
            return answer
        placement = answer
    hard = policy_of_devices(ask, seen) in HARD
    if placement.mask is None:
        chosen = (
            _without_numa_nodes(ask, seen, own, placement) if hard else _nearest(own, _numa_of_cpus(seen, placement))
        )
        return rejection(chosen) if isinstance(chosen, Shortage) else _with_devices(placement, own, chosen)
    chosen = own.at(placement.mask)
    if chosen != best and (found := _on_other_numa_nodes(ask, seen, (own, claims, best), placement)) is not None:
        return found
    if isinstance(chosen, Chosen):
        return _with_devices(placement, own, chosen)
    if hard:
        return Rejection(Reason.DEVICES, NUMA_SCOPED, chosen.detail)
    chosen = _nearest(own, placement.mask)
    return rejection(chosen) if isinstance(chosen, Shortage) else _with_devices(placement, own, chosen)


def _on_devices(
    ask: SchedulingRequest, seen: NodeSnapshot, hints: tuple[NodeDeviceHints, DeviceHints | None, Chosen]
) -> Placement | Rejection:
    """Return the placement on the NUMA node of the devices; if there is none, the placement or rejection without devices."""
    own, claims, best = hints
    wanted: Chosen | None = best
    if own.places and policy_of_devices(ask, seen) is NumaPolicy.SINGLE_NUMA_NODE:
        # Both are cached, and cheaper than a placement of CPUs.
        if not any(own.fits(1 << numa) for numa in numa_ids(own.places)):
            return rejection(own.best_shortage())
        if own.numa_of(best).bit_count() > 1:
            wanted = None
    placement = _place(ask, seen, _Together(own, claims, wanted))
    if isinstance(placement, Placement) and placement.mask is None:
        return placement
    if isinstance(placement, Placement) and placement.numa_nodes == 1 and placement.mask is not None:
        chosen = own.at(placement.mask)
        if isinstance(chosen, Chosen) and (wanted is None or chosen == best):
            return _with_devices(placement, own, chosen)  # the usual case: nothing is narrower
    return _place(ask, seen, claims)


def _on_other_numa_nodes(
    ask: SchedulingRequest,
    seen: NodeSnapshot,
    hints: tuple[NodeDeviceHints, DeviceHints | None, Chosen],
    placement: Placement,
) -> Placement | None:
    """
    Return the placement on the NUMA nodes of the best devices if it is as good, ``None`` otherwise.

    If the NUMA nodes of the former placement have no devices, any NUMA nodes are acceptable.
    """
    if not isinstance(seen.offer, Inventory):
        return None
    own, claims, best = hints
    fits = own.fits(placement.mask or 0)
    for together in (_Together(own, claims, best), _Together(own, claims))[: 1 if fits else 2]:
        again = _place(ask, seen, together)
        if isinstance(again, Rejection) or again.mask is None or (fits and not _is_as_good(again, placement)):
            continue
        chosen = own.at(again.mask)
        if isinstance(chosen, Chosen) and (together.best is None or chosen == best):
            return _with_devices(again, own, chosen)
    return None


def _is_as_good(again: Placement, placement: Placement) -> bool:
    return again.numa_nodes <= placement.numa_nodes and again.alignment is placement.alignment


def _without_numa_nodes(
    ask: SchedulingRequest, seen: NodeSnapshot, own: NodeDeviceHints, placement: Placement
) -> Chosen | Shortage:
    """Return the devices of a pod that no NUMA nodes were chosen for. Its required policy then holds for CPUs and devices alone."""
    if not own.places:
        return own.at(0)
    cpus = _numa_of_cpus(seen, placement)
    widest = 1 if policy_of_devices(ask, seen) is NumaPolicy.SINGLE_NUMA_NODE else own.places.bit_count()
    for size in range(1, widest + 1):
        masks = masks_of_size(own.places, size)
        if size == widest or any(own.fits_if_empty(mask) for mask in masks):
            return min(
                (own.at(mask) for mask in masks if not cpus & ~mask),
                key=lambda found: isinstance(found, Shortage),
                default=Shortage(NUMA_SCOPED, f"the CPUs of the pod are on NUMA {ids_text(cpus)}"),
            )
    return own.at(0)


def _numa_of_cpus(seen: NodeSnapshot, placement: Placement) -> int:
    """Return the NUMA nodes of the exclusive CPUs of a placement, 0 if they are not known."""
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    return 0 if machine is None else machine.numa_of(placement.cpus)


def _nearest(own: NodeDeviceHints, mask: int) -> Chosen | Shortage:
    """Return devices that may be anywhere, preferably on these NUMA nodes."""
    near = own.at(mask)
    return near if isinstance(near, Chosen) else own.at(0, mask)


def _with_devices(placement: Placement, own: NodeDeviceHints, chosen: Chosen) -> Placement:
    note = placement.note if own.offer.injected else "; ".join(filter(None, (placement.note, NOT_INJECTED)))
    return replace(placement, devices=own.grants(chosen), device_points=own.points(), note=note)


NOT_INJECTED: Final = "no agent injects the chosen devices on this node: the device plugin chooses"


def _takes_one(request: PodRequest, view: KubeletView) -> bool:
    """Return whether the kubelet admits the pod only on a single NUMA node and aligns it as a whole."""
    config, demand = view.state.node.config, pod_demand(request)
    if config.topology_scope is not KubeletScope.POD and len(demand.containers) != 1:
        return False
    if config.topology_policy is KubeletPolicy.RESTRICTED and view.frame is not None:
        # Only the smallest sets that could hold it on the empty node are preferred, by resource.
        wanted = {CPU: demand.pod.cpus * MILLI, **(demand.pod.memory or {}), **demand.pod.devices}
        most = {name: max(zone.allocatable.get(name, 0) for zone in view.frame.topology.zones) for name in wanted}
        return not [name for name, amount in wanted.items() if amount > most[name] > 0]
    return config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE


def _is_certain(numa: tuple[tuple[int, ResourceList], ...], requested: ResourceList) -> bool:
    """Return whether the amounts are certain. If they exceed the request, they are possible NUMA nodes and are not written as a result."""
    held = numa[0][1] if len(numa) == 1 else total(amounts for _, amounts in numa)
    return not [name for name, amount in held.items() if amount > requested.get(name, 0)]


def refuse_by_kubelet_config(ask: SchedulingRequest, config: KubeletConfig) -> Rejection | None:
    """Reject a pod that demands what a kubelet with this configuration never guarantees, whatever its state."""
    return refuse_promises(_aligned_by_kubelet(ask, config), config, may_claim_cpus=ask.claims is not None)


def _aligned_by_kubelet(ask: SchedulingRequest, config: KubeletConfig) -> PodRequest:
    """
    Return the pod without a NUMA policy if the kubelet has none and the pod has claims.

    The CPUs of such a pod can be claimed too, and the devices of its claims then satisfy its policy (``place_devices``).
    """
    request = ask.request
    if ask.claims is None or config.topology_policy not in (None, KubeletPolicy.NONE):
        return request
    return replace(request, numa=replace(request.numa, policy=NO_NUMA_POLICY))


def _may_be_aligned(request: PodRequest) -> bool:
    """Return whether a kubelet with unknown settings may bind the pod to NUMA nodes: Guaranteed pods, and pods with devices."""
    parts = [part for _, part in pod_demand(request).containers]
    return kube_qos(request) is KubeQos.GUARANTEED or any(part.devices for part in parts)


def _chosen(
    ask: SchedulingRequest, offer: Inventory, ledger: Ledger, devices: DeviceHints | None
) -> Placement | Rejection:
    """Return the scheduler's placement, unless a strict kubelet beside the agent might align the pod elsewhere or reject it."""
    if isinstance(ask.demand, Rejection):
        return ask.demand
    if offer.kubelet_unknown and _may_be_aligned(ask.request):
        return Rejection(Reason.BAD_TOPOLOGY, NOT_SURELY_ALIGNED, offer.problem, resolvable=False)
    demand = ask.demand
    if ask.claims is not None and not offer.zones and not offer.problem:
        demand = replace(
            demand, numa=NO_NUMA_POLICY
        )  # as for a kubelet without a policy: claims may provide what no topology publishes
    granted = allocate_demand(demand, offer, ledger, devices)
    # After a placement was found, because the worst-case check is more expensive.
    if offer.aligner is None or isinstance(granted, Rejection):
        return granted
    return refuse_unsure(ask.request, offer.aligner, ledger) or granted


HARD: Final = frozenset({NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED})
"""Policies that require devices on the NUMA nodes of the pod."""

NOT_TOGETHER: Final = "cannot allocate all claims on the NUMA nodes of the pod"
NO_CPUS_BY_CLAIM: Final = "node(s) NUMA Topology policy not match"

LISTED: Final = 256
"""Maximum number of NUMA sets that are tried for devices only."""


def place_devices(
    ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, devices: ClaimDevices
) -> Placement | Rejection:
    """
    Return the placement with an allocation for each claim, on other NUMA nodes if only those have all resources.

    The message of a rejection is the allocator's if there are too few devices, else that they are not on the required NUMA nodes.
    """
    # 0 means "anywhere": without a solution there, no NUMA set has a solution.
    anywhere = devices.at(0)
    if isinstance(anywhere, str):
        return Rejection(Reason.RESOURCE_CLAIMS, anywhere)
    policy = policy_of_devices(ask, seen)
    cpus_by_claim = devices.holds_cpus(anywhere)
    if not cpus_by_claim and (refusal := _refuse_without_cpus(ask, seen)):
        return refusal
    # Devices without a NUMA node fit every set, so that nothing is left to align.
    if not devices.places:
        if policy in HARD and cpus_by_claim:
            return _refused("on which NUMA nodes its CPUs are is not published")
        return _complete(ask, placement, anywhere, devices, seen)
    if policy not in HARD and _is_near(anywhere, placement):
        return _complete(ask, placement, anywhere, devices, seen)  # already optimal
    # Merge again with devices as a provider, because they may exclude the set that was chosen without them.
    joint = _joint(ask, seen, placement, devices)
    if joint.mask is not None and isinstance(found := devices.at(joint.mask), ClaimAllocations):
        return _complete(ask, joint, found, devices, seen)
    # A set was chosen and the devices are not on it: a required policy rejects the node.
    if policy in HARD and joint.mask is not None:
        return _refused(devices.at(joint.mask))
    why: ClaimAllocations | str = ""
    for mask in _own_sets(policy, devices, _room(ask, seen, policy)):
        why = devices.at(mask)
        if isinstance(why, ClaimAllocations):
            return _complete(ask, joint, why, devices, seen)
    # Preferred only: devices on any NUMA node are better than no placement.
    return _refused(why) if policy in HARD else _complete(ask, joint, anywhere, devices, seen)


def _is_near(found: ClaimAllocations, placement: Placement) -> bool:
    """Return whether all devices are on the pod's NUMA nodes, or on a single NUMA node if the pod has none."""
    if placement.mask is not None:
        return found.is_near(placement.mask)
    return bool(found.places) and found.on_one


def aligned_by_claims_only(ask: SchedulingRequest, seen: NodeSnapshot) -> bool:
    """Return whether the pod requires alignment that only its claims could provide."""
    if ask.request.numa.policy not in HARD:
        return False
    offer = seen.offer
    if isinstance(offer, KubeletView):
        return offer.state.node.config.topology_policy in (None, KubeletPolicy.NONE)
    return isinstance(offer, Inventory) and not offer.zones


def _refuse_without_cpus(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    """Return the rejection of a pod that depends on claims for CPUs on this node and whose claims hold no CPUs."""
    if aligned_by_claims_only(ask, seen):
        # Neither a topology nor the claims publish the NUMA nodes of CPUs: a required policy cannot be checked.
        detail = (
            f"the pod wants {policy_of_devices(ask, seen)}, nothing on the node aligns its CPUs, and it claims none"
        )
        return Rejection(Reason.NUMA_POLICY, NO_CPUS_BY_CLAIM, detail, resolvable=False)
    if isinstance(seen.offer, KubeletView):
        return refuse_unpinned(ask.request, seen.offer.state.node.config)
    if isinstance(ask.demand, Rejection) or not isinstance(seen.offer, Inventory):
        return None
    return NO_CPUS_WITHOUT_CLAIM if own_cpus_by_claim(ask.demand, seen.offer.traits) else None


def _refused(why: ClaimAllocations | str) -> Rejection:
    detail = why if isinstance(why, str) and why != NO_SOLUTION else ""
    return Rejection(Reason.CLAIM_ALIGNMENT, NOT_TOGETHER, detail)


def policy_of_devices(ask: SchedulingRequest, seen: NodeSnapshot) -> NumaPolicy:
    """Return the policy for placing devices: that of the pod. A kubelet's policy does not apply to them."""
    if isinstance(seen.offer, Inventory) and seen.offer.zones and not isinstance(ask.demand, Rejection):
        return policy_in_force(ask.demand, seen.offer)
    return ask.request.numa.policy


def _joint(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, devices: ClaimDevices) -> Placement:
    """Return the placement merged with the devices where the scheduler allocates; the former placement if none is found."""
    # The former set holds the devices too.
    if placement.mask is None or not isinstance(seen.offer, Inventory) or devices.fits(placement.mask):
        return placement
    again = place(ask, seen, devices)
    return placement if isinstance(again, Rejection) else again


def _own_sets(policy: NumaPolicy, devices: ClaimDevices, room: Callable[[int], bool]) -> Iterator[int]:
    """
    Yield NUMA sets for devices if the pod has no set, smallest first.

    Under Restricted they have the size that an empty node would need.
    """
    places = devices.places
    if policy is not NumaPolicy.RESTRICTED:
        singles = [1 << numa for numa in numa_ids(places) if room(1 << numa)]
        yield from sorted(singles, key=devices.crowding)
        return
    for size in range(1, places.bit_count() + 1):
        # comb(n, size) sets: larger sets are not listed, and a kubelet's policy would reject them on such machines.
        if comb(places.bit_count(), size) > LISTED:
            return
        masks = masks_of_size(places, size)
        if any(devices.fits_if_empty(mask) for mask in masks):
            yield from filter(room, masks)
            return


def _room(ask: SchedulingRequest, seen: NodeSnapshot, policy: NumaPolicy) -> Callable[[int], bool]:
    """
    Return a check whether the zones of a set have the requested memory and huge pages.

    Used where the kubelet aligns nothing and the pod's policy requires NUMA nodes: only its claims align it there.
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
    ask: SchedulingRequest, placement: Placement, found: ClaimAllocations, devices: ClaimDevices, seen: NodeSnapshot
) -> Placement:
    # Half for the distance, half for the chosen alternatives.
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


def _alignment_points(placement: Placement, found: ClaimAllocations, seen: NodeSnapshot) -> int:
    """Return 100 if devices are on the pod's NUMA nodes, or on one if it has none; 50 on one not known to be the pod's; else 0."""
    if placement.mask is None:
        pinned = isinstance(seen.offer, KubeletView) and seen.offer.state.node.config.cpu_policy == "static"
        return (MAX_SCORE // 2 if pinned and found.numa else MAX_SCORE) if found.on_one else 0
    if found.is_near(placement.mask):
        return MAX_SCORE
    return MAX_SCORE // 2 if found.on_one else 0


def _preference_points(found: ClaimAllocations, devices: ClaimDevices) -> int:
    """Return the points for chosen alternatives of ``firstAvailable``: 100 if all are first (dynamicresources Score, ``8 - index``)."""
    best = devices.best_score()
    return MAX_SCORE if not best else min(MAX_SCORE, MAX_SCORE * found.score // best)


def _kubelet_note(placement: Placement, found: ClaimAllocations) -> str:
    """Return a note for this pod, because a kubelet's topology manager does not consider claims."""
    if not found.numa:
        return ""
    where = f"devices of claims are on NUMA {ids_text(found.numa)}"
    if placement.mask is None:
        return f"{where}; its kubelet does not align the pod with them"
    if not found.is_near(placement.mask):
        return f"{where}, apart from NUMA {ids_text(placement.mask)}, where its kubelet is expected to put the pod"
    return f"{where}, where its kubelet, which does not align devices of claims, is expected to put the pod"
