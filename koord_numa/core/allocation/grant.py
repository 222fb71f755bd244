"""Place a pod on an elected set of NUMA nodes: shares of every amount, then CPUs. Does not choose sets or apply policies."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from koord_numa.core.allocation.cpu_preferences import PCPU_LEVEL_BROKEN, cpu_shares, has_preferred_shape, outcome
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
"""Maximum NUMA nodes of which all subsets (255) are evaluated. Wider sets are split evenly."""

REMEMBERED: Final = 4096
"""Maximum cached shares of pods on a single NUMA node. There are a few per request class, and hundreds of classes."""


def place(rules: NodeRules, offers: NumaOffers, chosen: Placement) -> Placement | Rejection:
    """
    Return the placement with its amounts and CPUs, or a rejection with the shortage.

    ``chosen`` has the node and, in ``mask``, the set of NUMA nodes for the pod. Without a set, only CPUs are placed, on
    any NUMA nodes. As Allocate in Koordinator's resource_manager.go: first amounts, then from every NUMA node the whole
    CPUs of its share.
    """
    # Amounts before CPUs, since the share of a NUMA node defines how many CPUs to take there.
    numa = () if chosen.mask is None else _shares(rules, offers, chosen.mask)
    if isinstance(numa, Rejection):
        return numa
    if rules.binding is None:
        # Without shares (no NUMA node publishes the requested resources) only the election counts.
        return replace(chosen, numa=numa) if numa else chosen
    if chosen.mask is None:
        found = _cpus_anywhere(rules, rules.binding, offers)
    else:
        found = _cpus_of(rules, rules.binding, offers, numa)
    if isinstance(found, NotEnoughCpus):
        return not_enough_cpus(rules, offers, found)
    exclusivity = outcome(rules.binding, found.cpus, offers.occupancy, offers.accounts.machine)
    broken = exclusivity is Exclusivity.BROKEN and rules.binding.exclusive is PCPU_LEVEL
    # Equivalent to ``replace(chosen, ...)``, which is several times slower.
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
    """Return the share of each NUMA node of the set of every amount."""
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
            # Devices close to the CPUs first.
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
    # NUMA nodes without a share are omitted, so that the ledger does not count the pod as spanning them.
    return tuple([(numa, amounts) for numa, amounts in shares.items() if amounts])


def _core(rules: NodeRules, offers: NumaOffers, everywhere: list[int]) -> list[int]:
    """
    Return the fewest NUMA nodes of a set that hold the CPUs, memory and huge pages of the pod, by default all.

    If a set is wide because of devices, CPUs and memory stay together, and only the devices are remote.
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
    """Return whether these NUMA nodes can hold the amount, with enough CPUs for the share of each."""
    given = offers.given[name]
    shares = split(rules.amounts[name], [given[at] for at in positions], offers.units[name])
    if shares is None or name != CPU or rules.binding is None:
        return shares is not None
    return all(share <= MILLI * offers.cpus[at] for share, at in zip(shares, positions, strict=True))


def _share_alone(rules: NodeRules, offers: NumaOffers, mask: int) -> Shares | None:
    """Return ``_shares`` for a single NUMA node, which takes everything. ``None`` if it has too little."""
    numa = mask.bit_length() - 1
    at, amounts, units = offers.numa_ids.index(numa), rules.amounts, offers.units
    for name, given in offers.given.items():
        amount = amounts[name]
        if amount > given[at] or amount % units[name]:
            return None
    return _on_one_numa(numa, tuple([(name, amounts[name]) for name in offers.given]))


@lru_cache(maxsize=REMEMBERED)
def _on_one_numa(numa: int, amounts: tuple[tuple[str, int], ...]) -> Shares:
    """Return a value shared by all pods with equal amounts. Reduces memory and garbage collection, since ledgers keep it."""
    share = {name: amount for name, amount in amounts if amount}
    return ((numa, share),) if share else ()


