"""Claims of pods in decisions: resolution, the allocation of each claim, and the claim for extended resources."""

from collections.abc import Iterator, Sequence

from koord_numa.core.claims import IN_MEMORY, ExtendedClaim, Served, cpus_of, extended_claim, extended_requests
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.claims import (
    Allocation,
    ClaimSpec,
    ClaimToAllocate,
    DeviceId,
    DeviceResult,
    MadeClaim,
    PodClaims,
    PodResourceClaim,
    ResourceClaim,
)
from koord_numa.core.objects.gangs import GroupClaim, PodGroup
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.value_objects import MutableObject, replace
from koord_numa.engine.claims.lister import AssumedClaim, ClaimKey, ClaimLister
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.ports import Conflict, Dependencies, Gone


async def still_waits(dependencies: Dependencies, pod: PodKey) -> bool:
    """Return whether the pod exists without a node. The ResourceClaim controller releases the reservations of deleted pods."""
    return await _has_no_node(dependencies, pod, gone=False)


async def is_nowhere(dependencies: Dependencies, pod: PodKey) -> bool:
    """Return whether the pod has no node or is gone. Objects created for it alone are not needed any more."""
    return await _has_no_node(dependencies, pod, gone=True)


async def _has_no_node(dependencies: Dependencies, pod: PodKey, *, gone: bool) -> bool:
    if not dependencies.lease.fresh():
        return False
    try:
        seen = await dependencies.binder.read_pod(pod)
    except Gone:
        return gone
    return not seen.node


MAX_RESERVATIONS = 256
"""Maximum number of pods per claim (resource/v1 ResourceClaimReservedForMaxSize)."""


