"""Allocate a pod on a node with scheduler-owned CPUs: return a placement, or a rejection with numbers."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from koord_numa.core.allocation.demand import (
    AllocateOptions,
    AllocationDemand,
    CpuBinding,
    CpuUse,
    NodeRules,
    WithoutTopology,
    demand_of,
    node_rules,
)
from koord_numa.core.allocation.numa_offers import (
    PCPU_LEVEL_BROKEN,
    DeviceHints,
    NumaOffers,
    cpu_shares,
    has_preferred_shape,
    offers,
    outcome,
    split,
    workload_spread,
)
from koord_numa.core.allocation.numa_selection import (
    NO_DISTANCES,
    fewest_if_empty,
    is_possible,
    preferred,
    select_numa_nodes,
)
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus import UNOCCUPIED, CpuOccupancy, CpuPick, CpuPolicies, CpuRequest, NotEnoughCpus, pick_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.explain import amounts_text, cpus_text, largest_that_fits, needs_text
from koord_numa.core.numa import UNCONSTRAINED, Decision, Distances, NumaExclusivity, numa_ids
from koord_numa.core.objects.request import PodRequest, SharedPool
from koord_numa.core.objects.verdicts import Alignment, Exclusivity, NumaNumbers, Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NO_BIND_POLICY,
    NO_NUMA_POLICY,
    NOT_EXCLUSIVE,
    NUMA_PREFERRED,
    PCPU_LEVEL,
    SINGLE_NUMA_NODE,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
)
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList, is_native
from koord_numa.core.score.node_scores import Strategy as NumaScoring
from koord_numa.core.state.inventory import Inventory, NodeTraits, PerNuma
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import (
    EVERY_POD,
    Accounting,
    NumaAccounting,
    NumaFree,
    accounts,
    numa_occupancy,
    shared_pools,
    socket_of,
)
from koord_numa.core.value_objects import replace

WHOLE_CORES: Final = "in whole cores"
_SHAPES: Final = {CpuBindPolicy.FULL_PCPUS: WHOLE_CORES, CpuBindPolicy.SPREAD_BY_PCPUS: "counting one CPU of each core"}


def not_aligned(rules: NodeRules, offers: NumaOffers, exclusivity: NumaExclusivity) -> Rejection:
    """Return a rejection if no set is acceptable: too little in total, excluded by exclusivity, or by the policy."""
    short = [name for name, given in offers.given.items() if _whole(given, offers.units[name]) < rules.amounts[name]]
    if short:
        return insufficient(rules, offers, sorted(short))
    where = _where(rules, offers)
    # Exclusivity is the reason only if the same policy finds a set without the other pods.
    if exclusivity.wish is NumaExclusive.REQUIRED and is_possible(rules, offers):
        return Rejection(
            Reason.NUMA_AFFINITY,
            "node(s) NUMA nodes are kept by pods of the other kind (singleNUMANodeExclusive)",
            detail=f"needs {_wanted(rules, offers)} {where}, apart from pods that span NUMA nodes differently",
            numbers=_numbers(rules, offers, offers.given),
        )
    return Rejection(
        Reason.NUMA_AFFINITY,
        f"node(s) cannot meet NUMA policy {rules.policy}",
        detail=f"needs {_wanted(rules, offers)} {where}",
        resolvable=_could_ever(rules, offers),
        numbers=_numbers(rules, offers, _decisive(rules, offers)),
        largest=_largest(rules, offers),
    )


def _where(rules: NodeRules, offers: NumaOffers) -> str:
    if rules.policy is NumaPolicy.SINGLE_NUMA_NODE:
        return "in one NUMA node"
    if _is_restricted(rules):
        fewest = fewest_if_empty(rules, offers)
        if fewest is not None:
            return f"on {fewest} NUMA node{'' if fewest == 1 else 's'}, as many as it would need if the node were empty"
    return "on NUMA nodes that have some of each"


def insufficient(rules: NodeRules, offers: NumaOffers, short: Iterable[str]) -> Rejection:
    """Return a rejection: the eligible NUMA nodes together have too little of these resources."""
    names = list(short)
    return Rejection(
        Reason.RESOURCES,
        f"Insufficient NUMA {' and '.join(names)}",
        detail=f"needs {_wanted(rules, offers)}",
        # Eviction frees at most the total, so preemption cannot help above it.
        resolvable=all(sum(offers.accounts.total[name]) >= rules.amounts[name] for name in names),
        numbers=_numbers(rules, offers, names),
    )


def not_enough_cpus(rules: NodeRules, offers: NumaOffers, short: NotEnoughCpus) -> Rejection:
    """Return a rejection: the chosen NUMA nodes, or without a choice the whole node, have too few free CPUs of the required shape."""
    return Rejection(
        Reason.CPUS,
        "not enough cpus available to satisfy request",
        detail=f"{short.why}: needs {rules.cpus}, found {short.found}",
        numbers=tuple(
            NumaNumbers(numa, CPU, MILLI * total, MILLI * free, rules.amounts[CPU], _shape(rules, offers.accounts))
            # ``offers.cpus`` instead of ``given``: the rejection is about CPUs of the shape.
            for numa, total, free in zip(offers.numa_ids, _cpus_there(offers.accounts), offers.cpus, strict=True)
        ),
    )


def overcommitted(rules: NodeRules, accounts: NumaFree) -> Rejection | None:
    """
    Return a rejection if the pod would take amounts of pods without a known NUMA node, else ``None``.

    All NUMA nodes together must still cover those amounts.
    """
    for name, amount in rules.amounts.items():
        if name not in accounts.unplaced:
            continue
        # The weight that the ledger gives to a placed pod. With another weight, an admitted pod would not fit
        # afterwards.
        weight = amplify(amount, rules.ratio) if name == CPU and rules.binding else amount
        if accounts.unclaimed(name) < weight:
            held = amounts_text({name: accounts.unplaced[name]})
            return Rejection(
                Reason.RESOURCES,
                f"Insufficient NUMA {name}",
                detail=f"needs {needs_text({name: amount})}; pods placed without NUMA nodes hold {held}",
                numbers=tuple(
                    NumaNumbers(numa, name, total, free, amount)
                    for numa, total, free in zip(
                        accounts.numa_ids, accounts.total[name], accounts.free[name], strict=True
                    )
                ),
            )
    return None


def kubelet_cores_shortage(pinned: Sequence[int], inventory: Inventory, numa_free: NumaFree) -> Rejection | None:
    """
    Return a rejection if full-pcpus-only of a static kubelet would find too few whole cores (SMTAlignmentError).

    Each container needs its CPUs in whole free cores, without those that init containers of the pod leave behind
    (kubelet policy_static.go). The sum over all containers is always sufficient.
    """
    if not inventory.kubelet_whole_cores:
        return None
    whole = numa_free.takeable(CpuBindPolicy.FULL_PCPUS)
    if sum(pinned) <= sum(whole):
        return None
    return Rejection(
        Reason.KUBELET_SMT,
        "not enough cpus available to satisfy request",
        detail=f"the kubelet wants {cpus_text(sum(pinned))} in whole free cores for the pod's containers, init containers included",
        numbers=tuple(
            NumaNumbers(numa, CPU, MILLI * there, MILLI * free, MILLI * sum(pinned), WHOLE_CORES)
            for numa, there, free in zip(numa_free.numa_ids, _cpus_there(numa_free), whole, strict=True)
        ),
    )


def amplified_shortage(rules: NodeRules, inventory: Inventory, ledger: Ledger) -> Rejection | None:
    """
    Return a rejection if the requests do not fit with exclusive CPUs amplified, on a node with amplified CPU.

    As Koordinator's filterAmplifiedCPUs. Without amplification, NodeResourcesFit is sufficient.
    """
    ratio = inventory.node_ratios.get(CPU, 1)
    wanted = rules.amounts.get(CPU, 0)
    if ratio <= 1 or not wanted:
        return None
    weight = amplify(wanted, ratio) if rules.binding else wanted
    held, own = ledger.amounts.get(CPU, 0), MILLI * len(ledger.cpus)
    # The ledger has exclusive CPUs unamplified. The difference to their amplified weight is added once for all of them.
    if own and held >= own:
        held += amplify(own, ratio) - own
    free = inventory.allocatable.get(CPU, 0) - held
    if weight <= free:
        return None
    text = f"{needs_text({CPU: weight})} amplified by {ratio:g} needed, {amounts_text({CPU: max(0, free)})} free"
    return Rejection(Reason.RESOURCES, "Insufficient amplified cpu", detail=text)


def no_pool(rules: NodeRules, offers: NumaOffers, pools: Mapping[int, int], burst: int) -> Rejection:
    """Return a rejection: no shared pool of a NUMA node fits both the pod's limit and its requests. The numbers show which failed."""
    large = [numa for numa in offers.numa_ids if pools.get(numa, 0) >= burst]
    if large:
        at = [offers.numa_ids.index(numa) for numa in large]
        # Large but full pools are another shortage than pools that are too small, and have another message.
        short = [
            name for name, given in offers.given.items() if all(given[index] < rules.amounts[name] for index in at)
        ] or list(offers.given)
        where = ", ".join(map(str, large))
        return Rejection(
            Reason.CPUS,
            "node(s) had no shared CPU pool with room for the pod's requests",
            detail=f"needs {_wanted(rules, offers)} on one NUMA node whose pool fits the limit (NUMA node {where})",
            numbers=_numbers(rules, offers, short),
        )
    return Rejection(
        Reason.CPUS,
        "node(s) had no shared CPU pool that fits the pod's limit",
        detail=f"needs a shared pool of {needs_text({CPU: burst})} in one NUMA node",
        numbers=tuple(
            NumaNumbers(numa, CPU, MILLI * total, pools.get(numa, 0), burst)
            for numa, total in zip(offers.numa_ids, _cpus_there(offers.accounts), strict=True)
        ),
    )


