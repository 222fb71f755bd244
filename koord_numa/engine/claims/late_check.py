"""
The last filter of a node that a pod with claims would go to: are there devices for its claims, and on which NUMA nodes?

It runs on nodes in the order of their scores until one has them, so a decision costs the allocation on hardly more than one node. Refusals
are remembered until devices of the node, or what is in use of them, change.

Theory of alignment: the NUMA nodes that the pod was given by its policy come first, and devices are looked for there. A policy that
demands one set of NUMA nodes (SingleNUMANode, Restricted) makes that the only place; otherwise single NUMA nodes are tried, then all of
them. Devices that do not say where they are fit everywhere. A kubelet does not align devices of claims: on its nodes the same search
makes it likely that CPUs and devices meet, and no more is claimed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from koord_numa.core.claims.cpus import CpuClaimError, CpuSite, assign_cpus
from koord_numa.core.claims.explain import numbers_of, runs_short
from koord_numa.core.claims.numa import numa_of
from koord_numa.core.claims.objects.features import ALL_FEATURES
from koord_numa.core.claims.pod_claims import PodClaims
from koord_numa.core.claims.search.allocation import Allocation
from koord_numa.core.claims.search.allocator import NO_SOLUTION, Allocated, NodeDevices, NotAllocated, allocate
from koord_numa.core.claims.search.inventory import Device, DeviceId
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.ask import CpuAsk
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuBindPolicy, NumaPolicy
from koord_numa.core.selectors import matches_term
from koord_numa.engine.claims.lister import ClaimLister, Revision

UNAVAILABLE = "resourceclaim not available on the node"

NUMBERED = 32
"""Refused nodes of a class for which numbers are worked out."""

Machines = Callable[[str], CpuTopology | None]
"""The CPU topology of a node, where its NodeResourceTopology tells it."""


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """What a pod asks of the devices and CPUs of its claims besides the claims themselves."""

    cpus: CpuPolicies
    numa: NumaPolicy = NumaPolicy.NONE

    @property
    def is_hard(self) -> bool:
        """Must devices be on the NUMA nodes that the pod is given?"""
        return self.numa in (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED)

    @classmethod
    def of(cls, request: PodRequest) -> "ClaimPolicy":
        """The policies of a pod; CPUs come in whole cores unless it says otherwise."""
        bind = request.bind
        wanted = bind.required if bind.required is not CpuBindPolicy.NONE else bind.preferred
        ask = CpuAsk(0, CpuBindPolicy.FULL_PCPUS if wanted is CpuBindPolicy.NONE else wanted, bind.exclusive)
        return cls(CpuPolicies(ask, required=bind.required is not CpuBindPolicy.NONE), request.numa.policy)


class ClaimCheck:
    """The check for one request class. ``check`` completes a placement with allocations, or refuses it."""

    def __init__(self, lister: ClaimLister, claims: PodClaims, policy: ClaimPolicy, machines: Machines) -> None:
        self._lister = lister
        self._claims = claims
        self._policy = policy
        self._machines = machines
        self._refused: dict[str, tuple[Revision, Node, int | None, Rejection]] = {}

    def check(self, node: Node, placement: Placement) -> Placement | Rejection:
        """The placement with an allocation for each claim that has none yet."""
        revision = self._lister.revision(node.name)
        known = self._refused.get(node.name)
        if known is not None and known[:3] == (revision, node, placement.mask):
            return known[3]
        answer = self._decide(node, placement)
        if isinstance(answer, Rejection):
            self._refused[node.name] = (revision, node, placement.mask, answer)
        return answer

    def _decide(self, node: Node, placement: Placement) -> Placement | Rejection:
        for terms in self._claims.allocated:
            if not _reachable(terms, node):
                return Rejection(Reason.RESOURCE_CLAIMS, UNAVAILABLE, resolvable=False)
        if not self._claims.to_allocate:
            return placement
        lister = self._lister
        devices = NodeDevices(node.name, node.labels, lister.pools_of(node), ALL_FEATURES)
        if runs_short(self._claims.to_allocate, lister.classes, devices, lister.usage):
            return self._rejection(NO_SOLUTION, devices)
        anywhere = self._allocate(devices, 0)
        if isinstance(anywhere, str):
            return self._rejection(anywhere, devices)
        for mask in self._masks(devices, placement):
            answer = self._allocate(replace(devices, numa_mask=mask), mask) if mask else anywhere
            if not isinstance(answer, str):
                return replace(placement, allocations=answer)
        return self._rejection("cannot allocate all claims on the NUMA nodes of the pod", devices)

    def _rejection(self, message: str, devices: NodeDevices) -> Rejection:
        """Numbers are worked out for some nodes only: no message shows more."""
        detail = ""
        if len(self._refused) < NUMBERED:
            detail = numbers_of(self._claims.to_allocate, self._lister.classes, devices, self._lister.usage)
        return Rejection(Reason.RESOURCE_CLAIMS, message, detail, resolvable=False)

    def _masks(self, devices: NodeDevices, placement: Placement) -> Sequence[int]:
        """Sets of NUMA nodes in the order in which they are tried; 0 is every place."""
        if placement.mask and self._policy.is_hard:
            return (placement.mask,)
        places = {
            numa for pool in devices.pools for it in pool.candidates() if (numa := numa_of(it.device)) is not None
        }
        machine = self._machines(devices.name)
        if machine is not None:
            places.update(machine.numa_ids)
        singles = [1 << numa for numa in sorted(places)]
        if not placement.mask and self._policy.numa is NumaPolicy.SINGLE_NUMA_NODE and singles:
            return singles
        first = (placement.mask,) if placement.mask else ()
        return (*first, *(mask for mask in singles if mask != placement.mask), 0)

    def _allocate(self, devices: NodeDevices, mask: int) -> tuple[Allocation, ...] | str:
        lister = self._lister
        answer = allocate(self._claims.to_allocate, lister.classes, devices, lister.usage)
        if isinstance(answer, NotAllocated):
            return answer.message
        return self._with_cpus(answer, devices, mask)

    def _with_cpus(self, answer: Allocated, devices: NodeDevices, mask: int) -> tuple[Allocation, ...] | str:
        site = CpuSite(self._machines(devices.name), self._lister.cpus_held(devices.name), (mask,))
        try:
            return assign_cpus(answer.allocations, _by_id(devices), site, self._policy.cpus)
        except CpuClaimError as error:
            return f"cannot allocate CPUs by claim: {error}"


def _by_id(devices: NodeDevices) -> dict[DeviceId, Device]:
    return {it.device.id: it.device for pool in devices.pools for it in pool.candidates()}


def _reachable(terms: Sequence[NodeTerm], node: Node) -> bool:
    return any(matches_term(term, node.name, node.labels) for term in terms)
