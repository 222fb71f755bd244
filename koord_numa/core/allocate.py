"""
Allocation on a node whose CPUs the scheduler owns: from one pod and one node to a placement, or a refusal with numbers.

Pure and repeatable: same request, inventory, ledger and options, same answer. The order of the rules is Koordinator's
(NodeNUMAResource: Filter, then Reserve), with one difference: whatever would fail late there is refused here.
"""

from dataclasses import replace
from typing import Any, Final

from koord_numa.core.allocation.demand import AllocationDemand, CpuUse, demand_of
from koord_numa.core.allocation.grant import CpuGrant, Shortage, place
from koord_numa.core.allocation.node_rules import NodeRules, node_rules
from koord_numa.core.allocation.numa_offers import NumaOffers, NumaRequest, offers
from koord_numa.core.allocation.numa_selection import NO_DISTANCES, preferred, select_numa_nodes
from koord_numa.core.allocation.options import AllocateOptions, WithoutTopology
from koord_numa.core.allocation.refusals import (
    amplified_shortage,
    cannot_be_placed,
    kubelet_cores_shortage,
    no_pool,
    not_aligned,
    overcommitted,
)
from koord_numa.core.cpus.ask import UNOCCUPIED
from koord_numa.core.cpus.exclusivity import cpu_occupancy, numa_occupancy
from koord_numa.core.cpuset import EMPTY
from koord_numa.core.inventory import Inventory
from koord_numa.core.ledger import Ledger
from koord_numa.core.numa.exclusive import UNCONSTRAINED, Exclusivity
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.numa_free import EVERY_POD, Accounting, NumaAccounting, NumaFree, accounts
from koord_numa.core.request import PodRequest, SharedPool
from koord_numa.core.resources import MILLI
from koord_numa.core.score.numa_scores import Strategy as NumaScoring
from koord_numa.core.shared_pools import shared_pools, socket_of
from koord_numa.core.verdicts import Alignment, Placement, Rejection
from koord_numa.core.vocabulary import CpuExclusivePolicy, NumaExclusive, NumaPolicy

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

_POOLED: Final = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
"""Under these a pod without own CPUs is told which shared pools are its (fine-grained CPU orchestration, "Resource status")."""


def allocate(
    request: PodRequest, inventory: Inventory, ledger: Ledger, options: AllocateOptions
) -> Placement | Rejection:
    """Place one pod on one node, or say with numbers why not. A caller that asks many nodes makes the demand once."""
    demand = demand_of(request, options)
    return demand if isinstance(demand, Rejection) else allocate_demand(demand, inventory, ledger)


def allocate_demand(demand: AllocationDemand, inventory: Inventory, ledger: Ledger) -> Placement | Rejection:
    """As ``allocate``, for a demand that is known already."""
    rules = node_rules(demand, inventory)
    if isinstance(rules, Rejection):
        return rules
    need = rules.need
    books = accounts(
        inventory, ledger, EVERY_POD if need.accounting is Accounting.EVERY_POD else NumaAccounting(need.accounting)
    )
    refusal = (
        amplified_shortage(need, inventory, ledger)
        or overcommitted(need, books)
        or kubelet_cores_shortage(demand.pinned, inventory, books)
    )
    if refusal is not None:
        return refusal
    room = _room(need, books, ledger)
    if demand.use is CpuUse.POOL_OF_ONE_NUMA:
        return _into_one_pool(demand, rules, inventory, room, ledger)
    if need.policy is NumaPolicy.NONE or not room.given:
        return _unaligned(rules, inventory, room)
    exclusivity = _exclusivity(rules.exclusive, inventory, ledger)
    decision = select_numa_nodes(
        need, room, exclusivity, inventory.machine.distances if inventory.machine else NO_DISTANCES
    )
    if not decision.admitted:
        return not_aligned(need, room, exclusivity)
    given = place(need, room, decision.hint.mask)
    if isinstance(given, Shortage):
        return cannot_be_placed(need, room, given)
    mask = decision.hint.mask
    pooled = need.binding is None and not demand.best_effort and need.policy in _POOLED and mask is not None
    return _placement(
        need,
        inventory,
        given,
        mask=mask,
        shared_pools=_pools(inventory, mask) if pooled and mask is not None else (),
        alignment=Alignment.ALIGNED if decision.hint.preferred else Alignment.UNALIGNED,
        note="; ".join(given.notes),
    )


def _room(need: NumaRequest, books: NumaFree, ledger: Ledger) -> NumaOffers:
    exclusive = need.binding is not None and need.binding.exclusive is not CpuExclusivePolicy.NONE
    return offers(need, books, cpu_occupancy(ledger) if exclusive else UNOCCUPIED)


def _exclusivity(wish: NumaExclusive, inventory: Inventory, ledger: Ledger) -> Exclusivity:
    if wish is NumaExclusive.NONE:
        return UNCONSTRAINED
    return Exclusivity(wish, numa_occupancy(ledger, inventory.machine))


def _unaligned(rules: NodeRules, inventory: Inventory, room: NumaOffers) -> Placement | Rejection:
    given = place(rules.need, room, None)
    if isinstance(given, Shortage):
        return cannot_be_placed(rules.need, room, given)
    notes = (rules.note or _NOTHING_TO_ALIGN, *given.notes)
    return _placement(rules.need, inventory, given, note="; ".join(notes))


def _into_one_pool(
    demand: AllocationDemand, rules: NodeRules, inventory: Inventory, room: NumaOffers, ledger: Ledger
) -> Placement | Rejection:
    """
    ConstrainedBurst: one NUMA node whose shared pool is as large as the pod's limit and that has room for its requests.

    From the fine-grained CPU orchestration proposal; the constant is inert upstream.
    """
    need = replace(rules.need, policy=NumaPolicy.SINGLE_NUMA_NODE)
    sizes = {pool.numa: MILLI * len(pool.cpus) for pool in shared_pools(inventory, ledger)}
    large = sum(1 << numa for numa, size in sizes.items() if size >= demand.burst)
    best = preferred(need, room, _exclusivity(rules.exclusive, inventory, ledger), lambda mask: not mask & ~large)
    given = None if best is None else place(need, room, best.mask)
    if best is None or given is None or isinstance(given, Shortage):
        return no_pool(room, sizes, demand.burst)
    pools = _pools(inventory, best.mask or 0)
    return _placement(need, inventory, given, mask=best.mask, shared_pools=pools, alignment=Alignment.ALIGNED)


def _placement(need: NumaRequest, inventory: Inventory, given: CpuGrant, **more: Any) -> Placement:
    binding = need.binding
    if binding is None:
        return Placement(inventory.node, numa=given.numa, **more)
    return Placement(
        inventory.node,
        cpus=given.cpus,
        numa=given.numa,
        bind=binding.policy,
        bind_required=binding.required,
        exclusive=binding.exclusive,
        **more,
    )


def _pools(inventory: Inventory, mask: int) -> tuple[SharedPool, ...]:
    """The pools by socket and NUMA node; the agent fills in the CPUs, which change with every pod (same section)."""
    return tuple(SharedPool(socket_of(inventory, numa), numa, EMPTY) for numa in numa_ids(mask))
