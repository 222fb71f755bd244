"""
What is free on each NUMA node of one node: the inventory less everything that the ledger knows.

Theory. Koordinator subtracts recorded NUMA amounts only. Pods placed without a NUMA policy then vanish from the NUMA nodes'
accounts, and mixed policies overcommit them. Under ``Accounting.EVERY_POD`` they count: CPUs of a pod without amounts are
charged where they sit; amounts whose NUMA node no pod knows ("unplaced") may be anywhere, so all NUMA nodes together must still
cover them. That is conservative for the node and claims nothing about a single NUMA node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.core_shapes import shaped
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, NOTHING, add
from koord_numa.core.state.inventory import Inventory, PerNuma
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_sums import numa_left
from koord_numa.core.value_objects import value_object

ACCOUNTS: Final = "accounts"
"""What they are called among what is remembered of a ledger."""


class Accounting(Enum):
    """Who counts against a NUMA node: every pod on the node, or only recorded NUMA amounts (as Koordinator, which overcommits)."""

    EVERY_POD = "every pod"
    RECORDED_AMOUNTS = "recorded amounts"


@dataclass(frozen=True, slots=True)
class NumaAccounting:
    """How the accounts are kept: who counts, and how many pods may share one CPU (more than one only for embedding code)."""

    accounting: Accounting = Accounting.EVERY_POD
    references: int = 1


EVERY_POD: Final = NumaAccounting()


@value_object
class NumaFree:
    """
    Totals and free amounts per NUMA node, by resource; a NUMA node that does not publish a resource has 0 of it.

    ``free_cpus`` are the CPUs that may be given to a pod now. ``unplaced`` is what pods hold without a known NUMA node, of resources
    that some NUMA node publishes.
    """

    numa_ids: tuple[int, ...]
    total: Mapping[str, PerNuma]
    free: Mapping[str, PerNuma]
    free_cpus: CpuSet
    unplaced: Mapping[str, int]
    machine: CpuTopology | None
    counted: dict[CpuBindPolicy, PerNuma] = field(default_factory=dict, compare=False, repr=False)

    def takeable(self, policy: CpuBindPolicy) -> PerNuma:
        """
        How many free CPUs of each NUMA node a *required* bind policy can use; any other policy can use them all.

        FullPCPUs: those of cores that are free as a whole; SpreadByPCPUs: one of each core with a free CPU. As
        Koordinator's filterAvailableCPUsByRequiredCPUBindPolicy. Counted once, then remembered.
        """
        if policy not in self.counted:
            self.counted[policy] = _takeable(self, policy)
        return self.counted[policy]

    def unclaimed(self, resource: str) -> int:
        """What all NUMA nodes together have free and no pod without a known NUMA node may be using."""
        return sum(self.free.get(resource, ())) - self.unplaced.get(resource, 0)


def accounts(inventory: Inventory, ledger: Ledger, accounting: NumaAccounting = EVERY_POD) -> NumaFree:
    """The accounts of this moment, remembered until the ledger changes."""
    known: tuple[Inventory, NumaAccounting, NumaFree] | None = ledger.derived.get(ACCOUNTS)
    # By identity of the inventory: it is replaced when anything of the node changes.
    if known is not None and known[0] is inventory and (known[1] is accounting or known[1] == accounting):
        return known[2]
    made = _accounts(inventory, ledger, accounting)
    ledger.derived[ACCOUNTS] = (inventory, accounting, made)
    return made


def _accounts(inventory: Inventory, ledger: Ledger, accounting: NumaAccounting) -> NumaFree:
    free = {
        # Never below zero: amounts that were recorded before the node shrank do not make other NUMA nodes' sums wrong.
        name: tuple(amounts) if min(amounts) >= 0 else tuple([max(0, amount) for amount in amounts])
        for name, amounts in numa_left(inventory, ledger).items()
    }
    if CPU in free and inventory.machine is not None and (ledger.unrecorded or inventory.ratios.get(CPU, 1) > 1):
        # Otherwise recorded amounts are all that is held of CPUs.
        held = _held_cpu(inventory, inventory.machine, ledger, accounting)
        free[CPU] = tuple([max(0, there - taken) for there, taken in zip(inventory.totals[CPU], held, strict=True)])
    return NumaFree(
        numa_ids=inventory.numa_ids,
        total=inventory.totals,
        free=free,
        free_cpus=_free_cpus(inventory, ledger, accounting),
        unplaced=_unplaced(inventory, ledger) if accounting.accounting is Accounting.EVERY_POD else {},
        machine=inventory.machine,
    )


def _held_cpu(inventory: Inventory, machine: CpuTopology, ledger: Ledger, accounting: NumaAccounting) -> list[int]:
    """Milli-CPU by NUMA node: recorded amounts, and CPUs that none of these speaks of."""
    every_pod = accounting.accounting is Accounting.EVERY_POD
    # One union: CPUs that two pods hold count once, as they are taken once.
    unrecorded = 0
    if every_pod:
        for bits in ledger.unrecorded.values():
            unrecorded |= bits
    ratio = inventory.ratios.get(CPU, 1)
    held = []
    for numa in inventory.numa_ids:
        here = machine.numa_bits.get(numa, 0)
        amount = ledger.numa.get(numa, NOTHING).get(CPU, 0)
        if unrecorded:
            amount += MILLI * (unrecorded & here).bit_count()
        if ratio > 1 and (every_pod or numa in ledger.numa):
            # CPUs of their own are recorded as they are, but weigh amplified: one CPU less is `ratio` CPUs less.
            own = MILLI * (ledger.bits & here).bit_count()
            amount += amplify(own, ratio) - own
        held.append(amount)
    return held


def _free_cpus(inventory: Inventory, ledger: Ledger, accounting: NumaAccounting) -> CpuSet:
    if accounting.references == 1:
        # CPUs may be shared only by embedding code; without sharing the set of held CPUs is enough.
        return CpuSet(inventory.cpus.bits & ~ledger.bits)
    full = CpuSet.of(cpu for cpu, count in ledger.references.items() if count >= accounting.references)
    return inventory.cpus - full


def _unplaced(inventory: Inventory, ledger: Ledger) -> dict[str, int]:
    """Held without a NUMA node, on one that no pod publishes any more, or as CPUs that the machine does not list."""
    # Unplaced amounts have no NUMA node, so that all of them together must leave room for these.
    held, ids = ledger.unplaced, inventory.numa_ids
    for numa, amounts in ledger.numa.items():
        if numa not in ids:
            held = add(held, amounts)
    if ledger.unrecorded:
        known = inventory.machine.bits if inventory.machine else 0
        unlisted = sum((bits & ~known).bit_count() for bits in ledger.unrecorded.values())
        held = add(held, {CPU: MILLI * unlisted})
    # Only resources that NUMA nodes publish can be short on them.
    unplaced = {name: held[name] for name in inventory.totals if held.get(name)}
    for uid in inventory.kubelet_pods:
        holding = ledger.holdings.get(uid)
        if holding and CPU in unplaced:
            # The kubelet chose its CPUs: they are reserved and have left the zones already.
            unplaced[CPU] = max(0, unplaced[CPU] - holding.unplaced.get(CPU, 0))
    return unplaced


def _takeable(accounts: NumaFree, policy: CpuBindPolicy) -> PerNuma:
    if accounts.machine is None:
        return (0,) * len(accounts.numa_ids)
    usable = shaped(policy, accounts.machine, accounts.free_cpus).bits
    there = accounts.machine.numa_bits
    return tuple([(usable & there.get(numa, 0)).bit_count() for numa in accounts.numa_ids])
