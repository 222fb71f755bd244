"""
Allocate a pod on a node with scheduler-owned CPUs: return a placement, or a rejection with numbers.

Pure and deterministic: equal request, inventory, ledger and options give equal results. The order of rules is
Koordinator's (NodeNUMAResource: Filter, then Reserve), except that failures in Reserve are rejections here.
"""

from typing import Final

from koord_numa.core.allocation.demand import AllocateOptions, AllocationDemand, CpuUse, WithoutTopology, demand_of
from koord_numa.core.allocation.grant import place
from koord_numa.core.allocation.node_rules import NodeRules, node_rules
from koord_numa.core.allocation.numa_offers import DeviceHints, NumaOffers, offers
from koord_numa.core.allocation.numa_selection import NO_DISTANCES, fewest_if_empty, preferred, select_numa_nodes
from koord_numa.core.allocation.refusals import (
    amplified_shortage,
    kubelet_cores_shortage,
    no_pool,
    not_aligned,
    overcommitted,
)
from koord_numa.core.cpus.cpu_request import UNOCCUPIED
from koord_numa.core.cpus.exclusivity import cpu_occupancy
from koord_numa.core.cpuset import EMPTY
from koord_numa.core.numa.distances import Distances
from koord_numa.core.numa.exclusive import UNCONSTRAINED, NumaExclusivity
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.numa.policies import Decision
from koord_numa.core.numa.workload_spread import workload_spread
from koord_numa.core.objects.request import PodRequest, SharedPool
from koord_numa.core.objects.verdicts import Alignment, Exclusivity, Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NO_NUMA_POLICY,
    NOT_EXCLUSIVE,
    NUMA_PREFERRED,
    SINGLE_NUMA_NODE,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
)
from koord_numa.core.resources import MILLI
from koord_numa.core.score.node_scores import Strategy as NumaScoring
from koord_numa.core.state.inventory import Inventory, NodeTraits
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import (
    EVERY_POD,
    Accounting,
    NumaAccounting,
    NumaFree,
    accounts,
    numa_occupancy,
    shared_pools,
    socket_of,
)
from koord_numa.core.value_objects import replace

__all__ = [
    "Accounting",
    "AllocateOptions",
    "NumaScoring",
    "WithoutTopology",
    "allocate",
    "allocate_demand",
    "demand_of",
]

_NOTHING_TO_ALIGN: Final = (
    "no NUMA alignment was attempted: the pod requests nothing that the node's NUMA nodes publish"
)

REMEMBERED: Final = 256
"""Maximum traits per demand with cached rules. Rules contain the problem of a topology, which is arbitrary text."""

_NO_NUMA_NODES: Final = "node(s) publish no NUMA nodes over which pods could be spread (numa-spread)"

_DISTURBS: Final = "it shares a NUMA node with pods of the other kind (singleNUMANodeExclusive: Preferred)"

_POOLED: Final = frozenset({NumaPolicy.RESTRICTED, SINGLE_NUMA_NODE})
"""
Policies under which the status of a pod without exclusive CPUs has its shared pools.

Source: fine-grained CPU orchestration, "Resource status".
"""


def allocate(
    request: PodRequest, inventory: Inventory, ledger: Ledger, options: AllocateOptions
) -> Placement | Rejection:
    """Place a pod on a node, or return a rejection with numbers. For many nodes, use ``demand_of`` and ``allocate_demand``."""
    demand = demand_of(request, options)
    return demand if isinstance(demand, Rejection) else allocate_demand(demand, inventory, ledger)


def policy_in_force(demand: AllocationDemand, inventory: Inventory) -> NumaPolicy:
    """Return the effective NUMA policy of the pod on this node, ``NONE`` if the rules reject the pod."""
    rules = _rules(demand, inventory.traits)
    return NO_NUMA_POLICY if isinstance(rules, Rejection) else rules.policy