class PodClaimResolver:
    """Resolver of the claims of pods. It tracks which waiting pods refer to a claim, so that its changes reach them."""

    def __init__(self, lister: ClaimLister, groups: PodGroups | None = None) -> None:
        self._lister = lister
        self._groups = PodGroups() if groups is None else groups
        self._users: dict[ClaimKey, set[str]] = {}
        self._keys: dict[str, tuple[ClaimKey, ...]] = {}

    def of(self, pod: Pod) -> PodClaims | None:
        """Return the pod's claims and the extended resources that classes serve, for a decision; ``None`` without any."""
        resources = extended_requests(pod.request)
        if not pod.resource_claims and not resources:
            return None
        made = self._lister.made_for(pod.key.uid)
        # Registered first, so that a later claim or class reaches the pod.
        self._remember(pod, made)
        served = self._lister.extended.served(resources) if self._lister.serves_extended else ()
        if not pod.resource_claims and not served and made is None:
            return None
        if not self._lister.enabled:
            return PodClaims(problem="the pod uses resource claims, which are switched off here (dynamicResources)")
        if not self._lister.known:
            return PodClaims(
                problem="waiting for ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules to be listed"
            )
        found: list[ResourceClaim] = []
        for entry in pod.resource_claims:
            if entry.needed:
                claim = self._claim(pod, entry)
                if isinstance(claim, str):
                    return PodClaims(problem=claim)
                found.append(claim)
        if made is not None and made.deleting:
            return PodClaims(problem=f'resourceclaim "{made.name}" of an earlier attempt is being deleted')
        return self._meaning(pod, found, served, made)

    def claims_of(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Yield the claims of a pod for which ``of`` found no problem, in their order."""
        for claim, _ in self.claims_with_groups(pod):
            yield claim

    def claims_with_groups(self, pod: Pod) -> Iterator[tuple[ResourceClaim, PodGroup | None]]:
        """Yield the claims as ``claims_of``, with the PodGroup that a claim belongs to."""
        for entry in pod.resource_claims:
            claim = self._claim(pod, entry) if entry.needed else ""
            if isinstance(claim, ResourceClaim):
                yield claim, self.group_of(pod, entry)

    def group_of(self, pod: Pod, entry: PodResourceClaim) -> PodGroup | None:
        """
        Return the PodGroup whose claim the entry stands for, ``None`` for a claim of the pod itself.

        It has an entry of the same name with the same claim or template (KEP-5729).
        """
        ref = pod.request.gang
        group = None if ref is None else self._groups.objects.get(ref.key)
        if group is None or not group.spec.claims:
            return None
        named = GroupClaim(entry.name, "" if entry.from_template else entry.claim, entry.template)
        return group if named in group.spec.claims else None

    def name_of(self, pod: Pod, entry: PodResourceClaim) -> str:
        """Return the name of the claim of an entry; empty until it is created."""
        group = self.group_of(pod, entry) if entry.from_template else None
        return entry.claim if group is None else dict(group.claim_names).get(entry.name, "")

    def uses(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Return whether the pod names the claim, itself or by its PodGroup."""
        return pod.key.namespace == claim.namespace and any(
            self.name_of(pod, entry) == claim.name for entry in pod.resource_claims
        )

    def allocation_of(self, pod: Pod, claim: ResourceClaim) -> Allocation | None:
        """Return the devices of a claim: as written, or as decided for another pod of the group."""
        if claim.allocation is not None:
            return claim.allocation
        assumed = self._lister.assumed.get(claim.uid)
        return assumed.allocation if assumed is not None and self._is_companion(pod, assumed) else None

    def _is_companion(self, pod: Pod, assumed: AssumedClaim) -> bool:
        ref = pod.request.gang
        if ref is None or assumed.gang is None or assumed.pod == pod.key.uid:
            return False
        return assumed.gang == ref.key or assumed.gang in self._groups.group(ref.key)[0]

    def users(self, key: ClaimKey | None) -> Sequence[str]:
        """Return the UIDs of waiting pods that refer to the claim; with ``None``, of all pods that refer to any claim."""
        if key is None:
            return tuple(self._keys)
        claim = self._lister.claim(key)
        owner = claim.owner if claim is not None and claim.extended else ""
        # The pod does not name its claim for extended resources before it is used.
        return tuple(self._users.get(key, set()) | ({owner} if owner else set()))

    def forget(self, uid: str) -> None:
        """Remove a pod that is not waiting any more."""
        for key in self._keys.pop(uid, ()):
            users = self._users.get(key)
            if users is not None:
                users.discard(uid)
                if not users:
                    del self._users[key]

    # By current names: a template's claim has no name until it is created.
    def _remember(self, pod: Pod, made: ResourceClaim | None) -> None:
        named = (self.name_of(pod, entry) for entry in pod.resource_claims)
        names = [name for name in named if name] + ([made.name] if made is not None else [])
        keys = tuple((pod.key.namespace, name) for name in names)
        # Most observations change nothing.
        if self._keys.get(pod.key.uid) != keys:
            self.forget(pod.key.uid)
            self._keys[pod.key.uid] = keys
            for key in keys:
                self._users.setdefault(key, set()).add(pod.key.uid)

    def _claim(self, pod: Pod, entry: PodResourceClaim) -> ResourceClaim | str:
        name, group = self.name_of(pod, entry), self.group_of(pod, entry)
        if not name:
            owner = f'pod "{pod.key}"' if group is None else f"PodGroup {group.key}"
            return f"{owner}: ResourceClaim not created yet"
        claim = self._lister.claim((pod.key.namespace, name))
        if claim is None:
            return f'resourceclaim "{name}" not found'
        if claim.deleting:
            return f'resourceclaim "{name}" is being deleted'
        # ``resourceclaim.IsForPod`` of kube-scheduler: another pod's claim of the same name must not be used.
        if entry.from_template and group is None and claim.owner != pod.key.uid:
            return f"ResourceClaim {claim.namespace}/{claim.name} was not created for Pod {pod.key} (Pod is not owner)"
        if entry.from_template and group is not None and claim.owner != group.uid:
            return f"ResourceClaim {claim.namespace}/{claim.name} was not created for PodGroup {group.key} (PodGroup is not owner)"
        return claim

    def _meaning(
        self, pod: Pod, claims: Sequence[ResourceClaim], served: Served, made: ResourceClaim | None
    ) -> PodClaims:
        wanted: list[ClaimToAllocate] = []
        held: list[Allocation] = []
        takes: list[tuple[str, tuple[DeviceResult, ...]]] = []
        names = [entry.name for entry in pod.resource_claims if entry.needed]
        for name, claim in zip(names, claims, strict=True):
            problem = self._unusable(pod, claim)
            if problem:
                return PodClaims(problem=problem)
            allocation = self.allocation_of(pod, claim)
            if allocation is None:
                # Named after the entry instead of the claim, so that pods of one template share a class.
                wanted.append(ClaimToAllocate("", name, claim.spec))
                continue
            held.append(allocation)
            if any(self._lister.takes_resources(result.device) for result in allocation.results):
                # Share ids distinguish equal claims and are irrelevant here.
                takes.append((name, tuple(replace(it, share_id="") for it in allocation.results)))
        if made is not None and made.allocation is not None:
            held.append(made.allocation)
        return PodClaims(
            tuple(wanted),
            tuple(allocation.nodes for allocation in held if allocation.nodes is not None),
            devices=tuple(result.device for allocation in held for result in allocation.results),
            cpus=CpuSet.of(cpu for allocation in held for cpu in cpus_of(allocation)),
            extended=served,
            held=tuple(takes),
            made=None if made is None else MadeClaim(made.spec.requests, made.allocation is not None),
        )

    def _unusable(self, pod: Pod, claim: ResourceClaim) -> str:
        if claim.problem:
            return f"the claim is malformed: {claim.problem}"
        assumed = self._lister.assumed.get(claim.uid)
        # Assumed for another pod, whose node is not certain yet.
        if assumed is not None and assumed.pod != pod.key.uid and not self._is_companion(pod, assumed):
            return f"resource claim {claim.namespace}/{claim.name} is in the process of being allocated"
        # KEP-5517: a device that maps to CPUs or memory of the node counts for one pod.
        others = claim.other_consumers or any(uid != pod.key.uid for uid in claim.reserved_for)
        allocation = self.allocation_of(pod, claim)
        others = others or (allocation is not None and claim.allocation is None)
        if others and allocation is not None and any(map(self._lister.is_mapped, _devices(allocation))):
            return f"node allocatable resource claim {claim.name} has a mapped device and cannot be shared across pods"
        reservations = len(claim.reserved_for) + claim.other_consumers
        # A pod with a reservation needs no other.
        if reservations >= MAX_RESERVATIONS and pod.key.uid not in claim.reserved_for:
            return (
                f"resource claim {claim.namespace}/{claim.name} is reserved for {reservations} pods, which is the limit"
            )
        if allocation is None:
            for request in claim.spec.requests:
                for index, demand in enumerate(request.alternatives):
                    if demand.device_class not in self._lister.classes:
                        return (
                            f"request {request.result_name(index)}: device class {demand.device_class} does not exist"
                        )
        return ""


def _devices(allocation: Allocation) -> Iterator[DeviceId]:
    return (result.device for result in allocation.results)


class ClaimWork(MutableObject):
    """
    Claim of the pod with its new allocation, if it has none yet. ``extended`` is set for the claim for extended resources.

    ``group`` is the PodGroup of a claim that is reserved for the group instead of the pod. A claim that is ``awaited`` gets its allocation
    from the cycle of another pod of the group.
    """

    claim: ResourceClaim
    allocation: Allocation | None
    extended: ExtendedClaim | None = None
    group: PodGroup | None = None
    awaited: bool = False

    @property
    def in_memory(self) -> bool:
        """True if the claim does not exist in the API server yet."""
        return self.claim.name == IN_MEMORY


def claim_work(lister: ClaimLister, resolver: PodClaimResolver, pod: Pod, placement: Placement) -> list[ClaimWork]:
    """
    Return the claims of the pod with their new allocations, in the order of ``Placement.allocations``.

    Raises ``Conflict`` when the claims differ from those of the decision, or one of them is assumed for another pod by now.
    """
    work = [
        ClaimWork(
            claim,
            None,
            group=group,
            awaited=claim.allocation is None and resolver.allocation_of(pod, claim) is not None,
        )
        for claim, group in resolver.claims_with_groups(pod)
    ]
    made = lister.made_for(pod.key.uid)
    if placement.extended:
        wanted = extended_claim(pod.request.containers, placement.extended)
        if made is None:
            # An in-memory claim with a provisional UID, until the API server has created it.
            uid = f"{pod.key.uid}/{IN_MEMORY}"
            spec = ClaimSpec(wanted.requests)
            made = ResourceClaim(pod.key.namespace, IN_MEMORY, uid, spec=spec, owner=pod.key.uid, extended=True)
        elif made.deleting or made.spec.requests != wanted.requests:
            raise _changed(pod)
        work.append(ClaimWork(made, None, wanted))
    elif made is not None:
        raise _changed(pod)
    wanting = [it for it in work if it.claim.allocation is None and not it.awaited]
    if len(wanting) != len(placement.allocations) or any(it.claim.uid in lister.assumed for it in wanting):
        raise _changed(pod)
    found = iter(placement.allocations)
    return [
        replace(it, allocation=next(found)) if it.claim.allocation is None and not it.awaited else it for it in work
    ]


def _changed(pod: Pod) -> Conflict:
    return Conflict(f"the claims of pod {pod.key} changed while it was decided on")
