"""
Devices that evictions free: a claim loses its devices when the last pod that it is reserved for has left.

kube-controller-manager deallocates the claim then, or deletes it with its pod. It decides nothing and changes nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from koord_numa.core.claims.allocator import NO_SOLUTION
from koord_numa.core.claims.device_hints import MOST_STEPS
from koord_numa.core.claims.inventory import PoolId
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.preempt.dry_run import ClaimId, PreemptionNode
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.claims.late_check import ClaimCheck
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the searches for devices while preemption is planned for one pod. A step takes about 2 us."""

    node: int = MOST_STEPS
    """Steps on one node, for all sets of victims together: as many as one decision may take there."""
    plan: int = 5 * MOST_STEPS
    """Steps on all nodes together; nodes after that are passed over."""


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Freeable:
    """A claim with devices of one node, and the uids of all pods that use it."""

    claim: ResourceClaim
    users: frozenset[str]


class FreedDevices:
    """``core.preempt.dry_run.FreedDevices`` for one plan for one pod. ``evicted`` are uids of evicted pods that may have left already."""

    def __init__(
        self, handle: Handle, pod: Pod, ask: SchedulingRequest, check: ClaimCheck, evicted: Collection[str]
    ) -> None:
        self._handle = handle
        self._lister: ClaimLister = handle.selector.claims
        self._pod = pod.key.uid
        self._ask = ask
        self._check = check
        self._evicted = evicted
        self._node: PreemptionNode | None = None
        self._freeable: tuple[Freeable, ...] = ()
        self._left = 0  # steps on this node
        self._spent = 0  # steps on all nodes

    @classmethod
    def of(
        cls, handle: Handle, pod: Pod, request_class: RequestClass, evicted: Collection[str]
    ) -> "FreedDevices | None":
        """For a pod of this class; ``None`` without claims."""
        check = handle.selector.claims_for(request_class)
        ask = handle.selector.requirements_now(request_class) if check is not None else None
        return None if check is None or ask is None else cls(handle, pod, ask, check, evicted)

    def place(
        self, node: PreemptionNode, seen: NodeSnapshot, placement: Placement, gone: Collection[str]
    ) -> Placement | Rejection:
        """Return the placement with devices when the pods ``gone`` have left. What is kept for the pod itself is free for it."""
        self._turn_to(node)
        if self._left <= 0:
            return Rejection(Reason.RESOURCE_CLAIMS, NO_SOLUTION, "the search for victims has used its steps")
        kept = (allocation for uid in (self._pod, *gone) for allocation in self._lister.kept_for(uid))
        freed = (it.claim.allocation for it in self._freed(gone) if it.claim.allocation is not None)
        with self._lister.set_aside([*kept, *freed]):
            answer, steps = self._check.try_out(self._ask, seen, placement)
        self._left -= steps + 1
        self._spent += steps + 1
        return answer

    def awaited(self, node: PreemptionNode, gone: Collection[str]) -> frozenset[ClaimId]:
        """Return the claims that lose their devices when these pods have left."""
        self._turn_to(node)
        return frozenset((it.claim.namespace, it.claim.name, it.claim.uid) for it in self._freed(gone))

    def may_suffice(self, node: PreemptionNode, gone: Collection[str]) -> bool:
        """Necessary condition: the node has enough devices when these pods have left."""
        self._turn_to(node)
        kept = (allocation for uid in (self._pod, *gone) for allocation in self._lister.kept_for(uid))
        freed = (it.claim.allocation for it in self._freed(gone) if it.claim.allocation is not None)
        with self._lister.set_aside([*kept, *freed]):
            return not self._check.falls_short(node.seen)

    def _turn_to(self, node: PreemptionNode) -> None:
        if self._node is not node:
            self._node, self._freeable = node, tuple(self._freeable_on(node))
            self._left = LIMITS.node if self._spent < LIMITS.plan else 0

    def _freed(self, gone: Collection[str]) -> list[Freeable]:
        away = frozenset(gone)
        return [it for it in self._freeable if all(uid in away or self._has_left(uid) for uid in it.users)]

    def _has_left(self, uid: str) -> bool:
        """Whether the pod is neither on a node nor waiting: its reservation is about to be removed."""
        return uid not in self._handle.cache.node_of and uid not in self._handle.pending

    def _freeable_on(self, node: PreemptionNode) -> list[Freeable]:
        """Return the claims that hold devices of the node and that evictions there may free."""
        named: dict[tuple[str, str], set[str]] = {}  # pods of the node by the claims that they name, reserved or not
        for uid, pod in node.pods.items():
            for entry in pod.resource_claims:
                if entry.claim:
                    named.setdefault((pod.key.namespace, entry.claim), set()).add(uid)
        pools = {pool.id for pool in self._lister.pools_of(node.seen.node)}
        claims = {
            claim.uid: claim for uid in (*node.pods, *sorted(self._evicted)) for claim in self._lister.reserved_for(uid)
        }
        return [
            Freeable(claim, frozenset(claim.reserved_for).union(named.get((claim.namespace, claim.name), ())))
            for claim in claims.values()
            if _has_device_in(claim, pools) and self._is_given_up(claim)
        ]

    def _is_given_up(self, claim: ResourceClaim) -> bool:
        """Whether the claim loses its devices when its users have left."""
        if claim.other_consumers or claim.uid in self._lister.assumed or not (claim.protected or claim.extended):
            return False
        # A pod that waits for the claim may reserve it before it loses its devices.
        waiting = self._handle.resource_claims.users((claim.namespace, claim.name))
        return not any(uid in self._handle.pending for uid in waiting)


def _has_device_in(claim: ResourceClaim, pools: Collection[PoolId]) -> bool:
    allocation = claim.allocation
    return allocation is not None and any(
        PoolId(it.device.driver, it.device.pool) in pools for it in allocation.results if not it.admin_access
    )