def allocate_demand(
    demand: AllocationDemand, inventory: Inventory, ledger: Ledger, devices: DeviceHints | None = None
) -> Placement | Rejection:
    """
    Return the result of ``allocate`` for a demand that is known already.

    ``devices`` of the pod's claims take part in the merge: the set of NUMA nodes must also hold them. BestEffort
    ignores them if no set that is as narrow as on an empty node holds everything.
    """
    rules = _rules(demand, inventory.traits)
    if isinstance(rules, Rejection):
        return rules
    free = accounts(
        inventory, ledger, EVERY_POD if rules.accounting is Accounting.EVERY_POD else NumaAccounting(rules.accounting)
    )
    refusal = (
        amplified_shortage(rules, inventory, ledger)
        or overcommitted(rules, free)
        or kubelet_cores_shortage(demand.pinned, inventory, free)
    )
    if refusal is not None:
        return refusal
    offered = _numa_offers(rules, free, ledger)
    if devices is not None:
        offered = replace(offered, devices=devices)
    if demand.spread is not None:
        if demand.spread.required and (not offered.given or rules.policy is NO_NUMA_POLICY):
            return Rejection(Reason.NUMA_SPREAD, _NO_NUMA_NODES, resolvable=False)
        offered = replace(offered, workload=workload_spread(demand.spread, inventory, ledger, offered.given))
    if demand.use is CpuUse.POOL_OF_ONE_NUMA:
        return _into_one_pool(demand, rules, inventory, offered, ledger)
    if rules.policy is NO_NUMA_POLICY or not offered.given:
        return place(rules, offered, Placement(inventory.node, note=rules.note or _NOTHING_TO_ALIGN))
    return _aligned(demand, rules, inventory, offered, ledger)


def _rules(demand: AllocationDemand, traits: NodeTraits) -> NodeRules | Rejection:
    """Return the result of ``node_rules``, cached for all nodes with equal traits."""
    known: NodeRules | Rejection | None = demand.derived.get(traits)
    if known is None:
        if len(demand.derived) >= REMEMBERED:
            demand.derived.clear()
        known = demand.derived[traits] = node_rules(demand, traits)
    return known


def _numa_offers(rules: NodeRules, free: NumaFree, ledger: Ledger) -> NumaOffers:
    exclusive = rules.binding is not None and rules.binding.exclusive is not NOT_EXCLUSIVE
    return offers(rules, free, cpu_occupancy(ledger) if exclusive else UNOCCUPIED)


def _numa_exclusivity(rules: NodeRules, inventory: Inventory, ledger: Ledger) -> NumaExclusivity:
    """
    Return the NUMA nodes that the pod avoids (pod-level NUMA policy, "SingleNUMANodeExclusive").

    Pods on several NUMA nodes avoid SingleNUMANode pods, whatever their own policy. In the other direction, only a pod
    that is aligned by SingleNUMANode is protected.
    """
    if rules.exclusive is NumaExclusive.NONE:
        return UNCONSTRAINED
    occupancy = numa_occupancy(ledger, inventory.machine)
    if rules.policy is not SINGLE_NUMA_NODE:
        occupancy = replace(occupancy, shared=0)
    return NumaExclusivity(rules.exclusive, occupancy)


