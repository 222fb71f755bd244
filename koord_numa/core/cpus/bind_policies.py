"""
CPU bind policies (FullPCPUs, SpreadByPCPUs), exclusive policies with downgrades, and even distribution over NUMA nodes.

A required bind policy limits the CPUs to choose from. ``take.py`` chooses among them, and has the preferred bind policies.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuOccupancy, CpuRequest, NotEnoughCpus, layout_of
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
from koord_numa.core.ordering import emptiest_first, socket_key, tightness
from koord_numa.core.value_objects import ValueObject, replace

# Shapes of CPU sets for required bind policies: whole cores only, or one CPU per core.
#
# A core is whole if *all* its CPUs are in the set. Cores of a machine may have different numbers of CPUs.


def shaped(bind: CpuBindPolicy, machine: CpuTopology, available: CpuSet, preferred: CpuSet = EMPTY) -> CpuSet:
    """
    Return the available CPUs that a pod with this required policy may use.

    FullPCPUs: CPUs of completely available cores. SpreadByPCPUs: the lowest available CPU of every core, or a preferred
    one if available. As Koordinator's ``filterAvailableCPUsByRequiredCPUBindPolicy``, which has no preference.
    """
    if bind not in (FULL_PCPUS, SPREAD_BY_PCPUS):
        return CpuSet(available.bits & machine.bits)
    known: Pairs | tuple[()] | None = machine.derived.get(Pairs)
    if known is None:
        known = machine.derived[Pairs] = _found_pairs(machine) or ()
    pairs = known or None
    if pairs is not None and not preferred:
        return CpuSet(_shaped_pairs(bind, pairs, available.bits & machine.bits))
    if bind is FULL_PCPUS:
        return CpuSet(sum(core.bits for core in machine.cores if not core.bits & ~available.bits))
    bits = 0
    for core in machine.cores:
        mine = core.bits & available.bits
        # A preferred CPU first, else the lowest free one of the core. ``mine & -mine`` keeps a single bit.
        mine = mine & preferred.bits or mine
        bits |= mine & -mine
    return CpuSet(bits)


class Pairs(NamedTuple):
    """A machine whose cores have two CPUs with a constant difference of ids. ``low`` has the lower CPU of each core."""

    distance: int
    low: int


# A loop over 64 cores takes 10 us, which every decision on a changed node would need: 8 % of the engine's rate.
def _shaped_pairs(bind: CpuBindPolicy, pairs: Pairs, free: int) -> int:
    low = free & pairs.low
    if bind is FULL_PCPUS:
        whole = low & free >> pairs.distance
        return whole | whole << pairs.distance
    return low | free & ~pairs.low & ~(low << pairs.distance)


def _found_pairs(machine: CpuTopology) -> Pairs | None:
    ends = [(core.bits & -core.bits, core.bits.bit_length() - 1) for core in machine.cores]
    distances = {high - low.bit_length() + 1 for low, high in ends}
    if len(distances) != 1 or any(core.bits.bit_count() != 2 for core in machine.cores):
        return None
    return Pairs(distances.pop(), sum(low for low, _ in ends))


def has_shape(bind: CpuBindPolicy, machine: CpuTopology, cpus: CpuSet) -> bool:
    """Return whether the CPUs satisfy the policy if it is required."""
    parts = ((core.bits, core.bits & cpus.bits) for core in machine.cores)
    if bind is FULL_PCPUS:
        # Every core is in the set completely or not at all.
        return all(mine in (0, core) for core, mine in parts)
    if bind is SPREAD_BY_PCPUS:
        return all(mine.bit_count() <= 1 for _, mine in parts)
    return True


def exactly_whole_cores(machine: CpuTopology, pool: CpuSet, count: int, sign: int) -> CpuSet | None:
    """
    Return whole cores of the pool with exactly ``count`` CPUs, or ``None`` if no combination of cores adds up.

    For machines with cores of different sizes, where taking cores one by one may miss the sum. A single NUMA node is
    preferred over a socket, and a socket over the whole machine. Within a domain, cores with low ids are preferred.
    """
    layout = layout_of(machine)
    everywhere = [core.bits for core in machine.cores if not core.bits & ~pool.bits]
    # Domains ascend in size, so the first match is the tightest. Cores across domains come last.
    for places in (layout.numas, layout.sockets):
        for place in sorted(places, key=lambda place: socket_key(sign, (place.bits & pool.bits).bit_count(), place.id)):
            found = _adding_up([core for core in everywhere if core & place.bits == core], count)
            if found is not None:
                return CpuSet(found)
    found = _adding_up(everywhere, count)
    return None if found is None else CpuSet(found)


# Subset sums as bits of an integer: adding a core is a shift. The choice is read backwards from the table.
def _adding_up(cores: list[int], count: int) -> int | None:
    """Return a subset of the cores with exactly ``count`` CPUs. Bit s of ``reachable[i]``: the first i cores can have s CPUs."""
    reachable = [1]
    for core in cores:
        reachable.append(reachable[-1] | reachable[-1] << core.bit_count())
    if not reachable[-1] >> count & 1:
        return None
    bits, missing = 0, count
    for position in range(len(cores) - 1, -1, -1):
        # Cores with high ids are used only if the sum is impossible without them.
        if not reachable[position] >> missing & 1:
            bits |= cores[position]
            missing -= cores[position].bit_count()
    return bits


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