def _cpus_of(rules: NodeRules, binding: CpuBinding, offers: NumaOffers, numa: Shares) -> CpuPick | NotEnoughCpus:
    machine = _machine(offers)
    taken = EMPTY
    notes: list[str] = []
    for node, amounts in numa:
        here = CpuSet(machine.numa_bits.get(node, 0) & offers.accounts.free_cpus.bits)
        found = _pick(rules, binding, amounts.get(CPU, 0) // MILLI, offers, here)
        # Summed over the whole pick: the rejection compares with the request, not with the share of a NUMA node.
        if isinstance(found, NotEnoughCpus):
            return replace(found, found=len(taken) + found.found)
        if len(numa) == 1 and len(found.cpus) == rules.cpus:
            return found
        taken |= found.cpus
        notes += [note for note in found.notes if note not in notes]
    return CpuPick(taken, notes=tuple(notes)) if len(taken) == rules.cpus else NotEnoughCpus(rules.cpus, len(taken))


def _cpus_anywhere(rules: NodeRules, binding: CpuBinding, offers: NumaOffers) -> CpuPick | NotEnoughCpus:
    free_cpus = offers.accounts.free_cpus
    # Koordinator's accounting allows shared pods to overlap with exclusive CPUs. Only EVERY_POD reserves room for them.
    if rules.accounting is Accounting.EVERY_POD:
        free_cpus = _unclaimed(rules, binding, offers, free_cpus)
    return _pick(rules, binding, rules.cpus, offers, free_cpus)


def _pick(
    rules: NodeRules, binding: CpuBinding, count: int, offers: NumaOffers, free_cpus: CpuSet
) -> CpuPick | NotEnoughCpus:
    """
    Pick CPUs, all of them isolated by the kernel if the pod prefers that and shape and exclusive policy remain honored.

    The kernel does not balance load between isolated and other CPUs, so a mixture has no use.
    """
    wish, machine = _requested_shape(rules, binding, count), _machine(offers)
    isolated = binding.isolated & free_cpus
    if len(isolated) >= count > 0:
        found = pick_cpus(wish, machine, isolated, offers.occupancy)
        if (
            isinstance(found, CpuPick)
            and has_preferred_shape(binding.policy, machine, found.cpus)
            and outcome(binding, found.cpus, offers.occupancy, machine) is Exclusivity.HONOURED
        ):
            return found
    return pick_cpus(wish, machine, free_cpus, offers.occupancy)


def _unclaimed(rules: NodeRules, binding: CpuBinding, offers: NumaOffers, free_cpus: CpuSet) -> CpuSet:
    """Return at most as many CPUs per NUMA node as its amounts allow. The rest belongs to pods on shared CPUs."""
    given = offers.given.get(CPU)
    if given is None:
        return free_cpus
    machine = _machine(offers)
    for numa, amount in zip(offers.numa_ids, given, strict=True):
        here = free_cpus & CpuSet(machine.numa_bits.get(numa, 0))
        count = amount // offers.units[CPU] * offers.units[CPU] // MILLI
        if count < len(here):
            # Keep the CPUs that the strategy would take, so that the limit does not change the order.
            kept = pick_cpus(_requested_shape(rules, binding, count), machine, here, offers.occupancy)
            free_cpus -= here if isinstance(kept, NotEnoughCpus) else here - kept.cpus
    return free_cpus


def _machine(offers: NumaOffers) -> CpuTopology:
    # ``node_rules`` rejects such a node, so only a caller that skipped it gets here.
    if offers.accounts.machine is None:
        raise ValueError("CPUs cannot be taken from a machine whose CPUs are unknown")
    return offers.accounts.machine


def _requested_shape(rules: NodeRules, binding: CpuBinding, count: int) -> CpuPolicies:
    request = CpuRequest(count=count, bind=binding.policy, exclusive=binding.exclusive, strategy=rules.strategy)
    return CpuPolicies(request, required=binding.required, downgrade=binding.downgrade)