def _aligned(
    demand: AllocationDemand, rules: NodeRules, inventory: Inventory, offered: NumaOffers, ledger: Ledger
) -> Placement | Rejection:
    exclusivity = _numa_exclusivity(rules, inventory, ledger)
    distances = inventory.machine.distances if inventory.machine else NO_DISTANCES
    decision = select_numa_nodes(rules, offered, exclusivity, distances)
    if offered.devices is not None and rules.policy is NumaPolicy.BEST_EFFORT:
        offered, decision = _with_or_without_devices(rules, offered, decision, (exclusivity, distances))
    if not decision.admitted:
        # The spread is the reason only if the pod fits without it.
        without = replace(offered, workload=None)
        if offered.workload is not None and select_numa_nodes(rules, without, exclusivity, distances).admitted:
            return offered.workload.refusal()
        return not_aligned(rules, offered, exclusivity)
    mask = decision.hint.mask
    pooled = rules.binding is None and not demand.best_effort and rules.policy in _POOLED
    chosen = Placement(
        inventory.node,
        mask=mask,
        shared_pools=_pools(inventory, mask) if pooled and mask is not None else (),
        alignment=_alignment(rules, offered, decision),
    )
    placement = place(rules, offered, chosen)
    if isinstance(placement, Rejection):
        return placement
    if exclusivity.wish is NUMA_PREFERRED and mask is not None and exclusivity.occupancy.disturbs(mask):
        note = "; ".join(filter(None, (placement.note, _DISTURBS)))
        return replace(placement, exclusivity=Exclusivity.BROKEN, note=note)
    return placement


def _with_or_without_devices(
    rules: NodeRules, offered: NumaOffers, joint: Decision, context: tuple[NumaExclusivity, Distances]
) -> tuple[NumaOffers, Decision]:
    """
    Return the joint decision, unless it uses more NUMA nodes than the pod and its devices need.

    Free devices on other NUMA nodes are no reason to split CPUs and memory, which are then aligned without the devices.
    """
    alone = replace(offered, devices=None)
    apart = select_numa_nodes(rules, alone, *context)
    mask, own = joint.hint.mask, apart.hint.mask
    widest = max(0 if own is None else own.bit_count(), fewest_if_empty(rules, offered) or 0)
    if joint.admitted and joint.hint.preferred and mask is not None and mask.bit_count() <= widest:
        return offered, joint
    return alone, apart


def _alignment(rules: NodeRules, offered: NumaOffers, decision: Decision) -> Alignment:
    """Return whether the pod is on as few NUMA nodes as it would need on an empty node (KEP-693, "Topology Hints")."""
    mask = decision.hint.mask
    if not decision.hint.preferred:
        return Alignment.UNALIGNED
    if mask is None or not mask & (mask - 1) or rules.restricted is RestrictedRule.KOORDINATOR:
        return Alignment.ALIGNED
    return Alignment.ALIGNED if mask.bit_count() == fewest_if_empty(rules, offered) else Alignment.UNALIGNED


def _into_one_pool(
    demand: AllocationDemand, rules: NodeRules, inventory: Inventory, offered: NumaOffers, ledger: Ledger
) -> Placement | Rejection:
    """
    Place a ConstrainedBurst pod: a NUMA node with a shared pool as large as the pod's limit, and room for its requests.

    From the fine-grained CPU orchestration proposal. Upstream does not implement the policy.
    """
    exclusivity = _numa_exclusivity(rules, inventory, ledger)
    rules = replace(rules, policy=SINGLE_NUMA_NODE)
    sizes = {pool.numa: MILLI * len(pool.cpus) for pool in shared_pools(inventory, ledger)}
    large = sum(1 << numa for numa, size in sizes.items() if size >= demand.burst)
    best = preferred(rules, offered, exclusivity, lambda mask: not mask & ~large)
    if best is None:
        without = replace(offered, workload=None)
        if offered.workload is not None and preferred(rules, without, exclusivity, lambda mask: not mask & ~large):
            return offered.workload.refusal()
        return no_pool(rules, offered, sizes, demand.burst)
    pools = _pools(inventory, best.mask or 0)
    chosen = Placement(inventory.node, mask=best.mask, shared_pools=pools, alignment=Alignment.ALIGNED)
    placement = place(rules, offered, chosen)
    return no_pool(rules, offered, sizes, demand.burst) if isinstance(placement, Rejection) else placement


def _pools(inventory: Inventory, mask: int) -> tuple[SharedPool, ...]:
    """Return the pools by socket and NUMA node. The agent fills in the CPUs, which change with every pod (same section)."""
    return tuple(SharedPool(socket_of(inventory, numa), numa, EMPTY) for numa in numa_ids(mask))
