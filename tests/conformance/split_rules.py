"""
What must hold where Koordinator's split of an amount over NUMA nodes is not ours to match.

Where an allocation spans NUMA nodes, Koordinator serves them in an order that compares positions in the list instead of
NUMA ids, and hands out broken CPUs to pods that need whole ones. Where that can matter, a request must fit exactly when it
can and be split evenly (rows `split-order` and `whole-cpu-shares` of the deviations); everywhere else answers are alike.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from koord_numa.core.allocation.need import Offers
from koord_numa.core.allocation.place import Short
from koord_numa.core.amounts import CPU, MILLI
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.numa.policies import Decision
from tests.conformance.koord_rm_cases import Answer
from tests.conformance.vectors import Case


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
    if found.elected is not None and found.merged is not None and election_differs(found.elected, found.merged):
        return False
    return len(certain) < len(masks)


def _has_broken_cpus(found: Answer, mask: int) -> bool:
    """Is there, for a pod with own CPUs, a rest on the set that makes no whole CPU (or core, where required)?"""
    room = found.offers
    if found.question.need.binding is None or CPU not in room.given:
        return False
    members = [at for at, numa in enumerate(room.numa_ids) if mask >> numa & 1]
    return any(room.given[CPU][at] % room.units[CPU] for at in members)


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


def election_differs(elected: Decision, merged: Decision) -> str | None:
    if elected.admitted != merged.admitted or (merged.admitted and elected.hint != merged.hint):
        return f"elected {elected}, merged {merged}"
    return None
