"""
What init containers may still hold where a pod came that needed some of the CPUs that they hold or have left.

Theory. A loose CPU is free or held by one of its owners. A pod that has room only if some of them are free takes CPUs of a *place*, one
NUMA node or, where nothing is aligned, the machine; which ones, no hypothesis knows. So as many as were loose, and are not needed, may
still be held, in the place of any CPUs that are free there. A pod with CPUs of several NUMA nodes joins these to one place: what it has
less of one it has more of another.

Example: without alignment one CPU is free on NUMA node 1 and 2 are loose on NUMA node 0. A pod of 2 has room if one of these is free.
Replayed with both free it gets both; in truth it may have got one of them and the one of NUMA node 1, and none is free then.
"""

from collections.abc import Mapping, Sequence

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, held_by_init
from koord_numa.core.kubelet.inference.variants import holding
from koord_numa.core.kubelet.spreading.owners import Owners, may_share, owners_of
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise, places_of, reached
from koord_numa.core.value_objects import replace


def still_held(before: Hypothesis, given: int, after: Hypothesis, uid: str) -> Hypothesis:
    """The hypothesis ``after`` this pod came, with those loose again that were taken to be free, ``given``, and that it did not need."""
    if not given:
        return after
    more: dict[str, int] = {}
    for place in _joined(after, uid):
        if not given & place:
            continue
        owners, free = _instead(owners_of(before, given & place), after, place)
        own = after.loose.get(uid, 0) & place
        everyone = frozenset[str]().union(*owners)
        if len(owners) > len(free) and may_share(after, everyone | {uid} if own else everyone):
            # Any of them are held, in the place of what the pod's own init containers may hold, too.
            pool = sum(1 << cpu for cpu in free) | lowest(own, min(own.bit_count(), len(owners) - len(free)))
            owners, free = [everyone] * pool.bit_count(), [*members(pool)]
        for each, cpu in zip(owners, free, strict=False):
            for owner in sorted(each):
                more[owner] = more.get(owner, 0) | 1 << cpu
    return holding(after, more)


def stands_for(one: Hypothesis, given: int, after: Hypothesis, uid: str) -> bool:
    """
    Is what is open ``after`` the pod came open in the hypothesis, too, which has the same outcome?

    So it is where all that was taken to be free, ``given``, may be held again, and the pod's own init containers hold no more than there.
    """
    mine, theirs = one.loose.get(uid, 0), after.loose.get(uid, 0)
    free = after.state.managers.cpus
    return all(
        (theirs & place).bit_count() <= (mine & place).bit_count()
        and (given & place).bit_count() <= (free & place).bit_count()
        for place in places_of(one.state.node)
    )


def equally_sure(one: Hypothesis, other: Hypothesis, uid: str) -> tuple[Hypothesis, Hypothesis]:
    """
    Both with no more surely held by the init containers of this pod, which has the same outcome in both, than in either: the rest is loose.

    Of the two only one is followed. Where more was free before the pod came its app may have got an init container's CPU again, and where
    less was, one of another NUMA node beyond its hint: no topology tells which. What is loose is held or free, so that each still stands
    for all that it stood for, and with the most that is held in either for what the other has surely held.
    """
    mine, theirs = _surely_held(one, uid), _surely_held(other, uid)
    if mine == theirs:
        return one, other
    places = _joined(one, uid)
    return _with_less(one, mine, theirs, uid, places), _with_less(other, theirs, mine, uid, places)


def _surely_held(one: Hypothesis, uid: str) -> int:
    pod = one.state.pods.get(uid)
    return held_by_init(pod.grant) & ~one.loose.get(uid, 0) if pod is not None else 0


def _with_less(one: Hypothesis, held: int, most: int, uid: str, places: Sequence[int]) -> Hypothesis:
    """With no more of the CPUs ``held`` surely so than there are of ``most`` in the same place."""
    loose = 0
    for place in places:
        loose |= lowest(held & place, max(0, (held & place).bit_count() - (most & place).bit_count()))
    return replace(one, loose={**one.loose, uid: one.loose.get(uid, 0) | loose}) if loose else one


def _joined(after: Hypothesis, uid: str) -> Sequence[int]:
    """The places, as bits of their CPUs, with those joined of which the pod has CPUs that may lie otherwise."""
    node, pod = after.state.node, after.state.pods.get(uid)
    places = places_of(node)
    for one in pod.grant.containers if pod is not None and len(places) > 1 else ():
        if may_lie_otherwise(one, node):
            near = sum(bits for numa, bits in node.machine.numa_bits.items() if reached(one, node) >> numa & 1)
            together = sum(place for place in places if place & near)
            places = (together, *(place for place in places if not place & near))
    return places


def _instead(loose: Mapping[int, Owners], after: Hypothesis, place: int) -> tuple[list[Owners], list[int]]:
    """The owners of these CPUs, and for as many of them as there are one that is free, of the same NUMA node where it can be."""
    owners, free, rest = list[Owners](), list[int](), list[Owners]()
    room = after.state.managers.cpus & place
    for here in after.state.node.machine.numa_bits.values():
        near = [each for cpu, each in loose.items() if here >> cpu & 1]
        taken = lowest(room & here, len(near))
        room &= ~taken
        owners += near[: taken.bit_count()]
        free += members(taken)
        rest += near[taken.bit_count() :]
    return owners + rest, [*free, *members(lowest(room, len(rest)))]
