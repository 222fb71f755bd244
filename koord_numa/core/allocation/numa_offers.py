"""The amounts and CPUs that each NUMA node of a node offers to a pod, and preferences among equally narrow sets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from koord_numa.core.allocation.demand import CpuBinding, NodeRules
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus import CpuOccupancy, Downgrade, layout_of, shaped
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa import mask_of, mask_of_ids, numa_ids
from koord_numa.core.objects.constraints import selects
from koord_numa.core.objects.request import NumaSpread
from koord_numa.core.objects.verdicts import Exclusivity, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    NOT_EXCLUSIVE,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    SPREAD_BY_PCPUS,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaSpreadMode,
    NumaSpreadScope,
)
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import Inventory, PerNuma
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import Accounting, NumaFree, numa_mask
from koord_numa.core.value_objects import ValueObject, value_field

# Spread or pack the pods of a workload over the NUMA nodes or sockets of a node (annotation ``numa-spread``).
#
# A domain is a set of NUMA nodes as a mask. A pod counts in every domain that it uses. The rule compares sets of NUMA
# nodes that could hold the pod, which other modules determine.

MAX_POINTS: Final = 100
MAX_KEPT: Final = 64
"""Maximum counts per ledger. Bounds the memory for pods with many different selectors. A pod has one selector."""
_STEP: Final = 25
"""Points that each further pod in the same domain subtracts from the score of a node."""


class WorkloadSpread(ValueObject, gc=False):
    """The spread of a pod, and the number of pods in each domain of the node that its selector matches."""

    spread: NumaSpread
    counts: tuple[tuple[int, int], ...] = ()  # by domain: its NUMA nodes, and the pods

    def allows(self, mask: int) -> bool:
        """
        Return whether ``DoNotSchedule`` permits the set.

        Spread: with the pod, none of its domains has two pods more than another domain. Pack: every domain of the pod
        has matching pods, if any domain has.
        """
        if not self.spread.required:
            return True
        if self.spread.mode is NumaSpreadMode.PACK:
            return all(count for _, count in self._touched(mask)) or not any(count for _, count in self.counts)
        after = [(domain, count + bool(domain & mask)) for domain, count in self.counts]
        fewest = min((count for _, count in after), default=0)
        return all(count - fewest <= 1 for domain, count in after if domain & mask)

    def best(self, masks: list[int]) -> list[int]:
        """Return the best sets for the mode, in their order."""
        if len(masks) < 2 or not self.counts:
            return masks
        costs = [self._cost(mask) for mask in masks]
        least = min(costs)
        return [mask for mask, cost in zip(masks, costs, strict=True) if cost == least]

    def points(self, mask: int) -> int:
        """Return a score from 0 to 100 of how well this set of NUMA nodes spreads or packs the workload."""
        touched = [count for _, count in self._touched(mask)]
        if not touched:
            return 0
        if self.spread.mode is NumaSpreadMode.PACK:
            return MAX_POINTS if all(touched) else 0
        return max(0, MAX_POINTS - _STEP * max(touched))

    def refusal(self) -> Rejection:
        """Return a rejection: the node has room for the pod, but not on NUMA nodes that its spread permits."""
        verb = "pack" if self.spread.mode is NumaSpreadMode.PACK else "spread"
        what = "sockets" if self.spread.scope is NumaSpreadScope.SOCKET else "NUMA nodes"
        here = ", ".join(f"{count} on NUMA node {_ids(domain)}" for domain, count in self.counts)
        return Rejection(
            Reason.NUMA_SPREAD,
            f"node(s) cannot {verb} the pods of the workload over {what} (numa-spread)",
            detail=f"pods that the selector picks: {here or 'none'}; the pod does not fit where it would have to go",
        )

    def _touched(self, mask: int) -> list[tuple[int, int]]:
        return [(domain, count) for domain, count in self.counts if domain & mask]

    def _cost(self, mask: int) -> tuple[int, int]:
        touched = [count for _, count in self._touched(mask)]
        if self.spread.mode is NumaSpreadMode.PACK:
            return sum(not count for count in touched), -min(touched, default=0)
        return max(touched, default=0), sum(touched)


def workload_spread(
    spread: NumaSpread, inventory: Inventory, ledger: Ledger, wanted: Iterable[str] = ()
) -> WorkloadSpread:
    """
    Count the pods of the node that the selector matches. ``wanted`` are the resources of the pod.

    A domain without any amount of a resource that the pod needs is not compared, since it could never hold the pod.
    """
    known: dict[Any, WorkloadSpread] = ledger.derived.setdefault("numa_spread", {})
    key = (spread, inventory.numa_ids, tuple(wanted))
    if key not in known:
        if len(known) >= MAX_KEPT:
            known.clear()
        masks = [
            numa_mask(holding, inventory.machine)
            for holding in ledger
            if holding.request is not None
            and holding.request.namespace == spread.namespace
            and selects(spread.selector, dict(holding.request.labels))
        ]
        able = [domain for domain in _domains(spread.scope, inventory) if _offers(inventory, domain, key[2])]
        counts = tuple((domain, sum(bool(mask & domain) for mask in masks)) for domain in able)
        known[key] = WorkloadSpread(spread, counts)
    return known[key]


def _domains(scope: NumaSpreadScope, inventory: Inventory) -> list[int]:
    """Return the domains of a node as masks. PCIe roots of a NUMA node are not distinguished by a choice of NUMA nodes."""
    machine = inventory.machine
    ids = inventory.numa_ids
    if scope is not NumaSpreadScope.SOCKET or machine is None:
        return [1 << numa for numa in ids]
    sockets: dict[int, int] = {}
    for numa in ids:
        here = machine.numa_bits.get(numa, 0)
        socket = min((socket for socket, bits in machine.socket_bits.items() if bits & here), default=0)
        sockets[socket] = sockets.get(socket, 0) | 1 << numa
    return [sockets[socket] for socket in sorted(sockets)]


def _offers(inventory: Inventory, domain: int, wanted: Iterable[str]) -> bool:
    totals: Mapping[str, Any] = inventory.totals
    places = [at for at, numa in enumerate(inventory.numa_ids) if domain >> numa & 1]
    return all(any(totals[name][at] for at in places) for name in wanted if name in totals)


def _ids(domain: int) -> str:
    return ", ".join(map(str, numa_ids(domain)))


class DeviceHints(Protocol):
    """
    NUMA affinity of the devices of a pod's claims. Sets of NUMA nodes are masks, never empty.

    A set with too few devices cannot hold the pod, even if it has enough of all other resources. Therefore the hints of
    devices are merged with those of the other resources (KEP-693, "Hint Providers").
    """

    def fits(self, mask: int) -> bool:
        """Return whether all claims can be allocated on these NUMA nodes, in addition to the devices in use."""
        ...

    def fits_if_empty(self, mask: int) -> bool:
        """Return whether all claims could be allocated if no device were in use."""
        ...


def split(amount: int, free: Sequence[int], unit: int = 1) -> tuple[int, ...] | None:
    """
    Return the share of each NUMA node in the order of ``free``, or ``None`` if they cannot cover the amount in whole units.

    Served in ascending order of free amounts, each with an equal part of the remaining amount or all it has. So larger
    offers compensate for smaller ones, and the amount fits exactly if the free whole units add up. As Koordinator's
    node_allocation.go, whose order compares positions instead of NUMA ids. The order here is the intended one.
    """
    # A single member takes all or nothing: the common case, without sorting.
    if len(free) == 1:
        return None if amount % unit or amount > free[0] else (amount,)
    shares = [0] * len(free)
    rest = amount
    waiting = len(free)
    # ``sorted`` is stable: equal amounts keep the order of NUMA ids, so the result is deterministic.
    for position in sorted(range(len(free)), key=free.__getitem__):
        # Whole units only. The remainder of the division stays in ``rest`` for later members, which have more.
        part = rest // unit // waiting * unit
        shares[position] = min(part, free[position] // unit * unit)
        rest -= shares[position]
        waiting -= 1
    return None if rest else tuple(shares)


class NumaOffers(ValueObject):
    """
    The offers of each NUMA node to a pod, by resource that the pod requests and a NUMA node publishes.

    ``units`` is the smallest share of a resource. ``lacking`` is the mask of NUMA nodes with nothing left of it.
    ``free`` and ``total`` are the accounts of these and of the scored resources, with CPUs limited to those usable
    under a required bind policy. ``cpus``: free CPUs per NUMA node that the binding may choose from. ``devices`` of
    resource claims must be on the same NUMA nodes, ``None`` if there are none or they may be anywhere. ``workload`` has
    the NUMA nodes of other pods of the workload, for ``numa-spread``.
    """

    accounts: NumaFree
    given: dict[str, PerNuma]
    units: dict[str, int]
    lacking: dict[str, int]
    free: Mapping[str, PerNuma]
    cpus: PerNuma
    occupancy: CpuOccupancy = value_field(default_factory=CpuOccupancy)
    devices: DeviceHints | None = None
    workload: WorkloadSpread | None = None

    @property
    def numa_ids(self) -> tuple[int, ...]:
        """Return the NUMA nodes, ascending."""
        return self.accounts.numa_ids

    @property
    def mask(self) -> int:
        """Return the mask of all NUMA nodes."""
        return mask_of_ids(self.accounts.numa_ids)


def offers(rules: NodeRules, accounts: NumaFree, occupancy: CpuOccupancy) -> NumaOffers:
    """Return the current offers of the NUMA nodes under these rules."""
    # Without a machine (no CPU list published) only amounts are known. Pods with exclusive CPUs never get here then.
    binding = rules.binding
    cpus = accounts.takeable(binding.demanded) if binding is not None and accounts.machine is not None else ()
    free = _usable(rules, accounts, cpus)
    # Only resources that a NUMA node publishes can be aligned. NodeResourcesFit handles the others.
    given = {name: free[name] for name in rules.amounts if name in accounts.total}
    units = dict.fromkeys(given, 1)
    if binding is not None and CPU in given:
        units[CPU] = _cpu_unit(binding, accounts)
        if rules.accounting is Accounting.EVERY_POD:
            # Amounts may allow more CPUs than are free (they include pods on shared CPUs), or fewer: the minimum
            # counts.
            given[CPU] = _limit(_unamplified(free[CPU], rules.ratio), cpus)
    # In the common case all NUMA nodes have something left.
    lacking = {name: 0 if all(amounts) else _without_any(accounts.numa_ids, amounts) for name, amounts in given.items()}
    return NumaOffers(accounts, given, units, lacking, free, cpus, occupancy)


def _usable(rules: NodeRules, accounts: NumaFree, cpus: PerNuma) -> Mapping[str, PerNuma]:
    """Return the free amounts. CPUs are limited to those usable under a required bind policy (``cpus``, per NUMA node)."""
    free = accounts.free
    if rules.binding and rules.binding.required and accounts.machine and CPU in free:
        return {**free, CPU: _limit(free[CPU], cpus)}
    return free


def _unamplified(amounts: PerNuma, ratio: float) -> PerNuma:
    """Convert amplified CPU amounts to milli-CPU of the machine."""
    # Rounded down: a non-existing fraction of a milli-CPU must not be allocated.
    return amounts if ratio == 1 else tuple(int(amount / ratio) for amount in amounts)


def _without_any(numa_ids: tuple[int, ...], amounts: PerNuma) -> int:
    """Return the mask of the NUMA nodes that have nothing left."""
    return mask_of([numa for numa, amount in zip(numa_ids, amounts, strict=True) if not amount])


def _limit(free: PerNuma, cpus: PerNuma) -> PerNuma:
    """Limit amounts to the CPUs that can be taken, as Koordinator's trimNUMANodeResources for a required bind policy."""
    return tuple([min(amount, MILLI * count) for amount, count in zip(free, cpus, strict=True)])


