"""
Late filter for pods with claims: whether a node has devices for the claims, and how close they are to the other resources of the pod.

It runs on nodes in the order of their scores until a node has the best devices, so that a decision allocates on hardly more than one node.
Rejections are cached until devices of the node or their usage change; rejections that depend on CPUs and memory until anything of the node
changes. ``core.scheduling.placement`` decides which NUMA nodes are tried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from time import thread_time
from typing import Final, Self

from cachetools import LRUCache

from koord_numa.core.claims import (
    NO_SOLUTION,
    SELECTOR_LIMITS,
    AllocatableError,
    BudgetUsedError,
    ClaimDevices,
    CpuSite,
    NodeDevices,
    SelectorBudget,
    Selectors,
    Served,
    TurnOverError,
    added_amounts,
    check_pod_level,
    claims_at,
    count_devices,
    counted_with,
    numbers_of,
    runs_short,
    served_by_claim,
)
from koord_numa.core.cpus import CpuPolicies, CpuRequest
from koord_numa.core.cpuset import EMPTY
from koord_numa.core.fit.node_filters import fits_resources
from koord_numa.core.objects.claims import PodClaims, ResourceClaim
from koord_numa.core.objects.constraints import matches_term
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.scheduling.placement import HARD, NOT_TOGETHER, place_devices, policy_of_devices
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, on_node
from koord_numa.core.scheduling.scorers import scored_by_claim
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field
from koord_numa.engine.claims.lister import ClaimLister, Revision
from koord_numa.engine.claims.pod_claims import PodClaimResolver, is_nowhere, still_waits
from koord_numa.ports import ClaimWriter, Clock, ClusterError, Dependencies, Lease

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
"""Seconds."""
REMEMBERED: Final = 10_000
"""Maximum number of budgets. An evicted budget starts again."""


class ClaimBudget(MutableObject):
    """Selector budget of pods with equal claims. ``until`` is the end of its pause, 0 without a pause."""

    budget: SelectorBudget
    pauses: int = 0
    until: float = 0.0


class ClaimBudgets(MutableObject):
    """All selector budgets. ``used`` counts how often a budget was exhausted."""

    clock: Clock
    used: int = 0
    # By hash: the claims may contain megabytes of text.
    _budgets: LRUCache[int, ClaimBudget] = value_field(default_factory=lambda: LRUCache(maxsize=REMEMBERED))

    def __len__(self) -> int:
        return len(self._budgets)

    def of(self, namespace: str, claims: PodClaims) -> ClaimBudget:
        """Return the budget of pods with such claims, refilled when its pause has ended."""
        key = hash((namespace, claims.to_allocate, claims.extended))
        found = self._budgets.get(key)
        if found is None:
            names = ", ".join(claim.name for claim in claims.to_allocate)
            found = self._budgets[key] = ClaimBudget(SelectorBudget(names))
        elif found.until and self.clock() >= found.until:
            found.budget.left, found.until = SELECTOR_LIMITS.claim, 0.0
        return found

    def note_used(self, found: ClaimBudget) -> None:
        """Start a pause if the budget is exhausted and not paused yet."""
        if not found.budget.used or found.until:
            return
        found.until = self.clock() + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(found.pauses, 16))
        found.pauses += 1
        self.used += 1


OVER_BUDGET: Final = "selectors of resource claims used their budget"
UNAVAILABLE: Final = "resourceclaim not available on the node"

NUMBERED: Final = 32
"""Maximum number of rejected nodes of a class with computed numbers."""

STEPS_A_NODE: Final = 150
"""Number of search steps that take as long as evaluating a node for everything else."""

Topologies = Callable[[str], NodeResourceTopology | None]
"""Returns the readable NodeResourceTopology of a node, if there is one."""


class CachedRefusal(ValueObject):
    """Cached rejection and the state it depends on. ``seen`` is ``None`` if it does not depend on CPUs and memory of the node."""

    rejection: Rejection
    revision: Revision
    node: Node
    seen: NodeSnapshot | None

    def holds(self, revision: Revision, seen: NodeSnapshot) -> bool:
        """Return whether the state is unchanged."""
        # The Node by identity: its labels select devices.
        same = self.revision == revision and self.node is seen.node
        return same and (self.seen is None or self.seen is seen)


class ExtendedAsk(ValueObject):
    """Containers of a class, and the extended resources that count in the score of a node."""

    namespace: str = ""
    containers: Sequence[Container] = ()
    scored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: PodRequest, claims: PodClaims, profile: Profile) -> Self:
        """Return the containers and scored resources of a request under a profile."""
        return cls(
            request.namespace, request.containers, scored_by_claim((name for name, _ in claims.extended), profile)
        )


class ClaimCheck:
    """Claim check for one request class. ``check`` completes a placement with allocations, or rejects it."""

    def __init__(
        self,
        lister: ClaimLister,
        claims: PodClaims,
        topologies: Topologies,
        extended: ExtendedAsk | None = None,
        budgets: ClaimBudgets | None = None,
    ) -> None:
        self._lister = lister
        self._claims = claims
        self._extended = extended or ExtendedAsk()
        self._topologies = topologies
        self._budgets = ClaimBudgets(lambda: 0.0) if budgets is None else budgets
        self._budget = self._budgets.of(self._extended.namespace, claims)
        self._selectors = Selectors(self._budget.budget, thread_time)
        self._variants: dict[Served, PodClaims | str] = {}  # by the resources that a node serves by claim
        self._refused: dict[str, CachedRefusal] = {}
        self._explains = True
        self._steps = 0  # of the last search
        self._spent = 0

    def refuse_early(self, seen: NodeSnapshot) -> tuple[Rejection | None, bool]:
        """
        Return a cached rejection, or a rejection of a node with too few free devices. The flag is true for a new rejection.

        The call needs no placement, and is cheaper than the evaluation of the other filters.
        """
        revision = self._lister.revision(seen.node.name)
        known = self._refused.get(seen.node.name)
        if known is not None and known.holds(revision, seen):
            return known.rejection, False
        claims = self._claims_at(seen.node)
        if isinstance(claims, str):
            return Rejection(Reason.RESOURCE_CLAIMS, claims, resolvable=False), False
        # Allocated claims need no devices here.
        if not claims.to_allocate:
            return None, False
        devices = self._devices_of(seen.node)
        try:
            short = runs_short(claims.to_allocate, self._lister.classes, devices, self._lister.usage)
        except BudgetUsedError as error:
            return self._over_budget(error), False
        if not short:
            # Not cached: a search may still find no solution.
            return None, True
        refusal = Rejection(Reason.RESOURCE_CLAIMS, NO_SOLUTION)
        rejection = self._with_numbers(refusal, claims, devices)
        self._refused[seen.node.name] = CachedRefusal(rejection, revision, seen.node, None)
        return rejection, True

    def spent(self) -> int:
        """Return the cost since the last call, in nodes evaluated without claims. Only cached results count."""
        spent, self._spent = self._spent, 0
        return spent

    def _claims_at(self, node: Node) -> PodClaims | str:
        """Return the pod's claims on the node. The claim for extended resources contains those that the node does not advertise."""
        if not self._claims.extended and self._claims.made is None:
            return self._claims
        served = served_by_claim(self._claims, node.allocatable)
        if served not in self._variants:
            self._variants[served] = claims_at(self._claims, self._extended.containers, node.allocatable)
        return self._variants[served]

    def begin_turn(self, units: int | None) -> None:
        """Start a turn. After ``units`` units, selectors raise ``TurnOverError``. ``None`` sets no limit."""
        # Read again: its pause may have ended.
        self._budget = self._budgets.of(self._extended.namespace, self._claims)
        self._selectors.budget = self._budget.budget
        self._selectors.begin_turn(units)

    def _over_budget(self, error: BudgetUsedError) -> Rejection:
        self._budgets.note_used(self._budget)
        return Rejection(Reason.RESOURCE_CLAIMS, OVER_BUDGET, str(error), resolvable=False)

    def _devices_of(self, node: Node) -> NodeDevices:
        topology = self._topologies(node.name)
        roots = {} if topology is None else topology.numa_by_root
        pools = self._lister.pools_of(node)
        return NodeDevices(
            node.name, node.labels, pools, self._lister.features, numa_by_root=roots, selectors=self._selectors
        )

    def check(self, ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement) -> Placement | Rejection:
        """Return the placement with an allocation for each unallocated claim, or the rejection."""
        revision = self._lister.revision(seen.node.name)
        known = self._refused.get(seen.node.name)
        if known is not None and known.holds(revision, seen):
            return known.rejection
        answer = self._decide(ask, seen, placement)
        self._selectors.forget_answers()
        if self._budget.budget.used:
            self._budgets.note_used(self._budget)
            if isinstance(answer, Rejection):
                # Not cached: decided again after the pause.
                self._spent += 1
                return answer
        # Placements are not cached and not counted in the cost: a decision interrupted for a placement would compute it
        # again, and be interrupted again.
        if isinstance(answer, Rejection):
            self._spent += 1 + self._steps // STEPS_A_NODE
            alone = answer.reason is Reason.RESOURCE_CLAIMS
            self._refused[seen.node.name] = CachedRefusal(answer, revision, seen.node, None if alone else seen)
        return answer

    def try_out(
        self, ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement
    ) -> tuple[Placement | Rejection, int]:
        """Check an assumed state and return the result with the number of steps. Nothing is cached; a rejection has no numbers."""
        self._explains = False
        answer = self._decide(ask, seen, placement)
        self._selectors.forget_answers()
        return answer, self._steps

    def falls_short(self, seen: NodeSnapshot) -> bool:
        """Return whether the node has too few devices, whatever else it has. Nothing is cached."""
        claims = self._claims_at(seen.node)
        if isinstance(claims, str):
            return True
        try:
            return runs_short(claims.to_allocate, self._lister.classes, self._devices_of(seen.node), self._lister.usage)
        except BudgetUsedError:
            return True

    def _decide(self, ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement) -> Placement | Rejection:
        node, lister, claims = seen.node, self._lister, self._claims_at(seen.node)
        self._steps = 0
        if isinstance(claims, str):
            return Rejection(Reason.RESOURCE_CLAIMS, claims, resolvable=False)
        # Allocated claims bind the pod to nodes, whatever is free.
        for terms in claims.allocated:
            if not any(matches_term(term, node.name, node.labels) for term in terms):
                return Rejection(Reason.RESOURCE_CLAIMS, UNAVAILABLE, resolvable=False)
        if not claims.to_allocate and not claims.devices:
            return placement
        ask, topology = on_node(ask, node), self._topologies(node.name)
        devices = self._devices_of(node)
        try:
            short = runs_short(claims.to_allocate, lister.classes, devices, lister.usage)
        except BudgetUsedError as error:
            return self._over_budget(error)
        if short:
            refusal = Rejection(Reason.RESOURCE_CLAIMS, NO_SOLUTION)
            return self._with_numbers(refusal, claims, devices)
        site = CpuSite(
            None if topology is None else topology.machine,
            EMPTY if topology is None else topology.reserved,
            # Both kinds of CPU assignments count: claims, and pods with exclusive CPUs.
            lister.cpus_held(node.name) | seen.ledger.cpus,
            strict=policy_of_devices(ask, seen) in HARD,
        )
        found = ClaimDevices(claims, lister.classes, devices, lister.usage, site, cpu_policies(ask.request))
        answer = place_devices(ask, seen, placement, found)
        self._steps = found.steps
        if isinstance(answer, Rejection):
            return self._with_numbers(answer, claims, devices)
        answer = _with_claim_amounts(ask.request, seen, answer, found)
        served = served_by_claim(self._claims, node.allocatable)
        if isinstance(answer, Rejection) or not served:
            return answer
        return replace(answer, extended=served, device_counts=self._counts(served, devices))

    def _counts(self, served: Served, devices: NodeDevices) -> tuple[tuple[str, int, int], ...]:
        return tuple(
            (resource, *count_devices(self._lister.classes[name], devices, self._lister.usage))
            for resource, name in served
            # A class deleted after its claim was allocated selects nothing: the resource then gets the maximum score.
            if resource in self._extended.scored and name in self._lister.classes
        )

    def _with_numbers(self, rejection: Rejection, claims: PodClaims, devices: NodeDevices) -> Rejection:
        """Add numbers to the rejection, for some nodes only."""
        # Messages show few nodes, and the numbers cost a CEL evaluation per device.
        if not self._explains or len(self._refused) >= NUMBERED or self._budget.budget.used:
            return rejection
        try:
            numbers = numbers_of(claims.to_allocate, self._lister.classes, devices, self._lister.usage)
        except TurnOverError:
            return rejection
        return replace(rejection, detail="; ".join(filter(None, (rejection.detail, numbers))))