def _wanted(rules: NodeRules, offers: NumaOffers) -> str:
    return needs_text({name: rules.amounts[name] for name in offers.given})


def _shape(rules: NodeRules, accounts: NumaFree) -> str:
    """Return the shape that counts, if a required shape excludes some of the free CPUs."""
    demanded = NO_BIND_POLICY if rules.binding is None else rules.binding.demanded
    if accounts.machine is None or accounts.takeable(demanded) == accounts.takeable(NO_BIND_POLICY):
        return ""
    return _SHAPES.get(demanded, "")


def _whole(given: PerNuma, unit: int) -> int:
    return sum(amount // unit * unit for amount in given)


def _decisive(rules: NodeRules, offers: NumaOffers) -> list[str]:
    """
    Return the resources that decide alone: they exclude a NUMA node, or every set of the size that Restricted admits.

    All resources if there is none.
    """
    fewest = fewest_if_empty(rules, offers) if _is_restricted(rules) else None
    if rules.policy is NumaPolicy.SINGLE_NUMA_NODE:
        # A resource that fits nowhere reduces the message to the numbers that decide.
        some = [name for name, given in offers.given.items() if any(free < rules.amounts[name] for free in given)]
    elif fewest is not None:
        some = [name for name, given in offers.given.items() if sum(sorted(given)[-fewest:]) < rules.amounts[name]]
    else:
        some = [name for name, mask in offers.lacking.items() if mask]
    return some or list(offers.given)


def _is_restricted(rules: NodeRules) -> bool:
    return rules.policy is NumaPolicy.RESTRICTED and rules.restricted is RestrictedRule.EMPTY_NODE


def _numbers(rules: NodeRules, offers: NumaOffers, names: Iterable[str]) -> tuple[NumaNumbers, ...]:
    shape = _shape(rules, offers.accounts)
    return tuple(
        NumaNumbers(numa, name, total, free, rules.amounts[name], shape if name == CPU else "")
        for name in names
        for numa, total, free in zip(offers.numa_ids, offers.accounts.total[name], offers.given[name], strict=True)
    )


def _cpus_there(accounts: NumaFree) -> PerNuma:
    machine = accounts.machine
    return tuple(machine.numa_bits.get(numa, 0).bit_count() if machine else 0 for numa in accounts.numa_ids)


def _could_ever(rules: NodeRules, offers: NumaOffers) -> bool:
    """Return whether an empty node would be sufficient."""
    if _is_restricted(rules):
        return fewest_if_empty(rules, offers) is not None
    totals = [
        [offers.accounts.total[name][at] >= rules.amounts[name] for name in offers.given] for at in _positions(offers)
    ]
    return rules.policy is not NumaPolicy.SINGLE_NUMA_NODE or any(all(fits) for fits in totals)


def _largest(rules: NodeRules, offers: NumaOffers) -> ResourceList:
    """Return the largest request that a single NUMA node can hold: the one with the highest coverage of the scarcest resource."""
    if rules.policy is not NumaPolicy.SINGLE_NUMA_NODE or not offers.given:
        return {}

    rooms = ({name: given[at] for name, given in offers.given.items()} for at in _positions(offers))
    return largest_that_fits({name: rules.amounts[name] for name in offers.given}, rooms, offers.units)


def _positions(offers: NumaOffers) -> range:
    return range(len(offers.numa_ids))


Shares = tuple[tuple[int, ResourceList], ...]
"""Amounts by NUMA node, ascending."""

WIDEST_CORE: Final = 8
"""Maximum NUMA nodes of which all subsets (255) are evaluated. Wider sets are split evenly."""

REMEMBERED_SPLITS: Final = 4096
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
        free_cpus = offers.accounts.free_cpus
        # Koordinator's accounting allows shared pods to overlap with exclusive CPUs. Only EVERY_POD reserves room for them.
        if rules.accounting is Accounting.EVERY_POD:
            free_cpus = _unclaimed(rules, rules.binding, offers, free_cpus)
        found = _pick(rules, rules.binding, rules.cpus, offers, free_cpus)
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
        exclusivity=exclusivity,
        note="; ".join(filter(None, (chosen.note, *found.notes, PCPU_LEVEL_BROKEN if broken else ""))),
    )