def _cpu_unit(binding: CpuBinding, accounts: NumaFree) -> int:
    """Return the unit of CPU shares: whole CPUs, or whole cores if they are required."""
    if binding.demanded is FULL_PCPUS and accounts.machine:
        # A machine of unknown core size has 0 threads, and a unit of 0 would divide by zero.
        return MILLI * max(1, accounts.machine.threads_per_core)
    return MILLI


# Preferences for CPUs in the choice of NUMA nodes: of equally narrow sets, those for exclusivity and shape come first.
#
# CPUs are picked after the NUMA nodes, so the choice of NUMA nodes looks ahead. PCPULevel avoids cores, and NUMANodeLevel
# NUMA nodes, with CPUs of pods with the same policy. A set honors the policy if every member has enough *exclusive* CPUs
# for its share. FullPCPUs prefers whole cores and SpreadByPCPUs one CPU per core: the set with the most CPUs of this
# shape is best. The order is alignment, exclusivity, shape: a set is never widened.
#
# Example: two NUMA nodes of four cores. One CPU of each core of NUMA node 0 is held. A pod of four CPUs with FullPCPUs
# gets NUMA node 1.

_SHAPES: Final = frozenset({FULL_PCPUS, SPREAD_BY_PCPUS})
PCPU_LEVEL_BROKEN: Final = "PCPULevel is not honored: too few cores are free of pods with the same policy"


