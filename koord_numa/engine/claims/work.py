"""What a decision means for the pod's claims: which of them gets which devices, and the claim for extended resources among them."""

from dataclasses import dataclass

from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.claim import ClaimSpec
from koord_numa.core.claims.extended_resources import IN_MEMORY, ExtendedClaim, extended_claim
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.ports import Conflict


@dataclass(slots=True)
class ClaimWork:
    """A claim of the pod, and its new allocation if it has none. ``extended`` is set for the claim for extended resources."""

    claim: ResourceClaim
    allocation: Allocation | None
    extended: ExtendedClaim | None = None

    @property
    def in_memory(self) -> bool:
        """Does the claim not exist yet?"""
        return self.claim.name == IN_MEMORY


def claim_work(lister: ClaimLister, resolver: PodClaimResolver, pod: Pod, placement: Placement) -> list[ClaimWork]:
    """
    In the order of ``Placement.allocations``. Raises ``Conflict`` when the claims are not those of the decision any more: others, or one
    that is assumed for another pod by now.
    """
    work = [ClaimWork(claim, None) for claim in resolver.claims_of(pod)]
    made = lister.made_for(pod.key.uid)
    if placement.extended:
        wanted = extended_claim(pod.request.containers, placement.extended)
        if made is None:
            made = _in_memory(pod, wanted)
        elif made.deleting or made.spec.requests != wanted.requests:
            raise _changed(pod)
        work.append(ClaimWork(made, None, wanted))
    elif made is not None:
        raise _changed(pod)
    wanting = [it for it in work if it.claim.allocation is None]
    if len(wanting) != len(placement.allocations) or any(it.claim.uid in lister.assumed for it in wanting):
        raise _changed(pod)
    found = iter(placement.allocations)
    return [replace(it, allocation=next(found)) if it.claim.allocation is None else it for it in work]


def _in_memory(pod: Pod, wanted: ExtendedClaim) -> ResourceClaim:
    """Counted under a uid of its own until the API server has given it one."""
    uid = f"{pod.key.uid}/{IN_MEMORY}"
    spec = ClaimSpec(wanted.requests)
    return ResourceClaim(pod.key.namespace, IN_MEMORY, uid, spec=spec, owner=pod.key.uid, extended=True)


def _changed(pod: Pod) -> Conflict:
    return Conflict(f"the claims of pod {pod.key} changed while it was decided on")
