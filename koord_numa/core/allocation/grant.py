"""
Carries an elected set of NUMA nodes out: shares of every amount, then CPUs. It chooses no set and knows no policy.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from koord_numa.core.allocation.cpu_preferences import PCPU_LEVEL_BROKEN, cpu_shares, outcome
from koord_numa.core.allocation.node_rules import CpuBinding, NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers, split
from koord_numa.core.allocation.refusals import insufficient, not_enough_cpus
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.bind_policies import CpuPick, CpuPolicies, pick_cpus
from koord_numa.core.cpus.cpu_request import CpuRequest, NotEnoughCpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.verdicts import Exclusivity, Placement, Rejection
from koord_numa.core.objects.vocabulary import PCPU_LEVEL
from koord_numa.core.resources import CPU, MILLI, ResourceList, is_native
from koord_numa.core.state.numa_free import Accounting
from koord_numa.core.value_objects import replace

Shares = tuple[tuple[int, ResourceList], ...]
"""Amounts by NUMA node, ascending."""

WIDEST_CORE: Final = 8
"""NUMA nodes of which all subsets are looked at, 255 of them. Wider sets are split evenly."""

REMEMBERED: Final = 4096
"""So many shares of pods on a single NUMA node are kept: some for each request class, of which there are hundreds."""


def place(rules: NodeRules, offers: NumaOffers, chosen: Placement) -> Placement | Rejection:
    """
    The placement with its amounts and CPUs, or what there is not enough of.

    ``chosen`` names the node and, in ``mask``, the set of NUMA nodes that takes the pod as a whole; without one only CPUs are placed,
    wherever they are. As Koordinator's resource_manager.go, Allocate: amounts first, then from every NUMA node the whole CPUs of its share.
    """
    # Amounts before CPUs, since a NUMA node's share says how many CPUs to take there.
    numa = () if chosen.mask is None else _shares(rules, offers, chosen.mask)
    if isinstance(numa, Rejection):
        return numa
    if rules.binding is None:
        # Without shares (no NUMA node publishes what the pod requests) the election alone stands.
        return replace(chosen, numa=numa) if numa else chosen
    if chosen.mask is None:
        found = _cpus_anywhere(rules, rules.binding, offers)
    else:
        found = _cpus_of(rules, rules.binding, offers, numa)
    if isinstance(found, NotEnoughCpus):
        return not_enough_cpus(rules, offers, found)
    exclusivity = outcome(rules.binding, found.cpus, offers.occupancy, offers.accounts.machine)
    broken = exclusivity is Exclusivity.BROKEN and rules.binding.exclusive is PCPU_LEVEL
    # As ``replace(chosen, ...)``, which takes several times as long.
    return Placement(
        chosen.node,
        cpus=found.cpus,
        numa=numa,
        shared_pools=chosen.shared_pools,
        mask=chosen.mask,
        alignment=chosen.alignment,
        bind=rules.binding.policy,
        bind_required=rules.binding.required,
        exclusive=rules.binding.exclusive,
        exclusivity=exclusivity,
        note="; ".join(filter(None, (chosen.note, *found.notes, PCPU_LEVEL_BROKEN if broken else ""))),
    )


def _shares(rules: NodeRules, offers: NumaOffers, mask: int) -> Shares | Rejection:
    """What each NUMA node of the set takes of every amount."""
    ids = offers.numa_ids
    if not mask & (mask - 1) and (alone := _share_alone(rules, offers, mask)) is not None:
        return alone
    everywhere = [index for index, numa in enumerate(ids) if mask >> numa & 1]
    core = _core(rules, offers, everywhere)
    shares: dict[int, dict[str, int]] = {ids[at]: {} for at in everywhere}
    short: list[str] = []
    for name, given in offers.given.items():
        positions, needed = (core, rules.amounts[name]) if is_native(name) else (everywhere, rules.amounts[name])
        if positions is not core and core is not everywhere:
            # Devices beside the CPUs first.
            here = [at for at in core if given[at]]
            local = min(needed, sum(given[at] for at in here))
            positions = here if local == needed else here + [at for at in everywhere if at not in core and given[at]]
        parts = (
            cpu_shares(rules, offers, positions)
            if name == CPU
            else split(needed, [given[at] for at in positions], offers.units[name])
        )
        if parts is None:
            short.append(name)
            continue
        for at, part in zip(positions, parts, strict=True):
            if part:
                shares[ids[at]][name] = part
    if short:
        return insufficient(rules, offers, sorted(short))
    # A NUMA node without a share is left out, so that the ledger does not count the pod as spanning it.
    return tuple([(numa, amounts) for numa, amounts in shares.items() if amounts])


def _core(rules: NodeRules, offers: NumaOffers, everywhere: list[int]) -> list[int]:
    """
    The fewest NUMA nodes of a set that hold the CPUs, memory and huge pages of the pod; all of the set where they all are needed.

    Where a set is this wide because of devices, CPUs and memory stay together, and only the devices are remote.
    """
    native = [name for name in offers.given if is_native(name)]
    if len(native) == len(offers.given) or not native or len(everywhere) > WIDEST_CORE:
        return everywhere
    for size in range(1, len(everywhere)):
        for positions in combinations(everywhere, size):
            if all(_holds(rules, offers, name, positions) for name in native):
                return list(positions)
    return everywhere


def _holds(rules: NodeRules, offers: NumaOffers, name: str, positions: Sequence[int]) -> bool:
    """Can the amount be split over these NUMA nodes, with as many CPUs to be taken on each as its share says?"""
    given = offers.given[name]
    shares = split(rules.amounts[name], [given[at] for at in positions], offers.units[name])
    if shares is None or name != CPU or rules.binding is None:
        return shares is not None
    return all(share <= MILLI * offers.cpus[at] for share, at in zip(shares, positions, strict=True))


def _share_alone(rules: NodeRules, offers: NumaOffers, mask: int) -> Shares | None:
    """As ``_shares`` of a single NUMA node, which takes everything; ``None`` where it has too little."""
    numa = mask.bit_length() - 1
    at, amounts, units = offers.numa_ids.index(numa), rules.amounts, offers.units
    for name, given in offers.given.items():
        amount = amounts[name]
        if amount > given[at] or amount % units[name]:
            return None
    return _on_one_numa(numa, tuple([(name, amounts[name]) for name in offers.given]))


@lru_cache(maxsize=REMEMBERED)
def _on_one_numa(numa: int, amounts: tuple[tuple[str, int], ...]) -> Shares:
    """One value for all pods that get the same: ledgers keep it as long as they run, and garbage collection walks over it."""
    share = {name: amount for name, amount in amounts if amount}
    return ((numa, share),) if share else ()


def _cpus_of(rules: NodeRules, binding: CpuBinding, offers: NumaOffers, numa: Shares) -> CpuPick | NotEnoughCpus:
    machine = _machine(offers)
    taken = EMPTY
    notes: list[str] = []
    for node, amounts in numa:
        here = CpuSet(machine.numa_bits.get(node, 0) & offers.accounts.free_cpus.bits)
        found = pick_cpus(
            _requested_shape(rules, binding, amounts.get(CPU, 0) // MILLI), machine, here, offers.occupancy
        )
        # Counted over the whole pick: the refusal compares with what the pod asked for, not with one NUMA node's share.
        if isinstance(found, NotEnoughCpus):
            return replace(found, found=len(taken) + found.found)
        if len(numa) == 1 and len(found.cpus) == rules.cpus:
            return found
        taken |= found.cpus
        notes += [note for note in found.notes if note not in notes]
    return CpuPick(taken, notes=tuple(notes)) if len(taken) == rules.cpus else NotEnoughCpus(rules.cpus, len(taken))


def _cpus_anywhere(rules: NodeRules, binding: CpuBinding, offers: NumaOffers) -> CpuPick | NotEnoughCpus:
    free_cpus = offers.accounts.free_cpus
    # Koordinator's own accounting lets pods that share the pool overlap with own CPUs; only EVERY_POD sets room aside.
    if rules.accounting is Accounting.EVERY_POD:
        free_cpus = _unclaimed(rules, binding, offers, free_cpus)
    return pick_cpus(_requested_shape(rules, binding, rules.cpus), _machine(offers), free_cpus, offers.occupancy)


def _unclaimed(rules: NodeRules, binding: CpuBinding, offers: NumaOffers, free_cpus: CpuSet) -> CpuSet:
    """No more CPUs of a NUMA node than its amounts leave: the rest is what pods without own CPUs were promised there."""
    given = offers.given.get(CPU)
    if given is None:
        return free_cpus
    machine = _machine(offers)
    for numa, amount in zip(offers.numa_ids, given, strict=True):
        here = free_cpus & CpuSet(machine.numa_bits.get(numa, 0))
        count = amount // offers.units[CPU] * offers.units[CPU] // MILLI
        if count < len(here):
            # The CPUs kept are those the strategy would take, so that the limit does not change which ones are taken first.
            kept = pick_cpus(_requested_shape(rules, binding, count), machine, here, offers.occupancy)
            free_cpus -= here if isinstance(kept, NotEnoughCpus) else here - kept.cpus
    return free_cpus


def _machine(offers: NumaOffers) -> CpuTopology:
    # ``node_rules`` refuses such a node, so only a caller that skipped it gets here.
    if offers.accounts.machine is None:
        raise ValueError("CPUs cannot be taken from a machine whose CPUs are unknown")
    return offers.accounts.machine


def _requested_shape(rules: NodeRules, binding: CpuBinding, count: int) -> CpuPolicies:
    request = CpuRequest(count=count, bind=binding.policy, exclusive=binding.exclusive, strategy=rules.strategy)
    return CpuPolicies(request, required=binding.required, downgrade=binding.downgrade)