def _shares(rules: NodeRules, offers: NumaOffers, mask: int) -> Shares | Rejection:
    """Split every amount over the NUMA nodes of the set."""
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


@lru_cache(maxsize=REMEMBERED_SPLITS)
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


def cpu_occupancy(ledger: Ledger, limit: int = 1) -> CpuOccupancy:
    """Return the CPUs held under each exclusive policy. If pods share a CPU, the last one decides."""
    levels = {CpuExclusivePolicy.PCPU_LEVEL: 0, CpuExclusivePolicy.NUMA_NODE_LEVEL: 0}
    for holding in ledger:
        for policy in levels:
            # A later pod on the same CPU overwrites the level, as in Koordinator's cpu details, which have one policy
            # per CPU.
            levels[policy] &= ~holding.cpus.bits
        if holding.exclusive in levels:
            levels[holding.exclusive] |= holding.cpus.bits
    return CpuOccupancy(
        pcpu_level=CpuSet(levels[CpuExclusivePolicy.PCPU_LEVEL]),
        numa_level=CpuSet(levels[CpuExclusivePolicy.NUMA_NODE_LEVEL]),
        references=ledger.references if limit > 1 else {},
        limit=limit,
    )


# Allocate a pod on a node with scheduler-owned CPUs: return a placement, or a rejection with numbers.
#
# Pure and deterministic: equal request, inventory, ledger and options give equal results. The order of rules is
# Koordinator's (NodeNUMAResource: Filter, then Reserve), except that failures in Reserve are rejections here.

