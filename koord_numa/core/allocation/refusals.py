"""Rejections with numbers: free and needed amounts per NUMA node, the deciding rule, and the largest request that fits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.allocation.demand import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers
from koord_numa.core.allocation.numa_selection import fewest_if_empty, is_possible
from koord_numa.core.cpus import NotEnoughCpus
from koord_numa.core.explain import amounts_text, cpus_text, largest_that_fits, needs_text
from koord_numa.core.numa import NumaExclusivity
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import NO_BIND_POLICY, CpuBindPolicy, NumaExclusive, NumaPolicy, RestrictedRule
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.state.inventory import Inventory, PerNuma
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import NumaFree

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