def _with_claim_amounts(
    request: PodRequest, seen: NodeSnapshot, placement: Placement, devices: ClaimDevices
) -> Placement | Rejection:
    """Add the node resources that the devices take, and check that the pod with its claims fits (``nodeFitsResources``)."""
    try:
        amounts = devices.amounts(placement.allocations, request.containers)
        check_pod_level(request, amounts)
    except AllocatableError as error:
        return Rejection(Reason.RESOURCE_CLAIMS, str(error), resolvable=False)
    if not amounts:
        return placement
    counted = counted_with(request, amounts)
    changed = {name: counted[name] for name in added_amounts(amounts)}
    short = fits_resources(changed, seen.allocatable, seen.ledger.amounts, 0)
    if short is not None:
        return replace(short, detail=f"with devices of its claims it {short.detail}")
    return replace(placement, claim_amounts=amounts, counted=counted)


def cpu_policies(request: PodRequest) -> CpuPolicies:
    """Return the policies for a pod's CPUs by claim: whole cores unless the pod requests otherwise."""
    bind = request.bind
    wanted = bind.required if bind.required is not CpuBindPolicy.NONE else bind.preferred
    ask = CpuRequest(0, CpuBindPolicy.FULL_PCPUS if wanted is CpuBindPolicy.NONE else wanted, bind.exclusive)
    return CpuPolicies(ask, required=bind.required is not CpuBindPolicy.NONE)