__all__ = [
    "Accounting",
    "AllocateOptions",
    "NumaScoring",
    "WithoutTopology",
    "allocate",
    "allocate_demand",
    "demand_of",
]

_NOTHING_TO_ALIGN: Final = (
    "no NUMA alignment was attempted: the pod requests nothing that the node's NUMA nodes publish"
)

REMEMBERED: Final = 256
"""Maximum traits per demand with cached rules. Rules contain the problem of a topology, which is arbitrary text."""

_NO_NUMA_NODES: Final = "node(s) publish no NUMA nodes over which pods could be spread (numa-spread)"

_DISTURBS: Final = "it shares a NUMA node with pods of the other kind (singleNUMANodeExclusive: Preferred)"

_POOLED: Final = frozenset({NumaPolicy.RESTRICTED, SINGLE_NUMA_NODE})
"""
Policies under which the status of a pod without exclusive CPUs has its shared pools.

Source: fine-grained CPU orchestration, "Resource status".
"""


def allocate(
    request: PodRequest, inventory: Inventory, ledger: Ledger, options: AllocateOptions
) -> Placement | Rejection:
    """Place a pod on a node, or return a rejection with numbers. For many nodes, use ``demand_of`` and ``allocate_demand``."""
    demand = demand_of(request, options)
    return demand if isinstance(demand, Rejection) else allocate_demand(demand, inventory, ledger)