def honouring_first(masks: list[int], rules: NodeRules, offers: NumaOffers) -> list[int]:
    """Return the sets on which the pod's exclusive policy can be honored. All sets if there is none, or no policy."""
    machine, binding = offers.accounts.machine, rules.binding
    if len(masks) < 2 or machine is None or binding is None or binding.exclusive is NOT_EXCLUSIVE:
        return masks
    if binding.downgrade is Downgrade.NONE:
        return masks  # without downgrades, as in Koordinator, there is no look-ahead
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
    # Alignment comes before exclusivity: all sets stay, and the pick reports the effect on the policy.
    return masks


def best_shaped(masks: list[int], rules: NodeRules, offers: NumaOffers) -> list[int]:
    """
    Return the sets on which most CPUs of the pod get its preferred shape: whole cores, or one CPU per core.

    Fine-grained CPU orchestration: FullPCPUs takes split cores only if no whole ones are left. A required shape already
    limits the offers of the NUMA nodes.
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
    """Return the share of each of these NUMA nodes in milli-CPU, if possible in the preferred shape. ``None`` if they have too little."""
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
    """Return the CPUs per core if whole cores are preferred, else 1."""
    machine = offers.accounts.machine
    if machine is None or rules.binding is None or rules.binding.policy is not FULL_PCPUS:
        return 1
    return max(1, machine.threads_per_core)


def _shaped_cpus(rules: NodeRules, offers: NumaOffers) -> PerNuma | None:
    """Return the free CPUs of the preferred shape by position of the NUMA node. ``None`` without a preferred shape."""
    machine, binding = offers.accounts.machine, rules.binding
    if (
        machine is None
        or binding is None
        or binding.required
        or binding.policy not in _SHAPES
        or CPU not in offers.given
    ):
        return None
    # Koordinator, which has no downgrade, elects NUMA nodes by amounts alone.
    if binding.downgrade is Downgrade.NONE or not layout_of(machine).smt:
        return None
    held = _held(binding.exclusive, offers.occupancy, machine)
    if not held:
        return offers.accounts.takeable(binding.policy)
    bits = shaped(binding.policy, machine, CpuSet(offers.accounts.free_cpus.bits & ~held)).bits
    return tuple((bits & machine.numa_bits.get(numa, 0)).bit_count() for numa in offers.numa_ids)


def _in_shape(mask: int, shaped_cpus: PerNuma, rules: NodeRules, offers: NumaOffers) -> int:
    """Return the number of CPUs that get the preferred shape on this set of NUMA nodes."""
    unit = _unit(rules, offers)
    if not mask & (mask - 1):
        return min(rules.cpus, shaped_cpus[offers.numa_ids.index(mask.bit_length() - 1)]) // unit * unit
    positions = [at for at, numa in enumerate(offers.numa_ids) if mask >> numa & 1]
    shares = cpu_shares(rules, offers, positions) or [0] * len(positions)
    return sum(min(share // MILLI, shaped_cpus[at]) // unit * unit for share, at in zip(shares, positions, strict=True))


def has_preferred_shape(policy: CpuBindPolicy, machine: CpuTopology, cpus: CpuSet) -> bool:
    """Return whether the CPUs are whole cores as far as their number allows (FullPCPUs), or one per core (SpreadByPCPUs)."""
    if policy not in _SHAPES or not layout_of(machine).smt:
        return True
    rest = len(cpus) % max(1, machine.threads_per_core) if policy is FULL_PCPUS else 0
    return len(shaped(policy, machine, cpus)) >= len(cpus) - rest


def outcome(
    binding: CpuBinding | None, cpus: CpuSet, occupancy: CpuOccupancy, machine: CpuTopology | None
) -> Exclusivity:
    """Return the result of the exclusive policy for the picked CPUs."""
    # No CPUs or no policy: nothing can be broken.
    if binding is None or machine is None or binding.exclusive is NOT_EXCLUSIVE:
        return Exclusivity.HONOURED
    if not cpus.bits & _held(binding.exclusive, occupancy, machine):
        return Exclusivity.HONOURED
    # PCPULevel has no weaker level. A failed NUMANodeLevel may still keep cores apart, which is the proposal's
    # downgrade.
    if binding.exclusive is PCPU_LEVEL:
        return Exclusivity.BROKEN
    broken = cpus.bits & _held(PCPU_LEVEL, occupancy, machine)
    return Exclusivity.BROKEN if broken else Exclusivity.DOWNGRADED


def _held(policy: CpuExclusivePolicy, occupancy: CpuOccupancy, machine: CpuTopology) -> int:
    """Return the CPU bits that pods with this policy close to other pods with the same policy."""
    if policy is NUMA_NODE_LEVEL:
        return _around(occupancy.numa_level.bits, machine.numa_bits.values())
    # Without SMT a core is a single CPU and cannot be shared, so PCPULevel closes nothing.
    if policy is PCPU_LEVEL and layout_of(machine).smt:
        return _around(occupancy.pcpu_level.bits, (core.bits for core in machine.cores))
    return 0


def _around(bits: int, units: Iterable[int]) -> int:
    """Return all CPUs of the units (cores or NUMA nodes) that overlap with ``bits``."""
    held = 0
    for unit in units if bits else ():
        if unit & bits:
            held |= unit
    return held


def _exclusive_cpus(
    bind: CpuBindPolicy, level: CpuExclusivePolicy, machine: CpuTopology, usable: int, offers: NumaOffers
) -> PerNuma:
    """Return the ``usable`` CPUs by position of the NUMA node. Spreading pods with PCPULevel count one CPU per core."""
    if bind is SPREAD_BY_PCPUS and level is PCPU_LEVEL:
        # ``mine & -mine`` is the lowest usable CPU of the core: a spreading pod takes one per core.
        usable = sum(mine & -mine for core in machine.cores if (mine := core.bits & usable))
    return tuple((usable & machine.numa_bits.get(numa, 0)).bit_count() for numa in offers.numa_ids)


def _honours(mask: int, exclusive: PerNuma, rules: NodeRules, offers: NumaOffers) -> bool:
    # The pod requests no CPU that a NUMA node publishes, so no share can be compared with exclusive CPUs.
    if CPU not in offers.given:
        return False
    position = {numa: at for at, numa in enumerate(offers.numa_ids)}
    positions = [position[numa] for numa in numa_ids(mask)]
    # The shares must equal those of ``grant.place``: a set is evaluated by the CPUs that would be taken from each
    # member.
    shares = cpu_shares(rules, offers, positions)
    return shares is not None and all(
        share <= MILLI * exclusive[at] for share, at in zip(shares, positions, strict=True)
    )
