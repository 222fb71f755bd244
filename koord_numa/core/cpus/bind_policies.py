"""
Pick CPUs for a pod with required policies, downgrades and even distribution.

Each rule changes the request. ``take.py`` chooses the CPUs.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import (
    UNOCCUPIED,
    CpuOccupancy,
    CpuRequest,
    NotEnoughCpus,
    exactly_whole_cores,
    has_shape,
    layout_of,
    shaped,
)
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    NOT_EXCLUSIVE,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    SPREAD_BY_PCPUS,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
)
from koord_numa.core.ordering import emptiest_first, tightness
from koord_numa.core.value_objects import ValueObject, replace

# The NUMA strategy DistributeEvenly: an equal share of every NUMA node, in whole cores if full cores are requested.
#
# Koordinator defines the name but treats it as LeastAllocated. The fine-grained CPU orchestration proposal describes it.
# ``take.py`` chooses the CPUs in each NUMA node.


def take_evenly(
    request: CpuRequest,
    machine: CpuTopology,
    available: CpuSet,
    occupancy: CpuOccupancy = UNOCCUPIED,
    preferred: CpuSet = EMPTY,
) -> CpuSet | NotEnoughCpus:
    """Take exactly ``request.count`` available CPUs, an equal number from each NUMA node, preferred ones first."""
    usable = available & machine.all
    if request.count > len(usable):
        return NotEnoughCpus(request.count, len(usable))
    # Preferred CPUs are distributed first. The remaining CPUs follow the same rule.
    first = usable & preferred
    taken = _evenly(replace(request, count=min(request.count, len(first))), machine, first, occupancy)
    rest = replace(request, count=request.count - len(taken))
    return taken | _evenly(rest, machine, usable - first, occupancy)


def even_shares(capacity: Mapping[int, int], units: int) -> dict[int, int]:
    """
    Return the number of units of each NUMA node: equal shares, except where less is left.

    The remainder comes from the NUMA nodes with the most units. The sum is at most the total capacity.
    """
    shares = dict.fromkeys(capacity, 0)
    left = min(units, sum(capacity.values()))
    while left > 0:
        able = [numa for numa in emptiest_first(capacity) if shares[numa] < capacity[numa]]
        # Equal steps, as large as the smallest remaining capacity: the number of rounds is bounded by the NUMA nodes,
        # not the CPUs.
        step = max(1, min(left // len(able), *(capacity[numa] - shares[numa] for numa in able)))
        for numa in able[:left]:
            shares[numa] += step
            left -= step
    return shares


def _evenly(request: CpuRequest, machine: CpuTopology, free: CpuSet, occupancy: CpuOccupancy) -> CpuSet:
    taken = EMPTY
    threads = machine.threads_per_core
    # Whole cores first over all NUMA nodes. Single CPUs only for the rest.
    if request.bind is CpuBindPolicy.FULL_PCPUS and threads > 1:
        whole = CpuSet(sum(mine for core in machine.cores if (mine := core.bits & free.bits).bit_count() == threads))
        taken = _from_each(request, machine, whole, occupancy, threads)
    rest = replace(request, count=request.count - len(taken))
    return taken | _from_each(rest, machine, free - taken, occupancy, 1)


def _from_each(request: CpuRequest, machine: CpuTopology, free: CpuSet, occupancy: CpuOccupancy, unit: int) -> CpuSet:
    """Take equal shares of up to ``request.count`` free CPUs, in multiples of ``unit``."""
    pools = {place.id: CpuSet(place.bits & free.bits) for place in layout_of(machine).numas}
    shares = even_shares({numa: len(pool) // unit for numa, pool in pools.items()}, request.count // unit)
    taken = EMPTY
    for numa, share in shares.items():
        found = take_cpus(replace(request, count=share * unit), machine, pools[numa], occupancy)
        if isinstance(found, NotEnoughCpus):
            why = f"NUMA node {numa} was counted on for {share * unit} CPUs: {found}"
            raise RuntimeError(why)  # noqa: TRY004  (contradicts the count; not an argument of a wrong type)
        taken |= found
    return taken


NO_SPREAD_WITHOUT_SMT: Final = "SpreadByPCPUs has no effect without SMT: every CPU is a core"
NO_PCPU_LEVEL_WITHOUT_SMT: Final = "PCPULevel has no effect without SMT: no core can be shared"
NUMA_LEVEL_DOWNGRADED: Final = (
    "NUMANodeLevel is downgraded to PCPULevel: pods with the same policy hold the NUMA nodes where the pod fits best"
)


class Downgrade(Enum):
    """The treatment of a NUMANodeLevel that cannot be honored: as in the proposal, or as in Koordinator."""

    TO_PCPU_LEVEL = "take PCPULevel instead"
    NONE = "ignore it"


class CpuPolicies(ValueObject, gc=False):
    """The CPU request of a pod. ``required``: the bind policy is required, not preferred."""

    request: CpuRequest
    required: bool = False
    downgrade: Downgrade = Downgrade.TO_PCPU_LEVEL


class CpuPick(ValueObject, gc=False):
    """The picked CPUs, the effective exclusive policy, and notes about downgrades."""

    cpus: CpuSet
    exclusive: CpuExclusivePolicy = NOT_EXCLUSIVE
    notes: tuple[str, ...] = ()


def pick_cpus(
    wish: CpuPolicies,
    machine: CpuTopology,
    available: CpuSet,
    occupancy: CpuOccupancy = UNOCCUPIED,
    preferred: CpuSet = EMPTY,
) -> CpuPick | NotEnoughCpus:
    """
    Pick ``wish.request.count`` available CPUs, preferred ones first, or return the number of CPUs of the right shape.

    A required FullPCPUs never splits a core, and a required SpreadByPCPUs never takes two CPUs of a core.
    """
    wish, notes = _without_smt(wish, machine)
    pool = CpuSet(available.bits & machine.bits)
    # Shape the pool first: the take only prefers shapes, but a requirement must hold for every CPU.
    if wish.required:
        pool = shaped(wish.request.bind, machine, available, preferred)
        # A preferred CPU counts only if it is part of an allowed shape.
        preferred = shaped(wish.request.bind, machine, preferred & pool)
    if wish.request.count > len(pool):
        return NotEnoughCpus(wish.request.count, len(pool), _shortage(wish))
    found = _exclusively(wish, machine, pool, occupancy, preferred)
    if isinstance(found, NotEnoughCpus):
        return found
    # Only for machines with unequal cores: the take counts in cores of average size and may split a large core.
    if wish.required and not has_shape(wish.request.bind, machine, found.cpus):
        whole = exactly_whole_cores(machine, pool, wish.request.count, tightness(wish.request.strategy))
        if whole is None:
            return NotEnoughCpus(
                wish.request.count, len(pool), "the free whole cores do not add up to the requested CPUs"
            )
        found = replace(found, cpus=whole)
    return replace(found, notes=(*notes, *found.notes)) if notes else found


def _without_smt(wish: CpuPolicies, machine: CpuTopology) -> tuple[CpuPolicies, tuple[str, ...]]:
    """Replace policies without meaning on machines without SMT (ARM): only FullPCPUs and NUMANodeLevel apply there (proposal)."""
    if layout_of(machine).smt:
        return wish, ()
    notes: list[str] = []
    request = wish.request
    if request.bind is SPREAD_BY_PCPUS:
        request = replace(request, bind=FULL_PCPUS)
        notes.append(NO_SPREAD_WITHOUT_SMT)
    if request.exclusive is PCPU_LEVEL:
        request = replace(request, exclusive=NOT_EXCLUSIVE)
        notes.append(NO_PCPU_LEVEL_WITHOUT_SMT)
    return replace(wish, request=request), tuple(notes)


def _exclusively(
    wish: CpuPolicies, machine: CpuTopology, pool: CpuSet, occupancy: CpuOccupancy, preferred: CpuSet
) -> CpuPick | NotEnoughCpus:
    """Pick by the exclusive policy. If the pick violates NUMANodeLevel, use only NUMA nodes without such pods, or downgrade."""
    request = wish.request
    found = _choose(request, machine, pool, occupancy, preferred)
    if isinstance(found, NotEnoughCpus):
        return found
    if request.exclusive is not NUMA_NODE_LEVEL or wish.downgrade is Downgrade.NONE:
        return CpuPick(found, request.exclusive)
    # A NUMA node with such a pod is closed as a whole, by definition of NUMANodeLevel.
    forbidden = CpuSet(sum(bits for bits in machine.numa_bits.values() if bits & occupancy.numa_level.bits))
    if not found & forbidden:
        return CpuPick(found, request.exclusive)
    elsewhere = _choose(request, machine, pool - forbidden, occupancy, preferred)
    # Preferred CPUs (of a rebind) on closed NUMA nodes cannot be moved, so the downgrade applies.
    if isinstance(elsewhere, CpuSet) and not preferred & forbidden:
        return CpuPick(elsewhere, request.exclusive)
    below = PCPU_LEVEL if layout_of(machine).smt else NOT_EXCLUSIVE
    found = _choose(replace(request, exclusive=below), machine, pool, occupancy, preferred)
    return found if isinstance(found, NotEnoughCpus) else CpuPick(found, below, (NUMA_LEVEL_DOWNGRADED,))


def _choose(
    request: CpuRequest, machine: CpuTopology, pool: CpuSet, occupancy: CpuOccupancy, preferred: CpuSet
) -> CpuSet | NotEnoughCpus:
    even = request.strategy is NumaAllocateStrategy.DISTRIBUTE_EVENLY
    return (take_evenly if even else take_cpus)(request, machine, pool, occupancy, preferred)


def _shortage(wish: CpuPolicies) -> str:
    if not wish.required:
        return "not enough free CPUs"
    return {
        FULL_PCPUS: "not enough CPUs in whole free cores",
        SPREAD_BY_PCPUS: "not enough cores with a free CPU",
    }.get(wish.request.bind, "not enough free CPUs")
