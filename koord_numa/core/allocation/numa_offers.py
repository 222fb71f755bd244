"""What each NUMA node of one node can give to one pod, and how an amount is split over NUMA nodes."""

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
    Where the devices of a pod's claims can be allocated. Sets of NUMA nodes are masks, never empty.

    A set that has too few devices cannot hold the pod, however much of everything else it has: that is how devices join the merge of
    all other resources (KEP-693, "Hint Providers").
    """

    def fits(self, mask: int) -> bool:
        """Can all claims be allocated on these NUMA nodes, beside what is in use?"""
        ...

    def fits_if_empty(self, mask: int) -> bool:
        """Could they be if nothing were in use?"""
        ...


def split(amount: int, free: Sequence[int], unit: int = 1) -> tuple[int, ...] | None:
    """
    The share of each NUMA node, in the order of ``free``, or ``None`` when they cannot cover the amount in whole units.

    Served from the one with the least free upwards, each with an equal part of what is left or all that it has; so a caller that has
    more takes over what others lack, and the amount fits exactly when the free whole units add up. As Koordinator's
    node_allocation.go, whose order compares positions instead of NUMA ids; here the order is the one it means.
    """
    # One member takes all or nothing; this is the common case and needs no sorting.
    if len(free) == 1:
        return None if amount % unit or amount > free[0] else (amount,)
    shares = [0] * len(free)
    rest = amount
    waiting = len(free)
    # ``sorted`` is stable: equal amounts keep the order of NUMA ids, so the same input gives the same shares.
    for position in sorted(range(len(free)), key=free.__getitem__):
        # Whole units only. What division leaves stays in ``rest`` and goes to those with more, which come later.
        part = rest // unit // waiting * unit
        shares[position] = min(part, free[position] // unit * unit)
        rest -= shares[position]
        waiting -= 1
    return None if rest else tuple(shares)


class NumaOffers(ValueObject):
    """
    What each NUMA node can give to one pod, by resource that it requests and that some NUMA node publishes.

    ``units`` is the smallest share of a resource; ``lacking`` has, as a mask, the NUMA nodes with nothing left of it.
    ``free`` and ``total`` are the accounts of these and of the scored resources, CPUs limited to what a required bind policy
    can use. ``cpus``: free CPUs per NUMA node that the binding may choose from. ``devices`` of resource claims have to be on the same
    NUMA nodes, ``None`` where there are none or they may be anywhere. ``workload`` is where the pods are from which the pod wants to be
    apart, or with which it wants to be.
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
        """The NUMA nodes, ascending."""
        return self.accounts.numa_ids

    @property
    def mask(self) -> int:
        """All NUMA nodes."""
        return mask_of_ids(self.accounts.numa_ids)


def offers(rules: NodeRules, accounts: NumaFree, occupancy: CpuOccupancy) -> NumaOffers:
    """What the NUMA nodes can give by these rules now."""
    # Without a machine (no CPU list published) amounts are all there is; binding pods never get here then.
    binding = rules.binding
    cpus = accounts.takeable(binding.demanded) if binding is not None and accounts.machine is not None else ()
    free = _usable(rules, accounts, cpus)
    # Only resources that some NUMA node publishes can be aligned; the others are the plain predicate's.
    given = {name: free[name] for name in rules.amounts if name in accounts.total}
    units = dict.fromkeys(given, 1)
    if binding is not None and CPU in given:
        units[CPU] = _cpu_unit(binding, accounts)
        if rules.accounting is Accounting.EVERY_POD:
            # Amounts may promise more CPUs than are free (pods without own CPUs are counted too), and fewer: the smaller one
            # binds.
            given[CPU] = _limit(_unamplified(free[CPU], rules.ratio), cpus)
    # Most have something left on each.
    lacking = {name: 0 if all(amounts) else _without_any(accounts.numa_ids, amounts) for name, amounts in given.items()}
    return NumaOffers(accounts, given, units, lacking, free, cpus, occupancy)


def _usable(rules: NodeRules, accounts: NumaFree, cpus: PerNuma) -> Mapping[str, PerNuma]:
    """The free amounts, CPUs limited to those that a required bind policy can use (``cpus``, per NUMA node)."""
    free = accounts.free
    if rules.binding and rules.binding.required and accounts.machine and CPU in free:
        return {**free, CPU: _limit(free[CPU], cpus)}
    return free


def _unamplified(amounts: PerNuma, ratio: float) -> PerNuma:
    """Amplified CPU amounts in thousandths of the CPUs that the machine really has."""
    # Floored: a fraction of a thousandth that does not exist must not be given away.
    return amounts if ratio == 1 else tuple(int(amount / ratio) for amount in amounts)


def _without_any(numa_ids: tuple[int, ...], amounts: PerNuma) -> int:
    """The mask of the NUMA nodes that have nothing left."""
    return mask_of([numa for numa, amount in zip(numa_ids, amounts, strict=True) if not amount])


def _limit(free: PerNuma, cpus: PerNuma) -> PerNuma:
    """Never more than the CPUs that can be taken; as Koordinator's trimNUMANodeResources where a bind policy is required."""
    return tuple([min(amount, MILLI * count) for amount, count in zip(free, cpus, strict=True)])


def _cpu_unit(binding: CpuBinding, accounts: NumaFree) -> int:
    """Whole CPUs, or whole cores where those are required."""
    if binding.demanded is FULL_PCPUS and accounts.machine:
        # A machine of unknown core size reports 0 threads; a unit of 0 would divide by zero.
        return MILLI * max(1, accounts.machine.threads_per_core)
    return MILLI
