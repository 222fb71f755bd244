"""
No more CPUs held by init containers than these have asked for.

Theory. A loose CPU is of one of its owners or free, and what a pod's init containers hold beside those of later ones is no more than all of
them asked for together. So not all loose CPUs are held where their owners are few: what is held is a matching of CPUs with owners, each of
which has no more than it may. Each is part of a matching that no CPU can be added to, so that with these as what may be held every state is
told in which some of it is free, whichever pods leave.

Example: init containers of pods a and b asked for 2 CPUs each, of which one is surely held. On NUMA node 0 two CPUs are loose and one on
NUMA node 1, each of a or b: one of the three at least is free, on either NUMA node.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis, held_by_init
from koord_numa.core.kubelet.inference.variants import freed
from koord_numa.core.kubelet.spreading.owners import Owners, owners_of
from koord_numa.core.kubelet.spreading.places import places_of
from koord_numa.core.kubelet.state import AdmittedPod
from koord_numa.core.objects.vocabulary import ContainerKind

FEW_WAYS: Final = 8
"""Where what is held may be left in more ways, all of it counts as long as that leaves room enough."""

MOST_WAYS: Final = 64
"""Where it may be left in more ways, all of it counts."""

MOST_TRIED: Final = 200
"""So many numbers of held CPUs are tried at most."""


def within_requests(one: Hypothesis, has_room: Callable[[Hypothesis], bool] | None = None) -> Sequence[Hypothesis]:
    """
    The hypothesis with as many loose CPUs held as may be together: in each way in which that may be, or as it is.

    ``has_room`` tells whether many ways need not be looked at, as all of them leave more room than that which it is given.
    """
    if not one.loose or SOMEONE in one.loose:
        return (one,)
    owners = owners_of(one)
    most = {uid: _most(one.state.pods[uid], bits) for uid, bits in one.loose.items()}
    excess = len(owners) - _held(owners, most)
    if not excess:
        return (one,)
    found = list[int]()
    for free in _chosen(_alike(one, owners), excess):
        if len(found) > MOST_WAYS:
            return (one,)
        # All matchings that no CPU can be added to have as many.
        if _held({cpu: uids for cpu, uids in owners.items() if not free >> cpu & 1}, most) == len(owners) - excess:
            found.append(free)
    if not found:
        return (one,)
    if len(found) > FEW_WAYS and (has_room is None or has_room(one)):
        return (one,)
    return [freed(one, bits) for bits in found]


def _alike(one: Hypothesis, owners: Mapping[int, Owners]) -> list[list[int]]:
    """The loose CPUs, those together that are in one place and have the same owners: which of them is held makes no difference."""
    found: dict[tuple[int, Owners], list[int]] = {}
    for at, here in enumerate(places_of(one.state.node)):
        for cpu in owners:
            if here >> cpu & 1:
                found.setdefault((at, owners[cpu]), []).append(cpu)
    return list(found.values())


def _chosen(alike: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    """So many CPUs, as bits, in each way in which that makes a difference; none where these are too many."""
    found = [(0, count)]
    left = sum(map(len, alike))
    for each in alike:
        left -= len(each)
        found = [
            (bits | sum(1 << cpu for cpu in each[:some]), more - some)
            for bits, more in found
            for some in range(max(0, more - left), min(len(each), more) + 1)
        ]
        if len(found) > MOST_TRIED:
            return ()
    return [bits for bits, _ in found]


def _most(pod: AdmittedPod, loose: int) -> int:
    """So many of its loose CPUs may the pod's init containers hold at most."""
    if pod.demand is None:
        return loose.bit_count()
    asked = sum(part.cpus for container, part in pod.demand.containers if container.kind is ContainerKind.INIT)
    return max(0, asked - (held_by_init(pod.grant) & ~loose).bit_count())


def _held(owners: Mapping[int, Owners], most: Mapping[str, int]) -> int:
    """How many of these CPUs may be held at once, by augmenting paths."""
    holds: dict[str, list[int]] = {uid: [] for uid in most}

    def finds(cpu: int, tried: set[str]) -> bool:
        for uid in sorted(owners[cpu] - tried):
            tried.add(uid)
            if len(holds[uid]) < most[uid]:
                holds[uid].append(cpu)
                return True
            for other in holds[uid]:
                if finds(other, tried):
                    holds[uid][holds[uid].index(other)] = cpu
                    return True
        return False

    return sum(finds(cpu, set()) for cpu in owners)
