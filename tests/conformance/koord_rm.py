"""
Koordinator's resource manager: hints, merge and allocation for one pod on one node, recorded cases in our types.

Where an allocation spans NUMA nodes, Koordinator serves them in an order that compares positions in the list instead of
NUMA ids. Where that order differs from the one it means, the recorded answer is not ours to match: there the adapter checks
that the request fits exactly when it can, and that it is split evenly (row `split-order` of the deviations).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from koord_numa.core.accounts import Accounting, Books, accounts
from koord_numa.core.allocation.affinity import elect, hints
from koord_numa.core.allocation.need import Binding, Need, Offers, offers
from koord_numa.core.allocation.occupants import cpu_occupancy, numa_occupancy
from koord_numa.core.allocation.place import Given, Short, place
from koord_numa.core.amounts import CPU, MILLI
from koord_numa.core.amplify import amplify_all
from koord_numa.core.cpus.orchestrate import Downgrade
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.inventory import Inventory
from koord_numa.core.ledger import Holding, Ledger
from koord_numa.core.numa.exclusive import Exclusivity
from koord_numa.core.numa.hints import Hint, numa_ids
from koord_numa.core.numa.policies import Decision, decide_koordinator
from koord_numa.core.request import PodKey
from koord_numa.core.score.strategy import Strategy
from koord_numa.core.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    ScoringType,
)
from tests.conformance.deviations import Deviation
from tests.conformance.vectors import Case, Oracle
from tests.machines import machine_from_topo

SPLIT_ORDER: Final = "split-order"
WHOLE_SHARES: Final = "whole-cpu-shares"


@dataclass(frozen=True, slots=True)
class Question:
    """One pod before one node, and what is asked: hints, an allocation on a mask, or all of it."""

    what: str
    need: Need
    inventory: Inventory
    ledger: Ledger
    books: Books
    exclusive: NumaExclusive
    mask: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Ours, and what it was made from."""

    question: Question
    offers: Offers
    hints: Mapping[str, list[Hint]]
    merged: Decision | None
    elected: Decision | None
    allocated: Given | Short | None


def load(case: Case) -> Question:
    """
    The question of a case, without what upstream's answers know nothing of.

    That is: pods without NUMA amounts, `Preferred`, the downgrade of NUMANodeLevel, and an even distribution.
    """
    given = case["in"]
    machine = machine_from_topo(given["topo"])
    ratios = given.get("amplification") or {}
    reserved = CpuSet.parse(given.get("reserved", ""))
    request = given["request"]
    binding = Binding(
        policy=CpuBindPolicy(request["bind"]),
        required=request["required"],
        exclusive=_exclusive(request["excl"]),
        downgrade=Downgrade.NONE,
    )
    strategy = NumaAllocateStrategy(given.get("label_strategy") or given["strategy"])
    if strategy is NumaAllocateStrategy.DISTRIBUTE_EVENLY:
        strategy = NumaAllocateStrategy.LEAST_ALLOCATED  # what the name means upstream
    numa_score = given.get("numa_score")
    exclusive = NumaExclusive(given.get("exclusive", ""))
    return Question(
        what=given["fn"],
        need=Need(
            amounts=request["res"],
            binding=binding if request["cpu_bind"] else None,
            policy=NumaPolicy(given.get("policy", "")),
            strategy=strategy,
            scoring=Strategy(ScoringType(numa_score["type"]), numa_score["weights"]) if numa_score else None,
            accounting=Accounting.RECORDED_AMOUNTS,
            ratio=ratios.get(CPU, 1),
        ),
        inventory=Inventory(
            node="n",
            machine=machine,
            zones=tuple((zone["node"], amplify_all(zone["res"], ratios)) for zone in given["numa"]),
            reserved=reserved,
            ratios=ratios,
        ),
        ledger=Ledger.of(_holding(index, pod) for index, pod in enumerate(given["pods"])),
        books=Books(Accounting.RECORDED_AMOUNTS, given["max_ref"]),
        exclusive=exclusive if exclusive is NumaExclusive.REQUIRED else NumaExclusive.NONE,
        mask=given.get("mask"),
    )


