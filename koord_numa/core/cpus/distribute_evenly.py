"""
The NUMA strategy DistributeEvenly: an equal share of every NUMA node, in whole cores if full cores are requested.

Koordinator defines the name but treats it as LeastAllocated. The fine-grained CPU orchestration proposal describes it.
``take.py`` chooses the CPUs in each NUMA node.
"""

from collections.abc import Mapping

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuOccupancy, CpuRequest, NotEnoughCpus
from koord_numa.core.cpus.layout import layout_of
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.ordering import emptiest_first
from koord_numa.core.value_objects import replace


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
