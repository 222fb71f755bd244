"""
CPU exclusive policies where NUMA nodes are chosen: of equally good sets, those where the policy can be honoured come first.

Theory. The fine-grained CPU orchestration proposal has PCPULevel avoid cores, and NUMANodeLevel avoid NUMA nodes, that hold CPUs of
pods with the same policy. CPUs are picked after NUMA nodes were chosen, so the choice of NUMA nodes must look ahead: a NUMA node
offers *exclusive* CPUs only, those that no such pod keeps others away from, and a set honours the policy when every member has as
many of them as its share. Alignment comes first: a set is never widened for exclusivity.

Example: two NUMA nodes of four cores; a pod with PCPULevel and SpreadByPCPUs holds one CPU of each core of NUMA node 0. For a second
one of four CPUs NUMA node 0 offers no exclusive CPU and NUMA node 1 four, one a core: NUMA node 1 is chosen.
"""

from collections.abc import Iterable

from koord_numa.core.allocation.node_rules import CpuBinding, NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers
from koord_numa.core.allocation.split import split
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.bind_policies import Downgrade
from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.cpus.layout import layout_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.verdicts import Exclusivity
from koord_numa.core.objects.vocabulary import (
    NOT_EXCLUSIVE,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    SPREAD_BY_PCPUS,
    CpuExclusivePolicy,
)
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import PerNuma

PCPU_LEVEL_BROKEN = "PCPULevel is not honoured: too few cores are free of pods with the same policy"


def honouring_first(masks: list[int], rules: NodeRules, offers: NumaOffers) -> list[int]:
    """Those of the sets on which the pod's exclusive policy can be honoured; all of them when there is none or no policy."""
    machine, binding = offers.accounts.machine, rules.binding
    if len(masks) < 2 or machine is None or binding is None or binding.exclusive is NOT_EXCLUSIVE:
        return masks
    if binding.downgrade is Downgrade.NONE:
        return masks  # Koordinator, which downgrades nothing, does not look ahead either
    if not _held(binding.exclusive, offers.occupancy, machine):
        return masks
    exclusive = _exclusive_cpus(binding, machine, offers)
    # Alignment comes before exclusivity: where no set honours the policy, all of them stay, and the pick reports what became of
    # it.
    return [mask for mask in masks if _honours(mask, exclusive, rules, offers)] or masks


def outcome(
    binding: CpuBinding | None, cpus: CpuSet, occupancy: CpuOccupancy, machine: CpuTopology | None
) -> Exclusivity:
    """What became of the exclusive policy, given the CPUs that were picked."""
    # Nothing was picked or asked for, so nothing can be broken.
    if binding is None or machine is None or binding.exclusive is NOT_EXCLUSIVE:
        return Exclusivity.HONOURED
    if not cpus.bits & _held(binding.exclusive, occupancy, machine):
        return Exclusivity.HONOURED
    # Below PCPULevel there is no weaker level; a NUMANodeLevel that failed may still keep cores apart, which is the proposal's
    # downgrade.
    if binding.exclusive is PCPU_LEVEL:
        return Exclusivity.BROKEN
    broken = cpus.bits & _held(PCPU_LEVEL, occupancy, machine)
    return Exclusivity.BROKEN if broken else Exclusivity.DOWNGRADED


def _held(policy: CpuExclusivePolicy, occupancy: CpuOccupancy, machine: CpuTopology) -> int:
    """Bits of the CPUs that pods with this policy keep others of the same policy away from."""
    if policy is NUMA_NODE_LEVEL:
        return _around(occupancy.numa_level.bits, machine.numa_bits.values())
    # Without SMT a core is one CPU and cannot be shared: PCPULevel keeps nothing away.
    if policy is PCPU_LEVEL and layout_of(machine).smt:
        return _around(occupancy.pcpu_level.bits, (core.bits for core in machine.cores))
    return 0


def _around(bits: int, units: Iterable[int]) -> int:
    """All CPUs of the units (cores or NUMA nodes) that the set touches."""
    held = 0
    for unit in units if bits else ():
        if unit & bits:
            held |= unit
    return held


def _exclusive_cpus(binding: CpuBinding, machine: CpuTopology, offers: NumaOffers) -> PerNuma:
    """By position of the NUMA node: free CPUs that the policy allows, and for pods that spread one a core."""
    usable = offers.accounts.free_cpus.bits & ~_held(binding.exclusive, offers.occupancy, machine)
    if binding.policy is SPREAD_BY_PCPUS and binding.exclusive is PCPU_LEVEL:
        # ``mine & -mine`` is the lowest usable CPU of the core: a pod that spreads takes one a core.
        usable = sum(mine & -mine for core in machine.cores if (mine := core.bits & usable))
    return tuple((usable & machine.numa_bits.get(numa, 0)).bit_count() for numa in offers.numa_ids)


def _honours(mask: int, exclusive: PerNuma, rules: NodeRules, offers: NumaOffers) -> bool:
    # The pod requests no CPU that some NUMA node publishes, so no share can be compared with exclusive CPUs.
    if CPU not in offers.given:
        return False
    position = {numa: at for at, numa in enumerate(offers.numa_ids)}
    positions = [position[numa] for numa in numa_ids(mask)]
    # The shares must be those of ``grant.place``: a set is judged by the CPUs that would really be taken from each member.
    shares = split(rules.amounts[CPU], [offers.given[CPU][at] for at in positions], offers.units[CPU])
    return shares is not None and all(
        share <= MILLI * exclusive[at] for share, at in zip(shares, positions, strict=True)
    )
