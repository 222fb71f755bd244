"""
Carries an elected set of NUMA nodes out: shares of every amount, then CPUs. It chooses no set and knows no policy.
"""

from dataclasses import dataclass
from typing import Final

from koord_numa.core.accounts import Accounting, usable_cpus
from koord_numa.core.allocation.need import Binding, Need, Offers
from koord_numa.core.allocation.split import split
from koord_numa.core.amounts import CPU, MILLI, Amounts
from koord_numa.core.cpus.ask import CpuAsk, NotEnoughCpus
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.machine import Machine


@dataclass(frozen=True, slots=True)
class Given:
    """What the pod gets: amounts per NUMA node, ascending, and CPUs of its own."""

    numa: tuple[tuple[int, Amounts], ...] = ()
    cpus: CpuSet = EMPTY


@dataclass(frozen=True, slots=True)
class Short:
    """What there is not enough of on the set: resources, or CPUs of the wanted shape (``found`` of them)."""

    resources: tuple[str, ...] = ()
    found: int = 0


NOTHING_GIVEN: Final = Given()


def place(need: Need, offers: Offers, mask: int | None) -> Given | Short:
    """
    Place the whole need on exactly this set of NUMA nodes; on ``None`` only CPUs are placed, wherever they are.

    As Koordinator's resource_manager.go, Allocate: amounts first, then from every NUMA node the whole CPUs of its share.
    """
    if mask is None:
        return _cpus_anywhere(need, offers)
    positions = [index for index, numa in enumerate(offers.numa_ids) if mask >> numa & 1]
    shares: dict[int, dict[str, int]] = {offers.numa_ids[at]: {} for at in positions}
    short: list[str] = []
    for name, given in offers.given.items():
        parts = split(need.amounts[name], [given[at] for at in positions], offers.units[name])
        if parts is None:
            short.append(name)
            continue
        for at, part in zip(positions, parts, strict=True):
            if part:
                shares[offers.numa_ids[at]][name] = part
    if short:
        return Short(tuple(sorted(short)))
    numa = tuple((numa, amounts) for numa, amounts in shares.items() if amounts)
    if need.binding is None:
        return Given(numa)
    return _cpus_of(need, need.binding, offers, numa)


def _cpus_of(need: Need, binding: Binding, offers: Offers, numa: tuple[tuple[int, Amounts], ...]) -> Given | Short:
    machine, usable = _usable(binding, offers)
    taken = EMPTY
    for node, amounts in numa:
        here = usable & CpuSet(machine.numa_bits.get(node, 0))
        count = min(amounts.get(CPU, 0) // MILLI, len(here))
        found = take_cpus(_ask(need, binding, count), machine, here, offers.occupancy)
        if isinstance(found, NotEnoughCpus):
            return Short(found=len(taken) + found.found)
        taken |= found
    return Given(numa, taken) if len(taken) == need.cpus else Short(found=len(taken))


def _cpus_anywhere(need: Need, offers: Offers) -> Given | Short:
    if need.binding is None:
        return NOTHING_GIVEN
    machine, usable = _usable(need.binding, offers)
    if need.accounting is Accounting.EVERY_POD:
        usable = _unclaimed(need, need.binding, offers, usable)
    found = take_cpus(_ask(need, need.binding, need.cpus), machine, usable, offers.occupancy)
    return Short(found=found.found) if isinstance(found, NotEnoughCpus) else Given(cpus=found)


def _unclaimed(need: Need, binding: Binding, offers: Offers, usable: CpuSet) -> CpuSet:
    """No more CPUs of a NUMA node than its amounts leave: the rest is what pods without own CPUs were promised there."""
    machine = offers.accounts.machine
    given = offers.given.get(CPU)
    if machine is None or given is None:
        return usable
    for numa, amount in zip(offers.numa_ids, given, strict=True):
        here = usable & CpuSet(machine.numa_bits.get(numa, 0))
        count = amount // offers.units[CPU] * offers.units[CPU] // MILLI
        if count < len(here):
            kept = take_cpus(_ask(need, binding, count), machine, here, offers.occupancy)
            usable -= here if isinstance(kept, NotEnoughCpus) else here - kept
    return usable


def _usable(binding: Binding, offers: Offers) -> tuple[Machine, CpuSet]:
    machine = offers.accounts.machine
    if machine is None:
        raise ValueError("CPUs cannot be taken from a machine whose CPUs are unknown")
    return machine, usable_cpus(offers.accounts.spare, machine, binding.demanded)


def _ask(need: Need, binding: Binding, count: int) -> CpuAsk:
    return CpuAsk(count=count, bind=binding.policy, exclusive=binding.exclusive, strategy=need.strategy)