# Deallocation of claims that prevent unschedulable pods from being placed (PostFilter of kube-scheduler's dynamicresources).
#
# A claim is allocated for one node. If the pod cannot be placed there any more, it has to be deallocated. A claim that an earlier attempt
# created for the pod's extended resources is deleted; the next attempt creates another.
#
# A cycle that was interrupted, or could not undo its writes, leaves its reservation in the claim. If the pod is unschedulable and other
# pods use the claim, only the reservation is released; the ResourceClaim controller keeps the reservations of existing pods. Pods that
# name the same claim have the same class, and only the first is attempted, so that the reservations of the whole class are released.

log = getLogger(__name__)

_IN_THE_WAY = (UNAVAILABLE, NOT_TOGETHER)
"""Rejections that other devices for the claim could resolve: its devices are on another node, or far from where the pod fits."""


PlacedPods = Callable[[], Iterable[Pod]]
"""All pods that have a node or are assumed."""


class Outside(ValueObject):
    """Claim writer, lease, and checks that a pod has no node: for pods that may be gone, and for pods that must exist."""

    writer: ClaimWriter
    lease: Lease
    nowhere: Callable[[PodKey], Awaitable[bool]]
    waits: Callable[[PodKey], Awaitable[bool]]


class Deallocation:
    """Queue of claims to deallocate. ``consider`` adds to it, ``run`` writes."""

    def __init__(self, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods, outside: Outside) -> None:
        self._lister = lister
        self._resolver = resolver
        self._placed = placed
        self._outside = outside
        self._noted: dict[str, tuple[ResourceClaim, PodKey]] = {}  # by UID of the claim, with the pod
        self._left: dict[tuple[str, str], tuple[ResourceClaim, PodKey]] = {}  # reservations, by UIDs of claim and pod
        self._wake = asyncio.Event()

    @classmethod
    def through(
        cls, ports: Dependencies, lister: ClaimLister, resolver: PodClaimResolver, placed: PlacedPods
    ) -> Self | None:
        """Return the deallocation, ``None`` without a claim writer."""
        if ports.claim_writer is None:
            return None
        outside = Outside(ports.claim_writer, ports.lease, partial(is_nowhere, ports), partial(still_waits, ports))
        return cls(lister, resolver, placed, outside)

    def consider(self, pod: Pod, verdict: Unschedulable, alike: Callable[[], Iterable[Pod]] = tuple) -> None:
        """
        Queue what an unschedulable pod should release.

        This is the first claim, in the pod's order, that keeps the pod from a node and that no other pod uses, and always a claim created
        for the pod. Of claims that others use, it is the reservations of this pod and of the pods ``alike``, which wait in its class.
        """
        # While claims are being listed, pods wait for that only.
        if not self._lister.known:
            return
        if (made := self._lister.made_for(pod.key.uid)) is not None:
            self._note(made, pod)
        if not pod.resource_claims:
            return
        # Only for rejections that other devices could resolve: otherwise the devices would be lost without benefit.
        in_the_way = made is None and any(it.message in _IN_THE_WAY for it in verdict.rejections.values())
        for claim in self._resolver.claims_of(pod):
            if claim.allocation is None:
                continue
            if not self._is_ours(claim, pod):
                self._note_reservations(claim, (pod, *alike()))
            elif in_the_way and claim.allocation.nodes is not None:
                self._note(claim, pod)
                in_the_way = False

    def _note(self, claim: ResourceClaim, pod: Pod) -> None:
        self._noted[claim.uid] = (claim, pod.key)
        self._wake.set()

    def _note_reservations(self, claim: ResourceClaim, waiting: Iterable[Pod]) -> None:
        reserved = frozenset(claim.reserved_for)
        for pod in waiting:
            if pod.key.uid in reserved:
                self._left[claim.uid, pod.key.uid] = (claim, pod.key)
                self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. Failed writes are queued again by the next attempt to place the pod."""
        while True:
            await self._wake.wait()
            # Cleared before the work, so that later additions wake it again.
            self._wake.clear()
            while self._left:
                _, (claim, pod) = self._left.popitem()
                with _contained(f"the reservation of claim {claim} for pod {pod} cannot be taken back"):
                    await self._outside.writer.release(claim, pod, partial(self._waits, pod))
            while self._noted:
                _, (claim, pod) = self._noted.popitem()
                await self._deallocate(claim, pod)

    async def _deallocate(self, claim: ResourceClaim, pod: PodKey) -> None:
        current = self._lister.claim((claim.namespace, claim.name))
        if (
            current is None
            or current.uid != claim.uid
            or (current.allocation is None and not current.extended)
            or not await self._allowed(current)
        ):
            return
        with _contained(f"claim {current} cannot be deallocated"):
            allowed = partial(self._allowed, current)
            if not current.extended:
                uid = current.reserved_groups[0] if current.reserved_groups else pod.uid
                self._lister.observe_written(await self._outside.writer.deallocate(current, uid, allowed))
            # The pod is its only user, and may have been bound by a former leader.
            elif await self._outside.nowhere(pod):
                await self._outside.writer.delete(current, allowed)

    async def _waits(self, pod: PodKey) -> bool:
        """Return whether the pod has no node and is not assumed by a later cycle either."""
        return await self._outside.waits(pod) and all(there.key.uid != pod.uid for there in self._placed())

    async def _allowed(self, claim: ResourceClaim) -> bool:
        """Return whether this process leads and no known placed pod uses the claim, even without a reservation."""
        return self._outside.lease.fresh() and not any(self._uses(there, claim) for there in self._placed())

    def _uses(self, pod: Pod, claim: ResourceClaim) -> bool:
        return pod.key.uid == claim.owner if claim.extended else self._resolver.uses(pod, claim)

    def _is_ours(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether the claim is not reserved, or reserved only for this pod, or for its PodGroup without placed pods."""
        groups = {
            group.uid for found, group in self._resolver.claims_with_groups(pod) if group and found.uid == claim.uid
        }
        if claim.other_consumers > len(claim.reserved_groups) or not groups.issuperset(claim.reserved_groups):
            return False
        is_placed = bool(groups) and any(self._uses(there, claim) for there in self._placed())
        return not is_placed and all(uid == pod.key.uid for uid in claim.reserved_for)


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """Log any failure, so that it affects this claim only."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %r", what, error)
    except Exception:
        log.exception("%s", what)
