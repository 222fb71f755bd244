"""What each NUMA node of one node can give to one pod now."""

from collections.abc import Mapping

from koord_numa.core.allocation.device_hints import DeviceHints
from koord_numa.core.allocation.node_rules import CpuBinding, NodeRules
from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.numa.hints import mask_of, mask_of_ids
from koord_numa.core.numa.workload_spread import WorkloadSpread
from koord_numa.core.objects.vocabulary import FULL_PCPUS
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import PerNuma
from koord_numa.core.state.numa_free import Accounting, NumaFree
from koord_numa.core.value_objects import ValueObject, value_field


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