def policy_in_force(demand: AllocationDemand, inventory: Inventory) -> NumaPolicy:
    """Return the effective NUMA policy of the pod on this node, ``NONE`` if the rules reject the pod."""
    rules = _rules(demand, inventory.traits)
    return NO_NUMA_POLICY if isinstance(rules, Rejection) else rules.policy


def allocate_demand(
    demand: AllocationDemand, inventory: Inventory, ledger: Ledger, devices: DeviceHints | None = None
) -> Placement | Rejection:
    """
    Return the result of ``allocate`` for a demand that is known already.

    ``devices`` of the pod's claims take part in the merge: the set of NUMA nodes must also hold them. BestEffort
    ignores them if no set that is as narrow as on an empty node holds everything.
    """
    rules = _rules(demand, inventory.traits)
    if isinstance(rules, Rejection):
        return rules
    free = accounts(
        inventory, ledger, EVERY_POD if rules.accounting is Accounting.EVERY_POD else NumaAccounting(rules.accounting)
    )
    refusal = (
        amplified_shortage(rules, inventory, ledger)
        or overcommitted(rules, free)
        or kubelet_cores_shortage(demand.pinned, inventory, free)
    )
    if refusal is not None:
        return refusal
    exclusive = rules.binding is not None and rules.binding.exclusive is not NOT_EXCLUSIVE
    offered = offers(rules, free, cpu_occupancy(ledger) if exclusive else UNOCCUPIED)
    if devices is not None:
        offered = replace(offered, devices=devices)
    if demand.spread is not None:
        if demand.spread.required and (not offered.given or rules.policy is NO_NUMA_POLICY):
            return Rejection(Reason.NUMA_SPREAD, _NO_NUMA_NODES, resolvable=False)
        offered = replace(offered, workload=workload_spread(demand.spread, inventory, ledger, offered.given))
    if demand.use is CpuUse.POOL_OF_ONE_NUMA:
        return _into_one_pool(demand, rules, inventory, offered, ledger)
    if rules.policy is NO_NUMA_POLICY or not offered.given:
        return place(rules, offered, Placement(inventory.node, note=rules.note or _NOTHING_TO_ALIGN))
    return _aligned(demand, rules, inventory, offered, ledger)


def _rules(demand: AllocationDemand, traits: NodeTraits) -> NodeRules | Rejection:
    """Return the result of ``node_rules``, cached for all nodes with equal traits."""
    known: NodeRules | Rejection | None = demand.derived.get(traits)
    if known is None:
        if len(demand.derived) >= REMEMBERED:
            demand.derived.clear()
        known = demand.derived[traits] = node_rules(demand, traits)
    return known


def _numa_exclusivity(rules: NodeRules, inventory: Inventory, ledger: Ledger) -> NumaExclusivity:
    """
    Return the NUMA nodes that the pod avoids (pod-level NUMA policy, "SingleNUMANodeExclusive").

    Pods on several NUMA nodes avoid SingleNUMANode pods, whatever their own policy. In the other direction, only a pod
    that is aligned by SingleNUMANode is protected.
    """
    if rules.exclusive is NumaExclusive.NONE:
        return UNCONSTRAINED
    occupancy = numa_occupancy(ledger, inventory.machine)
    if rules.policy is not SINGLE_NUMA_NODE:
        occupancy = replace(occupancy, shared=0)
    return NumaExclusivity(rules.exclusive, occupancy)