def answer(question: Question) -> Answer:
    """What we decide."""
    books, need = question.books, question.need
    room = offers(
        need,
        accounts(question.inventory, question.ledger, books),
        cpu_occupancy(question.ledger, books.references),
    )
    if question.what == "allocate":
        return Answer(question, room, {}, None, None, place(need, room, question.mask))
    exclusivity = Exclusivity(question.exclusive, numa_occupancy(question.ledger, question.inventory.machine))
    generated = hints(need, room, exclusivity)
    if question.what == "hints":
        return Answer(question, room, generated, None, None, None)
    merged = decide_koordinator(need.policy, [generated], room.mask, exclusivity)
    elected = elect(need, room, exclusivity)
    allocated = place(need, room, elected.hint.mask) if elected.admitted else None
    return Answer(question, room, generated, merged, elected, allocated)


def agrees(case: Case, found: Answer) -> str | None:
    """Recorded and ours alike: hints, the elected set, amounts and CPUs; what was elected is what a merge of all hints gives."""
    out = case["out"]
    if found.question.what != "allocate":
        ours = {
            name: [[h.mask, int(h.preferred), int(h.unsatisfied), h.score] for h in h_]
            for name, h_ in found.hints.items()
        }
        if ours != out["hints"]:
            return f"hints: recorded {out['hints']}, ours {ours}"
    if found.elected is not None and found.merged is not None:
        best, merged = out["best"], found.merged
        recorded = (best["mask"], best["preferred"], best["unsatisfied"], best["score"], best["admit"])
        if recorded != (*_fields(merged.hint), merged.admitted):
            return f"merge: recorded {recorded}, ours {merged}"
        if difference := _election_differs(found.elected, merged):
            return difference
    return None if _recorded(out) == _ours(found) else f"allocation: recorded {_recorded(out)}, ours {_ours(found)}"


def split_in_another_order(case: Case, found: Answer) -> bool:
    """The row `split-order`: positions and NUMA ids disagree on some set that matters, and our answer obeys the rule."""
    return _follows(case, found, lambda mask: not _orders_agree(found.offers, mask))


def split_in_whole_cpus(case: Case, found: Answer) -> bool:
    """The row `whole-cpu-shares`: some NUMA node has a part of a CPU (or core) free, and our answer obeys the rule."""
    return _follows(
        case, found, lambda mask: _has_broken_cpus(found, mask) or not _orders_agree(found.offers, mask)
    ) and any(_has_broken_cpus(found, mask) for mask in _all_masks(found.offers))


def _follows(case: Case, found: Answer, doubtful: Callable[[int], bool]) -> bool:
    """Does our answer differ on doubtful sets only, and fit exactly when it can, split evenly?"""
    if found.allocated is not None and not _obeys(found):
        return False
    if found.question.what == "allocate":
        return found.question.mask is not None and doubtful(found.question.mask)
    masks = _all_masks(found.offers)
    certain = {mask for mask in masks if not doubtful(mask)}
    for name, recorded in case["out"]["hints"].items():
        theirs = {hint[0] for hint in recorded}
        ours = {hint.mask for hint in found.hints[name]}
        if theirs & certain != ours & certain:
            return False
        if any((mask in ours) != (_can(found, mask) and not mask & found.offers.lacking[name]) for mask in masks):
            return False
    if found.elected is not None and found.merged is not None and _election_differs(found.elected, found.merged):
        return False
    return len(certain) < len(masks)


def _has_broken_cpus(found: Answer, mask: int) -> bool:
    """Is there, for a pod with own CPUs, a rest on the set that makes no whole CPU (or core, where required)?"""
    room = found.offers
    if found.question.need.binding is None or CPU not in room.given:
        return False
    members = [at for at, numa in enumerate(room.numa_ids) if mask >> numa & 1]
    return any(room.given[CPU][at] % room.units[CPU] for at in members)


def _election_differs(elected: Decision, merged: Decision) -> str | None:
    if elected.admitted != merged.admitted or (merged.admitted and elected.hint != merged.hint):
        return f"elected {elected}, merged {merged}"
    return None


def _fields(hint: Hint) -> tuple[int | None, bool, bool, int]:
    return (hint.mask, hint.preferred, hint.unsatisfied, hint.score)


def _recorded(out: Mapping[str, Any]) -> object:
    alloc = out.get("alloc")
    if alloc is None:
        return None
    if alloc["code"] != "Success":
        reasons = [r for r in alloc["reasons"] if r.startswith("Insufficient NUMA")]
        return tuple(r.removeprefix("Insufficient NUMA ") for r in reasons)
    return (alloc["cpus"], [(entry["node"], entry["res"]) for entry in alloc["numa"]])


