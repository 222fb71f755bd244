"""
Rules for the split of an amount over NUMA nodes where koord-numa differs from Koordinator.

Where an allocation spans NUMA nodes, Koordinator serves them in an order that compares positions in the list instead of
NUMA ids, and hands out broken CPUs to pods that need whole ones. A difference is excused only when that very split, computed here,
gives the recorded answer, and ours fits exactly when it can and is even (rows `split-order` and `whole-cpu-shares` of the deviations).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from koord_numa.core.allocation.allocate import place
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.numa.policies import Decision
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import NumaExclusive, NumaPolicy
from koord_numa.core.resources import CPU, MILLI, ResourceList, is_native
from tests.conformance.koordinator.rm_cases import Answer
from tests.conformance.vectors import Case

Shares = Mapping[int, ResourceList]
"""Amounts per NUMA node; ``None`` instead if the set cannot hold the request."""
Order = Callable[[Sequence[int], Mapping[int, int]], Sequence[int]]


def split_in_another_order(case: Case, found: Answer) -> bool:
    """The row `split-order`: served in the order it means, upstream would have given our answers."""
    return _is_explained(case, found) and _meant_order_is_ours(found)


def split_in_whole_cpus(case: Case, found: Answer) -> bool:
    """The row `whole-cpu-shares`: in whatever order, a part of a CPU is handed to a pod that needs whole ones."""
    return _is_explained(case, found) and not _meant_order_is_ours(found)


def on_as_few_numa_nodes(case: Case, found: Answer) -> bool:
    """
    The row `as-few-numa-nodes`: our set holds the pod, BestEffort's is as narrow as any, and CPUs and memory are on as few as hold them.

    The hints are theirs, or differ by their split alone.
    """
    question = found.question
    mask = question.mask if found.elected is None else found.elected.hint.mask
    if question.what == "hints" or mask is None or not isinstance(found.allocated, Placement):
        return False
    if question.what != "allocate" and not all(_hints_agree(case, found, name) for name in case["out"]["hints"]):
        return False
    narrower = [each for each in _masks(found) if each.bit_count() < mask.bit_count() and _can(found, each)]
    free_to_choose = question.rules.policy is NumaPolicy.BEST_EFFORT and question.exclusive is NumaExclusive.NONE
    if found.elected is not None and free_to_choose and narrower:
        return False
    return _keeps_together(found, mask, dict(found.allocated.numa))


def _hints_agree(case: Case, found: Answer, name: str) -> bool:
    ours = [[hint.mask, int(hint.preferred), int(hint.unsatisfied), hint.score] for hint in found.hints[name]]
    return ours == case["out"]["hints"][name] or _hints_are_explained(case, found, name)


def _keeps_together(found: Answer, mask: int, shares: Shares) -> bool:
    """All amounts are there, none exceeds what is free, and no fewer members of the set hold the CPUs and the memory."""
    room, amounts = found.offers, found.question.rules.amounts
    ids = list(numa_ids(mask))
    free = {name: dict(zip(room.numa_ids, given, strict=True)) for name, given in room.given.items()}
    for name in room.given:
        got = {numa: shares.get(numa, {}).get(name, 0) for numa in ids}
        if sum(got.values()) != amounts[name] or any(got[numa] > free[name][numa] for numa in ids):
            return False
    if found.question.rules.binding is not None and CPU in free:
        takeable = dict(zip(room.numa_ids, room.cpus, strict=True))
        free[CPU] = {numa: min(amount, MILLI * takeable[numa]) for numa, amount in free[CPU].items()}
    native = [name for name in room.given if is_native(name)]
    used = sum(any(shares.get(numa, {}).get(name) for name in native) for numa in ids)
    return not any(
        all(
            sum(free[name][numa] // room.units[name] * room.units[name] for numa in some) >= amounts[name]
            for name in native
        )
        for size in range(1, used)
        for some in combinations(ids, size)
    )


def election_differs(elected: Decision, merged: Decision) -> str | None:
    """Electing without lists must give what the merge of all lists gives; a set that is elected is not scored."""
    without_score = merged.hint._replace(score=elected.hint.score)
    if elected.admitted != merged.admitted or (merged.admitted and elected.hint != without_score):
        return f"elected {elected}, merged {merged}"
    return None


def _is_explained(case: Case, found: Answer) -> bool:
    """
    Return true if the recorded answer follows from upstream's split alone, and the answer of this package is right on every set in
    question. Several rules ask for it.
    """
    if "explained" not in found.splits:
        found.splits["explained"] = _follows_from_the_split(case, found)
    known: bool = found.splits["explained"]
    return known


def _follows_from_the_split(case: Case, found: Answer) -> bool:
    if not all(_is_right(found, mask, _ours(found, mask)) for mask in _masks(found)):
        return False
    if found.question.what == "allocate":
        mask = found.question.mask
        return mask is not None and _recorded(case) == _theirs(found, mask, by_position)
    if not all(_hints_are_explained(case, found, name) for name in case["out"]["hints"]):
        return False
    if found.elected is not None and found.merged is not None and election_differs(found.elected, found.merged):
        return False
    best = case["out"].get("best")
    if best is None or not best["admit"] or best["mask"] is None:
        return _recorded(case) is None
    return _recorded(case) == _theirs(found, best["mask"], by_position)


def _hints_are_explained(case: Case, found: Answer, name: str) -> bool:
    """Theirs and ours are hints for exactly the sets that hold the request by either split; where both are, they say the same."""
    theirs = {mask: (unsatisfied, score) for mask, _, unsatisfied, score in case["out"]["hints"][name]}
    ours = {hint.mask: (int(hint.unsatisfied), hint.score) for hint in found.hints[name]}
    sets = [mask for mask in _masks(found) if not mask & found.offers.lacking[name]]
    return (
        set(theirs) == {mask for mask in sets if _theirs(found, mask, by_position) is not None}
        and set(ours) == {mask for mask in sets if _can(found, mask)}
        and all(theirs[mask] == ours[mask] for mask in theirs.keys() & ours.keys())
    )


def _meant_order_is_ours(found: Answer) -> bool:
    return all(_theirs(found, mask, by_free) == _ours(found, mask) for mask in _masks(found))


def _masks(found: Answer) -> list[int]:
    """The sets of NUMA nodes that the case is about."""
    if found.question.what == "allocate":
        return [] if found.question.mask is None else [found.question.mask]
    ids = found.offers.numa_ids
    return [sum(1 << i for i in chosen) for size in range(1, len(ids) + 1) for chosen in combinations(ids, size)]


def _recorded(case: Case) -> Shares | None:
    alloc = case["out"].get("alloc")
    if alloc is None or alloc["code"] != "Success":
        return None
    return {entry["node"]: entry["res"] for entry in alloc["numa"]}


def _ours(found: Answer, mask: int) -> Shares | None:
    """Our split, which several rules ask for."""
    if mask not in found.splits:
        found.splits[mask] = _our_split(found, mask)
    known: Shares | None = found.splits[mask]
    return known


def _theirs(found: Answer, mask: int, order: Order) -> Shares | None:
    """Upstream's split in this order, which several rules ask for."""
    if (mask, order) not in found.splits:
        found.splits[mask, order] = _their_split(found, mask, order)
    known: Shares | None = found.splits[mask, order]
    return known


