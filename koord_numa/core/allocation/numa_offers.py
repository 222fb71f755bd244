"""What one pod needs on one node, once the pod's wishes, the node's rules and the configured defaults are settled."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.allocation.device_hints import DeviceHints
from koord_numa.core.cpus.ask import CpuOccupancy
from koord_numa.core.cpus.bind_policies import Downgrade
from koord_numa.core.numa.hints import mask_of
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaPolicy,
    RestrictedRule,
)
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.numa_scores import Strategy
from koord_numa.core.state.inventory import PerNuma
from koord_numa.core.state.numa_free import Accounting, NumaFree


@dataclass(frozen=True, slots=True)
class CpuBinding:
    """
    CPUs of its own: of which shape, whether that shape must hold, and whom they keep away.

    ``downgrade`` is what happens to a NUMANodeLevel that cannot be honoured.
    """

    policy: CpuBindPolicy
    required: bool = False
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    downgrade: Downgrade = Downgrade.TO_PCPU_LEVEL

    @property
    def demanded(self) -> CpuBindPolicy:
        """The shape that must hold, ``NONE`` if it is only preferred."""
        return self.policy if self.required else CpuBindPolicy.NONE


@dataclass(frozen=True, slots=True)
class NumaRequest:
    """
    Amounts and rules of one allocation.

    ``amounts`` is what is put on NUMA nodes. ``ratio`` is the node's CPU amplification: CPUs of one's own are recorded as they
    are but weigh ``ratio`` as much. ``scoring`` ranks equally wide sets of NUMA nodes. ``restricted`` says what Restricted prefers.
    """

    amounts: ResourceList
    binding: CpuBinding | None = None
    policy: NumaPolicy = NumaPolicy.NONE
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.LEAST_ALLOCATED
    scoring: Strategy | None = None
    accounting: Accounting = Accounting.EVERY_POD
    ratio: float = 1
    restricted: RestrictedRule = RestrictedRule.EMPTY_NODE

    @property
    def cpus(self) -> int:
        """How many CPUs of its own the pod gets."""
        return self.amounts.get(CPU, 0) // MILLI if self.binding else 0

    @property
    def weighed(self) -> ResourceList:
        """The amounts with own CPUs amplified, as scores count them."""
        if self.binding is None or self.ratio <= 1:
            return self.amounts
        return {**self.amounts, CPU: amplify(self.amounts[CPU], self.ratio)}


@dataclass(frozen=True, slots=True)
class NumaOffers:
    """
    What each NUMA node can give to this need, by resource that it asks for and that some NUMA node publishes.

    ``units`` is the smallest share of a resource; ``lacking`` has, as a mask, the NUMA nodes with nothing left of it.
    ``free`` and ``total`` are the accounts of these and of the scored resources, CPUs limited to what a required bind policy
    can use. ``cpus``: free CPUs per NUMA node that the binding may choose from. ``devices`` of resource claims have to be on the same
    NUMA nodes, ``None`` where there are none or they may be anywhere.
    """

    accounts: NumaFree
    given: dict[str, PerNuma]
    units: dict[str, int]
    lacking: dict[str, int]
    free: Mapping[str, PerNuma]
    cpus: PerNuma
    occupancy: CpuOccupancy = field(default_factory=CpuOccupancy)
    devices: DeviceHints | None = None

    @property
    def numa_ids(self) -> tuple[int, ...]:
        """The NUMA nodes, ascending."""
        return self.accounts.numa_ids

    @property
    def mask(self) -> int:
        """All NUMA nodes."""
        return mask_of(self.accounts.numa_ids)


def offers(need: NumaRequest, accounts: NumaFree, occupancy: CpuOccupancy) -> NumaOffers:
    """What the NUMA nodes can give to this need now."""
    cpus = accounts.takeable(need.binding.demanded) if need.binding and accounts.machine else ()
    free = _usable(need, accounts, cpus)
    given = {name: free[name] for name in need.amounts if name in accounts.total}
    units = dict.fromkeys(given, 1)
    if need.binding and CPU in given:
        units[CPU] = _cpu_unit(need.binding, accounts)
        if need.accounting is Accounting.EVERY_POD:
            given[CPU] = _limit(_unamplified(free[CPU], need.ratio), cpus)
    lacking = {name: _without_any(accounts.numa_ids, amounts) for name, amounts in given.items()}
    return NumaOffers(accounts, given, units, lacking, free, cpus, occupancy)


def _usable(need: NumaRequest, accounts: NumaFree, cpus: PerNuma) -> Mapping[str, PerNuma]:
    """The free amounts, CPUs limited to those that a required bind policy can use (``cpus``, per NUMA node)."""
    free = accounts.free
    if need.binding and need.binding.required and accounts.machine and CPU in free:
        return {**free, CPU: _limit(free[CPU], cpus)}
    return free


def _unamplified(amounts: PerNuma, ratio: float) -> PerNuma:
    """Amplified CPU amounts in thousandths of the CPUs that the machine really has."""
    return amounts if ratio == 1 else tuple(int(amount / ratio) for amount in amounts)


def _without_any(numa_ids: tuple[int, ...], amounts: PerNuma) -> int:
    """The mask of the NUMA nodes that have nothing left."""
    return mask_of(numa for numa, amount in zip(numa_ids, amounts, strict=True) if not amount)


def _limit(free: PerNuma, cpus: PerNuma) -> PerNuma:
    """Never more than the CPUs that can be taken; as Koordinator's trimNUMANodeResources where a bind policy is required."""
    return tuple([min(amount, MILLI * count) for amount, count in zip(free, cpus, strict=True)])


def _cpu_unit(binding: CpuBinding, accounts: NumaFree) -> int:
    """Whole CPUs, or whole cores where those are required."""
    if binding.demanded is CpuBindPolicy.FULL_PCPUS and accounts.machine:
        return MILLI * max(1, accounts.machine.threads_per_core)
    return MILLI
