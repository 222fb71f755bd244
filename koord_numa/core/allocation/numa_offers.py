"""The amounts that each NUMA node of a node offers to a pod, and the split of an amount over NUMA nodes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from koord_numa.core.allocation.node_rules import CpuBinding, NodeRules
from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.numa.hints import mask_of, mask_of_ids
from koord_numa.core.numa.workload_spread import WorkloadSpread
from koord_numa.core.objects.vocabulary import FULL_PCPUS
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import PerNuma
from koord_numa.core.state.numa_free import Accounting, NumaFree
from koord_numa.core.value_objects import ValueObject, value_field


class DeviceHints(Protocol):
    """
    NUMA affinity of the devices of a pod's claims. Sets of NUMA nodes are masks, never empty.

    A set with too few devices cannot hold the pod, whatever else it has: so devices take part in the merge of all other
    resources (KEP-693, "Hint Providers").
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