def _ours(found: Answer) -> object:
    if found.question.what == "hints":
        return None
    if not isinstance(found.allocated, Given):
        return found.allocated.resources if found.allocated else ()
    return (str(found.allocated.cpus), [(numa, dict(amounts)) for numa, amounts in found.allocated.numa])


def _all_masks(room: Offers) -> list[int]:
    ids = room.numa_ids
    return [sum(1 << i for i in chosen) for size in range(1, len(ids) + 1) for chosen in combinations(ids, size)]


def _orders_agree(room: Offers, mask: int) -> bool:
    """Do positions and NUMA ids put the members of the set into the same order, for every resource?"""
    ids = list(numa_ids(mask))
    for name in room.given:
        free = dict(zip(room.numa_ids, room.free[name], strict=True))
        if _by_position(ids, free) != sorted(ids, key=lambda numa: free.get(numa, 0)):
            return False
    return True


def _by_position(ids: Sequence[int], free: Mapping[int, int]) -> list[int]:
    order = list(ids)
    for i in range(1, len(order)):
        j = i
        while j > 0 and free.get(j, 0) < free.get(j - 1, 0):
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    return order


def _can(found: Answer, mask: int) -> bool:
    """
    Does the request fit on the set? Its plain sums decide, and for CPUs of its own each even share must be there as CPUs.

    Amounts and CPUs disagree where a pod holds CPUs and no amounts; here, as upstream, shares follow the amounts.
    """
    room, need = found.offers, found.question.need
    members = [at for at, numa in enumerate(room.numa_ids) if mask >> numa & 1]
    for name, given in room.given.items():
        unit = room.units[name]
        if need.amounts[name] % unit or sum(given[at] // unit * unit for at in members) < need.amounts[name]:
            return False
    if need.binding is None:
        return True
    shares = _fill(need.amounts[CPU] // room.units[CPU], {at: room.given[CPU][at] // room.units[CPU] for at in members})
    return all(share * room.units[CPU] <= MILLI * room.cpus[at] for at, share in shares.items())


def _fill(units: int, free: Mapping[int, int]) -> dict[int, int]:
    """From who has least free upwards, each an equal part of the rest or all it has."""
    shares = dict.fromkeys(free, 0)
    order = sorted(free, key=lambda at: free[at])
    for index, at in enumerate(order):
        shares[at] = min(free[at], units // (len(order) - index))
        units -= shares[at]
    return shares


def _obeys(found: Answer) -> bool:
    """What was allocated is whole, and as even as what is free allows: nobody has less than another without being empty."""
    mask = found.question.mask if found.elected is None else found.elected.hint.mask
    room, need = found.offers, found.question.need
    if mask is None:
        return False
    if isinstance(found.allocated, Short):
        return not _can(found, mask)
    assert found.allocated is not None
    shares = dict(found.allocated.numa)
    for name, given in room.given.items():
        unit = room.units[name]
        got = {n: shares.get(n, {}).get(name, 0) for n in numa_ids(mask)}
        free = dict(zip(room.numa_ids, given, strict=True))
        if sum(got.values()) != need.amounts[name] or any(got[n] > free.get(n, 0) for n in got):
            return False
        full = {n for n in got if free.get(n, 0) // unit * unit <= got[n]}
        others = [amount for n, amount in got.items() if n not in full]
        if others and (max(got.values()) - min(others)) > unit * len(got):
            return False
    return True


def _holding(index: int, pod: Mapping[str, Any]) -> Holding:
    return Holding(
        pod=PodKey("ns", f"pod-{index}", f"uid-{index}"),
        amounts={},
        cpus=CpuSet.parse(pod.get("cpus", "")),
        exclusive=_exclusive(pod.get("excl", "")),
        numa=tuple((entry["node"], entry["res"]) for entry in pod.get("numa") or ()),
    )


def _exclusive(text: str) -> CpuExclusivePolicy:
    return CpuExclusivePolicy("" if text == "None" else text)


ORACLE = Oracle(
    "koord-rm",
    load,
    answer,
    agrees,
    (Deviation(SPLIT_ORDER, split_in_another_order), Deviation(WHOLE_SHARES, split_in_whole_cpus)),
)
