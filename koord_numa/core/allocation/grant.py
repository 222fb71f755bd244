"""
Carries an elected set of NUMA nodes out: shares of every amount, then CPUs. It chooses no set and knows no policy.
"""

from dataclasses import dataclass
from typing import Final

from koord_numa.core.allocation.numa_offers import CpuBinding, NumaOffers, NumaRequest
from koord_numa.core.allocation.split import split
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.ask import CpuAsk, NotEnoughCpus
from koord_numa.core.cpus.bind_policies import CpuPolicies, pick_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.state.numa_free import Accounting


@dataclass(frozen=True, slots=True)
class CpuGrant:
    """What the pod gets: amounts per NUMA node, ascending, and CPUs of its own. ``notes``: which wishes could not be met."""

    numa: tuple[tuple[int, ResourceList], ...] = ()
    cpus: CpuSet = EMPTY
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortage:
    """What there is not enough of on the set: resources, or CPUs (then ``why`` says of which shape, ``found`` how many)."""

    resources: tuple[str, ...] = ()
    found: int = 0
    why: str = "not enough free CPUs"


NOTHING_GIVEN: Final = CpuGrant()


def place(need: NumaRequest, offers: NumaOffers, mask: int | None) -> CpuGrant | Shortage:
    """
    Place the whole need on exactly this set of NUMA nodes; on ``None`` only CPUs are placed, wherever they are.

    As Koordinator's resource_manager.go, Allocate: amounts first, then from every NUMA node the whole CPUs of its share.
    """
    if mask is None:
        return _cpus_anywhere(need, offers)
    ids = offers.numa_ids
    positions = [index for index, numa in enumerate(ids) if mask >> numa & 1]
    shares: dict[int, dict[str, int]] = {ids[at]: {} for at in positions}
    short: list[str] = []
    for name, given in offers.given.items():
        parts = split(need.amounts[name], [given[at] for at in positions], offers.units[name])
        if parts is None:
            short.append(name)
            continue
        for at, part in zip(positions, parts, strict=True):
            if part:
                shares[ids[at]][name] = part
    if short:
        return Shortage(tuple(sorted(short)))
    numa = tuple([(numa, amounts) for numa, amounts in shares.items() if amounts])
    if need.binding is None:
        return CpuGrant(numa)
    return _cpus_of(need, need.binding, offers, numa)


def _cpus_of(
    need: NumaRequest, binding: CpuBinding, offers: NumaOffers, numa: tuple[tuple[int, ResourceList], ...]
) -> CpuGrant | Shortage:
    machine = _machine(offers)
    taken = EMPTY
    notes: list[str] = []
    for node, amounts in numa:
        here = CpuSet(machine.numa_bits.get(node, 0) & offers.accounts.free_cpus.bits)
        found = pick_cpus(
            _requested_shape(need, binding, amounts.get(CPU, 0) // MILLI), machine, here, offers.occupancy
        )
        if isinstance(found, NotEnoughCpus):
            return Shortage(found=len(taken) + found.found, why=found.why)
        taken |= found.cpus
        notes += [note for note in found.notes if note not in notes]
    return CpuGrant(numa, taken, tuple(notes)) if len(taken) == need.cpus else Shortage(found=len(taken))


def _cpus_anywhere(need: NumaRequest, offers: NumaOffers) -> CpuGrant | Shortage:
    if need.binding is None:
        return NOTHING_GIVEN
    free_cpus = offers.accounts.free_cpus
    if need.accounting is Accounting.EVERY_POD:
        free_cpus = _unclaimed(need, need.binding, offers, free_cpus)
    found = pick_cpus(_requested_shape(need, need.binding, need.cpus), _machine(offers), free_cpus, offers.occupancy)
    if isinstance(found, NotEnoughCpus):
        return Shortage(found=found.found, why=found.why)
    return CpuGrant(cpus=found.cpus, notes=found.notes)


def _unclaimed(need: NumaRequest, binding: CpuBinding, offers: NumaOffers, free_cpus: CpuSet) -> CpuSet:
    """No more CPUs of a NUMA node than its amounts leave: the rest is what pods without own CPUs were promised there."""
    given = offers.given.get(CPU)
    if given is None:
        return free_cpus
    machine = _machine(offers)
    for numa, amount in zip(offers.numa_ids, given, strict=True):
        here = free_cpus & CpuSet(machine.numa_bits.get(numa, 0))
        count = amount // offers.units[CPU] * offers.units[CPU] // MILLI
        if count < len(here):
            kept = pick_cpus(_requested_shape(need, binding, count), machine, here, offers.occupancy)
            free_cpus -= here if isinstance(kept, NotEnoughCpus) else here - kept.cpus
    return free_cpus


def _machine(offers: NumaOffers) -> CpuTopology:
    if offers.accounts.machine is None:
        raise ValueError("CPUs cannot be taken from a machine whose CPUs are unknown")
    return offers.accounts.machine


def _requested_shape(need: NumaRequest, binding: CpuBinding, count: int) -> CpuPolicies:
    ask = CpuAsk(count=count, bind=binding.policy, exclusive=binding.exclusive, strategy=need.strategy)
    return CpuPolicies(ask, required=binding.required, downgrade=binding.downgrade)