def _aligned(
    demand: AllocationDemand, rules: NodeRules, inventory: Inventory, offered: NumaOffers, ledger: Ledger
) -> Placement | Rejection:
    exclusivity = _numa_exclusivity(rules, inventory, ledger)
    distances = inventory.machine.distances if inventory.machine else NO_DISTANCES
    decision = select_numa_nodes(rules, offered, exclusivity, distances)
    if offered.devices is not None and rules.policy is NumaPolicy.BEST_EFFORT:
        offered, decision = _with_or_without_devices(rules, offered, decision, (exclusivity, distances))
    if not decision.admitted:
        # The spread is the reason only if the pod fits without it.
        without = replace(offered, workload=None)
        if offered.workload is not None and select_numa_nodes(rules, without, exclusivity, distances).admitted:
            return offered.workload.refusal()
        return not_aligned(rules, offered, exclusivity)
    mask = decision.hint.mask
    pooled = rules.binding is None and not demand.best_effort and rules.policy in _POOLED
    chosen = Placement(
        inventory.node,
        mask=mask,
        shared_pools=_pools(inventory, mask) if pooled and mask is not None else (),
        alignment=_alignment(rules, offered, decision),
    )
    placement = place(rules, offered, chosen)
    if isinstance(placement, Rejection):
        return placement
    if exclusivity.wish is NUMA_PREFERRED and mask is not None and exclusivity.occupancy.disturbs(mask):
        note = "; ".join(filter(None, (placement.note, _DISTURBS)))
        return replace(placement, exclusivity=Exclusivity.BROKEN, note=note)
    return placement


def _with_or_without_devices(
    rules: NodeRules, offered: NumaOffers, joint: Decision, context: tuple[NumaExclusivity, Distances]
) -> tuple[NumaOffers, Decision]:
    """
    Return the decision that aligns CPUs, memory and devices (``joint``), unless it uses more NUMA nodes than the pod and its devices need.

    In that case, align CPUs and memory only: free devices on other NUMA nodes are no reason to split them.
    """
    alone = replace(offered, devices=None)
    apart = select_numa_nodes(rules, alone, *context)
    mask, own = joint.hint.mask, apart.hint.mask
    widest = max(0 if own is None else own.bit_count(), fewest_if_empty(rules, offered) or 0)
    if joint.admitted and joint.hint.preferred and mask is not None and mask.bit_count() <= widest:
        return offered, joint
    return alone, apart


def _alignment(rules: NodeRules, offered: NumaOffers, decision: Decision) -> Alignment:
    """Return whether the pod is on as few NUMA nodes as it would need on an empty node (KEP-693, "Topology Hints")."""
    mask = decision.hint.mask
    if not decision.hint.preferred:
        return Alignment.UNALIGNED
    if mask is None or not mask & (mask - 1) or rules.restricted is RestrictedRule.KOORDINATOR:
        return Alignment.ALIGNED
    return Alignment.ALIGNED if mask.bit_count() == fewest_if_empty(rules, offered) else Alignment.UNALIGNED


def _into_one_pool(
    demand: AllocationDemand, rules: NodeRules, inventory: Inventory, offered: NumaOffers, ledger: Ledger
) -> Placement | Rejection:
    """
    Place a ConstrainedBurst pod: a NUMA node with a shared pool as large as the pod's limit, and room for its requests.

    From the fine-grained CPU orchestration proposal. Upstream does not implement the policy.
    """
    exclusivity = _numa_exclusivity(rules, inventory, ledger)
    rules = replace(rules, policy=SINGLE_NUMA_NODE)
    sizes = {pool.numa: MILLI * len(pool.cpus) for pool in shared_pools(inventory, ledger)}
    large = sum(1 << numa for numa, size in sizes.items() if size >= demand.burst)
    best = preferred(rules, offered, exclusivity, lambda mask: not mask & ~large)
    if best is None:
        without = replace(offered, workload=None)
        if offered.workload is not None and preferred(rules, without, exclusivity, lambda mask: not mask & ~large):
            return offered.workload.refusal()
        return no_pool(rules, offered, sizes, demand.burst)
    pools = _pools(inventory, best.mask or 0)
    chosen = Placement(inventory.node, mask=best.mask, shared_pools=pools, alignment=Alignment.ALIGNED)
    placement = place(rules, offered, chosen)
    return no_pool(rules, offered, sizes, demand.burst) if isinstance(placement, Rejection) else placement


def _pools(inventory: Inventory, mask: int) -> tuple[SharedPool, ...]:
    """Return the pools by socket and NUMA node. The agent fills in the CPUs, which change with every pod (same section)."""
    return tuple(SharedPool(socket_of(inventory, numa), numa, EMPTY) for numa in numa_ids(mask))
