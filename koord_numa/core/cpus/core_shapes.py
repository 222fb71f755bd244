"""
What a required bind policy demands of a set of CPUs: whole cores only, or one CPU per core.

A core is whole when *all* its CPUs are there, however many that core has: cores may differ on one machine.
"""

from typing import NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.layout import layout_of
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import FULL_PCPUS, SPREAD_BY_PCPUS, CpuBindPolicy
from koord_numa.core.ordering import socket_key


def shaped(bind: CpuBindPolicy, machine: CpuTopology, available: CpuSet, preferred: CpuSet = EMPTY) -> CpuSet:
    """
    Those of the available CPUs that a pod requiring this policy may be given.

    FullPCPUs: CPUs of wholly available cores. SpreadByPCPUs: of every core the lowest available CPU, a preferred one if
    there is one. As Koordinator's ``filterAvailableCPUsByRequiredCPUBindPolicy``, which knows no preference here.
    """
    if bind not in (FULL_PCPUS, SPREAD_BY_PCPUS):
        return CpuSet(available.bits & machine.bits)
    pairs = _pairs_of(machine)
    if pairs is not None and not preferred:
        return CpuSet(_shaped_pairs(bind, pairs, available.bits & machine.bits))
    if bind is FULL_PCPUS:
        return CpuSet(sum(core.bits for core in machine.cores if not core.bits & ~available.bits))
    bits = 0
    for core in machine.cores:
        mine = core.bits & available.bits
        # A preferred CPU first, else the core's lowest free one; ``mine & -mine`` keeps a single bit.
        mine = mine & preferred.bits or mine
        bits |= mine & -mine
    return CpuSet(bits)


class Pairs(NamedTuple):
    """A machine whose cores all have two CPUs, with ids that differ by the same number. ``low`` has the lower CPU of each core."""

    distance: int
    low: int


# A walk over the cores takes 10 us on 64 of them, which every decision on a changed node would pay: 8 % of the engine's rate.
def _shaped_pairs(bind: CpuBindPolicy, pairs: Pairs, free: int) -> int:
    low = free & pairs.low
    if bind is FULL_PCPUS:
        whole = low & free >> pairs.distance
        return whole | whole << pairs.distance
    return low | free & ~pairs.low & ~(low << pairs.distance)


def _pairs_of(machine: CpuTopology) -> Pairs | None:
    """``None`` where cores have other numbers of CPUs, or their ids differ irregularly."""
    known: Pairs | tuple[()] | None = machine.derived.get(Pairs)
    if known is None:
        known = machine.derived[Pairs] = _found_pairs(machine) or ()
    return known or None


def _found_pairs(machine: CpuTopology) -> Pairs | None:
    ends = [(core.bits & -core.bits, core.bits.bit_length() - 1) for core in machine.cores]
    distances = {high - low.bit_length() + 1 for low, high in ends}
    if len(distances) != 1 or any(core.bits.bit_count() != 2 for core in machine.cores):
        return None
    return Pairs(distances.pop(), sum(low for low, _ in ends))


def has_shape(bind: CpuBindPolicy, machine: CpuTopology, cpus: CpuSet) -> bool:
    """Would a pod requiring this policy accept these CPUs?"""
    parts = ((core.bits, core.bits & cpus.bits) for core in machine.cores)
    if bind is FULL_PCPUS:
        # A core is in the set as a whole or not at all.
        return all(mine in (0, core) for core, mine in parts)
    if bind is SPREAD_BY_PCPUS:
        return all(mine.bit_count() <= 1 for _, mine in parts)
    return True


def exactly_whole_cores(machine: CpuTopology, pool: CpuSet, count: int, sign: int) -> CpuSet | None:
    """
    Whole cores out of the pool with exactly ``count`` CPUs together, or ``None`` when no choice of cores adds up to it.

    For machines whose cores differ in size, where taking core after core may miss the sum. One NUMA node is better
    than one socket, and that better than the whole machine; inside a place, cores with low ids are.
    """
    layout = layout_of(machine)
    everywhere = [core.bits for core in machine.cores if not core.bits & ~pool.bits]
    # Places ascend in size, so the first that adds up is the tightest; only then cores across places are combined.
    for places in (layout.numas, layout.sockets):
        for place in sorted(places, key=lambda place: socket_key(sign, (place.bits & pool.bits).bit_count(), place.id)):
            found = _adding_up([core for core in everywhere if core & place.bits == core], count)
            if found is not None:
                return CpuSet(found)
    found = _adding_up(everywhere, count)
    return None if found is None else CpuSet(found)


# Subset sums as bits of one integer: adding a core is one shift, and the table is walked back for the choice.
def _adding_up(cores: list[int], count: int) -> int | None:
    """A subset of the cores with this many CPUs in sum; bit s of ``reachable[i]``: the first i cores can make s."""
    reachable = [1]
    for core in cores:
        reachable.append(reachable[-1] | reachable[-1] << core.bit_count())
    if not reachable[-1] >> count & 1:
        return None
    bits, missing = 0, count
    for position in range(len(cores) - 1, -1, -1):
        # Cores with high ids are used only where the sum cannot be made without them.
        if not reachable[position] >> missing & 1:
            bits |= cores[position]
            missing -= cores[position].bit_count()
    return bits