def _our_split(found: Answer, mask: int) -> Shares | None:
    given = place(found.question.rules, found.offers, Placement("n", mask=mask))
    return dict(given.numa) if isinstance(given, Placement) else None


def _their_split(found: Answer, mask: int, order: Order) -> Shares | None:
    """Upstream's split: each NUMA node in turn gives an equal part of the rest in whole units, or all it has, broken or not."""
    room, rules = found.offers, found.question.rules
    shares: dict[int, dict[str, int]] = {}
    for name, unit in room.units.items():
        free = dict(zip(room.numa_ids, room.free[name], strict=True))
        served = order(list(numa_ids(mask)), free)
        rest = rules.amounts[name]
        for index, numa in enumerate(served):
            part = min(free.get(numa, 0), rest // (len(served) - index) // unit * unit)
            rest -= part
            if part:
                shares.setdefault(numa, {})[name] = part
        if rest:
            return None
    return shares if rules.binding is None or _has_cpus_for(found, shares) else None


def _has_cpus_for(found: Answer, shares: Shares) -> bool:
    """The whole CPUs of every share are there, and make the number."""
    free_cpus = dict(zip(found.offers.numa_ids, found.offers.cpus, strict=True))
    counts = {numa: amounts.get(CPU, 0) // MILLI for numa, amounts in shares.items()}
    return sum(counts.values()) == found.question.rules.cpus and all(n <= free_cpus[numa] for numa, n in counts.items())


def by_position(ids: Sequence[int], free: Mapping[int, int]) -> Sequence[int]:
    """Upstream's insertion sort: it compares what is free on the NUMA nodes *numbered* like the positions."""
    order = list(ids)
    for i in range(1, len(order)):
        j = i
        while j > 0 and free.get(j, 0) < free.get(j - 1, 0):
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    return order


def by_free(ids: Sequence[int], free: Mapping[int, int]) -> Sequence[int]:
    """The order that is meant: from who has least free upwards."""
    return sorted(ids, key=lambda numa: free.get(numa, 0))


def _is_right(found: Answer, mask: int, shares: Shares | None) -> bool:
    """
    Our answer for one set: refused only when it cannot hold the request, else whole, and as even as what is free allows.

    Even: no pod has less than another by more than the rounding without having given everything.
    """
    if shares is None:
        return not _can(found, mask)
    if not _can(found, mask):  # not by even shares
        return _keeps_together(found, mask, shares)
    room, rules = found.offers, found.question.rules
    for name, given in room.given.items():
        unit = room.units[name]
        got = {numa: shares.get(numa, {}).get(name, 0) for numa in numa_ids(mask)}
        free = dict(zip(room.numa_ids, given, strict=True))
        if sum(got.values()) != rules.amounts[name] or any(got[numa] > free.get(numa, 0) for numa in got):
            return False
        others = [amount for numa, amount in got.items() if free.get(numa, 0) // unit * unit > amount]
        if others and max(got.values()) - min(others) > unit and not _keeps_together(found, mask, shares):
            return False
    return True


def _can(found: Answer, mask: int) -> bool:
    """
    Return true if the request fits on the set. Sums decide; exclusive CPUs also need each even share in free CPUs.

    Amounts and CPUs disagree where a pod holds CPUs and no amounts; here, as upstream, shares follow the amounts.
    """
    if ("can", mask) not in found.splits:
        found.splits["can", mask] = _holds(found, mask)
    known: bool = found.splits["can", mask]
    return known


def _holds(found: Answer, mask: int) -> bool:
    room, rules = found.offers, found.question.rules
    members = [at for at, numa in enumerate(room.numa_ids) if mask >> numa & 1]
    for name, given in room.given.items():
        unit = room.units[name]
        if rules.amounts[name] % unit or sum(given[at] // unit * unit for at in members) < rules.amounts[name]:
            return False
    if rules.binding is None:
        return True
    shares = _fill(
        rules.amounts[CPU] // room.units[CPU], {at: room.given[CPU][at] // room.units[CPU] for at in members}
    )
    return all(share * room.units[CPU] <= MILLI * room.cpus[at] for at, share in shares.items())


def _fill(units: int, free: Mapping[int, int]) -> dict[int, int]:
    """From who has least free upwards, each an equal part of the rest or all it has."""
    shares = dict.fromkeys(free, 0)
    order = sorted(free, key=lambda at: free[at])
    for index, at in enumerate(order):
        shares[at] = min(free[at], units // (len(order) - index))
        units -= shares[at]
    return shares
