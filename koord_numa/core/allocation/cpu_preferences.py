"""
Preferences for CPUs where NUMA nodes are chosen: of equally narrow sets, those that honor exclusivity and shape come first.

Theory. CPUs are picked after NUMA nodes were chosen, so the choice of NUMA nodes looks ahead. PCPULevel avoids cores, and NUMANodeLevel
NUMA nodes, that hold CPUs of pods with the same policy: a NUMA node offers *exclusive* CPUs, and a set honors the policy when every member
has as many of them as its share. FullPCPUs wants whole cores and SpreadByPCPUs one CPU of each core: a set is as good as the number of the
pod's CPUs that get this shape on it. Alignment comes first: a set is never widened. Exclusivity comes before the shape.

Example: two NUMA nodes of four cores; one CPU of each core of NUMA node 0 is held. A pod of four CPUs with FullPCPUs gets NUMA node 1.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from koord_numa.core.allocation.node_rules import CpuBinding, NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers, split
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.bind_policies import Downgrade
from koord_numa.core.cpus.core_shapes import shaped
from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.cpus.layout import layout_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.verdicts import Exclusivity
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    NOT_EXCLUSIVE,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    SPREAD_BY_PCPUS,
    CpuBindPolicy,
    CpuExclusivePolicy,
)
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import PerNuma

_SHAPES: Final = frozenset({FULL_PCPUS, SPREAD_BY_PCPUS})
PCPU_LEVEL_BROKEN: Final = "PCPULevel is not honoured: too few cores are free of pods with the same policy"


def honouring_first(masks: list[int], rules: NodeRules, offers: NumaOffers) -> list[int]:
    """Those of the sets on which the pod's exclusive policy can be honoured; all of them when there is none or no policy."""
    machine, binding = offers.accounts.machine, rules.binding
    if len(masks) < 2 or machine is None or binding is None or binding.exclusive is NOT_EXCLUSIVE:
        return masks
    if binding.downgrade is Downgrade.NONE:
        return masks  # Koordinator, which downgrades nothing, does not look ahead either
    # A NUMANodeLevel that no set honors is downgraded to PCPULevel (CPU orchestration, "CPUExclusivePolicy").
    levels = (NUMA_NODE_LEVEL, PCPU_LEVEL) if binding.exclusive is NUMA_NODE_LEVEL else (binding.exclusive,)
    for level in levels:
        held = _held(level, offers.occupancy, machine)
        if not held:
            return masks
        exclusive = _exclusive_cpus(binding.policy, level, machine, offers.accounts.free_cpus.bits & ~held, offers)
        honouring = [mask for mask in masks if _honours(mask, exclusive, rules, offers)]
        if honouring:
            return honouring
    # Alignment comes before exclusivity: all sets stay, and the pick reports what became of the policy.
    return masks


def best_shaped(masks: list[int], rules: NodeRules, offers: NumaOffers) -> list[int]:
    """
    Those of the sets on which most CPUs of the pod get the shape that it prefers: whole cores, or a core for each CPU.

    004 (fine-grained CPU orchestration): FullPCPUs takes split cores only where no whole ones are left. A required shape limits what
    NUMA nodes offer already.
    """
    if len(masks) < 2:
        return masks
    shaped_cpus = _shaped_cpus(rules, offers)
    if shaped_cpus is None:
        return masks
    counts = [_in_shape(mask, shaped_cpus, rules, offers) for mask in masks]
    most = max(counts)
    return [mask for mask, count in zip(masks, counts, strict=True) if count == most]


def cpu_shares(rules: NodeRules, offers: NumaOffers, positions: Sequence[int]) -> Sequence[int] | None:
    """Milli-CPU that each of these NUMA nodes gives, of the preferred shape where possible; ``None`` where they fall short."""
    amount, given = rules.amounts[CPU], [offers.given[CPU][at] for at in positions]
    plain = split(amount, given, offers.units[CPU])
    if plain is None or len(positions) == 1 or (shaped_cpus := _shaped_cpus(rules, offers)) is None:
        return plain
    unit = MILLI * _unit(rules, offers)
    rest = amount % unit
    shares = split(
        amount - rest, [min(has, MILLI * shaped_cpus[at]) for has, at in zip(given, positions, strict=True)], unit
    )
    if shares is None or not rest:
        return shares or plain
    for index, (has, share) in enumerate(zip(given, shares, strict=True)):
        if has - share >= rest:
            return (*shares[:index], share + rest, *shares[index + 1 :])
    return plain


def _unit(rules: NodeRules, offers: NumaOffers) -> int:
    """The CPUs of a core where whole cores are preferred, else 1."""
    machine = offers.accounts.machine
    if machine is None or rules.binding is None or rules.binding.policy is not FULL_PCPUS:
        return 1
    return max(1, machine.threads_per_core)


def _shaped_cpus(rules: NodeRules, offers: NumaOffers) -> PerNuma | None:
    """By position of the NUMA node: free CPUs of the shape that the pod prefers; ``None`` where it prefers none."""
    machine, binding = offers.accounts.machine, rules.binding
    if (
        machine is None
        or binding is None
        or binding.required
        or binding.policy not in _SHAPES
        or CPU not in offers.given
    ):
        return None
    # Koordinator, which downgrades nothing, elects NUMA nodes by amounts alone.
    if binding.downgrade is Downgrade.NONE or not layout_of(machine).smt:
        return None
    held = _held(binding.exclusive, offers.occupancy, machine)
    if not held:
        return offers.accounts.takeable(binding.policy)
    bits = shaped(binding.policy, machine, CpuSet(offers.accounts.free_cpus.bits & ~held)).bits
    return tuple((bits & machine.numa_bits.get(numa, 0)).bit_count() for numa in offers.numa_ids)


def _in_shape(mask: int, shaped_cpus: PerNuma, rules: NodeRules, offers: NumaOffers) -> int:
    """Count the CPUs that get the preferred shape on this set of NUMA nodes."""
    unit = _unit(rules, offers)
    if not mask & (mask - 1):
        return min(rules.cpus, shaped_cpus[offers.numa_ids.index(mask.bit_length() - 1)]) // unit * unit
    positions = [at for at, numa in enumerate(offers.numa_ids) if mask >> numa & 1]
    shares = cpu_shares(rules, offers, positions) or [0] * len(positions)
    return sum(min(share // MILLI, shaped_cpus[at]) // unit * unit for share, at in zip(shares, positions, strict=True))


def has_preferred_shape(policy: CpuBindPolicy, machine: CpuTopology, cpus: CpuSet) -> bool:
    """Whether picked CPUs are whole cores as far as their number allows (FullPCPUs), or one of each core (SpreadByPCPUs)."""
    if policy not in _SHAPES or not layout_of(machine).smt:
        return True
    rest = len(cpus) % max(1, machine.threads_per_core) if policy is FULL_PCPUS else 0
    return len(shaped(policy, machine, cpus)) >= len(cpus) - rest


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


def _exclusive_cpus(
    bind: CpuBindPolicy, level: CpuExclusivePolicy, machine: CpuTopology, usable: int, offers: NumaOffers
) -> PerNuma:
    """By position of the NUMA node: ``usable`` CPUs, which the policy allows, and for pods that spread one of each core."""
    if bind is SPREAD_BY_PCPUS and level is PCPU_LEVEL:
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
    shares = cpu_shares(rules, offers, positions)
    return shares is not None and all(
        share <= MILLI * exclusive[at] for share, at in zip(shares, positions, strict=True)
    )
